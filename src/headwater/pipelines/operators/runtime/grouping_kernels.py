"""Numba kernel of `grouping`: dense numbers for codes below a limit."""

import numpy as np

from headwater.jit import kernel


@kernel
def number_codes(codes, limit):
    """Codes are below the limit; they are numbered in the order in which they first appear."""
    numbers = np.full(limit, -1, np.int64)
    numbered = np.empty(len(codes), np.int64)
    count = 0
    for row in range(len(codes)):
        code = codes[row]
        if numbers[code] < 0:
            numbers[code] = count
            count += 1
        numbered[row] = numbers[code]
    return numbered, count
