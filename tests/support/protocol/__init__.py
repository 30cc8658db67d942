"""Helpers of the tests of protocol."""
