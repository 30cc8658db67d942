"""Protobuf schemas of a registry: the message of each value, and the columns of a topic."""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from headwater.errors import ConfigError
from headwater.pipelines.decoding.avro.registered import MakeSource, schema_by_id
from headwater.schemas.protobuf.messages import descriptor_of
from headwater.schemas.protobuf.schema import ProtobufSchema
from headwater.schemas.schema import Parsed
from headwater.schemas.wire_format import message_indexes, unframed

_MOST_MESSAGES: Final = 256  # whose readers are remembered
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_GOOGLE: Final = "google.protobuf."
_SCALARS: Final = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(), FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT64: pa.int64(), FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(), FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(), FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_UINT32: pa.int64(), FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_BOOL: pa.bool_(), FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(), FieldDescriptor.TYPE_ENUM: pa.string(),
}  # fmt: skip

Make = Callable[[Descriptor], Any]


class RegisteredMessages:
    """The messages of values, by the schemas that their ids stand for. `make` is called once for
    each kind of message. May be pickled.
    """

    def __init__(self, source: MakeSource, make: Make) -> None:
        self._source = source
        self._make = make
        self._made: dict[tuple[int, tuple[int, ...]], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_make": self._make, "_made": {}}

    def of(self, value: bytes) -> tuple[Any, int]:
        """What was made for the message of this value, and the index at which it begins. Raises
        ValueError for what is none, PipelineError if the registry does not answer.
        """
        schema_id, at = unframed(value)
        indexes, at = message_indexes(value, at)
        key = (schema_id, tuple(indexes))
        found = self._made.get(key)
        if found is None:
            schema = schema_by_id(self._source, schema_id)
            if not isinstance(schema, ProtobufSchema):
                raise ValueError(f"schema {schema_id} is {schema.type}")
            if len(self._made) >= _MOST_MESSAGES:
                self._made.clear()
            try:
                found = self._made[key] = self._make(descriptor_of(schema, indexes))
            except ConfigError as error:  # a version whose field is of a type that does not fit
                raise ValueError(str(error)) from None
        return found, at


def message_columns(schema: Parsed, message: str | None, topic: str) -> pa.Schema:
    """The columns of a topic's values, by the last version of `<topic>-value`: the fields of the
    message of that name, or of the file's first. Raises ConfigError.
    """
    if not isinstance(schema, ProtobufSchema):
        raise ConfigError(
            f"the columns of {topic} are unknown",
            detail=f"{topic}-value is {schema.type}",
            hint=f'value="{schema.type.lower()}"',
        )
    try:
        descriptor = (
            descriptor_of(schema, [0])
            if message is None
            else schema.pool.FindMessageTypeByName(message)
        )
    except (KeyError, ValueError):
        raise ConfigError(
            f"the columns of {topic} are unknown",
            detail=f"{topic}-value has no message {message or ''}".rstrip(),
            hint="option protobuf.message has the package in front: package.Message",
        ) from None
    if not descriptor.fields:
        raise ConfigError(
            f"the columns of {topic} are unknown", detail=f"{descriptor.full_name} has no fields"
        )
    around = (descriptor.full_name,)
    return pa.schema([(field.name, _column_type(field, around)) for field in descriptor.fields])


def _column_type(field: FieldDescriptor, around: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        value = _value_type(message.fields_by_name["value"], around)
        return pa.map_(pa.string(), value)
    kind = _value_type(field, around)
    return pa.list_(kind) if field.is_repeated else kind


def _value_type(field: FieldDescriptor, around: tuple[str, ...]) -> pa.DataType:
    message = field.message_type
    if message is None:
        return _SCALARS[field.type]
    name = message.full_name
    if name == _GOOGLE + "Timestamp":
        return _INSTANT
    if name.startswith(_GOOGLE):
        is_wrapper = name.endswith("Value") and [f.name for f in message.fields] == ["value"]
        return _SCALARS[message.fields[0].type] if is_wrapper else pa.string()
    if name in around or not message.fields:
        return pa.string()  # JSON: a message within itself has no depth that a column could have
    inside = (*around, name)
    return pa.struct([(child.name, _column_type(child, inside)) for child in message.fields])
