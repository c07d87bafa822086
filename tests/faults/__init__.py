"""Tests with disks that fail, power that goes and processes that are killed."""
