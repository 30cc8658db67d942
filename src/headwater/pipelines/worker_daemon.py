"""The process that Spark forks Python workers from, with their imports done.

Spark starts `python -m MODULE pyspark.worker` once and asks it for a worker whenever a task needs
one. Spark's own module imports nothing beforehand, so every worker imports Arrow, numba and our
operators again: most of a second of CPU, and memory of its own, where a fork shares both.
"""

import gc
import importlib

from pyspark.daemon import manager

# None of them starts a thread that a fork would lose, except jemalloc's (in Arrow), which it starts
# again in the child.
_IMPORTS = (
    "pyspark.worker",
    "numpy",
    "pandas",
    "pyarrow.compute",
    "headwater.pipelines.operators.runtime.planning",
    "headwater.pipelines.source.data_source",
)

if __name__ == "__main__":
    for name in _IMPORTS:
        importlib.import_module(name)
    gc.freeze()  # a collection in a worker would write to the pages that it shares
    manager()
