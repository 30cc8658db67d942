"""PostgreSQL column types, and Arrow columns to COPY's CSV and back, without a loop in Python.

Nested values are the exception. In CSV a null is empty, an empty text is "": Arrow and PostgreSQL
agree on that.
"""

import io
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from headwater.errors import RowRefused, StoreRefused, UsageError
from headwater.sinks.rows.nested import from_json, is_nested, to_json
from headwater.sinks.selection import Dialect
from headwater.sinks.sql_positions import quoted, without

_TYPES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
    pa.time64("us"): "time",
    pa.null(): "text",
}
_SLICE_ROWS: Final = 16_384
_WRITE: Final = pa.csv.WriteOptions(include_header=False)


def column_type(field: pa.Field) -> str:
    if is_nested(field.type):
        return "jsonb"
    if pa.types.is_decimal128(field.type):
        return f"numeric({field.type.precision}, {field.type.scale})"
    if field.type not in _TYPES:
        raise StoreRefused(
            f"column {field.name} has a type that PostgreSQL cannot store",
            detail=str(field.type),
            hint="cast it in the pipeline",
        )
    return _TYPES[field.type]


def checked(rows: pa.Table, refused: list[RowRefused] | None) -> pa.Table:
    """Without rows that PostgreSQL cannot represent; raises the first if `refused` is None."""
    for field in rows.schema:
        if field.type == pa.string() and _may_hold_nul(rows[field.name]):
            has_nul = pc.match_substring(rows[field.name], "\0")
            rows = without(
                rows, has_nul, field.name, "PostgreSQL's text has no NUL characters", refused
            )
    return rows


def to_csv(rows: pa.Table) -> Iterator[bytes]:
    """For COPY … FROM STDIN (FORMAT csv), some rows at a time."""
    for at in range(0, len(rows), _SLICE_ROWS):
        piece = rows.slice(at, _SLICE_ROWS)
        columns = [_for_csv(piece[field.name], field.type) for field in rows.schema]
        out = io.BytesIO()
        pa.csv.write_csv(pa.Table.from_arrays(columns, rows.column_names), out, _WRITE)
        yield out.getvalue()


def to_literals(rows: pa.Table) -> Iterator[str]:
    """`('1', 'a', NULL)` for each row; only where the context determines the types."""
    columns = [
        [
            "NULL" if text is None else "'" + text.replace("'", "''") + "'"
            for text in _for_csv(rows[field.name], field.type).cast(pa.string()).to_pylist()
        ]
        for field in rows.schema
    ]
    for values in zip(*columns, strict=True):
        yield "(" + ", ".join(values) + ")"


def selected(field: pa.Field, column: str) -> str:
    """The expression for COPY … TO, in the format that `from_csv` reads."""
    return f"encode({column}, 'hex')" if field.type == pa.binary() else column


def from_csv(csv: bytes, fields: pa.Schema) -> pa.RecordBatch:
    """The rows that COPY … TO STDOUT (FORMAT csv) gave."""
    read = pa.csv.read_csv(
        io.BytesIO(csv),
        pa.csv.ReadOptions(column_names=fields.names, block_size=len(csv) + 1),
        pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        pa.csv.ConvertOptions(
            column_types=pa.schema(
                [pa.field(field.name, _csv_type(field.type)) for field in fields]
            ),
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).combine_chunks()
    columns = [_from_csv(read[field.name].combine_chunks(), field.type) for field in fields]
    return pa.RecordBatch.from_arrays(columns, schema=fields)


def _csv_type(type_: pa.DataType) -> pa.DataType:
    if is_nested(type_) or type_ in (pa.binary(), pa.null()):
        return pa.string()
    return type_


def _from_csv(column: pa.Array, type_: pa.DataType) -> pa.Array:
    if is_nested(type_):
        return from_json(column, type_)
    if type_ == pa.binary():
        return _from_hex(column)
    return pa.nulls(len(column)) if type_ == pa.null() else column


def _for_csv(column: pa.ChunkedArray, type_: pa.DataType) -> Any:
    if is_nested(type_):
        return to_json(column)
    if type_ == pa.binary():
        return pc.binary_join_element_wise("\\x", _to_hex(column), "")
    if type_ == pa.null():
        return column.cast(pa.string())
    if pa.types.is_timestamp(type_) and type_.tz:
        return column.cast(pa.timestamp("us"))  # the session is in UTC, too
    return column


def _to_hex(column: pa.ChunkedArray) -> pa.Array:
    values = column.combine_chunks()
    values = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    _, offsets, data = values.buffers()
    starts = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    first, last = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
    text = memoryview(data)[first:last].hex().encode() if data else b""
    made = pa.Array.from_buffers(
        pa.string(),
        len(values),
        [None, pa.py_buffer(((starts - first) * 2).astype(np.int32)), pa.py_buffer(text)],
    )
    return pc.if_else(values.is_valid(), made, pa.scalar(None, pa.string()))


def _from_hex(column: pa.Array) -> pa.Array:
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    first, last = int(starts[0]), int(starts[-1])
    binary = bytes.fromhex(memoryview(data)[first:last].tobytes().decode()) if data else b""
    made = pa.Array.from_buffers(
        pa.binary(),
        len(column),
        [None, pa.py_buffer(((starts - first) // 2).astype(np.int32)), pa.py_buffer(binary)],
    )
    return pc.if_else(column.is_valid(), made, pa.scalar(None, pa.binary()))


def _may_hold_nul(column: pa.ChunkedArray) -> bool:
    """Checks the buffer, which is much faster than checking the values."""
    for chunk in column.chunks:
        _, offsets, data = chunk.buffers()
        if data is None or not len(chunk):
            continue
        starts = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        if not np.frombuffer(data, np.uint8)[starts[0] : starts[-1]].all():
            return True
    return False


def _literal(value: pa.Array, parameters: list[Any]) -> str:
    """COPY takes no parameters. A text in quotes gets the type of what it is compared with."""
    text: str = _for_csv(pa.chunked_array([value]), value.type).cast(pa.string())[0].as_py()
    if "\0" in text:
        raise UsageError("PostgreSQL's text has no NUL characters")
    return "'" + text.replace("'", "''") + "'"


DIALECT: Final = Dialect("PostgreSQL", quoted, _literal, is_nested)
