"""Orders of rows by key, time and position in the log."""

import numpy as np
import numpy.typing as npt


def by_key_and_time(
    key: npt.NDArray[np.int64], time_us: npt.NDArray[np.int64]
) -> npt.NDArray[np.intp]:
    """A stable order. Keys are numbers from 0."""
    if not len(key):
        return np.empty(0, np.intp)
    earliest = int(time_us.min())
    span = int(time_us.max()) - earliest + 1
    if (int(key.max()) + 1) * span < 2**63:  # one sort instead of two
        return np.argsort(key * span + (time_us - earliest), kind="stable")
    return np.lexsort((time_us, key))


def by_key_time_and_position(
    key: npt.NDArray[np.int64],
    time_us: npt.NDArray[np.int64],
    partition: npt.NDArray[np.int64],
    offset: npt.NDArray[np.int64],
) -> npt.NDArray[np.intp]:
    """An order that is the same for the same rows, whichever came first."""
    order = by_key_and_time(key, time_us)
    key, time_us = key[order], time_us[order]
    is_equal = (key[1:] == key[:-1]) & (time_us[1:] == time_us[:-1])  # to the one before
    if is_equal.any():
        tied = np.flatnonzero(np.append(is_equal, False) | np.insert(is_equal, 0, False))
        run = np.cumsum(~np.insert(is_equal, 0, False))[tied]
        rows = order[tied]
        order[tied] = rows[np.lexsort((offset[rows], partition[rows], run))]
    return order
