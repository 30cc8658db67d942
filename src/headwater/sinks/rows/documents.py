"""Rows as documents, for stores that hold each row as one JSON object under one id.

id        the key's text; of several columns a JSON array: ["eu",17]
document  {"column": value, …} as `json_text` writes it, the key's columns too
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import RowRefused, StoreRefused
from headwater.sinks.contract import Refuse
from headwater.sinks.rows import json_text
from headwater.sinks.rows.last_by_key import reduce
from headwater.sinks.rows.row_validation import shown
from headwater.sinks.rows.schema_evolution import fitted


@dataclass(frozen=True, slots=True)
class Documents:
    """The effect of a batch: remove all if `clears`, remove `deletes`, then write the others."""

    clears: bool
    deletes: pa.Array  # ids, as large_string
    ids: pa.Array  # the same; of rows without a key none
    documents: pa.Array  # large_binary
    rows: pa.Table  # of the documents


def documents_of(
    rows: pa.Table,
    key: Sequence[str],
    fields: pa.Schema,
    refuse: Refuse | None,
    id_bytes: tuple[int, int] = (0, 1 << 29),
) -> Documents:
    """Raises RowRefused for a row that has no id, or one that the store does not support, or is not
    valid (last_by_key.py); with `refuse` all those are passed to it, and left out.
    """
    refused: list[RowRefused] = []
    reduced = reduce(rows, key, refused)
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
            for row in shown(upserts.filter(pc.invert(fits)))
        ]
        upserts, ids = upserts.filter(fits), ids.filter(fits)
    if refused:
        if refuse is None:
            raise refused[0]
        refuse(refused)
    rows = fitted(upserts, fields)
    return Documents(reduced.clears, removed, ids, _json(rows), rows)


def check_types(fields: pa.Schema) -> None:
    """Raises StoreRefused for a column that JSON cannot represent."""
    for field in fields:
        try:
            json_text.objects([pa.array([], field.type)], [field.name])
        except StoreRefused as error:
            raise StoreRefused(
                f"column {field.name} has a type that JSON cannot represent",
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


def _has_size(ids: pa.Array, shortest_bytes: int, longest_bytes: int) -> pa.Array:
    sizes = pc.binary_length(ids)
    return pc.and_(pc.greater_equal(sizes, shortest_bytes), pc.less_equal(sizes, longest_bytes))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole if isinstance(whole, pa.Array) else pa.concat_arrays(whole.chunks)
