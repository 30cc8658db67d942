"""Verification: stores compared with the log, captured topics with their tables."""
