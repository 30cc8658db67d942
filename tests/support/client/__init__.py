"""Helpers of the tests of client."""
