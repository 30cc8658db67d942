"""Helpers of the tests of console."""
