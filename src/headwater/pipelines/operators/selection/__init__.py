"""Operators that select rows: the first of each key, the top rows of a group."""
