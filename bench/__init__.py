"""Side-by-side benchmarks: Penstock beside NATS JetStream and Valkey. Run with `python -m bench`."""
