"""Helpers of the tests of broker."""
