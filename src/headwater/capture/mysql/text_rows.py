"""The SELECT of a table, and its result: the protocol's text rows, decoded by generated code."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from headwater.capture.contract import Row, Table
from headwater.capture.mysql import times, values
from headwater.capture.mysql.columns import GEOMETRIES, TEXTS, Declared, parse, zero_value
from headwater.capture.mysql.connection import PacketReader, error_of
from headwater.capture.settings import CaptureSettings
from headwater.databases.mysql import READ_TIMEOUT_S, Address
from headwater.errors import CaptureError

_COM_QUERY: Final = 0x03
_MORE, _END, _ERROR, _HUGE = 0, 1, 2, 3


class RowCode:
    """SELECT for a table, and code that reads its result (the protocol's text rows)."""

    def __init__(self, table: Table, settings: CaptureSettings) -> None:
        self._table = table
        self._types = {column.name: parse(column.type) for column in table.columns}
        namespace: dict[str, Any] = {}
        selected: list[str] = []
        body: list[str] = []
        for at, column in enumerate(table.columns):
            declared = self._types[column.name]
            zero = zero_value(declared, column.optional, settings)
            name = _quoted(column.name)
            selected.append(f"{name} + 0e0" if declared.base == "float" else name)
            function = _from_text(declared, zero, settings)
            namespace[f"f{at}"] = function
            inline = "b[p:q].decode()" if function is bytes.decode else f"f{at}(b[p:q])"
            inline = "int(b[p:q])" if function is int else inline
            body += _column_code(f"v{at}", inline)
        literal = ", ".join(f"{c.name!r}: v{i}" for i, c in enumerate(table.columns))
        self.decode = _compiled(body, f"{{{literal}}}", namespace)
        keys = [self._key_expression(name) for name in table.key]
        columns = ", ".join(selected + keys)
        self._select = f"SELECT {columns} FROM {quoted_name(table)}"  # noqa: S608 (quoted names)

    def sql(self, after: Any, limit_rows: int | None) -> str:
        if limit_rows is None:
            return self._select
        where = f" WHERE {self._behind(after)}" if after is not None else ""
        order = ", ".join(_quoted(name) for name in self._table.key)
        return f"{self._select}{where} ORDER BY {order} LIMIT {int(limit_rows)}"

    def key_of(self, row: bytes) -> list[str]:
        """The last columns of a row: the key, as texts that `_behind` makes literals of."""
        found = _texts(row)[len(self._table.columns) :]
        return [(text or b"").decode("latin-1") for text in found]

    def _key_expression(self, name: str) -> str:
        base = self._types[name].base
        if base in ("enum", "set", "bit", "float"):
            return f"{_quoted(name)} + {'0e0' if base == 'float' else '0'}"
        if base in TEXTS:
            return f"HEX(CONVERT({_quoted(name)} USING utf8mb4))"
        if _is_binary(self._types[name]):
            return f"HEX({_quoted(name)})"
        return _quoted(name)

    def _behind(self, after: Sequence[str]) -> str:
        """(a, b) > (x, y), in the form for which both servers use the index."""
        parts: list[str] = []
        equal: list[str] = []
        for name, text in zip(self._table.key, after, strict=True):
            column, literal = _quoted(name), self._literal(name, text)
            parts.append(" AND ".join([*equal, f"{column} > {literal}"]))
            equal.append(f"{column} = {literal}")
        return f"({' OR '.join(f'({part})' for part in parts)})"

    def _literal(self, name: str, text: str) -> str:
        declared = self._types[name]
        if declared.base in TEXTS:
            return f"_utf8mb4 X'{bytes.fromhex(text).hex()}'"
        if _is_binary(declared):
            return f"X'{bytes.fromhex(text).hex()}'"
        if declared.base in ("date", "time", "datetime", "timestamp", "uuid", "inet4", "inet6"):
            if not all(character.isalnum() or character in "-:. " for character in text):
                raise CaptureError("a snapshot's position cannot be read", detail=text[:100])
            return f"'{text}'"
        float(text)  # raises ValueError on what is no number
        return text


class Result:
    """A result's rows, as large parts of the connection's bytes."""

    def __init__(self, connection: Any, address: Address, sql: str, decode: Any) -> None:
        self._address = address
        self._decode = decode
        connection._execute_command(_COM_QUERY, sql)  # noqa: SLF001
        self._packets = PacketReader(connection, address)
        head = self._packet()
        columns = head[0] if head[0] < 251 else int.from_bytes(head[1:3], "little")
        for _ in range(columns + 1):  # a description of each, and an end
            self._packet()
        self.last_row = b""
        self.size_bytes = 0
        self.is_ended = False

    def parts(self) -> Iterator[list[Row]]:
        data, at = self._packets.take(), 0
        while True:
            rows: list[Row] = []
            at, last, state = self._decode(data, at, rows.append)
            if last >= 0:
                size = int.from_bytes(data[last : last + 3], "little")
                self.last_row = data[last + 4 : last + 4 + size]
            self.size_bytes += at
            if state == _HUGE:
                data, at = self._huge(data[at:], rows)
                yield rows
                continue
            if rows:
                yield rows
            if state == _END:
                self.is_ended = True
                return
            if state == _ERROR:
                self._packets.put_back(data[at:])
                raise error_of(self._packet(), self._address)
            rest = data[at:]
            self._packets.fill(READ_TIMEOUT_S, READ_TIMEOUT_S)
            data, at = rest + self._packets.take(), 0

    def _huge(self, data: bytes, rows: list[Row]) -> tuple[bytes, int]:
        """A row of 16 MiB and more, in several packets."""
        self._packets.put_back(data)
        row = self._packet()
        self.last_row = row
        self.size_bytes += len(row)
        # As one packet, for the same code: its length is checked there, three bytes are too few.
        self._decode.one(row, rows.append)
        return self._packets.take(), 0

    def _packet(self) -> bytes:
        packet = self._packets.packet(READ_TIMEOUT_S, READ_TIMEOUT_S)
        while packet is None:
            packet = self._packets.packet(READ_TIMEOUT_S, READ_TIMEOUT_S)
        if packet[:1] == b"\xff":
            raise error_of(packet, self._address)
        return packet


class _Decode:
    """Two functions made of the same code: for a run of packets, and for one row by itself."""

    def __init__(self, run: Any, one: Any) -> None:
        self._run = run
        self.one = one

    def __call__(self, data: bytes, at: int, append: Any) -> tuple[int, int, int]:
        found: tuple[int, int, int] = self._run(data, at, append)
        return found


def _compiled(body: list[str], row: str, namespace: dict[str, Any]) -> _Decode:
    source = [
        "def run(b, p, append):",
        "    end = len(b); last = -1",
        "    while True:",
        f"        if end - p < 5: return p, last, {_MORE}",
        "        n = b[p] | b[p + 1] << 8 | b[p + 2] << 16",
        f"        if n == 16777215: return p, last, {_HUGE}",
        f"        if p + 4 + n > end: return p, last, {_MORE}",
        "        stop = p + 4 + n; q = b[p + 4]",
        f"        if q == 254 and n < 9: return p, last, {_END}",
        f"        if q == 255: return p, last, {_ERROR}",
        "        last = p; p += 4",
        *(f"        {line}" for line in body),
        "        if p > stop: raise ValueError('a row is cut')",
        f"        append({row})",
        "        p = stop",
        "def one(b, append):",
        "    p = 0",
        *(f"    {line}" for line in body),
        f"    append({row})",
    ]
    exec(compile("\n".join(source), "<rows of a result>", "exec"), namespace)  # noqa: S102
    return _Decode(namespace["run"], namespace["one"])


def _column_code(name: str, value: str) -> list[str]:
    """A text with its length in front: one byte below 251, 251 for null, or 2, 3 or 8 bytes."""
    return [
        "n = b[p]",
        "if n < 251:",
        f"    p += 1; q = p + n; {name} = {value}; p = q",
        f"elif n == 251: p += 1; {name} = None",
        "else:",
        "    w = 2 if n == 252 else 3 if n == 253 else 8",
        "    q = p + 1 + w; n = int.from_bytes(b[p + 1:q], 'little')",
        f"    p = q; q = p + n; {name} = {value}; p = q",
    ]


def _texts(row: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at < len(row):
        size = row[at]
        at += 1
        if size == 251:
            found.append(None)
            continue
        if size > 251:
            width = {252: 2, 253: 3}.get(size, 8)
            size = int.from_bytes(row[at : at + width], "little")
            at += width
        found.append(row[at : at + size])
        at += size
    return found


def _from_text(declared: Declared, zero: Any, settings: CaptureSettings) -> Any:
    """What makes the value of a column of its text in a result."""
    base = declared.base
    is_iso = settings.times == "iso"
    if base in ("tinyint", "smallint", "mediumint", "int", "bigint", "year"):
        return int
    if base == "float":
        return values.text_float32
    if base == "double":
        return float
    if base == "decimal":
        return values.text_decimal(declared.scale or 0, settings.decimals)
    if base == "bit":
        return values.bits(declared.size or 1)
    if base == "date":
        return times.text_date(zero, is_iso)
    if base == "datetime":
        return times.text_datetime(declared.precision, zero, is_iso)
    if base == "timestamp":
        return times.text_timestamp(zero)
    if base == "time":
        return times.text_time(declared.precision, is_iso)
    if base == "point":
        return values.point
    if base in GEOMETRIES:
        return values.geometry
    if _is_binary(declared):
        return values.base64
    return bytes.decode


def _is_binary(declared: Declared) -> bool:
    return declared.base in ("binary", "varbinary", "vector") or declared.base.endswith("blob")


def quoted_name(table: Table) -> str:
    return f"{_quoted(table.schema)}.{_quoted(table.name)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
