"""Arrow types and values as MySQL column types and literals, and back.

Rows become text column by column, in Arrow: the driver's own conversion costs more than the
server's part of the work.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import RowRefused, StoreRefused
from headwater.sinks.rows.nested import is_nested
from headwater.sinks.rows.sql_literals import from_texts, to_texts
from headwater.sinks.selection import Dialect
from headwater.sinks.sql_positions import quoted, without

_KEY_BYTES: Final = 3072  # that an index of InnoDB may have (row format DYNAMIC)
_CHARACTER_BYTES: Final = 4  # of utf8mb4
_MAX_DIGITS: Final = 65
_MAX_SCALE: Final = 30
_INTEGERS: Final = {
    pa.bool_(): "tinyint(1)",
    pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.uint8(): "tinyint unsigned", pa.uint16(): "smallint unsigned",
    pa.uint32(): "int unsigned", pa.uint64(): "bigint unsigned",
}  # fmt: skip
_TEXT: Final = pa.large_binary()  # what literals are: utf8mb4, but for _binary'…'


def column_types(fields: pa.Schema, key: Sequence[str]) -> dict[str, str]:
    """By name. Raises StoreRefused for a column that MySQL has no type for.

    Texts and bytes of a key share what is left of the 3072 bytes that a key may have.
    """
    types = {field.name: _column_type(field) for field in fields}
    sizes = {"longtext": _CHARACTER_BYTES, "longblob": 1}
    long = [name for name in key if types[name] in sizes]
    rest = _KEY_BYTES - 16 * (len(key) - len(long))  # no other type has more, but decimals: 30
    rest -= 16 * sum(types[name].startswith("decimal") for name in key)
    for name in key:
        if is_nested(fields.field(name).type):
            raise StoreRefused(f"column {name} is {fields.field(name).type}: no part of a key")
        if name in long:
            length = rest // len(long) // sizes[types[name]]
            types[name] = f"var{'char' if types[name] == 'longtext' else 'binary'}({length})"
    return {name: f"{type_} NOT NULL" if name in key else type_ for name, type_ in types.items()}


def _column_type(field: pa.Field) -> str:
    type_ = field.type
    if type_ in _INTEGERS:
        return _INTEGERS[type_]
    if pa.types.is_floating(type_):
        return "double"  # `float` would be read back in six digits
    if (
        pa.types.is_decimal(type_)
        and type_.precision <= _MAX_DIGITS
        and 0 <= type_.scale <= _MAX_SCALE
    ):
        return f"decimal({max(type_.precision, type_.scale)}, {type_.scale})"
    if pa.types.is_string(type_) or pa.types.is_null(type_):
        return "longtext"
    if pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return "longblob"
    if pa.types.is_date(type_):
        return "date"
    if pa.types.is_timestamp(type_):
        return "datetime(6)"
    if pa.types.is_time(type_) and type_.unit != "ns":
        return "time(6)"
    if pa.types.is_duration(type_):
        return "bigint"
    if is_nested(type_):
        return "json"
    raise StoreRefused(
        f"column {field.name} is {type_}, which MySQL cannot hold",
        hint="cast it in the pipeline, to text for example",
    )


def checked(rows: pa.Table, types: dict[str, str], refused: list[RowRefused] | None) -> pa.Table:
    """Without the rows that the server would refuse."""
    for field in rows.schema:
        name, type_ = field.name, field.type
        if pa.types.is_floating(type_):
            is_bad = pc.invert(pc.is_finite(rows[name]))
            rows = without(rows, is_bad, name, "MySQL has neither NaN nor infinity", refused)
        elif types[name].startswith("var"):
            longest = int(types[name].partition("(")[2].partition(")")[0])
            lengths = pc.utf8_length if pa.types.is_string(type_) else pc.binary_length
            is_bad = pc.greater(lengths(rows[name]), longest)
            what = f"longer than a key can be here ({types[name]})"
            rows = without(rows, is_bad, name, what, refused)
    return rows


class RowTexts:
    """Rows as "(1,'a',NULL),", one behind the other in one buffer, so that any run of them can be
    sent as it lies there. With `labels`: "(`a`=1 AND `b`=2) OR".
    """

    def __init__(self, rows: pa.RecordBatch, labels: Sequence[bytes] = ()) -> None:
        columns = [_literals(column) for column in rows.columns]
        if labels:
            columns = [
                pc.binary_join_element_wise(_text(label), column, _text(b"="))
                for label, column in zip(labels, columns, strict=True)
            ]
        between, behind = (b" AND ", b") OR") if labels else (b",", b"),")
        self._behind = len(behind) - 1
        inner = pc.binary_join_element_wise(*columns, _text(between))
        self._texts = pc.binary_join_element_wise(_text(b"("), inner, _text(behind), _text(b""))
        offsets = np.frombuffer(self._texts.buffers()[1], np.int64)
        self.ends = offsets[self._texts.offset : self._texts.offset + len(rows) + 1]

    def __len__(self) -> int:
        return len(self._texts)

    def of(self, begin: int, end: int) -> memoryview:
        """The text of these rows, without the separator behind the last one."""
        buffer = memoryview(self._texts.buffers()[2])
        return buffer[self.ends[begin] : self.ends[end] - self._behind]

    def pieces(self, size_bytes: int, rows: int) -> Iterable[tuple[int, int]]:
        """Ranges of at most so many bytes and rows, but of one row at least."""
        begin = 0
        while begin < len(self):
            fits = int(np.searchsorted(self.ends, self.ends[begin] + size_bytes, "right")) - 1
            end = min(max(fits, begin + 1), begin + rows, len(self))
            yield begin, end
            begin = end


def _literals(column: pa.Array) -> pa.Array:
    type_ = column.type
    if pa.types.is_null(type_):
        column = column.cast(_TEXT)
    elif pa.types.is_boolean(type_):
        column = column.cast(pa.int8()).cast(pa.string()).cast(_TEXT)
    elif pa.types.is_integer(type_) or pa.types.is_duration(type_):
        column = column.cast(pa.int64() if pa.types.is_duration(type_) else type_)
        column = column.cast(pa.string()).cast(_TEXT)
    elif pa.types.is_floating(type_):
        column = column.cast(pa.float64()).cast(pa.string()).cast(_TEXT)
    elif pa.types.is_decimal(type_):
        column = to_texts(column).cast(_TEXT)
    elif pa.types.is_string(type_):
        column = _quoted(column, b"'")
    elif pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        column = _quoted(column.cast(pa.binary()), b"_binary'")
    else:
        column = _quoted(to_texts(column), b"'")
    return pc.fill_null(column, _text(b"NULL"))


def _quoted(column: pa.Array, mark: bytes) -> pa.Array:
    """As sql_mode without NO_BACKSLASH_ESCAPES reads it. Neither of the two bytes is ever a part of
    a character in utf8mb4.
    """
    escaped = pc.replace_substring(column.cast(_TEXT), b"\\", b"\\\\")
    escaped = pc.replace_substring(escaped, b"'", b"\\'")
    return pc.binary_join_element_wise(_text(mark), escaped, _text(b"'"), _text(b""))


def _text(text: bytes) -> pa.Scalar:
    return pa.scalar(text, _TEXT)


def from_stored(column: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """From text and bytes, as the server sends them."""
    if pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_) or pa.types.is_null(type_):
        return pa.array(column, type_)
    if pa.types.is_boolean(type_):
        return from_texts(column, pa.int8()).cast(type_)
    if pa.types.is_duration(type_):
        return from_texts(column, pa.int64()).cast(type_)
    return from_texts(column, type_)


def _literal(value: pa.Array, parameters: list[Any]) -> str:
    """As rows are written, too: results are streamed by statements without parameters."""
    literal: bytes = _literals(value)[0].as_py()
    return literal.decode()


DIALECT: Final = Dialect("MySQL", lambda name: quoted(name, "`"), _literal, is_nested)
