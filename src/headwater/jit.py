"""The decorator for loops that numba compiles (JIT).

Imported only by modules that have such loops: numba takes half a second to load.
"""

from collections.abc import Callable
from typing import Any

import numba


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled when it is first called, and cached: beside its file, or in the user's cache
    directory, or where NUMBA_CACHE_DIR says. A process that can write to none of
    them compiles for itself.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:  # "no locator available"
        return numba.njit(nogil=True)(function)
