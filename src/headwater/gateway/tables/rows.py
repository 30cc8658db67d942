"""Rows of a store as JSON.

int, bool            as they are             float       a number; null if it is NaN or infinite
text                 a string                decimal     a string: a number would be rounded
date, time           "2026-01-02", "03:04:05.000006"
timestamp            "2026-01-02T03:04:05.000006Z"; without "Z" if it has no time zone
bytes                base64                  duration    a number, in its unit
list, struct, map    arrays, and objects (the keys of a map as texts)
"""

from base64 import b64encode
from collections.abc import Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def as_json(batches: "Iterable[pa.RecordBatch]", columns: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {name: _value(value) for name, value in row.items()}
        for batch in batches
        for row in _plain(batch.select(list(columns)) if columns else batch).to_pylist()
    ]


def _plain(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Durations as numbers, in their unit."""
    import pyarrow as pa

    arrays = [
        column.cast(pa.int64()) if pa.types.is_duration(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)


def _value(value: Any) -> Any:
    match value:
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case bytes():
            return b64encode(value).decode()
        case dict():
            return {str(name): _value(one) for name, one in value.items()}
        case list():
            if value and all(isinstance(one, tuple) for one in value):  # a map
                return {str(name): _value(one) for name, one in value}
            return [_value(one) for one in value]
    return value
