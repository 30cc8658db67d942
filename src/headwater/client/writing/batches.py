"""Records into batches, and the partition of a key.

A record (format v2) inside of its batch; numbers are zigzag varints:

    length │ int8 attributes (0) │ timestamp delta │ offset delta │ key length │ key
           │ value length │ value │ number of headers │ (name length, name, length, value)…

`BatchBuilder.append` runs once for each record that is written, so it is few steps of Python: the
varints of small numbers come from a table, and the parts are joined once.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Protocol

from headwater.protocol import compression
from headwater.protocol.primitives import write_varlong
from headwater.protocol.records import (
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_ENDS_AT,
    TRANSACTIONAL,
    crc32c,
)

# So that also what does not compress stays below Kafka's default max.message.bytes (1048588).
DEFAULT_MAX_BYTES: Final = 1_000_000
_RECORD_OVERHEAD_BYTES: Final = 32  # at most, without headers
_LARGE_BYTES: Final = 1 << 16  # a record that is not copied more than once


def _varint(number: int) -> bytes:
    out = bytearray()
    write_varlong(out, number)
    return bytes(out)


_VARINTS: Final = [_varint(number) for number in range(16_384)]
_NULL: Final = _varint(-1)
_CRC = struct.Struct(">I")


class Batch(Protocol):
    """What is sent: records in their final form."""

    @property
    def count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def build(
        self,
        codec: int = compression.LZ4,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> bytearray:
        """The batch as it goes over the wire. Building it again gives the same bytes."""
        ...


class BatchBuilder:
    """A batch for one partition that is being filled. Records stay in the order of `append`."""

    __slots__ = (
        "_base_timestamp_ms",
        "_max_timestamp_ms",
        "_records",
        "_room_bytes",
        "_stamp",
        "_stamped_ms",
        "count",
    )

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.count = 0
        self._records = bytearray()
        self._room_bytes = max_bytes - _RECORD_OVERHEAD_BYTES
        self._base_timestamp_ms = 0
        self._max_timestamp_ms = -1
        self._stamped_ms: int | None = None
        self._stamp = b""  # attributes and timestamp delta of the records with that time

    @property
    def size_bytes(self) -> int:
        """Of the records so far, before compression."""
        return len(self._records)

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> bool:
        """False, and nothing is done, if the record does not fit; into an empty batch any does."""
        if headers or key is None or value is None:
            return self._append_any(key, value, headers, timestamp_ms)
        key_bytes, value_bytes, count = len(key), len(value), self.count
        records = self._records
        if len(records) + key_bytes + value_bytes > self._room_bytes and count:
            return False
        if timestamp_ms != self._stamped_ms:
            self._stamp_with(timestamp_ms)
        stamp = self._stamp
        try:
            delta, key_size, value_size = (
                _VARINTS[count],
                _VARINTS[key_bytes],
                _VARINTS[value_bytes],
            )
            size = _VARINTS[
                len(stamp)
                + len(delta)
                + len(key_size)
                + key_bytes
                + len(value_size)
                + value_bytes
                + 1
            ]
        except IndexError:  # larger than the table
            return self._append_any(key, value, headers, timestamp_ms)
        records += b"".join((size, stamp, delta, key_size, key, value_size, value, b"\x00"))
        self.count = count + 1
        return True

    def _append_any(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> bool:
        parts = [*_nullable(key), *_nullable(value), _number(len(headers))]
        for name, content in headers:
            parts += _nullable(name.encode())
            parts += _nullable(content)
        body_bytes = sum(map(len, parts))
        records = self._records
        if len(records) + body_bytes > self._room_bytes and self.count:
            return False
        if timestamp_ms != self._stamped_ms:
            self._stamp_with(timestamp_ms)
        delta = _number(self.count)
        size = _number(len(self._stamp) + len(delta) + body_bytes)
        records += b"".join((size, self._stamp, delta))
        if body_bytes < _LARGE_BYTES:
            records += b"".join(parts)
        else:
            for part in parts:
                records += part
        self.count += 1
        return True

    def _stamp_with(self, timestamp_ms: int) -> None:
        if not self.count:
            self._base_timestamp_ms = timestamp_ms
        self._max_timestamp_ms = max(self._max_timestamp_ms, timestamp_ms)
        self._stamped_ms = timestamp_ms
        self._stamp = b"\x00" + _number(timestamp_ms - self._base_timestamp_ms)

    def build(
        self,
        codec: int = compression.LZ4,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> bytearray:
        """The batch as it goes over the wire. Building it again gives the same bytes."""
        assert self.count, "a batch has at least one record"
        packed = compression.compress(codec, self._records)
        batch = bytearray(HEADER_BYTES)
        attributes = codec | (TRANSACTIONAL if is_transactional else 0)
        HEADER.pack_into(
            batch, 0, 0, HEADER_BYTES + len(packed) - LENGTH_ENDS_AT, -1, 2, 0, attributes,
            self.count - 1, self._base_timestamp_ms, self._max_timestamp_ms,
            producer_id, producer_epoch, base_sequence, self.count,
        )  # fmt: skip
        batch += packed
        _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
        return batch


def _number(number: int) -> bytes:
    return _VARINTS[number] if 0 <= number < len(_VARINTS) else _varint(number)


def _nullable(data: bytes | None) -> tuple[bytes, bytes]:
    return (_NULL, b"") if data is None else (_number(len(data)), data)


def partition_of(key: bytes | None, partitions: int) -> int:
    """Where Kafka's own clients put a record with this key.

    Without a key: 0, so that such records stay in order.
    """
    if partitions == 1 or key is None:
        return 0
    return (_murmur2(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=16_384)
def _murmur2(data: bytes) -> int:
    """MurmurHash2 of 32 bits with Kafka's seed."""
    mixer, mask = 0x5BD1E995, 0xFFFFFFFF
    size_bytes = len(data)
    hashed = 0x9747B28C ^ size_bytes
    words = size_bytes >> 2
    for word in struct.unpack_from(f"<{words}I", data):
        mixed = word * mixer & mask
        hashed = hashed * mixer & mask ^ ((mixed ^ mixed >> 24) * mixer & mask)
    if size_bytes & 3:
        hashed = (hashed ^ int.from_bytes(data[words << 2 :], "little")) * mixer & mask
    hashed = (hashed ^ hashed >> 13) * mixer & mask
    return hashed ^ hashed >> 15
