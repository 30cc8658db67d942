"""Helpers of the tests of clients."""
