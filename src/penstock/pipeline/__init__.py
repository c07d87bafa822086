"""The pipeline: a Spark driver that leases flushes from a server, delivers them, and owns nothing."""
