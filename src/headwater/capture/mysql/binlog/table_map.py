r"""The TABLE_MAP event: the layout of the rows in the events behind it.

    table id (6) flags (2)  len schema \0  len table \0  lenenc column count
    a type byte per column  lenenc metadata length, metadata  null bitmap  optional metadata

The optional metadata depend on binlog_row_metadata: none in MariaDB by default (NO_LOG); signs and
character sets in MySQL by default (MINIMAL); names, values and the primary key with FULL.
"""

from dataclasses import dataclass, field
from typing import Final

from headwater.capture.mysql.charsets import Charsets
from headwater.capture.mysql.columns import ColumnDef, Declared, TableDef, with_charset

TINY, SHORT, LONG, FLOAT, DOUBLE, TIMESTAMP, LONGLONG, INT24 = 1, 2, 3, 4, 5, 7, 8, 9
DATE, TIME, DATETIME, YEAR, VARCHAR, BIT = 10, 11, 12, 13, 15, 16
TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB's columns that are compressed
VECTOR, JSON, NEWDECIMAL, ENUM, SET = 242, 245, 246, 247, 248
TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = range(249, 256)

_META_BYTES: Final = {
    FLOAT: 1,
    DOUBLE: 1,
    BLOB: 1,
    BLOB_COMPRESSED: 1,
    JSON: 1,
    GEOMETRY: 1,
    VECTOR: 1,
    TIME2: 1,
    DATETIME2: 1,
    TIMESTAMP2: 1,
    BIT: 2,
    VARCHAR: 2,
    VARCHAR_COMPRESSED: 2,
    NEWDECIMAL: 2,
    STRING: 2,
    VAR_STRING: 2,
    ENUM: 2,
    SET: 2,
}
_WITHOUT_META: Final = frozenset(
    {TINY, SHORT, LONG, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR}
)
_NUMBERS: Final = frozenset({TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, NEWDECIMAL, YEAR})
_CHARACTERS: Final = frozenset(
    {VARCHAR, VAR_STRING, STRING, BLOB, BLOB_COMPRESSED, VARCHAR_COMPRESSED}
)
_GEOMETRIES: Final = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
_INTEGERS: Final = {
    TINY: "tinyint",
    SHORT: "smallint",
    INT24: "mediumint",
    LONG: "int",
    LONGLONG: "bigint",
}
_BINARY_COLLATION: Final = 63


@dataclass(slots=True)
class TableMap:
    """As the event has it. What it may leave out is None."""

    schema: str
    name: str
    types: list[int]  # the real ones: ENUM and SET, which the event hides behind STRING
    metas: list[tuple[int, int]]
    nullable: list[bool]
    unsigned: list[bool] | None = None
    collations: list[int | None] | None = None  # of character, enum and set columns
    names: list[str] | None = None
    values: list[tuple[bytes, ...] | None] = field(default_factory=list)  # of enums and sets
    geometries: list[str | None] = field(default_factory=list)
    key: tuple[int, ...] | None = None  # columns of the primary key
    hidden: frozenset[int] = frozenset()

    @property
    def id(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def is_full(self) -> bool:
        return self.names is not None


def parse(body: bytes, offset: int = 8) -> TableMap:
    """`body` behind the event's header. Raises IndexError or ValueError on anything else."""
    reader = _Reader(body, offset)
    schema = reader.take(reader.byte()).decode()
    reader.byte()
    name = reader.take(reader.byte()).decode()
    reader.byte()
    count = reader.number()
    raw_types = reader.take(count)
    metas_end = reader.number()
    metas_end += reader.at
    types: list[int] = []
    metas: list[tuple[int, int]] = []
    for code in raw_types:
        if code not in _META_BYTES and code not in _WITHOUT_META:
            raise UnknownType(f"{schema}.{name}", code)
        size = _META_BYTES.get(code, 0)
        first = reader.byte() if size else 0
        second = reader.byte() if size == 2 else 0
        if code == STRING:
            real, first, second = _real_string(first, second)
            types.append(real)
        else:
            types.append(code)
        metas.append((first, second))
    if reader.at != metas_end:
        raise ValueError("the types' metadata have another length")
    table = TableMap(schema, name, types, metas, reader.bitmap(count, lowest_first=True))
    _read_optional(reader, table)
    return table


class UnknownType(ValueError):
    """A column of a type that this reader does not know."""

    def __init__(self, table_id: str, code: int) -> None:
        super().__init__(f"{table_id} has a column of type {code}")
        self.table_id = table_id
        self.code = code


def _real_string(first: int, second: int) -> tuple[int, int, int]:
    """CHAR, BINARY, ENUM and SET: real type and length in two bytes. Of lengths above 255 two bits
    lie inverted in the first byte.
    """
    if first in (ENUM, SET):
        return first, second, 0
    length = second if first & 0x30 == 0x30 else second | (first & 0x30 ^ 0x30) << 4
    return STRING, length & 0xFF, length >> 8


def _read_optional(reader: "_Reader", table: TableMap) -> None:
    count = len(table.types)
    of_type: dict[str, list[int]] = {
        "numbers": [i for i, code in enumerate(table.types) if code in _NUMBERS],
        "characters": [i for i, code in enumerate(table.types) if code in _CHARACTERS],
        "choices": [i for i, code in enumerate(table.types) if code in (ENUM, SET)],
        "geometries": [i for i, code in enumerate(table.types) if code == GEOMETRY],
    }
    collations: list[int | None] = [None] * count
    table.values = [None] * count
    table.geometries = [None] * count
    while reader.at < len(reader.data):
        kind = reader.byte()
        length = reader.number()
        part = _Reader(reader.take(length))
        if kind == 1:
            unsigned = [False] * count
            flags = part.bitmap(len(of_type["numbers"]), lowest_first=False)
            for column, flag in zip(of_type["numbers"], flags, strict=True):
                unsigned[column] = flag
            table.unsigned = unsigned
        elif kind in (2, 10):  # one collation for most columns, and the others
            columns = of_type["characters" if kind == 2 else "choices"]
            default = part.number()
            for column in columns:
                collations[column] = default
            while not part.is_empty:
                index = part.number()
                collations[columns[index]] = part.number()
            table.collations = collations
        elif kind in (3, 11):
            for column in of_type["characters" if kind == 3 else "choices"]:
                collations[column] = part.number()
            table.collations = collations
        elif kind == 4:
            names = []
            while not part.is_empty:
                names.append(part.take(part.number()).decode())
            if len(names) != count or len(set(names)) != count:
                raise ValueError("a table map has not one name for each column")
            table.names = names
        elif kind in (5, 6):
            for column in (
                i for i in of_type["choices"] if table.types[i] == (SET, ENUM)[kind - 5]
            ):
                number = part.number()
                if number > length:
                    raise ValueError("more values than bytes")
                table.values[column] = tuple(part.take(part.number()) for _ in range(number))
        elif kind == 7:
            for column in of_type["geometries"]:
                table.geometries[column] = _GEOMETRIES[part.number()]
        elif kind in (8, 9):
            key = []
            while not part.is_empty:
                key.append(part.number())
                if kind == 9:
                    part.number()  # the length of the column's prefix in the key
            if any(column >= count for column in key):
                raise ValueError("a key has a column that the table does not have")
            table.key = tuple(key)
        elif kind == 12:
            visible = part.bitmap(count, lowest_first=False)
            table.hidden = frozenset(i for i, flag in enumerate(visible) if not flag)
        # Others are newer than this reader, and additions by their nature.


def definition(table: TableMap, charsets: Charsets) -> TableDef:
    """The table as the event alone describes it, if it has everything (is_full)."""
    assert table.names is not None
    columns = tuple(
        ColumnDef(name, _declaration(table, i, charsets), table.nullable[i])
        for i, name in enumerate(table.names)
    )
    key = tuple(table.names[i] for i in table.key or ())
    return TableDef(table.schema, table.name, columns, key)


def _charset(table: TableMap, column: int, charsets: Charsets) -> str:
    number = table.collations[column] if table.collations else None
    if number is None:
        return "utf8mb4"
    return "binary" if number == _BINARY_COLLATION else charsets.of_collation(number) or "utf8mb4"


def _declaration(table: TableMap, column: int, charsets: Charsets) -> str:
    """A type as information_schema would write it, but for widths that only matter on screens."""
    code, (first, second) = table.types[column], table.metas[column]
    unsigned = " unsigned" if table.unsigned and table.unsigned[column] else ""
    if code in _INTEGERS:
        return f"{_INTEGERS[code]}{unsigned}"
    if code in (FLOAT, DOUBLE):
        return f"{'float' if code == FLOAT else 'double'}{unsigned}"
    if code == NEWDECIMAL:
        return f"decimal({first},{second}){unsigned}"
    if code == BIT:
        return f"bit({second * 8 + first})"
    simple = {YEAR: "year(4)", DATE: "date", JSON: "json", VECTOR: "vector"}
    if code in simple:
        return simple[code]
    times = {TIME: "time", TIME2: "time", DATETIME: "datetime", DATETIME2: "datetime"}
    if name := times.get(code) or (code in (TIMESTAMP, TIMESTAMP2) and "timestamp") or "":
        return f"{name}({first})" if first else name
    if code == GEOMETRY:
        return table.geometries[column] or "geometry"
    charset = _charset(table, column, charsets)
    if code in (ENUM, SET):
        decode = charsets.decoder(charset)
        values = [decode(value).replace("'", "''") for value in table.values[column] or ()]
        text = f"{'enum' if code == ENUM else 'set'}({','.join(repr_sql(v) for v in values)})"
        return with_charset(text, charset)
    size = first | second << 8
    if code in (BLOB, BLOB_COMPRESSED):
        size_names = ("tiny", "", "medium", "long")
        prefix = size_names[first - 1] if 1 <= first <= 4 else "long"
        return f"{prefix}blob" if charset == "binary" else with_charset(f"{prefix}text", charset)
    if code == VARCHAR_COMPRESSED:
        size = max(size - 1, 0)  # one byte holds how it is compressed
    variable = "var" if code != STRING else ""
    if charset == "binary":
        return f"{variable}binary({size})"
    characters = size // charsets.max_bytes(charset)
    return with_charset(f"{variable}char({characters})", charset)


def repr_sql(escaped: str) -> str:
    return f"'{escaped}'"


def agrees(declared: Declared, table: TableMap, column: int, charsets: Charsets) -> bool:
    """Whether a column that was declared so is laid out in the log as the event describes."""
    code, (first, second) = table.types[column], table.metas[column]
    base = declared.base
    if table.unsigned and code in _INTEGERS and table.unsigned[column] != declared.is_unsigned:
        return False
    if code in _INTEGERS:
        return base == _INTEGERS[code]
    if code in (FLOAT, DOUBLE):
        return base == ("float" if code == FLOAT else "double")
    if code == NEWDECIMAL:
        return base == "decimal" and (declared.size, declared.scale or 0) == (first, second)
    if code == BIT:
        return base == "bit" and (declared.size or 1) == second * 8 + first
    if code in (ENUM, SET):
        return base == ("enum" if code == ENUM else "set") and _values_fit(declared, code, first)
    times = {TIME2: "time", DATETIME2: "datetime", TIMESTAMP2: "timestamp"}
    if code in times:
        return base == times[code] and declared.precision == first
    # Of the formats before MySQL 5.6 only those without fractions can be recognised by their type.
    simple = {TIME: "time", DATETIME: "datetime", TIMESTAMP: "timestamp", YEAR: "year"}
    simple |= {DATE: "date", JSON: "json", VECTOR: "vector"}
    if code in simple:
        return base == simple[code] and declared.precision == 0
    if code == GEOMETRY:
        subtype = table.geometries[column]
        is_geometry = base == "point" or base.startswith(("geo", "line", "poly", "multi"))
        return is_geometry and (
            subtype is None or subtype[:4] == base[:4] or subtype[:5] == base[:5]
        )
    size = first | second << 8
    if code in (BLOB, BLOB_COMPRESSED):
        sizes = {"tiny": 1, "": 2, "medium": 3, "long": 4}
        prefix = base.removesuffix("blob").removesuffix("text")
        return base.endswith(("blob", "text")) and sizes.get(prefix) == first
    if base in ("uuid", "inet6", "inet4"):
        return code == STRING and size == (4 if base == "inet4" else 16)
    if code == VARCHAR_COMPRESSED:
        size -= 1
    is_variable = code != STRING
    if base in ("binary", "varbinary"):
        return is_variable == (base == "varbinary") and (declared.size or 1) == size
    if base not in ("char", "varchar"):
        return False
    width = charsets.max_bytes(declared.charset)
    return is_variable == (base == "varchar") and (declared.size or 1) * width == size


def _values_fit(declared: Declared, code: int, size_bytes: int) -> bool:
    count = len(declared.values)
    if code == ENUM:
        return size_bytes == (1 if count < 256 else 2)
    needed = (count + 7) // 8
    return size_bytes == (needed if needed <= 4 else 8)


class _Reader:
    """Bounds-checked reading: what is not there raises IndexError."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def is_empty(self) -> bool:
        return self.at >= len(self.data)

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise IndexError("cut")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self) -> int:
        """The protocol's length-encoded integer."""
        first = self.byte()
        if first < 251:
            return first
        if first < 252 or first > 254:
            raise ValueError("no length")
        return int.from_bytes(self.take((2, 3, 8)[first - 252]), "little")

    def bitmap(self, count: int, *, lowest_first: bool) -> list[bool]:
        data = self.take((count + 7) // 8)
        if lowest_first:
            return [bool(data[i >> 3] >> (i & 7) & 1) for i in range(count)]
        return [bool(data[i >> 3] >> (7 - (i & 7)) & 1) for i in range(count)]
