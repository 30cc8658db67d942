"""Rows of all stores: validation, last row by key, schema evolution, JSON and SQL literals."""
