"""Penstock: durable local streams and delivery streams, delivered by Spark."""

__version__ = "0.1.0"
