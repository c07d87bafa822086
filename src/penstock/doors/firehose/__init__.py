"""The Firehose door: HTTP, AWS JSON 1.1."""
