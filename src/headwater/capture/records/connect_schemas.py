"""Kafka Connect schemas of keys and values, with the names that Debezium gives them.

They are written beside the payloads as Connect's JsonConverter does with `schemas.enable=true`;
here `settings.schemas` enables them.
"""

from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import orjson

from headwater.capture.contract import UNAVAILABLE, Column, Row, Table

Schema: TypeAlias = dict[str, Any]

_SNAPSHOT_STATES: Final = (
    "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
)


def _struct(fields: Iterable[Schema], **attributes: Any) -> Schema:
    return {"type": "struct", "fields": list(fields), "optional": False} | attributes


def _field(name: str, kind: str, *, optional: bool = False) -> Schema:
    return {"type": kind, "optional": optional, "field": name}


def _column(column: Column) -> Schema:
    return {**column.connect, "optional": column.optional, "field": column.name}


_BLOCK: Final = _struct(
    [
        _field("id", "string"),
        _field("total_order", "int64"),
        _field("data_collection_order", "int64"),
    ],
    optional=True,
    name="event.block",
    version=1,
    field="transaction",
)
_SOURCE_FIELDS: Final = {
    "postgresql": [
        _field("schema", "string"),
        _field("table", "string"),
        _field("txId", "int64", optional=True),
        _field("lsn", "int64", optional=True),
        _field("xmin", "int64", optional=True),
        _field("origin", "string", optional=True),
        _field("origin_lsn", "int64", optional=True),
    ],
    "mysql": [
        _field("table", "string", optional=True),
        _field("server_id", "int64"),
        _field("gtid", "string", optional=True),
        _field("file", "string"),
        _field("pos", "int64"),
        _field("row", "int32"),
        _field("thread", "int64", optional=True),
        _field("query", "string", optional=True),
    ],
    "sqlite": [
        _field("schema", "string"),
        _field("table", "string"),
        _field("txId", "int64", optional=True),
        _field("id", "int64", optional=True),
    ],
    "mongodb": [
        _field("collection", "string"),
        _field("ord", "int32"),
        _field("lsid", "string", optional=True),
        _field("txnNumber", "int64", optional=True),
        _field("wallTime", "int64", optional=True),
    ],
}
_SOURCE_FIELDS["mariadb"] = _SOURCE_FIELDS["mysql"]
_OTHER_SOURCE: Final = [_field("schema", "string"), _field("table", "string")]
# What Debezium writes for a value that is not null and not logged.
_UNKNOWN: Final = {
    "string": "",
    "bytes": "",
    "boolean": False,
    "float": 0.0,
    "double": 0.0,
    "array": [],
    "map": {},
}


_UNAVAILABLE_BYTES: Final = b64encode(UNAVAILABLE.encode()).decode()
_NUMBERS: Final = {"int8", "int16", "int32", "int64", "float", "double"}


def source_schema(connector: str) -> Schema:
    snapshot = {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": _SNAPSHOT_STATES},
        "default": "false",
        "field": "snapshot",
    }
    return _struct(
        [
            _field("version", "string"),
            _field("connector", "string"),
            _field("name", "string"),
            _field("ts_ms", "int64"),
            snapshot,
            _field("db", "string"),
            _field("sequence", "string", optional=True),
            _field("ts_us", "int64", optional=True),
            _field("ts_ns", "int64", optional=True),
            *_SOURCE_FIELDS.get(connector, _OTHER_SOURCE),
        ],
        name=f"io.debezium.connector.{'mongo' if connector == 'mongodb' else connector}.Source",
        version=1,
        field="source",
    )


def key_schema(table: Table, topic: str) -> Schema:
    if table.documents:
        from headwater.capture.mongo.shape import KEY_FIELDS

        return _struct(KEY_FIELDS, name=f"{topic}.Key")
    columns = {column.name: column for column in table.columns}
    return _struct((_column(columns[name]) for name in table.key), name=f"{topic}.Key")


def envelope_schema(table: Table, topic: str, connector: str) -> Schema:
    more: list[Schema] = []
    if table.documents:
        from headwater.capture.mongo.shape import DOCUMENT_SCHEMA, UPDATE_DESCRIPTION_SCHEMA

        row: Schema = dict(DOCUMENT_SCHEMA)
        more = [UPDATE_DESCRIPTION_SCHEMA]
    else:
        row = _struct(map(_column, table.columns), optional=True, name=f"{topic}.Value")
    return _struct(
        [
            row | {"field": "before"},
            row | {"field": "after"},
            *more,
            source_schema(connector),
            _BLOCK,
            _field("op", "string"),
            _field("ts_ms", "int64", optional=True),
            _field("ts_us", "int64", optional=True),
            _field("ts_ns", "int64", optional=True),
        ],
        name=f"{topic}.Envelope",
        version=2,
    )


TRANSACTION_KEY: Final = _struct(
    [_field("id", "string")],
    name="io.debezium.connector.common.TransactionMetadataKey",
    version=1,
)
TRANSACTION_VALUE: Final = _struct(
    [
        _field("status", "string"),
        _field("id", "string"),
        _field("event_count", "int64", optional=True),
        {
            "type": "array",
            "items": _struct(
                [_field("data_collection", "string"), _field("event_count", "int64")],
                optional=True,
                name="event.collection",
                version=1,
            ),
            "optional": True,
            "field": "data_collections",
        },
        _field("ts_ms", "int64"),
    ],
    name="io.debezium.connector.common.TransactionMetadataValue",
    version=1,
)


def message_key(connector: str) -> Schema:
    fields = [_field("prefix", "string", optional=True)]
    return _struct(fields, name=f"io.debezium.connector.{connector}.MessageKey", version=1)


def message_value(connector: str) -> Schema:
    message = _struct(
        [_field("prefix", "string", optional=True), _field("content", "bytes", optional=True)],
        name=f"io.debezium.connector.{connector}.Message",
        version=1,
        field="message",
    )
    return _struct(
        [
            _field("op", "string"),
            _field("ts_ms", "int64", optional=True),
            source_schema(connector),
            _BLOCK,
            message,
        ],
        name=f"io.debezium.connector.{connector}.MessageValue",
        version=1,
    )


def head_of(schema: Mapping[str, Any]) -> bytes:
    """What stands in front of a payload; behind it stands one brace."""
    return b'{"schema":' + orjson.dumps(schema) + b',"payload":'


def unknown_row(table: Table) -> Row:
    """A row without any value. Its schema has no null for a column that is not optional;
    then it is what Debezium writes: nothing, zero.
    """
    return {
        column.name: None if column.optional else _UNKNOWN.get(str(column.connect.get("type")), 0)
        for column in table.columns
    }


def unavailable_values(table: Table) -> Row:
    """What stands for a value that the log left out in columns that are no texts, as Debezium has
    it: whatever reads the record by its schema could not take a text there.
    """
    return {
        column.name: _unavailable(column.connect)
        for column in table.columns
        if column.connect.get("type") in {"bytes", "map", "array", "struct"}
    }


def _unavailable(connect: Mapping[str, Any]) -> Any:
    match connect:
        case {"type": "bytes"}:
            return _UNAVAILABLE_BYTES
        case {"type": "map"}:
            return {UNAVAILABLE: UNAVAILABLE}
        case {"type": "array", "items": {"type": kind}} if kind in _NUMBERS:
            return list(UNAVAILABLE.encode())
        case {"type": "array", "items": items}:
            return [_unavailable(items)]
        case {"type": "struct", "fields": fields}:
            return {field["field"]: _unavailable(field) for field in fields}
        case {"type": "string"}:
            return UNAVAILABLE
    return None if connect.get("optional") else 0  # a number within a struct
