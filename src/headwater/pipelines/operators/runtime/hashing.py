"""64-bit hashes of values (XXH64), the same in every process, on every machine, in every version.

They are stored in the state of pipelines, and in Bloom filters that stores hold.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pat

from headwater.pipelines.operators.aggregates.extremes import as_integers, is_integral
from headwater.pipelines.operators.runtime.hashing_kernels import hash_bytes, hash_words

Hashes = npt.NDArray[np.uint64]


def hashes(values: pa.Array) -> Hashes:
    """Values without nulls, of types that have an order (extremes.py). What is equal in SQL has
    the same hash: integers of all widths, 0.0 and -0.0, all NaNs.
    """
    kind = values.type
    found: Hashes
    if is_integral(kind):
        if pat.is_timestamp(kind):
            values = values.cast(pa.timestamp("us", kind.tz))
        found = hash_words(as_integers(values).view(np.uint64))
    elif pat.is_floating(kind):
        numbers = np.asarray(values.cast(pa.float64())) + 0.0
        numbers[np.isnan(numbers)] = np.nan
        found = hash_words(numbers.view(np.uint64))
    elif pat.is_decimal(kind):
        size_bytes = kind.bit_width // 8
        data = np.frombuffer(values.buffers()[1], np.uint8)
        offsets = (np.arange(len(values) + 1, dtype=np.int64) + values.offset) * size_bytes
        found = hash_bytes(data, offsets)
    else:
        wide = values.cast(pa.large_binary())
        _, ends, data = wide.buffers()
        offsets = np.frombuffer(ends, np.int64, len(wide) + 1, wide.offset * 8)
        found = hash_bytes(np.frombuffer(data or b"", np.uint8), offsets)
    return found


def family(kind: pa.DataType) -> int:
    """Of types whose equal values have equal hashes; less than 2¹⁶."""
    if pat.is_decimal(kind):
        return 1 | int(kind.scale) << 8
    return next((number for number, is_so in _FAMILIES.items() if is_so(kind)), 0)


_FAMILIES: Final = {  # 1 are decimals, 0 texts and binary
    2: pat.is_boolean,
    3: pat.is_signed_integer,
    4: pat.is_floating,
    5: pat.is_date,
    6: pat.is_timestamp,
    7: pat.is_duration,
}
