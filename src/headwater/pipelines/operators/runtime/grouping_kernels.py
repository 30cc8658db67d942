"""The loop of numbering, compiled by numba."""

import numpy as np

from headwater.jit import kernel


@kernel
def number_codes(codes, limit):
    """Codes are below the limit; they are numbered in the order in which they are met."""
    place = np.full(limit, -1, np.int64)
    numbered = np.empty(len(codes), np.int64)
    count = 0
    for row in range(len(codes)):
        code = codes[row]
        if place[code] < 0:
            place[code] = count
            count += 1
        numbered[row] = place[code]
    return numbered, count
