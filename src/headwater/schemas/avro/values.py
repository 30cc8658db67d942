"""Bounded decoder of Avro values whose schema or bytes are not trusted.

fastavro's reader recurses in C, as deep as a schema that refers to itself lets the bytes demand: a
hundred of them end the process. And some schemas make values of no bytes at all (nulls, records of
nulls, one such record nested in another), in any number. Here a value is at most MAX_DEPTH deep,
and one call makes a few values per byte, and at most MAX_VALUES, whatever the schema is.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import fastavro
import orjson
from fastavro.read import LOGICAL_READERS

from headwater.schemas.avro.parsing import nesting

CONTAINER: Final = b"Obj\x01"
MAX_DEPTH: Final = 64
MAX_VALUES: Final = 100_000
_SYNC_BYTES: Final = 16
_MAX_LONG_BYTES: Final = 10
# Digits of a decimal take more than linear time.
_MAX_DECIMAL_BYTES: Final = 64
_SCHEMA_KEY: Final = "avro.schema"
_CODEC_KEY: Final = "avro.codec"
_META: Final = {"type": "map", "values": "bytes"}

_T = TypeVar("_T")


class Unreadable(Exception):
    """The bytes are not of the schema, the schema is none, or they exceed a bound."""


def read_container(data: bytes) -> list[Any]:
    """The records of an uncompressed container file. Raises Unreadable."""
    return _guarded(lambda: _container(data))


def read_value(data: bytes, schema: Any) -> Any:
    """All of `data` as one value of a schema that fastavro has parsed. Raises Unreadable."""

    def read() -> Any:
        named: dict[str, Any] = {}
        reader = _Reader(data, named)
        value = reader.value(fastavro.parse_schema(schema, named))
        if reader.at != len(data):
            raise Unreadable(f"{len(data) - reader.at} bytes are left behind it")
        return value

    return _guarded(read)


def read_value_of(data: bytes, at: int, schema: Any, named: Mapping[str, Any]) -> Any:
    """All of `data` behind `at` as one value of an `AvroSchema`. Raises Unreadable."""

    def read() -> Any:
        reader = _Reader(data, named)
        reader.at = at
        value = reader.value(schema)
        if reader.at != len(data):
            raise Unreadable(f"{len(data) - reader.at} bytes are left behind it")
        return value

    return _guarded(read)


def _guarded(read: Callable[[], _T]) -> _T:
    try:
        return read()
    except Unreadable:
        raise
    except Exception as error:  # a schema or bytes of another kind: whatever they lead to
        raise Unreadable(str(error) or type(error).__name__) from None


def _container(data: bytes) -> list[Any]:
    named: dict[str, Any] = {}
    reader = _Reader(data, named)
    reader.take(len(CONTAINER))
    meta = reader.value(_META)
    codec = meta.get(_CODEC_KEY, b"null")
    if codec != b"null":
        raise Unreadable(f"it is compressed: {codec[:20].decode('ascii', 'replace')}")
    written = orjson.loads(meta[_SCHEMA_KEY])
    # A level of Avro is up to three of JSON: {"type": …}, "fields": […], {"name": …}.
    if nesting(written, 3 * MAX_DEPTH) > 3 * MAX_DEPTH:
        raise Unreadable("its schema is too deep")
    schema = fastavro.parse_schema(written, named)
    reader.take(_SYNC_BYTES)
    records: list[Any] = []
    while reader.at < len(data):
        count, size_bytes = reader.long(), reader.long()
        end = reader.at + size_bytes
        records += (reader.value(schema) for _ in range(count))
        if reader.at != end:
            raise Unreadable("a block is not as long as it says")
        reader.take(_SYNC_BYTES)
    return records


class _Reader:
    def __init__(self, data: bytes, named: Mapping[str, Any]) -> None:
        self.at = 0
        self._data = data
        self._named = named
        self._values_left = min(MAX_VALUES, 1000 + 4 * len(data))

    def take(self, size_bytes: int) -> bytes:
        end = self.at + size_bytes
        if size_bytes < 0 or end > len(self._data):
            raise Unreadable("it ends too early")
        found = self._data[self.at : end]
        self.at = end
        return found

    def long(self) -> int:
        """Variable length, zigzag."""
        number = 0
        for index in range(_MAX_LONG_BYTES):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)
        raise Unreadable("a number is too long")

    def value(self, schema: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise Unreadable(f"it is more than {MAX_DEPTH} values deep")
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, list):
            return self.value(kind[self._index(len(kind))], depth + 1)
        if isinstance(kind, dict) or kind not in _KINDS:
            return self.value(kind if isinstance(kind, dict) else self._named[kind], depth + 1)
        self._values_left -= 1
        if self._values_left < 0:
            raise Unreadable("it has too many values for its bytes")
        match kind:
            case "record" | "error":
                return {
                    field["name"]: self.value(field["type"], depth + 1)
                    for field in schema["fields"]
                }
            case "array":
                return [
                    self.value(schema["items"], depth + 1)
                    for count in self._blocks()
                    for _ in range(count)
                ]
            case "map":
                return {
                    self.text(): self.value(schema["values"], depth + 1)
                    for count in self._blocks()
                    for _ in range(count)
                }
            case "enum":
                return schema["symbols"][self._index(len(schema["symbols"]))]
            case "fixed":
                return self._logical(self.take(schema["size"]), schema)
        return self._logical(_PRIMITIVES[kind](self), schema)

    def _blocks(self) -> Iterator[int]:
        """Numbers of items, until one is 0."""
        while count := self.long():
            if count < 0:
                self.long()  # the block's size in bytes
            yield abs(count)

    def _index(self, length: int) -> int:
        index = self.long()
        if not 0 <= index < length:
            raise Unreadable("it chooses what the schema does not have")
        return index

    def bytes_(self) -> bytes:
        return self.take(self.long())

    def text(self) -> str:
        return self.bytes_().decode()

    def _logical(self, value: Any, schema: Any) -> Any:
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if logical is None or (isinstance(value, bytes) and len(value) > _MAX_DECIMAL_BYTES):
            return value
        convert = LOGICAL_READERS.get(f"{schema['type']}-{logical}")
        return value if convert is None else convert(value, schema, None)


_PRIMITIVES: Final[dict[str, Callable[[_Reader], Any]]] = {
    "null": lambda _: None,
    "boolean": lambda reader: reader.take(1) != b"\x00",
    "int": _Reader.long,
    "long": _Reader.long,
    "float": lambda reader: struct.unpack("<f", reader.take(4))[0],
    "double": lambda reader: struct.unpack("<d", reader.take(8))[0],
    "bytes": _Reader.bytes_,
    "string": _Reader.text,
}
_KINDS: Final = frozenset({"record", "error", "array", "map", "enum", "fixed", *_PRIMITIVES})
