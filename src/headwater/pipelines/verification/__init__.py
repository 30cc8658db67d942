"""Proof that stores and captured topics are what the log and the database say."""
