"""Debezium's envelopes in Avro, by a schema registry, as the JSON that the Debezium decoder reads.

Captures with `format = "avro"` write them, and Debezium with Confluent's AvroConverter. A record is
recognised by the 0 that its value begins with, so a topic may have both forms: what was written
before the format was changed stays readable. How values are written (times as numbers, decimals as
bytes) is in the Avro schema as `connect.name`; where a record's schema says something else than the
columns that the reader has, it goes with the record.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from headwater.capture.records.avro_schemas import DATABASE_TYPE
from headwater.errors import ConfigError
from headwater.pipelines.decoding.avro.registered import (
    MakeSource,
    RegisteredWriters,
    bounded_reader,
    framed_reader,
)
from headwater.pipelines.decoding.avro.schemas import parsed_schema
from headwater.pipelines.decoding.connect_types import CONNECT_METADATA, Connect, arrow_type
from headwater.pipelines.decoding.framing import unframed
from headwater.schemas.avro.parsing import AvroSchema
from headwater.schemas.schema import Parsed

_UNREADABLE: Final = (ValueError, EOFError, LookupError, TypeError, ArithmeticError, MemoryError)
_CONNECT_TYPES: Final = {
    "boolean": "boolean", "int": "int32", "long": "int64", "float": "float", "double": "double",
    "string": "string", "bytes": "bytes", "enum": "string", "fixed": "bytes",
}  # fmt: skip
_PROMOTED: Final = ("type", "connect.name", "connect.version", "connect.parameters")


def is_envelope(record: Mapping[str, Any]) -> bool:
    """Whether a record of an Avro schema is a change event: by its fields, as Debezium has them."""
    return {"before", "after", "op"} <= {field["name"] for field in record.get("fields") or ()}


class AvroEnvelopes:
    """Replaces keys and values in Confluent's wire format by their JSON. May be pickled."""

    def __init__(self, make: MakeSource, connects: Mapping[str, Connect]) -> None:
        self._connects = connects
        self._readers = RegisteredWriters(make, self._reader)

    def translated(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
        """The batch with JSON, and why records cannot be read; those stay as they are. Raises
        PipelineError if the registry does not answer.
        """
        causes: dict[int, str] = {}
        for name in ("value", "key"):
            column = batch.column(name)
            framed = _framed_rows(column)
            if not len(framed):
                continue
            items = column.to_pylist()
            for row in framed.tolist():
                try:
                    items[row] = self.as_json(items[row])
                except _UNREADABLE as error:
                    causes.setdefault(row, f"no Avro of its schema: {error or type(error)}")
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, name, pa.array(items, pa.binary()))
        return batch, causes

    def as_json(self, data: bytes) -> bytes:
        """One of them. Raises ValueError and the like for what is none of its schema."""
        schema_id, at = unframed(data)
        found: bytes = self._readers.read(schema_id, data, at)
        return found

    def _reader(self, schema: AvroSchema) -> Any:
        """From bytes to JSON, by one schema. Logical types are read as what is below them: the
        Debezium decoder has its own.
        """
        document = _without_logical_types(orjson.loads(schema.text))
        try:
            read = framed_reader(parsed_schema("schema", orjson.dumps(document).decode(), []))
        except ConfigError:
            read = bounded_reader(schema)
        fields = _row_fields(document) if is_envelope(document) else []
        floats = [field["name"] for field in fields if _has_floats(field["type"])]
        connects = {field["name"]: connect_of(field) for field in fields}
        shared = {name: connects[name] for name in connects if name in self._connects}
        head = end = b""
        if any(_essence(shared[name]) != _essence(self._connects[name]) for name in shared):
            head = b'{"schema":' + orjson.dumps(_connect_envelope(connects)) + b',"payload":'
            end = b"}"

        def read_as_json(value: bytes, at: int) -> bytes:
            record = read(value, at)
            if floats:
                _name_numbers(record, floats)
            return head + orjson.dumps(record, default=_plain) + end

        return read_as_json


def _framed_rows(column: pa.Array) -> Any:
    """Rows whose bytes begin with 0."""
    _, places, data = column.buffers()
    if data is None or not len(column):
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(places, np.int32)[column.offset :][: len(column) + 1]
    starts, ends = offsets[:-1], offsets[1:]
    filled = np.flatnonzero(ends > starts)
    content = np.frombuffer(data, np.uint8)
    is_framed = content[starts[filled]] == 0
    if column.null_count:
        is_framed &= column.is_valid().to_numpy(zero_copy_only=False)[filled]
    return filled[is_framed]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON")


def _without_logical_types(node: Any) -> Any:
    if isinstance(node, dict):
        return {k: _without_logical_types(v) for k, v in node.items() if k != "logicalType"}
    if isinstance(node, list):
        return [_without_logical_types(item) for item in node]
    return node


def _row_fields(envelope: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The columns of `before` or `after`, whichever defines them."""
    for field in envelope["fields"]:
        if field["name"] in ("before", "after"):
            branches = field["type"] if isinstance(field["type"], list) else [field["type"]]
            for branch in branches:
                if isinstance(branch, dict) and branch.get("type") == "record":
                    return list(branch["fields"])
    return []


def envelope_columns(schema: Parsed, subject: str) -> pa.Schema | None:
    """The columns of the rows in an envelope, with their Connect types; None if it is none. Raises
    ConfigError for an envelope whose rows are no records.
    """
    document = orjson.loads(schema.text) if isinstance(schema, AvroSchema) else None
    if not isinstance(document, dict) or not is_envelope(document):
        return None
    fields = _row_fields(document)
    if not fields:
        raise ConfigError(
            f"the columns of {subject} are unknown",
            detail="its rows are documents, each with fields of its own",
            hint='give a schema, with value="debezium"',
        )
    return pa.schema([_column(field) for field in fields])


def _column(field: Mapping[str, Any]) -> pa.Field:
    connect = connect_of(field)
    kind = arrow_type(connect, str(field.get(DATABASE_TYPE, "")))
    return pa.field(field["name"], kind, metadata={CONNECT_METADATA: orjson.dumps(connect)})


def connect_of(field: Mapping[str, Any]) -> dict[str, Any]:
    """The Connect type of a field of an Avro record."""
    return _connect(field["type"])


def _connect(kind: Any) -> dict[str, Any]:
    if isinstance(kind, list):
        others = [branch for branch in kind if branch != "null"]
        if len(others) != 1:
            return {"type": "string"}  # a value of any type, as its text
        return _connect(others[0])
    if isinstance(kind, str):
        return {"type": _CONNECT_TYPES.get(kind, "string")}
    named = {
        name.removeprefix("connect."): kind[name]
        for name in _PROMOTED[1:]
        if kind.get(name) is not None
    }
    if kind["type"] == "record":
        fields = [{**connect_of(field), "field": field["name"]} for field in kind["fields"]]
        return {"type": "struct", "fields": fields, **named}
    if kind["type"] == "array":
        return {"type": "array", "items": _connect(kind["items"]), **named}
    if kind["type"] == "map":
        values = _connect(kind["values"])
        return {"type": "map", "keys": {"type": "string"}, "values": values, **named}
    if not isinstance(kind["type"], str):
        return _connect(kind["type"])
    connect = kind.get("connect.type") or _CONNECT_TYPES.get(kind["type"], "string")
    return {"type": connect, **named}


def _essence(connect: Any) -> Any:
    """What decides how a value is read."""
    if isinstance(connect, Mapping):
        names = ("type", "name", "parameters", "items", "values", "fields", "field", "scale")
        return {name: _essence(connect[name]) for name in names if name in connect}
    return [_essence(item) for item in connect] if isinstance(connect, list) else connect


def _has_floats(kind: Any) -> bool:
    if isinstance(kind, list):
        return any(map(_has_floats, kind))
    if isinstance(kind, dict):
        inside = (kind.get("type"), kind.get("items"), kind.get("values"))
        return any(map(_has_floats, inside))
    return kind in ("float", "double")


def _name_numbers(envelope: Mapping[str, Any], columns: list[str]) -> None:
    """Writes what JSON has no number for as the texts that captures write."""
    for image in (envelope.get("before"), envelope.get("after")):
        if image is not None:
            for name in columns:
                image[name] = _named_number(image[name])


def _named_number(value: Any) -> Any:
    if isinstance(value, list):
        return [_named_number(item) for item in value]
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _connect_envelope(connects: Mapping[str, Connect]) -> dict[str, Any]:
    fields = [{**connect, "field": name, "optional": True} for name, connect in connects.items()]
    row = {"type": "struct", "fields": fields, "optional": True}
    return {"type": "struct", "fields": [{**row, "field": "before"}, {**row, "field": "after"}]}
