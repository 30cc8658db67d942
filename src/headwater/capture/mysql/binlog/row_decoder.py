"""Row decoders: Python code generated per table, from the rows of an event to dicts.

A row in the binlog is a bitmap of nulls and then the values, without gaps:

    WRITE, DELETE   row, row, …
    UPDATE          before, after, before, after, …

Neighbours of fixed size are read by one struct, the length of a text together with the columns in
front of it. For a row without nulls there is a path of its own. 6 columns: some 2 µs per row.

The code raises IndexError, ValueError or struct.error on bytes that are no such rows.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from headwater.capture.contract import UNAVAILABLE, Row
from headwater.capture.mysql import times, values
from headwater.capture.mysql.binlog import json_binary, table_map
from headwater.capture.mysql.binlog.table_map import TableMap
from headwater.capture.mysql.charsets import UTF8, Charsets
from headwater.capture.mysql.columns import ColumnDef, Declared, zero_value
from headwater.capture.settings import CaptureSettings

DecodeRows = Callable[[bytes, int], list[Row]]
CountRows = Callable[[bytes, int], int]

_MAX_COLUMN_BYTES: Final = 1 << 30
_INTEGERS: Final = {
    (table_map.TINY, False): "b",
    (table_map.TINY, True): "B",
    (table_map.SHORT, False): "h",
    (table_map.SHORT, True): "H",
    (table_map.LONG, False): "i",
    (table_map.LONG, True): "I",
    (table_map.LONGLONG, False): "q",
    (table_map.LONGLONG, True): "Q",
}


class RowCode:
    """How one table's rows are read. `columns` may be None: rows can then only be counted."""

    def __init__(
        self,
        table: TableMap,
        columns: Sequence[ColumnDef] | None,
        settings: CaptureSettings,
        charsets: Charsets | None,
    ) -> None:
        self._table = table
        self._columns = columns
        self._settings = settings
        self._charsets = charsets

    def rows(self, present: bytes) -> DecodeRows:
        """For WRITE and DELETE. `present`: bitmap of the columns that the image has."""
        maker = _Maker()
        self._check_progress(present)
        body = self._image(maker, present, "v")
        row = self._row_literal(_columns_in(present, len(self._table.types)), "v", None)
        decode: DecodeRows = _compiled(maker, [*body, f"append({row})"])
        return decode

    def created(self, present: bytes) -> DecodeRows:
        """For WRITE: what the image leaves out is marked."""
        maker = _Maker()
        self._check_progress(present)
        body = self._image(maker, present, "v")
        row = self._row_literal(_columns_in(present, len(self._table.types)), "v", {})
        decode: DecodeRows = _compiled(maker, [*body, f"append({row})"])
        return decode

    def updates(self, present_before: bytes, present_after: bytes) -> DecodeRows:
        """For UPDATE: before and after in turn. What `after` leaves out did not change: it is taken
        from `before`, or marked if that leaves it out too.
        """
        maker = _Maker()
        count = len(self._table.types)
        self._check_progress(present_before, present_after)
        old = _columns_in(present_before, count)
        body = self._image(maker, present_before, "b") + self._image(maker, present_after, "v")
        before = self._row_literal(old, "b", None)
        after = self._row_literal(
            _columns_in(present_after, count), "v", {column: f"b{column}" for column in old}
        )
        decode: DecodeRows = _compiled(maker, [*body, f"append({before})", f"append({after})"])
        return decode

    def count(self, *presents: bytes) -> CountRows:
        """How many rows (or updates) there are, without their values."""
        maker = _Maker()
        body: list[str] = []
        self._check_progress(*presents)
        for present in presents:
            body += self._image(maker, present, "v", values_wanted=False)
        count: CountRows = _compiled(maker, [*body, "rows += 1"], counting=True)
        return count

    def _check_progress(self, *presents: bytes) -> None:
        """Rows without columns would take no bytes, and there would be no end of them."""
        if not any(_columns_in(present, len(self._table.types)) for present in presents):
            raise ValueError("rows without columns")

    def _image(
        self, maker: "_Maker", present: bytes, prefix: str, *, values_wanted: bool = True
    ) -> list[str]:
        columns = _columns_in(present, len(self._table.types))
        null_bytes = (len(columns) + 7) // 8
        if not any(self._table.nullable[column] for column in columns):
            return [
                f"p += {null_bytes}",
                *self._columns_code(maker, columns, prefix, values_wanted),
            ]
        fast = self._columns_code(maker, columns, prefix, values_wanted)
        slow: list[str] = []
        run: list[int] = []
        for bit, column in enumerate(columns):
            if not self._table.nullable[column]:
                run.append(column)
                continue
            slow += self._columns_code(maker, run, prefix, values_wanted)
            run = []
            code = self._columns_code(maker, [column], prefix, values_wanted)
            slow.append(f"if nulls >> {bit} & 1: {prefix}{column} = None")
            slow += ["else:", *_indented(code)]
        slow += self._columns_code(maker, run, prefix, values_wanted)
        used = (1 << len(columns)) - 1  # the bitmap's last bits may be anything
        return [
            f"nulls = from_bytes(b[p:p + {null_bytes}], 'little') & {used}",
            f"p += {null_bytes}",
            "if not nulls:",
            *_indented(fast or ["pass"]),
            "else:",
            *_indented(slow or ["pass"]),
        ]

    def _columns_code(
        self, maker: "_Maker", columns: Sequence[int], prefix: str, values_wanted: bool
    ) -> list[str]:
        code: list[str] = []
        form = ""
        names: list[str] = []
        after: list[str] = []

        def read() -> None:
            nonlocal form, names, after
            if form:
                size = struct.calcsize(f"<{form}")
                unpack = maker.name("s", struct.Struct(f"<{form}").unpack_from)
                code.extend([f"{', '.join(names)}, = {unpack}(b, p)", f"p += {size}", *after])
            form, names, after = "", [], []

        for column in columns:
            target = f"{prefix}{column}"
            size_format, fixed_format = self._layout(column)
            decode = self._expression(maker, column) if values_wanted else None
            form += size_format or fixed_format
            names.append("n" if size_format else target)
            if not size_format:
                if decode:
                    after.append(f"{target} = {decode.format(target)}")
                continue
            if size_format == "3s":
                after.append("n = from_bytes(n, 'little')")
            read()
            if decode:
                code += ["q = p + n", f"{target} = {decode.format('b[p:q]')}", "p = q"]
            else:
                code.append("p += n")
        read()
        return code

    def _layout(self, column: int) -> tuple[str, str]:
        """(format of the length, "") of what has one, or ("", format of the value)."""
        code, (first, second) = self._table.types[column], self._table.metas[column]
        size = first | second << 8
        if (code, False) in _INTEGERS:
            return "", _INTEGERS[code, self._is_unsigned(column)]
        if code in (table_map.VARCHAR, table_map.VAR_STRING, table_map.STRING):
            return ("H" if size > 255 else "B"), ""
        if code == table_map.VARCHAR_COMPRESSED:
            return ("H" if size > 255 else "B"), ""
        blobs = (table_map.BLOB, table_map.JSON, table_map.GEOMETRY, table_map.VECTOR)
        if code in blobs or code == table_map.BLOB_COMPRESSED:
            if not 1 <= first <= 4:
                raise ValueError(f"a length of {first} bytes")
            return ("B", "H", "3s", "I")[first - 1], ""
        if code in (table_map.FLOAT, table_map.DOUBLE):
            return "", "f" if code == table_map.FLOAT else "d"
        fixed = {
            table_map.INT24: 3,
            table_map.YEAR: 1,
            table_map.DATE: 3,
            table_map.TIME: 3,
            table_map.DATETIME: 8,
            table_map.TIMESTAMP: 4,
            table_map.TIME2: 3 + (first + 1) // 2,
            table_map.DATETIME2: 5 + (first + 1) // 2,
            table_map.TIMESTAMP2: 4 + (first + 1) // 2,
            table_map.NEWDECIMAL: _decimal_bytes(first, second)
            if code == table_map.NEWDECIMAL
            else 0,
            table_map.BIT: second + (first > 0),
            table_map.ENUM: first,
            table_map.SET: first,
        }
        if code not in fixed:
            raise table_map.UnknownType(self._table.id, code)
        if code in (table_map.TIME2, table_map.DATETIME2, table_map.TIMESTAMP2) and first > 6:
            raise ValueError(f"fractions of {first} digits")
        return "", f"{fixed[code]}s"

    def _is_unsigned(self, column: int) -> bool:
        if self._table.unsigned is not None:
            return self._table.unsigned[column]
        return self._columns is not None and self._columns[column].declared.is_unsigned

    def _expression(self, maker: "_Maker", column: int) -> str | None:
        """Python that makes the value of what was read ({}); None if that is it already."""
        assert self._columns is not None
        definition = self._columns[column]
        declared = definition.declared
        code = self._table.types[column]
        if (code, False) in _INTEGERS or code == table_map.DOUBLE:
            return None
        if code == table_map.INT24:
            signed = "False" if self._is_unsigned(column) else "True"
            return f"from_bytes({{}}, 'little', signed={signed})"
        if code == table_map.YEAR:
            return "({0}[0] and {0}[0] + 1900)"
        if code in (table_map.VARCHAR, table_map.STRING, table_map.BLOB) and (
            declared.charset in UTF8 and declared.base not in ("uuid", "inet4", "inet6")
        ):
            return "{}.decode()"
        return maker.name("f", self._function(column, definition, declared)) + "({})"

    def _function(self, column: int, definition: ColumnDef, declared: Declared) -> Any:
        code, (first, second) = self._table.types[column], self._table.metas[column]
        zero = zero_value(declared, definition.optional, self._settings)
        is_iso = self._settings.times == "iso"
        fraction_bytes = (first + 1) // 2
        if code == table_map.FLOAT:
            return values.float32
        if code == table_map.NEWDECIMAL:
            return values.binary_decimal(first, second, self._settings.decimals)
        if code == table_map.BIT:
            return values.bits(second * 8 + first)
        if code == table_map.DATE:
            return times.binary_date(zero, is_iso)
        if code == table_map.DATETIME2:
            return times.binary_datetime(fraction_bytes, first, zero, is_iso)
        if code == table_map.TIMESTAMP2:
            return times.binary_timestamp(fraction_bytes, first, zero)
        if code == table_map.TIME2:
            return times.binary_time(fraction_bytes, first, is_iso)
        if code == table_map.DATETIME:
            return times.old_datetime(zero, is_iso)
        if code == table_map.TIMESTAMP:
            return times.old_timestamp(zero)
        if code == table_map.TIME:
            return times.old_time(is_iso)
        if code == table_map.ENUM:
            return values.enum(declared.values)
        if code == table_map.SET:
            return values.members(declared.values)
        if code == table_map.JSON:
            return json_binary.to_text
        if code == table_map.GEOMETRY:
            return values.point if declared.base == "point" else values.geometry
        plain = self._text_or_bytes(declared)
        if code in (table_map.BLOB_COMPRESSED, table_map.VARCHAR_COMPRESSED):
            return lambda data: plain(_column_decompressed(data))
        return plain

    def _text_or_bytes(self, declared: Declared) -> Any:
        addresses = {"uuid": values.uuid, "inet4": values.inet4, "inet6": values.inet6}
        if declared.base in addresses:
            return addresses[declared.base]
        if declared.base == "binary":
            return values.padded_base64(declared.size or 1)
        if not declared.charset or declared.charset == "binary":
            return values.base64
        if declared.charset in UTF8 or self._charsets is None:
            return bytes.decode
        return self._charsets.decoder(declared.charset)

    def _row_literal(
        self, present: Sequence[int], prefix: str, missing: dict[int, str] | None
    ) -> str:
        """A dict. Of columns that are not present: left out, or with `missing` the variables they
        are taken from, or marked.
        """
        assert self._columns is not None
        have = set(present)
        parts: list[str] = []
        for column, definition in enumerate(self._columns):
            if column in have:
                parts.append(f"{definition.name!r}: {prefix}{column}")
            elif missing is not None:
                parts.append(f"{definition.name!r}: {missing.get(column, repr(UNAVAILABLE))}")
        return f"{{{', '.join(parts)}}}"


class _Maker:
    """The objects that the code refers to."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"from_bytes": int.from_bytes}

    def name(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.namespace)}"
        self.namespace[name] = value
        return name


def _compiled(maker: _Maker, body: list[str], *, counting: bool = False) -> Any:
    source = [
        "def decode(b, p):",
        "    end = len(b)",
        "    rows = 0" if counting else "    rows = []; append = rows.append",
        "    while p < end:",
        *_indented(_indented(body)),
        # A slice beyond the end is short and raises nothing: this finds it.
        "        if p > end: raise ValueError('a row is cut')",
        "    return rows",
    ]
    namespace = maker.namespace
    exec(compile("\n".join(source), "<rows of a table>", "exec"), namespace)  # noqa: S102
    return namespace["decode"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _columns_in(present: bytes, count: int) -> list[int]:
    return [i for i in range(count) if present[i >> 3] >> (i & 7) & 1]


def _decimal_bytes(precision: int, scale: int) -> int:
    if not 1 <= precision <= 65 or scale > precision:
        raise ValueError(f"decimal({precision},{scale})")
    return values.decimal_size_bytes(precision, scale)


def _column_decompressed(data: bytes) -> bytes:
    """MariaDB's COMPRESSED columns: one byte (method << 4 | length's bytes; 0: not compressed), the
    plain length, big-endian, then raw deflate or zlib.
    """
    if not data or data[0] == 0:
        return data[1:]
    header, length_bytes = data[0], data[0] & 7
    if header >> 4 != 8:
        raise ValueError(f"compression {header >> 4} of a column")
    size = int.from_bytes(data[1 : 1 + length_bytes], "big")
    if size > _MAX_COLUMN_BYTES:
        raise ValueError("a column exceeds 1 GiB")
    stream = zlib.decompressobj(wbits=-15 if header & 8 else 15)
    try:
        plain = stream.decompress(data[1 + length_bytes :], size + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(plain) != size:
        raise ValueError("a compressed column has another length")
    return plain
