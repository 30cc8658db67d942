"""The loops of compaction that this installation has: compiled by numba, else plain Python.

Both give the same bytes. An installation without the extra `fast` (or `pipelines`) has no numba;
its broker compacts, too, at a small fraction of the speed (docs/dependencies.md).
"""

from importlib import import_module
from typing import Any

from headwater import extras

IS_COMPILED = extras.is_installed("numba")
kernels: Any = import_module(
    f"headwater.log.compaction.{'kernels' if IS_COMPILED else 'plain_loops'}"
)
