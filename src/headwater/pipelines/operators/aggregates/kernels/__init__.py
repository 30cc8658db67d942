"""Numba kernels of the aggregates. Values are never null."""
