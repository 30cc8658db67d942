"""Joins: stream with stream, stream with table, table with table, and lookups."""
