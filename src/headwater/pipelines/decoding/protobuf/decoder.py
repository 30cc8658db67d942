"""Decoder of Protobuf messages: one column for each field that the schema names.

Messages are defined by a descriptor set, as `protoc --include_imports --descriptor_set_out`
writes it, or by a schema registry: then each value is read by the schema that its id stands for,
and a column that its message lacks is null. `_op` is "u", and "d" for a tombstone (tombstones.py).

A field with presence (optional, a message, of a oneof) that is not set is null; one without has its
default. Enums are their names in text columns and their numbers in integer columns. Timestamp and
the wrappers of google.protobuf are the values that they stand for, other messages structs, or JSON
in text columns.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from google.protobuf import descriptor_pb2, json_format, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from headwater.errors import ConfigError
from headwater.pipelines.decoding.avro.registered import MakeSource, registry_source
from headwater.pipelines.decoding.contract import Columns, Decoder
from headwater.pipelines.decoding.framing import behind_indexes, has_framing, unframed
from headwater.pipelines.decoding.merging import Part, merged
from headwater.pipelines.decoding.protobuf.registered import RegisteredMessages
from headwater.pipelines.decoding.python_rows import PythonRows
from headwater.pipelines.decoding.tombstones import Tombstones

FILE_OPTION: Final = "descriptors"  # the name of a file
MESSAGE_OPTION: Final = "message"  # "shop.v1.Order"
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
}

# Values without JSON: a time beyond the year 9999, a message in an Any of an unknown type.
_UNFIT: Final = (ValueError, TypeError, json_format.Error)

Get = Callable[[Any], Any]  # from a message to a value
_Reader = tuple[Any, list[Get]]  # the class of a message, and the values of its columns
_Message = tuple[Any, list[Get]]


class ProtobufDecoder(Decoder):
    def __init__(
        self,
        schema: pa.Schema,
        options: Mapping[str, str],
        registry_of_log: MakeSource | None = None,
    ) -> None:
        super().__init__(schema)
        self._given = list(schema)
        self._is_framed = has_framing(options)
        self._tombstones = Tombstones(schema, options)
        self._rows = PythonRows(self._given)
        make = registry_source(options, registry_of_log)
        self._registered = None if make is None else RegisteredMessages(make, self._reader)
        self._descriptors, self._message = (
            _read(options) if make is None else (b"", options.get(MESSAGE_OPTION, "of its schema"))
        )
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        """Classes that were made from descriptors cannot be pickled."""
        return {name: value for name, value in self.__dict__.items() if name != "_fixed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def _open(self) -> None:
        self._fixed: _Reader | None = None
        if self._registered is None:
            descriptor = _descriptor(self._descriptors, self._message)
            gets = [_member(descriptor, field) for field in self._given]
            self._fixed = message_factory.GetMessageClass(descriptor), gets

    def _reader(self, descriptor: Descriptor) -> "_Reader":
        """For a message of a registry. Raises ConfigError for a field that fits no column."""
        gets = [
            _member(descriptor, field) if field.name in descriptor.fields_by_name else _no_value
            for field in self._given
        ]
        return message_factory.GetMessageClass(descriptor), gets

    def _read(self, value: bytes) -> "_Message":
        """Raises ValueError and DecodeError."""
        if self._fixed is None:
            assert self._registered is not None
            (kind, gets), at = self._registered.of(value)
        else:
            kind, gets = self._fixed
            at = behind_indexes(value, unframed(value)[1]) if self._is_framed else 0
        return kind.FromString(value[at:] if at else value), gets

    def _decode(self, batch: pa.RecordBatch) -> Columns:
        rows, causes = [], []
        messages: list[_Message] = []
        for row, value in enumerate(batch.column("value").to_pylist()):
            if value is None:
                continue
            try:
                messages.append(self._read(value))
                rows.append(row)
            except (DecodeError, ValueError) as error:
                causes.append((row, f"no message {self._message}: {error}"))
        try:
            columns = [
                [gets[number](message) for message, gets in messages]
                for number in range(len(self._given))
            ]
        except _UNFIT:
            columns, rows = self._taken_singly(messages, rows, causes)
        arrays, fitting, unfit = self._rows.build(columns, np.array(rows, np.int64))
        part = Part(arrays, fitting, causes + unfit, pa.repeat(pa.scalar("u"), len(fitting)))
        return merged([part, *self._tombstones.read(batch)], self._fields)

    def _taken_singly(
        self, messages: "list[_Message]", rows: list[int], causes: list[tuple[int, str]]
    ) -> tuple[list[list[Any]], list[int]]:
        """The columns of the messages whose values can be read, and their rows."""
        columns: list[list[Any]] = [[] for _ in self._given]
        taken = []
        for (message, gets), row in zip(messages, rows, strict=True):
            try:
                values = [get(message) for get in gets]
            except _UNFIT as error:
                causes.append((row, f"no message {self._message}: {error}"))
                continue
            taken.append(row)
            for column, value in zip(columns, values, strict=True):
                column.append(value)
        return columns, taken


def _no_value(_: Any) -> None:
    """Of a column that this version of the message lacks."""


def _read(options: Mapping[str, str]) -> tuple[bytes, str]:
    path, message = options.get(FILE_OPTION), options.get(MESSAGE_OPTION)
    if path is None or message is None:
        raise ConfigError(
            "Protobuf needs descriptors and the name of a message",
            hint=f"options protobuf.{FILE_OPTION}: the file that protoc --include_imports "
            f"--descriptor_set_out wrote; protobuf.{MESSAGE_OPTION}: package.Message; or"
            " protobuf.registry: the address of a schema registry, or log",
        )
    try:
        with open(os.path.expanduser(path), "rb") as file:
            return file.read(), message
    except OSError as error:
        raise ConfigError(
            f"option protobuf.{FILE_OPTION}: the file cannot be read", detail=str(error)
        ) from error


def _descriptor(descriptors: bytes, message: str) -> Descriptor:
    pool = DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise ConfigError(
            f"message {message} is not in the descriptors",
            hint=f"option protobuf.{MESSAGE_OPTION} has the package in front: package.Message",
        ) from None
    except (DecodeError, TypeError) as error:
        raise ConfigError(
            f"option protobuf.{FILE_OPTION}: no descriptor set",
            detail=str(error),
            hint="protoc --include_imports --descriptor_set_out writes one",
        ) from error


def _member(descriptor: Descriptor, column: pa.Field) -> Get:
    """How the value of a column is taken from a message."""
    name: str = column.name
    field = descriptor.fields_by_name.get(name)
    if field is None:
        raise ConfigError(
            f"column {name} is not in the message {descriptor.full_name}",
            detail=f"it has {', '.join(descriptor.fields_by_name)}",
        )
    if _is_map(field):
        value = _value(
            field.message_type.fields_by_name["value"], _item_type(column.type, name), name
        )
        return lambda message: {
            str(key): value(entry) for key, entry in getattr(message, name).items()
        }
    if field.is_repeated:
        item = _value(field, _item_type(column.type, name), name)
        return lambda message: [item(element) for element in getattr(message, name)]
    one = _value(field, column.type, name)
    if field.has_presence:
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    return lambda message: one(getattr(message, name))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _item_type(type_: pa.DataType, name: str) -> pa.DataType:
    if pa.types.is_map(type_):
        return type_.item_type
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return type_.value_type
    raise ConfigError(f"column {name}: a repeated field or a map does not fit the type {type_}")


def _value(field: FieldDescriptor, type_: pa.DataType, name: str) -> Get:
    """How one value is made of what Protobuf has."""
    is_text = pa.types.is_string(type_) or pa.types.is_large_string(type_)
    if field.enum_type is not None:
        if not is_text:
            return lambda value: value
        names = {number: member.name for number, member in field.enum_type.values_by_number.items()}
        return lambda value: names.get(value, str(value))
    message = field.message_type
    if message is None:
        return lambda value: value
    if message.full_name == _TIMESTAMP and pa.types.is_timestamp(type_):
        return lambda value: value.seconds * 10**6 + value.nanos // 1000
    if message.full_name in _WRAPPERS:
        return lambda value: value.value
    if pa.types.is_struct(type_):
        gets = [(child.name, _member(message, child)) for child in type_]
        return lambda value: {member: get(value) for member, get in gets}
    if is_text:
        return lambda value: json_format.MessageToJson(value, indent=None)
    raise ConfigError(f"column {name}: a message {message.full_name} does not fit the type {type_}")
