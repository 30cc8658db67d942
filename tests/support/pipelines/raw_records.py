"""Raw records as the source hands them to a decoder."""

from collections.abc import Sequence

import pyarrow as pa

AT_MS = 1_700_000_000_000
FIRST = 10  # the first offset


def raw(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[list[tuple[str, bytes | None]]] | None = None,
) -> pa.RecordBatch:
    count = len(values)
    columns = {
        "key": pa.array(keys or [None] * count, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "offset": pa.array(range(FIRST, FIRST + count), pa.int64()),
        "timestamp": pa.array([AT_MS] * count, pa.timestamp("ms", tz="UTC")),
    }
    if headers is not None:
        pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
        named = [[{"key": name, "value": value} for name, value in header] for header in headers]
        columns["headers"] = pa.array(named, pa.list_(pair))
    return pa.record_batch(columns)
