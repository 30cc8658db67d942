"""Rows as Avro by a schema registry, in Confluent's wire format: `value = "avro"`.

The subjects are `<topic>-key` and `<topic>-value`. The schema of a row is registered before the
first record that is written by it; every column may be null and is null by default, so that columns
can be added and widened under any compatibility level. An id is the registry's for ever, so a batch
that runs again writes the same bytes. Integers of a key are longs: one number has one key, also
when its column is widened.
"""

import copy
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import fastavro
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import SchemaRefused, StoreRefused
from headwater.schema_lookup.lookup import SchemaLookup, read_value
from headwater.schema_lookup.registration import SchemaRegistration, schema_registration
from headwater.schema_lookup.sources import schema_source
from headwater.schemas.schema import Schema
from headwater.schemas.settings import SchemasSettings
from headwater.schemas.wire_format import framed, unframed
from headwater.settings import Secret
from headwater.sinks.contract import OP, Log, Target
from headwater.sinks.topic.records import BYTES, CHUNK_ROWS, REGISTRY, Form, is_deleted

_LOG: Final = "log"  # the topic `_schemas`
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DETAIL_CHARACTERS: Final = 600  # registries quote whole schemas behind the reason

_INT: Final = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_LONG: Final = (pa.int64(), pa.uint32())


class AvroForm(Form):
    """Of one topic; `of_topic` makes those of others with the same registry."""

    def __init__(self, target: Target, log: Log) -> None:
        super().__init__(target)
        options = target.options
        address = options.get(REGISTRY, _LOG)
        password = options.get(f"{REGISTRY}.password")
        settings = SchemasSettings(
            None if address == _LOG else address,
            options.get(f"{REGISTRY}.username"),
            None if password is None else Secret(password),
        )
        self._begin(target.name)
        self._registration: SchemaRegistration = schema_registration(
            settings, log.bootstrap, log.login
        )
        self._lookup = SchemaLookup(schema_source(settings, log.bootstrap, log.login))

    def close(self) -> None:
        self._registration.close()
        self._lookup.close()

    def of_topic(self, topic: str) -> "AvroForm":
        other = copy.copy(self)
        other._begin(topic)  # noqa: SLF001 (one of ours)
        return other

    def _begin(self, topic: str) -> None:
        self._topic = topic
        self._writers: dict[tuple[str, pa.Schema], _Writer] = {}

    def check(self, fields: pa.Schema) -> None:
        for field in fields:
            _check_name(field.name)
            if _avro_type(field.type, ()) is None:
                raise StoreRefused(
                    f"column {field.name} cannot be represented in Avro",
                    detail=str(field.type),
                    hint='cast it, or give value = "json"',
                )

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        values = rows.select([name for name in rows.schema.names if name != OP])
        key = pa.nulls(len(rows), BYTES)
        if self._key:
            key = self._encoded("key", values.select(list(self._key)))
        kept = pc.invert(is_deleted(rows))  # of a deletion only the key counts
        encoded = self._encoded("value", values.filter(kept))
        value = pc.replace_with_mask(pa.nulls(len(rows), BYTES), kept, encoded)
        return {"key": key, "value": value}

    def rows(self, records: pa.Table, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
        for chunk in records.to_batches(max_chunksize=CHUNK_ROWS):
            read = [self._read(value) for value in chunk["value"].to_pylist()]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([_restored(row.get(field.name), field.type) for row in read],
                             field.type)
                    for field in fields
                ],
                schema=fields,
            )  # fmt: skip

    def _read(self, value: bytes) -> Any:
        try:
            schema_id, at = unframed(value)
            return read_value(self._lookup.parsed(schema_id), value, at)
        except (ValueError, SchemaRefused) as error:
            raise StoreRefused(
                f"topic {self._topic} has a value that is no Avro of a schema", detail=str(error)
            ) from error

    def _encoded(self, part: str, rows: pa.RecordBatch) -> pa.Array:
        schema = pa.schema([pa.field(field.name, field.type) for field in rows.schema])
        writer = self._writers.get((part, schema))
        if writer is None:
            writer = self._writers[part, schema] = self._registered(part, schema)
        return pa.array([writer.write(row) for row in rows.to_pylist()], BYTES)

    def _registered(self, part: str, fields: pa.Schema) -> "_Writer":
        avro = _record(fields, re.sub("[^A-Za-z0-9_]", "_", f"r_{self._topic}_{part}"), part)
        text = orjson.dumps(avro).decode()
        try:
            schema_id = self._registration.register(f"{self._topic}-{part}", Schema(text))
        except SchemaRefused as error:
            raise StoreRefused(
                f"the schema registry does not take the schema of topic {self._topic}",
                detail=f"{error.what} {error.detail}".strip()[:_DETAIL_CHARACTERS],
                hint="if its readers can take the change, PUT /config/SUBJECT"
                ' {"compatibility": "NONE"}; or rebuild into a new version',
            ) from error
        return _Writer(avro, schema_id, fields)


class _Writer:
    """Writes rows of one schema."""

    def __init__(self, avro: dict[str, Any], schema_id: int, fields: pa.Schema) -> None:
        self._schema = fastavro.parse_schema(avro)
        self._id = schema_id
        self._with_maps = {
            field.name: field.type for field in fields if pa.types.is_nested(field.type)
        }

    def write(self, row: dict[str, Any]) -> bytes:
        for name, kind in self._with_maps.items():
            row[name] = _plain(row[name], kind)
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, self._schema, row)
        return framed(self._id, buffer.getvalue())


def _record(fields: Sequence[pa.Field], name: str, part: str) -> dict[str, Any]:
    """A key's columns are never null."""
    made = []
    for field in fields:
        kind = _avro_type(field.type, (name, field.name))
        if part == "key":
            made.append({"name": field.name, "type": "long" if kind == "int" else kind})
        else:
            made.append({"name": field.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": made}


def _avro_type(kind: pa.DataType, path: tuple[str, ...]) -> Any:
    """None if there is none. Records within the row are named by the columns that lead to them."""
    is_ = pa.types
    if is_.is_dictionary(kind):
        return _avro_type(kind.value_type, path)
    if is_.is_boolean(kind):
        return "boolean"
    if kind in _INT:
        return "int"
    if kind in _LONG:
        return "long"
    if kind == pa.float32():
        return "float"
    if kind == pa.float64():
        return "double"
    if is_.is_string(kind) or is_.is_large_string(kind) or kind == pa.string_view():
        return "string"
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return "bytes"
    if is_.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if is_.is_timestamp(kind) and kind.unit != "ns":
        logical = "local-timestamp-micros" if kind.tz is None else "timestamp-micros"
        return {"type": "long", "logicalType": logical}
    if is_.is_time(kind) and kind.unit != "ns":
        return {"type": "long", "logicalType": "time-micros"}
    if is_.is_decimal128(kind) and kind.scale >= 0:
        sizes = {"precision": kind.precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **sizes}
    return _nested(kind, path)


def _nested(kind: pa.DataType, path: tuple[str, ...]) -> Any:
    is_ = pa.types
    if is_.is_list(kind) or is_.is_large_list(kind):
        items = _avro_type(kind.value_type, path)
        return items and {"type": "array", "items": ["null", items]}
    if is_.is_map(kind) and is_.is_string(kind.key_type):
        values = _avro_type(kind.item_type, path)
        return values and {"type": "map", "values": ["null", values]}
    if is_.is_struct(kind):
        types = [(field.name, _avro_type(field.type, (*path, field.name))) for field in kind]
        if not types or any(one is None or not _NAME.fullmatch(name) for name, one in types):
            return None
        return {
            "type": "record",
            "name": ".".join(path) or "row",
            "fields": [
                {"name": name, "type": ["null", one], "default": None} for name, one in types
            ],
        }
    return None


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise StoreRefused(
            f"column {name} has no name that Avro allows",
            detail="names are letters, digits and _, and begin with no digit",
            hint='rename it, or give value = "json"',
        )


def _plain(value: Any, kind: pa.DataType) -> Any:
    """For Avro: maps are dictionaries."""
    return _converted(value, kind, dict)


def _restored(value: Any, kind: pa.DataType) -> Any:
    """For Arrow: maps are lists of pairs."""
    return _converted(value, kind, list)


def _converted(
    value: Any, kind: pa.DataType, made: Callable[[Iterator[tuple[str, Any]]], Any]
) -> Any:
    if value is None or not pa.types.is_nested(kind):
        return value
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return made((name, _converted(one, kind.item_type, made)) for name, one in pairs)
    if pa.types.is_struct(kind):
        return {field.name: _converted(value.get(field.name), field.type, made) for field in kind}
    return [_converted(one, kind.value_type, made) for one in value]
