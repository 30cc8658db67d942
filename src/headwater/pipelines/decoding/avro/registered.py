"""Avro schemas of a registry: the writer's schema of each value, and the columns of a topic.

`registry` among the options is the address of one, or "log": the topic `_schemas` of the broker
that the records come from. An id stands for one schema for ever, so a batch that runs again is
decoded as before. A registry that does not answer is an error of the batch, which is tried again;
it does not make dead letters.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO
from typing import Any, Final

import fastavro
import pyarrow as pa

from headwater.errors import ConfigError, HeadwaterError, PipelineError, SchemaRefused
from headwater.pipelines.decoding.avro.schemas import parsed_schema
from headwater.schema_lookup.lookup import SchemaLookup
from headwater.schema_lookup.sources import HttpSource, SchemaSource, TopicSource
from headwater.schemas.avro.parsing import AvroSchema
from headwater.schemas.avro.values import Unreadable, read_value_of
from headwater.schemas.schema import Parsed, parse

OPTION: Final = "registry"
LOG: Final = "log"
_NOT_FOUND: Final = 404

# Compared by what it calls, so it has no keywords.
MakeSource = partial[TopicSource] | partial[HttpSource]
Read = Callable[[bytes, int], Any]  # a value behind an index

_TYPES: Final = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(), "fixed": pa.binary(),
    "enum": pa.string(),
}  # fmt: skip
_LOGICAL_TYPES: Final = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "time-millis": pa.string(),
    "time-micros": pa.string(),
    "uuid": pa.string(),
}
_MOST_DIGITS: Final = 38

# Tasks of a process share what was looked up: a decoder lives as long as a task, and has no end.
_MOST_LOOKUPS: Final = 8
_lookups: OrderedDict[tuple[Any, ...], SchemaLookup] = OrderedDict()
_lookups_lock = threading.Lock()


def _lookup_of_process(make: MakeSource) -> SchemaLookup:
    key = (make.func, *make.args)
    with _lookups_lock:
        if key not in _lookups:
            _lookups[key] = SchemaLookup(make())
            while len(_lookups) > _MOST_LOOKUPS:
                _lookups.popitem(last=False)[1].close()
        _lookups.move_to_end(key)
        return _lookups[key]


def registry_source(options: Mapping[str, str], of_log: MakeSource | None) -> MakeSource | None:
    """How to reach the registry that the options name; None if they name none. `of_log` reaches
    the topic. Raises ConfigError.
    """
    given = options.get(OPTION)
    if given is None:
        return None
    if given == LOG:
        if of_log is None:
            raise ConfigError(f"option {OPTION}: {LOG} needs a broker")
        return of_log
    if not given.startswith(("http://", "https://")):
        raise ConfigError(f"option {OPTION}: {given}", hint=f"http://…, or {LOG}")
    username, password = options.get(f"{OPTION}.username"), options.get(f"{OPTION}.password", "")
    return partial(HttpSource, given, username, password)


class RegisteredWriters:
    """Reads values by the schemas that their ids stand for: `reader` makes what reads the values of
    one. May be pickled.
    """

    def __init__(
        self, make: MakeSource, reader: "Callable[[AvroSchema], Read] | None" = None
    ) -> None:
        self._make = make
        self._reader = reader or _reader
        self._reads: dict[int, Read] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_make": self._make, "_reader": self._reader, "_reads": {}}

    def read(self, schema_id: int, value: bytes, at: int) -> Any:
        """Raises ValueError for what is not of the schema, or has an id that the registry does not
        have; PipelineError if the registry does not answer.
        """
        found = self._reads.get(schema_id)
        if found is None:
            found = self._reads[schema_id] = self._made(schema_id)
        return found(value, at)

    def _made(self, schema_id: int) -> Read:
        schema = schema_by_id(self._make, schema_id)
        if not isinstance(schema, AvroSchema):
            raise ValueError(f"schema {schema_id} is {schema.type}")  # noqa: TRY004 (as above)
        return self._reader(schema)


def schema_by_id(make: MakeSource, schema_id: int) -> Parsed:
    """Raises ValueError for an id that the registry does not have, PipelineError if the registry
    does not answer.
    """
    try:
        return _lookup_of_process(make).parsed(schema_id)
    except SchemaRefused as error:
        if error.code // 100 == _NOT_FOUND:
            raise ValueError(f"the registry has no schema {schema_id}") from None
        raise _unavailable(schema_id, error) from error
    except HeadwaterError as error:
        raise _unavailable(schema_id, error) from error


def _unavailable(schema_id: int, error: HeadwaterError) -> PipelineError:
    return PipelineError(
        f"schema {schema_id} cannot be looked up",
        detail=str(error),
        hint=error.hint or f"option {OPTION} says where schemas are",
    )


def _reader(schema: AvroSchema) -> Read:
    """By fastavro, or by our slower reader where a few bytes could end the process, and where the
    schema refers to others.
    """
    try:
        return framed_reader(parsed_schema(OPTION, schema.text, []))
    except ConfigError:
        return bounded_reader(schema)


def framed_reader(parsed: Any) -> Read:
    """By fastavro, of a schema that was found to be harmless."""

    def read(value: bytes, at: int) -> Any:
        data = BytesIO(value)
        data.seek(at)
        record = fastavro.schemaless_reader(data, parsed, None)
        left_bytes = len(value) - data.tell()
        if left_bytes:
            raise ValueError(f"{left_bytes} bytes are left behind it")
        return record

    return read


def bounded_reader(schema: AvroSchema) -> Read:
    """By our slower reader, which takes any schema."""

    def read(value: bytes, at: int) -> Any:
        try:
            record = read_value_of(value, at, schema.schema, schema.named)
        except Unreadable as error:
            raise ValueError(str(error)) from None
        if not isinstance(record, dict):
            raise ValueError("it is no record")  # noqa: TRY004 (bytes of others)
        return record

    return read


def latest_schema(source: SchemaSource, topic: str) -> Parsed:
    """The last version of the subject `<topic>-value`. Raises ConfigError."""
    subject = f"{topic}-value"
    try:
        return parse(source.latest(subject)[1], source.referenced)
    except HeadwaterError as error:
        raise ConfigError(
            f"the columns of {topic} are unknown",
            detail=f"{subject} in the schema registry: {error}",
            hint="register its schema first, or give a schema",
        ) from error


def registered_columns(schema: Parsed, topic: str) -> pa.Schema:
    """The columns of a topic's values, by the last version of the subject `<topic>-value`. All are
    nullable: values of other versions lack some. Raises ConfigError.
    """
    subject = f"{topic}-value"
    record = schema.named.get(schema.schema) if isinstance(schema, AvroSchema) else None
    if not isinstance(schema, AvroSchema) or record is None or record["type"] != "record":
        raise ConfigError(f"the columns of {topic} are unknown", detail=f"{subject} is no record")
    return pa.schema(
        [
            pa.field(field["name"], _column_type(field, schema, subject))
            for field in record["fields"]
        ]
    )


def _column_type(field: Mapping[str, Any], schema: AvroSchema, subject: str) -> pa.DataType:
    try:
        return _arrow_type(field["type"], schema.named, ())
    except ValueError as error:
        raise ConfigError(
            f"field {field['name']} of {subject} is no column",
            detail=str(error),
            hint="give a schema that has other fields only",
        ) from None


def _arrow_type(kind: Any, named: Mapping[str, Any], around: tuple[str, ...]) -> pa.DataType:
    """Raises ValueError for what a column cannot be."""
    if isinstance(kind, list):
        others = [branch for branch in kind if branch != "null"]
        if len(others) != 1:
            raise ValueError("a union of several types")
        return _arrow_type(others[0], named, around)
    if isinstance(kind, str):
        if kind not in named:
            if kind == "null":
                raise ValueError("it is always null")
            return _TYPES[kind]
        if kind in around:
            raise ValueError(f"{kind} is within itself")
        around, kind = (*around, kind), named[kind]
    logical = kind.get("logicalType")
    if logical == "decimal":
        digits, scale = kind.get("precision", 0), kind.get("scale", 0)
        return pa.decimal128(digits, scale) if digits <= _MOST_DIGITS else pa.string()
    if logical in _LOGICAL_TYPES:
        return _LOGICAL_TYPES[logical]
    match kind["type"]:
        case "array":
            return pa.list_(_arrow_type(kind["items"], named, around))
        case "map":
            return pa.map_(pa.string(), _arrow_type(kind["values"], named, around))
        case "record":
            return pa.struct(
                [(field["name"], _arrow_type(field["type"], named, around))
                 for field in kind["fields"]]
            )  # fmt: skip
    return _TYPES[kind["type"]]
