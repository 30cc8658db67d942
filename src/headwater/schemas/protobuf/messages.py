"""Protobuf messages in Confluent's wire format, decoded by a schema of the registry."""

from typing import Any

from google.protobuf import json_format, message_factory
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from headwater.schemas.protobuf.schema import ProtobufSchema
from headwater.schemas.wire_format import message_indexes


def read_message(schema: ProtobufSchema, data: bytes, at: int) -> dict[str, Any]:
    """The message behind its indexes at `at`, as JSON has it. Raises ValueError."""
    indexes, at = message_indexes(data, at)
    message = message_factory.GetMessageClass(descriptor_of(schema, indexes))()
    try:
        message.ParseFromString(data[at:])
        found: dict[str, Any] = json_format.MessageToDict(
            message, preserving_proto_field_name=True, descriptor_pool=schema.pool
        )
    except (DecodeError, json_format.Error, TypeError, RecursionError) as error:
        raise ValueError(f"no message {message.DESCRIPTOR.full_name}: {error}") from error
    return found


def descriptor_of(schema: ProtobufSchema, indexes: list[int]) -> Descriptor:
    """The message that the indexes stand for. Raises ValueError."""
    messages, names = schema.proto.message_type, []
    for index in indexes:
        if not 0 <= index < len(messages):
            raise ValueError(f"its schema has no message {indexes}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    package = [schema.proto.package] if schema.proto.package else []
    return schema.pool.FindMessageTypeByName(".".join([*package, *names]))
