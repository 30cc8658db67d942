"""Joins: stream with stream, stream with table (as of), table with table, and lookups."""
