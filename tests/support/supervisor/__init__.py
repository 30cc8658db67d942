"""Helpers of the tests of supervisor."""
