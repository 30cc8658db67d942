"""Headwater keeps every derived store in step with the databases it comes from, through one log."""

__version__ = "0.1.0"
