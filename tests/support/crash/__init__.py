"""Helpers of the tests of crash."""
