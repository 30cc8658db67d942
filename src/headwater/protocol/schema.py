"""The codec of every Kafka message, made from its class, for all of its versions.

A message is a msgspec struct whose annotations say what each field is on the wire and in which
versions it is there:

    class Broker(Message):
        node_id: int32 = 0
        rack: Annotated[string | None, since(1)] = None

`flexible` of the outermost message says from which version on the compact forms and tagged fields
of KIP-482 are used. Readers and writers are built once per (class, version), on first use.
"""

from collections.abc import Callable
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Self, Union, get_args, get_origin
from uuid import UUID

import msgspec

from headwater.errors import MalformedMessage
from headwater.protocol import primitives as p
from headwater.protocol.primitives import Out, Reader

Read = Callable[[Reader], Any]
Write = Callable[[bytearray, Any], None]


class Kind(NamedTuple):
    """One primitive: how it is read and written, in classic and in flexible versions."""

    read: Read
    write: Write
    read_flexible: Read
    write_flexible: Write
    zero: Any


def _fixed(read: Read, write: Write, zero: Any = 0) -> Kind:
    return Kind(read, write, read, write, zero)


_STRING: Final = Kind(
    Reader.string, p.write_string, Reader.compact_string, p.write_compact_string, ""
)
_BYTES: Final = Kind(Reader.bytes, p.write_bytes, Reader.compact_bytes, p.write_compact_bytes, b"")

int8 = Annotated[int, _fixed(Reader.int8, p.write_int8)]
int16 = Annotated[int, _fixed(Reader.int16, p.write_int16)]
int32 = Annotated[int, _fixed(Reader.int32, p.write_int32)]
int64 = Annotated[int, _fixed(Reader.int64, p.write_int64)]
uint16 = Annotated[int, _fixed(Reader.uint16, p.write_uint16)]
uint32 = Annotated[int, _fixed(Reader.uint32, p.write_uint32)]
float64 = Annotated[float, _fixed(Reader.float64, p.write_float64)]
boolean = Annotated[bool, _fixed(Reader.boolean, p.write_boolean)]
uuid = Annotated[UUID, _fixed(Reader.uuid, p.write_uuid, p.NIL_UUID)]
string = Annotated[str, _STRING]
# Read as a view of the request (no copy); written from any buffer, or from a Splice.
binary = Annotated[Any, _BYTES]


class Versions(NamedTuple):
    """The versions that have a field; as a tagged field, `tag` is its number."""

    first: int = 0
    last: int = 32767
    tag: int | None = None


def since(first: int) -> Versions:
    return Versions(first)


def until(last: int) -> Versions:
    return Versions(0, last)


class Message(msgspec.Struct, kw_only=True, gc=False):
    """A Kafka message, or a part of one."""

    api_key: ClassVar[int] = -1
    flexible: ClassVar[int] = 32767

    @classmethod
    def read(cls, reader: Reader, version: int) -> Self:
        message: Self = _reader(cls, version, version >= cls.flexible)(reader)
        return message

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview, version: int) -> Self:
        return cls.read(Reader(data), version)

    def write(self, out: Out, version: int) -> None:
        _writer(type(self), version, version >= self.flexible)(out, self)

    def encode(self, version: int) -> Out:
        out = Out()
        self.write(out, version)
        return out


class _Field(NamedTuple):
    name: str
    type: Any
    nullable: bool
    versions: Versions
    default: Any


def _split(annotation: Any) -> tuple[Any, bool, Versions]:
    """(bare type, nullable, versions) of an annotation; Kind stays attached to the bare type."""
    versions = Versions()
    nullable = False
    while True:
        if get_origin(annotation) is Annotated:
            inner, *marks = get_args(annotation)
            found = [mark for mark in marks if isinstance(mark, Versions)]
            if found:
                versions = found[-1]
            kinds = [mark for mark in marks if isinstance(mark, Kind)]
            if kinds:
                return kinds[-1], nullable, versions
            annotation = inner
        elif isinstance(annotation, UnionType) or get_origin(annotation) is Union:
            nullable = True
            (annotation,) = (
                argument for argument in get_args(annotation) if argument is not NoneType
            )
        else:
            return annotation, nullable, versions


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


@cache
def _fields(cls: type[Message]) -> tuple[_Field, ...]:
    return tuple(
        _Field(field.name, *_split(cls.__annotations__[field.name]), _default(field))
        for field in msgspec.structs.fields(cls)
    )


def _value_reader(kind: Any, nullable: bool, version: int, flexible: bool) -> Read:
    if isinstance(kind, Kind):
        read = kind.read_flexible if flexible else kind.read
        if nullable or kind.zero not in ("", b""):
            return read

        def read_present(reader: Reader) -> Any:
            value = read(reader)
            if value is None:
                raise MalformedMessage("null where a value is required")
            return value

        return read_present
    if get_origin(kind) is list:
        return _list_reader(get_args(kind)[0], nullable, version, flexible)
    read = _reader(kind, version, flexible)
    if not nullable:
        return read

    def read_nullable(reader: Reader) -> Any:
        return None if reader.int8() < 0 else read(reader)

    return read_nullable


def _list_reader(element: Any, nullable: bool, version: int, flexible: bool) -> Read:
    bare, element_nullable, _ = _split(element)
    read = _value_reader(bare, element_nullable, version, flexible)
    read_count = Reader.compact_count if flexible else Reader.count

    def read_list(reader: Reader) -> Any:
        count = read_count(reader)
        if count is None:
            if nullable:
                return None
            raise MalformedMessage("null where an array is required")
        return [read(reader) for _ in range(count)]

    return read_list


def _value_writer(kind: Any, nullable: bool, version: int, flexible: bool) -> Write:
    if isinstance(kind, Kind):
        return kind.write_flexible if flexible else kind.write
    if get_origin(kind) is list:
        bare, element_nullable, _ = _split(get_args(kind)[0])
        write = _value_writer(bare, element_nullable, version, flexible)
        write_count = p.write_compact_count if flexible else p.write_count

        def write_list(out: bytearray, value: Any) -> None:
            if value is None:
                write_count(out, None)
                return
            write_count(out, len(value))
            for element in value:
                write(out, element)

        return write_list
    write_part = _writer(kind, version, flexible)
    if not nullable:
        return write_part

    def write_nullable(out: bytearray, value: Any) -> None:
        if value is None:
            out.append(0xFF)
        else:
            out.append(1)
            write_part(out, value)

    return write_nullable


def _present(cls: type[Message], version: int) -> list[_Field]:
    return [f for f in _fields(cls) if f.versions.first <= version <= f.versions.last]


@cache
def _reader(cls: type[Message], version: int, flexible: bool) -> Read:
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    for field in _present(cls, version):
        read = _value_reader(field.type, field.nullable, version, flexible)
        if field.versions.tag is None:
            plain.append((field.name, read))
        elif flexible:
            tagged[field.versions.tag] = (field.name, read)

    def read_message(reader: Reader) -> Message:
        values = {name: read(reader) for name, read in plain}
        if flexible:
            for _ in range(reader.uvarint()):
                tag = reader.uvarint()
                part = Reader(reader.take(reader.uvarint()))
                if tag in tagged:
                    name, read = tagged[tag]
                    values[name] = read(part)
        return cls(**values)

    return read_message


@cache
def _writer(cls: type[Message], version: int, flexible: bool) -> Write:
    plain: list[tuple[str, Write]] = []
    tagged: list[tuple[int, str, Write, Any]] = []
    for field in _present(cls, version):
        write = _value_writer(field.type, field.nullable, version, flexible)
        if field.versions.tag is None:
            plain.append((field.name, write))
        elif flexible:
            tagged.append((field.versions.tag, field.name, write, field.default))
    tagged.sort(key=lambda field: field[0])

    def write_message(out: bytearray, message: Any) -> None:
        for name, write in plain:
            write(out, getattr(message, name))
        if not flexible:
            return
        if not tagged:
            out.append(0)
            return
        # A tagged field is left out while it has its default (KIP-482).
        present = [field for field in tagged if getattr(message, field[1]) != field[3]]
        p.write_uvarint(out, len(present))
        for tag, name, write, _ in present:
            part = Out()
            write(part, getattr(message, name))
            p.write_uvarint(out, tag)
            p.write_uvarint(out, len(part))
            out += part

    return write_message
