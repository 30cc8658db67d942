"""Rows as documents: for stores that keep each row as one JSON object under one key.

id        the key's text; of several columns a JSON array: ["eu",17]
document  {"column": value, …} as `json_text` writes it, the key's columns too
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import RowRefused, StoreRefused
from headwater.sinks import json_text
from headwater.sinks.contract import DELETE, OP, TRUNCATE, Refuse
from headwater.sinks.evolving import fitted
from headwater.sinks.reducing import reduce

# What ISO 8601 has words for, and any reader understands: the years 1 to 9999.
_FIRST_S: Final = -62_135_596_800
_END_S: Final = 253_402_300_800


@dataclass(frozen=True, slots=True)
class Documents:
    """What a batch comes to: remove all if `clears`, remove `deletes`, then write the others."""

    clears: bool
    deletes: pa.Array  # ids, as large_string
    ids: pa.Array  # the same; of rows without a key none
    documents: pa.Array  # large_binary
    rows: pa.Table  # that the documents were made of


def documents_of(
    rows: pa.Table,
    key: Sequence[str],
    fields: pa.Schema,
    refuse: Refuse | None,
    id_bytes: tuple[int, int] = (0, 1 << 29),
) -> Documents:
    """Raises RowRefused for a row that has no id, or none that the store could take, or a time that
    JSON's readers could not; with `refuse` tells of all those, and leaves them out.
    """
    refused: list[RowRefused] = []
    reduced = reduce(_with_readable_times(rows, refused), key, refused)
    upserts, deletes = reduced.upserts, reduced.deletes
    ids = removed = pa.array([], pa.large_string())
    if key:
        ids, removed = ids_of(upserts, key), ids_of(deletes, key)
        removed = removed.filter(_has_size(removed, *id_bytes))
        fits = _has_size(ids, *id_bytes)
        refused += [
            RowRefused(
                f"a row's key does not have {id_bytes[0]} to {id_bytes[1]} bytes",
                row=row,
                column=key[0],
                hint="choose another key, or a hash of this one",
            )
            for row in upserts.filter(pc.invert(fits)).to_pylist()
        ]
        upserts, ids = upserts.filter(fits), ids.filter(fits)
    if refused:
        if refuse is None:
            raise refused[0]
        refuse(refused)
    kept = fitted(upserts, fields)
    return Documents(reduced.clears, removed, ids, _json(kept), kept)


def check_types(fields: pa.Schema) -> None:
    """Raises StoreRefused for a column that JSON has no words for."""
    for field in fields:
        try:
            json_text.objects([pa.array([], field.type)], [field.name])
        except StoreRefused as error:
            raise StoreRefused(
                f"column {field.name} has a type that JSON cannot tell",
                detail=error.detail,
                hint="cast it, or leave it out",
            ) from None


def ids_of(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    columns = [_whole(rows[name]) for name in key]
    if len(columns) > 1:
        parts = [(b"," if number else b"[", column) for number, column in enumerate(columns)]
        return json_text.joined(len(rows), parts, b"]").cast(pa.large_string())
    texts = json_text.joined(len(rows), [(b"", columns[0])], b"")
    if _is_text(columns[0].type):
        return columns[0].cast(pa.large_string())
    return pc.utf8_trim(texts.cast(pa.large_string()), '"')  # a time has quotes, and no others


def _json(rows: pa.Table) -> pa.Array:
    return json_text.objects([_whole(column) for column in rows.columns], rows.column_names)


def _with_readable_times(rows: pa.Table, refused: list[RowRefused]) -> pa.Table:
    for name in rows.column_names:
        is_outside = _is_outside(rows[name])
        if is_outside is None:
            continue
        if OP in rows.column_names:
            has_row = pc.invert(pc.is_in(rows[OP], pa.array([DELETE, TRUNCATE])))
            is_outside = pc.and_(is_outside, has_row)
        refused += [
            RowRefused(
                f"{name} of a row lies outside of the years 1 to 9999",
                row=row,
                column=name,
                hint="filter such rows out, or clip the time",
            )
            for row in _as_numbers(rows.filter(is_outside)).to_pylist()
        ]
        rows = rows.filter(pc.invert(is_outside))
    return rows


def _as_numbers(rows: pa.Table) -> pa.Table:
    """Python has no such times either."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_temporal(field.type):
            width = pa.int32() if field.type == pa.date32() else pa.int64()
            rows = rows.set_column(at, field.name, rows.column(at).cast(width))
    return rows


def _is_outside(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """None: no value is."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    if not pa.types.is_timestamp(column.type):
        return None
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    first, end = (min(max(s * scale, -(2**63)), 2**63 - 1) for s in (_FIRST_S, _END_S))
    moments = column.cast(pa.int64())
    least, most = pc.min_max(moments).values()
    if not least.is_valid or (first <= least.as_py() and most.as_py() < end):
        return None
    is_outside = pc.or_(pc.less(moments, first), pc.greater_equal(moments, end))
    return pc.fill_null(is_outside, fill_value=False)


def _has_size(ids: pa.Array, shortest_bytes: int, longest_bytes: int) -> pa.Array:
    sizes = pc.binary_length(ids)
    return pc.and_(pc.greater_equal(sizes, shortest_bytes), pc.less_equal(sizes, longest_bytes))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
