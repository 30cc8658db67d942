"""Helpers of the tests of the gateway."""
