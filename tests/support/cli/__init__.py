"""Helpers of the tests of cli."""
