"""Avro schemas of keys and values, derived from their Kafka Connect schemas.

They are what Confluent's AvroConverter makes of Debezium's records: `<topic>.Key`,
`<topic>.Envelope` with `before` and `after` as `<topic>.Value`, and each type's Connect name in
`connect.name`. Two things differ. Every column of a row may be null and is null by default, so that
columns may be added and dropped under any compatibility level. And each column has its type in the
database in `headwater.type`, by which pipelines read exact numbers that are written as texts.
"""

import re
from dataclasses import replace
from typing import Any, Final

import orjson

from headwater.capture.contract import Table
from headwater.capture.records import connect_schemas
from headwater.capture.records.connect_schemas import Schema
from headwater.errors import TableRefused

DATABASE_TYPE: Final = "headwater.type"
ANY: Final = "any"  # a value of a column without a type, as SQLite has them

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_PRECISION: Final = 64  # of decimals that declare none, as Confluent's converter has it
_PRIMITIVES: Final = {
    "boolean": "boolean", "int8": "int", "int16": "int", "int32": "int", "int64": "long",
    "float": "float", "float32": "float", "double": "double", "float64": "double",
    "string": "string", "bytes": "bytes",
}  # fmt: skip
_NARROW: Final = frozenset({"int8", "int16"})  # Avro has no such types


def key_schema(table: Table, topic: str, connector: str) -> Schema:
    """The Connect schema of the keys. Raises TableRefused for names that Avro does not have."""
    return connect_schemas.key_schema(_adapted(table, connector), topic)


def value_schema(table: Table, topic: str, connector: str) -> Schema:
    """The Connect schema of the values, in which all columns are optional. Raises TableRefused for
    names that Avro does not have.
    """
    adapted = _adapted(table, connector)
    columns = tuple(replace(column, optional=True) for column in adapted.columns)
    return connect_schemas.envelope_schema(replace(adapted, columns=columns), topic, connector)


def _adapted(table: Table, connector: str) -> Table:
    """A column without a type, as SQLite has them, may have values of all types."""
    _check_names(table)
    if connector != "sqlite":
        return table
    columns = tuple(
        column if column.type else replace(column, connect={"type": ANY})
        for column in table.columns
    )
    return replace(table, columns=columns)


def _check_names(table: Table) -> None:
    if table.documents:
        return
    for column in table.columns:
        if not _NAME.fullmatch(column.name):
            raise TableRefused(
                f"column {column.name} of {table.id} has no name that Avro allows",
                detail="names are letters, digits and _, and begin with no digit",
                hint=f'leave it out (columns = {{"{table.id}.{column.name}" = "drop"}}), rename'
                ' it, or use format = "json"',
            )


def schema_text(connect: Schema, table: Table | None = None) -> str:
    """The Avro schema of a Connect schema, as JSON; of an envelope with the database's types."""
    made = _record(connect, {})
    if table is not None and not table.documents:
        types = {column.name: column.type for column in table.columns}
        for field in made["fields"][0]["type"][1]["fields"]:  # the row, defined within `before`
            if types[field["name"]]:
                field[DATABASE_TYPE] = types[field["name"]]
    return orjson.dumps(made).decode()


def _record(connect: Schema, defined: dict[str, Schema], path: str = "Record") -> Any:
    """A struct; by its name where it was defined before."""
    name = _full_name(str(connect.get("name") or path))
    content = {k: v for k, v in connect.items() if k not in ("field", "optional")}
    number = 1
    unique = name
    while unique in defined:
        if defined[unique] == content:
            return unique
        number += 1
        unique = f"{name}{number}"
    defined[unique] = content
    namespace, _, short = unique.rpartition(".")
    fields = [_field(field, defined, f"{unique}_{field['field']}") for field in connect["fields"]]
    made: dict[str, Any] = {"type": "record", "name": short}
    if namespace:
        made["namespace"] = namespace
    made["fields"] = fields
    return made | _attributes(connect)


def _field(connect: Schema, defined: dict[str, Schema], path: str) -> dict[str, Any]:
    kind = _type(connect, defined, path)
    made: dict[str, Any] = {"name": connect["field"]}
    if connect.get("default") is not None:
        made["type"] = [kind, "null"] if connect.get("optional") else kind
        return made | {"default": connect["default"]}
    if not connect.get("optional"):
        return made | {"type": kind}
    branches = kind if isinstance(kind, list) else [kind]
    return made | {"type": ["null", *branches], "default": None}


def _type(connect: Schema, defined: dict[str, Schema], path: str) -> Any:
    kind = connect["type"]
    if kind == ANY:
        return ["long", "double", "string"]
    if kind == "struct":
        return _record(connect, defined, path)
    if kind == "array":
        return {"type": "array", "items": _item(connect["items"], defined, path)}
    if kind == "map":
        return {"type": "map", "values": _item(connect["values"], defined, path)}
    attributes = _attributes(connect)
    if kind in _NARROW:
        attributes["connect.type"] = kind
    if connect.get("name") == _DECIMAL:
        given = connect.get("parameters") or {}
        precision = int(given.get("connect.decimal.precision", _PRECISION))
        scale = int(given.get("scale", 0))
        if 0 <= scale <= precision:
            attributes |= {"logicalType": "decimal", "precision": precision, "scale": scale}
    return {"type": _PRIMITIVES[kind], **attributes} if attributes else _PRIMITIVES[kind]


def _item(connect: Schema, defined: dict[str, Schema], path: str) -> Any:
    kind = _type(connect, defined, f"{path}_item")
    return ["null", kind] if connect.get("optional") else kind


def _attributes(connect: Schema) -> dict[str, Any]:
    names = ("version", "name", "parameters")
    return {f"connect.{name}": connect[name] for name in names if connect.get(name) is not None}


def _full_name(name: str) -> str:
    """With _ for what a name of Avro cannot have."""
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", part) or "_" for part in name.split(".")]
    return ".".join(f"_{part}" if part[0].isdigit() else part for part in parts)
