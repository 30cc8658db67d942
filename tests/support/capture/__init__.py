"""Helpers of the tests of capture."""
