"""Aggregates of windows: accumulators that can be merged, and their kernels."""
