"""Tests of the log, rule by rule."""
