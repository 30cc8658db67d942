"""Nodes of incremental plans: operators whose inputs and results are deltas (rows with weights)."""
