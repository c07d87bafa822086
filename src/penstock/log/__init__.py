"""The durable log: frames in segments in streams, no asyncio and no network."""
