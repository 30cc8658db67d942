"""Stored queries and documents past them: how many documents a second one process matches."""
