"""Record batches, format v2 (magic 2): the unit in which records are sent and stored.

    offset  bytes  field
         0      8  base offset            ─┐ set by the broker: outside the CRC
         8      4  length after this field │
        12      4  partition leader epoch ─┘
        16      1  magic (2)
        17      4  CRC-32C of everything from here on (21…)
        21      2  attributes: 0–2 compression, 3 timestamp type, 4 transactional, 5 control
        23      4  last offset delta
        27      8  base timestamp
        35      8  max timestamp
        43      8  producer id
        51      2  producer epoch
        53      4  base sequence
        57      4  number of records
        61      …  records, compressed together

Because the CRC leaves out the first 21 bytes, the broker gives a batch its offset in the log by
patching 12 of them; the records themselves are never touched.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fastcrc import crc32 as _crc32

from headwater.errors import CorruptLog, MalformedMessage
from headwater.protocol import compression
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.primitives import Reader, write_varlong

crc32c = _crc32.iscsi

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = 61
LENGTH_ENDS_AT = 12
CRC_AT = 17
CRC_FROM = 21
MAGIC_AT = 16

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20

MIN_RECORD_BYTES = 7  # a length, attributes, two deltas, and no key, value or headers

NO_PRODUCER_ID = -1
NO_TIMESTAMP = -1
INT64_MAX = 2**63 - 1
# The most that the records of one batch may take when decompressed inside the broker.
DECOMPRESSED_LIMIT_BYTES = 128 << 20

_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH_AT = 12
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES_AT = 21
_ATTRIBUTES = struct.Struct(">h")
_MAX_TIMESTAMP_AT = 35
_MAX_TIMESTAMP = struct.Struct(">q")


class BatchHeader(NamedTuple):
    """The 61 bytes before the records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return LENGTH_ENDS_AT + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        # Sequences wrap after 2^31 - 1 to 0.
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & COMPRESSION_MASK


def read_header(data: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`. The caller has made sure that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(data, position))


def header_is_sane(header: BatchHeader) -> bool:
    """Whether the fields that a reader steps by can be what a broker wrote."""
    return (
        header.magic == 2
        and header.length >= HEADER_BYTES - LENGTH_ENDS_AT
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
    )


def codec_of(batch: memoryview) -> int:
    """Its compression. The caller has made sure that 61 bytes are there."""
    return batch[_ATTRIBUTES_AT + 1] & COMPRESSION_MASK


def counts_fit(header: BatchHeader) -> bool:
    """Whether the batch says that it has records, and an offset for each."""
    return header.record_count >= 1 and header.last_offset_delta == header.record_count - 1


def check_produced(records: memoryview) -> BatchHeader:
    """The header of the one batch in `records`, or the error code that Kafka gives instead.

    The header and the CRC are checked; the records are not looked into.
    """
    if len(records) < HEADER_BYTES:
        if len(records) > MAGIC_AT and records[MAGIC_AT] in (0, 1):
            raise ApiError(ErrorCode.INVALID_RECORD, f"record format v{records[MAGIC_AT]}")
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch is shorter than its header")
    header = read_header(records)
    if header.magic != 2:
        # Formats v0 and v1 ended with Kafka 4.0 (KIP-724).
        raise ApiError(ErrorCode.INVALID_RECORD, f"record format v{header.magic}, expected v2")
    if header.size_bytes > len(records) or header.length < HEADER_BYTES - LENGTH_ENDS_AT:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch is longer than the request says")
    if header.size_bytes < len(records):
        raise ApiError(ErrorCode.INVALID_RECORD, "a request carries one batch per partition")
    if crc32c(records[CRC_FROM:]) != header.crc:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, "the batch's CRC does not match its bytes")
    if header.codec > compression.ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {header.codec}")
    if header.attributes & CONTROL:
        raise ApiError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if not counts_fit(header):
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            "the batch's offsets do not fit its number of records",
            detail=f"last offset delta {header.last_offset_delta}, {header.record_count} records",
        )
    if header.producer_id < NO_PRODUCER_ID or (
        header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0)
    ):
        raise ApiError(ErrorCode.INVALID_RECORD, "a producer id without epoch or sequence")
    return header


def assign(batch: memoryview, base_offset: int, leader_epoch: int) -> None:
    """Gives the batch its offset and epoch, in place; neither is covered by the CRC."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(batch: memoryview, attributes: int, now_ms: int) -> None:
    """Sets the broker's time (`message.timestamp.type = LogAppendTime`), and a new CRC."""
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, attributes | LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, now_ms)
    _CRC.pack_into(batch, CRC_AT, crc32c(batch[CRC_FROM:]))


class Record(NamedTuple):
    """One record of a batch."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def records_of(batch: bytes | bytearray | memoryview) -> Iterator[Record]:
    """The records of one whole batch. Raises MalformedMessage if the bytes are no batch."""
    if len(batch) < HEADER_BYTES:
        raise MalformedMessage("a batch is shorter than its header")
    header = read_header(batch)
    if not header.record_count:  # as Kafka's compaction leaves them, compressed or not
        return
    body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    reader = Reader(compression.decompress(header.codec, body, DECOMPRESSED_LIMIT_BYTES))
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    for _ in range(header.record_count):
        yield _read_record(reader, header, append_time)


def _read_record(reader: Reader, header: BatchHeader, append_time: int | None) -> Record:
    # length, attributes (unused), timestamp delta, offset delta, key, value, headers
    size_bytes = reader.varlong()
    end = reader.position + size_bytes
    if size_bytes < 0 or end > reader.end:
        raise MalformedMessage("a record is longer than its batch")
    reader.int8()
    timestamp = header.base_timestamp + reader.varlong()
    offset = header.base_offset + reader.varlong()
    key = _nullable(reader)
    value = _nullable(reader)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(reader.varlong()):
        name = _nullable(reader) or b""
        headers.append((name.decode("utf-8", "replace"), _nullable(reader)))
    if reader.position != end:
        raise MalformedMessage("a record is not as long as it says")
    if not header.base_offset <= offset <= header.last_offset or abs(timestamp) > INT64_MAX:
        raise MalformedMessage("a record's offset or timestamp is not its batch's")
    return Record(offset, timestamp if append_time is None else append_time, key, value, headers)


def _nullable(reader: Reader) -> bytes | None:
    size_bytes = reader.varlong()
    return None if size_bytes < 0 else bytes(reader.take(size_bytes))


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    codec: int = compression.NONE,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytearray:
    """One batch of `records`; their offsets count on from `base_offset`, as they stand."""
    base_timestamp = records[0].timestamp_ms
    body = bytearray()
    for delta, record in enumerate(records):
        _write_record(body, record, record.timestamp_ms - base_timestamp, delta)
    packed = compression.compress(codec, body)
    batch = bytearray(HEADER_BYTES + len(packed))
    HEADER.pack_into(
        batch, 0, base_offset, len(batch) - LENGTH_ENDS_AT, -1, 2, 0, codec | attributes,
        len(records) - 1, base_timestamp, max(record.timestamp_ms for record in records),
        producer_id, producer_epoch, base_sequence, len(records),
    )  # fmt: skip
    batch[HEADER_BYTES:] = packed
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def rebuilt(header: BatchHeader, body: bytes | memoryview) -> bytearray:
    """A stored batch with other records, as they are to lie behind the header: compressed. Length
    and CRC are theirs, all else is as `header` says.
    """
    batch = bytearray(HEADER_BYTES + len(body))
    HEADER.pack_into(batch, 0, *header._replace(length=len(batch) - LENGTH_ENDS_AT))
    batch[HEADER_BYTES:] = body
    _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
    return batch


def _write_record(body: bytearray, record: Record, timestamp_delta: int, delta: int) -> None:
    out = bytearray(b"\x00")
    write_varlong(out, timestamp_delta)
    write_varlong(out, delta)
    for data in (record.key, record.value):
        _write_nullable(out, data)
    write_varlong(out, len(record.headers))
    for name, value in record.headers:
        _write_nullable(out, name.encode())
        _write_nullable(out, value)
    write_varlong(body, len(out))
    body += out


def _write_nullable(out: bytearray, data: bytes | None) -> None:
    if data is None:
        write_varlong(out, -1)
        return
    write_varlong(out, len(data))
    out += data


class Marker(NamedTuple):
    """The end of a transaction, as its control record has it."""

    commit: bool
    coordinator_epoch: int


_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER_VALUE = struct.Struct(">hi")  # version, coordinator epoch (EndTxnMarker)
_ABORT, _COMMIT = 0, 1


def build_marker(
    producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int
) -> bytearray:
    """The control batch that ends a producer's transaction."""
    key = _MARKER_KEY.pack(0, _COMMIT if marker.commit else _ABORT)
    value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [Record(0, timestamp_ms, key, value)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
    )


def read_marker(batch: bytes | bytearray | memoryview) -> Marker | None:
    """The marker of a control batch; None if it is not the end of a transaction, or if compaction
    has removed its record. Raises MalformedMessage if the bytes are no batch.
    """
    record = next(records_of(batch), None)
    if record is None or record.key is None or len(record.key) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _MARKER_VALUE.size:
        raise MalformedMessage("a transaction's marker is cut short")
    return Marker(kind == _COMMIT, _MARKER_VALUE.unpack_from(record.value)[1])


def check_stored(batch: bytes | memoryview) -> None:
    """Raises CorruptLog unless the whole batch is as it was written."""
    header = read_header(batch)
    if crc32c(memoryview(batch)[CRC_FROM : header.size_bytes]) != header.crc:
        raise CorruptLog("a batch's CRC does not match", detail=f"offset {header.base_offset}")
