"""Delivery streams: what Firehose calls a stream, its configuration and its states, independent of any wire format."""
