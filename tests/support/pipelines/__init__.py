"""Helpers of the tests of pipelines."""
