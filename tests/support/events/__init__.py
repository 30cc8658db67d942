"""Helpers of the tests of the event store."""
