"""Captured tables of a run: their stored states, and their copies (snapshots)."""
