"""A column as it was declared, and how Debezium's MySQL connector represents its values.

The declaration is stored as text, as information_schema writes it, with the character set behind
it: "varchar(20) character set latin1". From that text everything can be read again, so that a
capture that resumes knows the tables as they were.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from headwater.capture.contract import Column, Table
from headwater.capture.settings import CaptureSettings

TEXTS: Final = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
BLOBS: Final = frozenset({"tinyblob", "blob", "mediumblob", "longblob"})
GEOMETRIES: Final = frozenset(
    {
        "geometry",
        "linestring",
        "polygon",
        "multipoint",
        "multilinestring",
        "multipolygon",
        "geometrycollection",
        "geomcollection",
    }
)
_DECLARATION: Final = re.compile(
    r"(?P<base>[a-z0-9_]+)\s*(?:\((?P<arguments>(?:'(?:[^']|'')*'|[^)'])*)\))?(?P<rest>.*)",
    re.IGNORECASE | re.DOTALL,
)
_VALUE: Final = re.compile(r"'((?:[^']|'')*)'")
_CHARSET: Final = re.compile(r"character set (\w+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Declared:
    """What `varchar(20) character set latin1` declares."""

    base: str
    size: int | None = None  # characters, bytes, bits, digits
    scale: int | None = None  # behind the point
    precision: int = 0  # digits of a fraction of a second
    is_unsigned: bool = False
    values: tuple[str, ...] = ()  # of ENUM and SET
    charset: str = ""


@dataclass(frozen=True, slots=True)
class ColumnDef:
    name: str
    type: str
    optional: bool

    @property
    def declared(self) -> Declared:
        return parse(self.type)


@dataclass(frozen=True, slots=True)
class TableDef:
    """A table's columns as far as names and declarations go."""

    schema: str
    name: str
    columns: tuple[ColumnDef, ...]
    key: tuple[str, ...]

    @property
    def id(self) -> str:
        return f"{self.schema}.{self.name}"

    @classmethod
    def of(cls, table: Table) -> "TableDef":
        """What a table that was handed out once knew."""
        columns = tuple(ColumnDef(c.name, c.type, c.optional) for c in table.columns)
        return cls(table.schema, table.name, columns, table.key)

    def table(self, settings: CaptureSettings) -> Table:
        columns = tuple(
            Column(c.name, c.type, connect_type(c.declared, settings), c.optional)
            for c in self.columns
        )
        return Table(self.schema, self.name, columns, self.key)


@lru_cache(maxsize=4096)
def parse(text: str) -> Declared:
    match = _DECLARATION.match(text)
    if match is None:
        return Declared(text.lower())
    base = match["base"].lower()
    arguments = match["arguments"] or ""
    charset = _CHARSET.search(match["rest"])
    numbers = [int(n) for n in arguments.split(",") if n.strip().isdigit()]
    is_time = base in ("time", "datetime", "timestamp")
    return Declared(
        base={"integer": "int", "numeric": "decimal", "real": "double"}.get(base, base),
        size=numbers[0] if numbers and not is_time else None,
        scale=numbers[1] if len(numbers) > 1 else None,
        precision=numbers[0] if numbers and is_time else 0,
        is_unsigned="unsigned" in match["rest"].lower(),
        values=tuple(value.replace("''", "'") for value in _VALUE.findall(arguments))
        if base in ("enum", "set")
        else (),
        charset=charset[1].lower() if charset else "utf8mb4" if base in TEXTS else "",
    )


def with_charset(text: str, charset: str | None) -> str:
    """The declaration with its character set, which is left out if it is utf8mb4."""
    return f"{text} character set {charset}" if charset and charset != "utf8mb4" else text


def zero_value(declared: Declared, optional: bool, settings: CaptureSettings) -> Any:
    """What stands for a date that is none."""
    if optional:
        return None
    fraction = ".000000"[: declared.precision + 1] if declared.precision else ""
    if declared.base == "timestamp" or (settings.times == "iso" and declared.base == "datetime"):
        return f"1970-01-01T00:00:00{fraction}Z"
    if settings.times == "iso":
        return "1970-01-01"
    return 0


_INTEGERS: Final = {
    ("tinyint", False): "int16",
    ("tinyint", True): "int16",
    ("smallint", False): "int16",
    ("smallint", True): "int32",
    ("mediumint", False): "int32",
    ("mediumint", True): "int32",
    ("int", False): "int32",
    ("int", True): "int64",
    ("bigint", False): "int64",
    ("bigint", True): "int64",
}


def connect_type(declared: Declared, settings: CaptureSettings) -> Mapping[str, Any]:
    base = declared.base
    if integer := _INTEGERS.get((base, declared.is_unsigned)):
        return {"type": integer}
    if base == "float":
        return {"type": "float" if declared.scale is None else "double"}
    if base == "double":
        return {"type": "double"}
    if base == "decimal":
        return _decimal(declared, settings)
    if base == "bit":
        if (declared.size or 1) == 1:
            return {"type": "boolean"}
        return _named("bytes", "io.debezium.data.Bits", length=str(declared.size))
    if base == "year":
        return _named("int32", "io.debezium.time.Year")
    if base in ("date", "time", "datetime", "timestamp"):
        return _time(declared, settings)
    if base in ("binary", "varbinary", "vector") or base in BLOBS:
        return {"type": "bytes"}
    if base == "enum":
        return _named("string", "io.debezium.data.Enum", allowed=_allowed(declared))
    if base == "set":
        return _named("string", "io.debezium.data.EnumSet", allowed=_allowed(declared))
    if base == "json":
        return _named("string", "io.debezium.data.Json")
    if base == "point" or base in GEOMETRIES:
        return _geometry("Point" if base == "point" else "Geometry")
    return {"type": "string"}


def _allowed(declared: Declared) -> str:
    return ",".join(value.replace(",", "\\,") for value in declared.values)


def _named(kind: str, name: str, **parameters: str) -> Mapping[str, Any]:
    schema: dict[str, Any] = {"type": kind, "name": name, "version": 1}
    if parameters:
        schema["parameters"] = parameters
    return schema


def _decimal(declared: Declared, settings: CaptureSettings) -> Mapping[str, Any]:
    if settings.decimals != "precise":
        return {"type": "double" if settings.decimals == "double" else "string"}
    size = 10 if declared.size is None else declared.size
    return {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": str(declared.scale or 0), "connect.decimal.precision": str(size)},
    }


def _time(declared: Declared, settings: CaptureSettings) -> Mapping[str, Any]:
    if declared.base == "timestamp":
        return _named("string", "io.debezium.time.ZonedTimestamp")
    if settings.times == "iso":
        names = {"date": "IsoDate", "time": "IsoTime", "datetime": "IsoTimestamp"}
        return _named("string", f"io.debezium.time.{names[declared.base]}")
    if declared.base == "date":
        return _named("int32", "io.debezium.time.Date")
    if declared.base == "time":
        return _named("int64", "io.debezium.time.MicroTime")
    name = "MicroTimestamp" if declared.precision > 3 else "Timestamp"
    return _named("int64", f"io.debezium.time.{name}")


def _geometry(name: str) -> Mapping[str, Any]:
    fields: list[dict[str, Any]] = [
        {"type": "bytes", "optional": name == "Point", "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ]
    if name == "Point":
        fields[:0] = [{"type": "double", "optional": False, "field": axis} for axis in "xy"]
    return {
        "type": "struct",
        "name": f"io.debezium.data.geometry.{name}",
        "version": 1,
        "doc": "Geometry (POINT)" if name == "Point" else "Geometry",
        "fields": fields,
    }
