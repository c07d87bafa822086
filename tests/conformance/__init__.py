"""The server as a client sees it: unmodified SDKs, and raw sockets for what the SDKs never send."""
