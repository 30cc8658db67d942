"""Joins of tables by their changes, and versioned tables in the state of operators."""
