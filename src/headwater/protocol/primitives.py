"""Kafka's primitive types on the wire: a bounds-checked reader and the functions that write them.

Everything is big-endian. Classic strings and bytes carry an int16/int32 length (-1 = null); the
"compact" forms of flexible versions (KIP-482) carry an unsigned varint of length + 1 (0 = null).

A length read from the wire is never trusted: it is compared with the bytes that are left before
anything is allocated, so a hostile request costs no more than its own size.
"""

import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from headwater.errors import MalformedMessage

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_UINT16 = struct.Struct(">H")
_UINT32 = struct.Struct(">I")
_FLOAT64 = struct.Struct(">d")
_INT8 = struct.Struct(">b")

NIL_UUID = UUID(int=0)


class Splice:
    """Bytes of a message that lie elsewhere (in a segment file), fetched only when sent."""

    __slots__ = ()
    size_bytes: int

    def read_cached(self, buffer: memoryview, at: int) -> int:
        """Fills `buffer` from byte `at` on without waiting; how much, or -1 if it would wait."""
        raise NotImplementedError

    def read(self, buffer: memoryview, at: int) -> int:
        """The same, waiting for the disk; called in a worker thread."""
        raise NotImplementedError

    def release(self) -> None:
        """The bytes are sent, or never will be."""
        raise NotImplementedError


class Out(bytearray):
    """A message being written. `splices` are the positions where bytes from elsewhere go in."""

    splices: list[tuple[int, Splice]]

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(data)
        self.splices = []


class Reader:
    """A cursor over one message. Every read checks the bounds and raises MalformedMessage."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: memoryview | bytes | bytearray, position: int = 0) -> None:
        self.data = memoryview(data)
        self.position = position
        self.end = len(data)

    def remaining(self) -> int:
        return self.end - self.position

    def take(self, size_bytes: int) -> memoryview:
        start = self.position
        if size_bytes < 0 or size_bytes > self.end - start:
            raise MalformedMessage(f"{size_bytes} bytes wanted at {start}, {self.end - start} left")
        self.position = start + size_bytes
        return self.data[start : start + size_bytes]

    def _unpack(self, form: struct.Struct) -> Any:
        start = self.position
        if form.size > self.end - start:
            raise MalformedMessage(f"message ends at {self.end}, inside a number")
        self.position = start + form.size
        return form.unpack_from(self.data, start)[0]

    def int8(self) -> int:
        return self._unpack(_INT8)  # type: ignore[no-any-return]

    def int16(self) -> int:
        return self._unpack(_INT16)  # type: ignore[no-any-return]

    def int32(self) -> int:
        return self._unpack(_INT32)  # type: ignore[no-any-return]

    def int64(self) -> int:
        return self._unpack(_INT64)  # type: ignore[no-any-return]

    def uint16(self) -> int:
        return self._unpack(_UINT16)  # type: ignore[no-any-return]

    def uint32(self) -> int:
        return self._unpack(_UINT32)  # type: ignore[no-any-return]

    def float64(self) -> float:
        return self._unpack(_FLOAT64)  # type: ignore[no-any-return]

    def boolean(self) -> bool:
        return self.int8() != 0

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self.take(16)))

    def uvarint(self) -> int:
        """An unsigned varint of at most 32 bits."""
        value = shift = 0
        data, position, end = self.data, self.position, self.end
        while True:
            if position >= end:
                raise MalformedMessage("message ends inside a varint")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedMessage("varint longer than 5 bytes")
        if value >> 32:
            raise MalformedMessage("varint of more than 32 bits")
        self.position = position
        return value

    def varlong(self) -> int:
        """A zigzag varint of at most 64 bits, as in records."""
        value = shift = 0
        data, position, end = self.data, self.position, self.end
        while True:
            if position >= end:
                raise MalformedMessage("message ends inside a varint")
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise MalformedMessage("varint longer than 10 bytes")
        if value >> 64:
            raise MalformedMessage("varint of more than 64 bits")
        self.position = position
        return (value >> 1) ^ -(value & 1)

    def _text(self, size_bytes: int) -> str:
        try:
            return str(self.take(size_bytes), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedMessage(f"a string is not UTF-8: {error}") from None

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._text(size)

    def compact_string(self) -> str | None:
        size = self.uvarint()
        return None if size == 0 else self._text(size - 1)

    def bytes(self) -> memoryview | None:
        size = self.int32()
        return None if size < 0 else self.take(size)

    def compact_bytes(self) -> memoryview | None:
        size = self.uvarint()
        return None if size == 0 else self.take(size - 1)

    def count(self) -> int | None:
        """The length of an array, null as None. An element takes at least one byte."""
        return self._checked_count(self.int32())

    def compact_count(self) -> int | None:
        return self._checked_count(self.uvarint() - 1)

    def _checked_count(self, count: int) -> int | None:
        if count < 0:
            return None
        if count > self.end - self.position:
            raise MalformedMessage(f"array of {count} in {self.end - self.position} bytes")
        return count

    def skip_tagged_fields(self) -> None:
        for _ in range(self.uvarint()):
            self.uvarint()
            self.take(self.uvarint())


def write_uvarint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_varlong(out: bytearray, value: int) -> None:
    write_uvarint(out, (value << 1) ^ (value >> 63) if value < 0 else value << 1)


def packer(form: struct.Struct) -> Callable[[bytearray, Any], None]:
    pack = form.pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


write_int8 = packer(_INT8)
write_int16 = packer(_INT16)
write_int32 = packer(_INT32)
write_int64 = packer(_INT64)
write_uint16 = packer(_UINT16)
write_uint32 = packer(_UINT32)
write_float64 = packer(_FLOAT64)


def write_boolean(out: bytearray, value: bool) -> None:
    out.append(1 if value else 0)


def write_uuid(out: bytearray, value: UUID) -> None:
    out += value.bytes


def write_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += b"\xff\xff"
        return
    data = value.encode()
    out += _INT16.pack(len(data))
    out += data


def write_compact_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
        return
    data = value.encode()
    write_uvarint(out, len(data) + 1)
    out += data


def write_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out += b"\xff\xff\xff\xff"
    elif isinstance(value, Splice):
        out += _INT32.pack(value.size_bytes)
        out.splices.append((len(out), value))  # type: ignore[attr-defined]
    else:
        out += _INT32.pack(len(value))
        out += value


def write_compact_bytes(out: bytearray, value: Any) -> None:
    if value is None:
        out.append(0)
    elif isinstance(value, Splice):
        write_uvarint(out, value.size_bytes + 1)
        out.splices.append((len(out), value))  # type: ignore[attr-defined]
    else:
        write_uvarint(out, len(value) + 1)
        out += value


def write_count(out: bytearray, count: int | None) -> None:
    out += _INT32.pack(-1 if count is None else count)


def write_compact_count(out: bytearray, count: int | None) -> None:
    write_uvarint(out, 0 if count is None else count + 1)
