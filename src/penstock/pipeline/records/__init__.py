"""Records of delivery streams on their way to their destination."""
