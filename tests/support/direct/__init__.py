"""Helpers of the tests of direct."""
