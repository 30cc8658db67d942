"""Helpers of the tests of log."""
