"""Rows by key and time."""

import numpy as np
import numpy.typing as npt


def by_key_and_time(
    key: npt.NDArray[np.int64], time_us: npt.NDArray[np.int64]
) -> npt.NDArray[np.intp]:
    """Their order; what is equal in both stays as it was. Keys are numbers from 0."""
    if not len(key):
        return np.empty(0, np.intp)
    earliest = int(time_us.min())
    span = int(time_us.max()) - earliest + 1
    if (int(key.max()) + 1) * span < 2**63:  # one sort instead of two
        return np.argsort(key * span + (time_us - earliest), kind="stable")
    return np.lexsort((time_us, key))
