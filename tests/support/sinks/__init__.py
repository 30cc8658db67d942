"""Helpers of the tests of sinks."""
