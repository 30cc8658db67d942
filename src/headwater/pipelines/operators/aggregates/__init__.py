"""Aggregates of windows: mergeable accumulators, sketches, and their kernels."""
