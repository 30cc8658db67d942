"""Arrow's types and values in SQLite, and back."""

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import RowRefused, StoreRefused
from headwater.sinks.rows.nested import is_nested
from headwater.sinks.rows.sql_literals import from_texts, to_texts
from headwater.sinks.selection import Dialect
from headwater.sinks.sql_positions import quoted, without


def column_type(field: pa.Field) -> str:
    """Raises StoreRefused if there is none."""
    type_ = field.type
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_) or pa.types.is_duration(type_):
        return "INTEGER"
    if pa.types.is_floating(type_):
        return "REAL"
    if pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return "BLOB"
    if pa.types.is_null(type_):
        return "ANY"  # its type may be decided later
    if pa.types.is_string(type_) or _is_text(type_):
        return "TEXT"
    raise StoreRefused(
        f"column {field.name} is {type_}, which SQLite cannot hold",
        hint="cast it in the pipeline, to text for example",
    )


def checked(rows: pa.Table, refused: list[RowRefused] | None) -> pa.Table:
    """Without the rows that SQLite would refuse, or store as another value."""
    for field in rows.schema:
        name, type_ = field.name, field.type
        if pa.types.is_floating(type_):
            rows = without(rows, pc.is_nan(rows[name]), name, "SQLite has no NaN", refused)
        elif pa.types.is_uint64(type_):
            is_bad = pc.greater(rows[name], pa.scalar(2**63 - 1, type_))
            rows = without(rows, is_bad, name, "beyond 2^63 - 1", refused)
    return rows


def to_stored(column: pa.Array) -> list[Any]:
    type_ = column.type
    if pa.types.is_boolean(type_):
        column = column.cast(pa.int8())
    elif pa.types.is_duration(type_):
        column = column.cast(pa.int64())
    elif _is_text(type_):
        column = to_texts(column)
        if pa.types.is_timestamp(type_) and type_.tz:
            column = pc.binary_join_element_wise(column, "Z", "")
    if not column.null_count and (pa.types.is_integer(column.type) or pa.types.is_float64(type_)):
        return column.to_numpy().tolist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def from_stored(column: Sequence[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(type_):
        return pa.array(column, pa.int8()).cast(type_)
    if pa.types.is_duration(type_):
        return pa.array(column, pa.int64()).cast(type_)
    return from_texts(column, type_) if _is_text(type_) else pa.array(column, type_)


def _is_text(type_: pa.DataType) -> bool:
    """Whether SQLite stores the type as text."""
    return bool(
        pa.types.is_decimal(type_)
        or pa.types.is_date(type_)
        or pa.types.is_timestamp(type_)
        or pa.types.is_time(type_)
        or is_nested(type_)
    )


def _parameter(value: pa.Array, parameters: list[Any]) -> str:
    parameters += to_stored(value)
    return "?"


DIALECT: Final = Dialect("SQLite", quoted, _parameter, pa.types.is_decimal)
