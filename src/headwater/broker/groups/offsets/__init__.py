"""Committed offsets of groups: durable ones, and those of open transactions."""
