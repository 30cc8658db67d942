"""Erased records: what is left of a record when its contents were erased, and how to make it so.

The record keeps its place in its batch, its offset and its timestamp. Key, value and headers are
gone; one header, `headwater.erased`, marks the blank:

    attributes │ timestamp delta │ offset delta │ key: null │ value: null │ headers: [erased: null]

The batch keeps everything that consumers, producers and transactions go by: offsets, timestamps,
leader epoch, producer id, epoch and sequence, number of records, attributes and so the codec. Only
its records, its length and its CRC are other ones.
"""

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from headwater.errors import MalformedMessage
from headwater.protocol import compression
from headwater.protocol.primitives import Reader, write_varlong
from headwater.protocol.records import (
    CONTROL,
    DECOMPRESSED_LIMIT_BYTES,
    HEADER_BYTES,
    BatchHeader,
    Record,
    check_stored,
    read_header,
    rebuilt,
)

ERASED_HEADER = "headwater.erased"


def _encoded(*numbers: int) -> bytes:
    out = bytearray()
    for number in numbers:
        write_varlong(out, number)
    return bytes(out)


# The name of the header as it lies in a record: length, and text.
ERASED_HEADER_BYTES = _encoded(len(ERASED_HEADER)) + ERASED_HEADER.encode()
# No key (-1), no value (-1), one header of that name, without a value.
_BLANK = _encoded(-1, -1, 1) + ERASED_HEADER_BYTES + _encoded(-1)


def is_erased(
    key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> bool:
    """Whether these are the parts of an erased record. A record with a key or a value is none,
    whatever its headers say: those are a producer's own.
    """
    return key is None and value is None and bool(headers) and headers[0][0] == ERASED_HEADER


def record_is_erased(record: Record) -> bool:
    return is_erased(record.key, record.value, record.headers)


class _Place(NamedTuple):
    """Where a record lies in the records of its batch."""

    offset: int
    start: int  # of its length
    attributes_at: int
    rest_at: int  # behind its offset delta: key, value, headers
    end: int


def contents_at(batch: bytes | bytearray | memoryview, offsets: Sequence[int]) -> list[int]:
    """Those of `offsets`, which ascend, at which the batch has a record that is not erased yet.

    None in a control batch: a marker has no contents. Raises MalformedMessage, or CorruptLog if
    the CRC does not match.
    """
    check_stored(memoryview(batch))
    header = read_header(batch)
    if header.attributes & CONTROL or not header.record_count:
        return []
    body = _records_of(header, batch)
    return [place.offset for place in _wanted(header, body, offsets) if not _is_blank(body, place)]


def erase(batch: bytes | bytearray | memoryview, offsets: Sequence[int]) -> bytearray:
    """The batch with blanks at those of `offsets`, which ascend, that have contents.

    The caller has asked `contents_at`. Raises MalformedMessage.
    """
    header = read_header(batch)
    body = _records_of(header, batch)
    rewritten = bytearray()
    copied = 0
    for place in _wanted(header, body, offsets):
        if _is_blank(body, place):
            continue
        rewritten += body[copied : place.start]
        head = body[place.attributes_at : place.rest_at]
        write_varlong(rewritten, len(head) + len(_BLANK))
        rewritten += head
        rewritten += _BLANK
        copied = place.end
    rewritten += body[copied:]
    return rebuilt(header, compression.compress(header.codec, bytes(rewritten)))


def any_between(offsets: Sequence[int], first: int, last: int) -> bool:
    """Whether one of `offsets`, which ascend, lies in first..last."""
    at = bisect.bisect_left(offsets, first)
    return at < len(offsets) and offsets[at] <= last


def _records_of(header: BatchHeader, batch: bytes | bytearray | memoryview) -> memoryview:
    body = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    return memoryview(compression.decompress(header.codec, body, DECOMPRESSED_LIMIT_BYTES))


def _wanted(header: BatchHeader, body: memoryview, offsets: Sequence[int]) -> Iterator[_Place]:
    at = bisect.bisect_left(offsets, header.base_offset)
    end = bisect.bisect_right(offsets, header.last_offset)
    wanted = set(offsets[at:end])
    for place in _places(header, body):
        if place.offset in wanted:
            yield place


def _places(header: BatchHeader, body: memoryview) -> Iterator[_Place]:
    """Only lengths and offsets are read: what else a producer has put into a record does not
    matter.
    """
    reader = Reader(body)
    for _ in range(header.record_count):
        start = reader.position
        size_bytes = reader.varlong()
        attributes_at = reader.position
        end = attributes_at + size_bytes
        if size_bytes < 1 or end > reader.end:
            raise MalformedMessage("a record is longer than its batch")
        reader.int8()
        reader.varlong()
        offset = header.base_offset + reader.varlong()
        if reader.position > end or not header.base_offset <= offset <= header.last_offset:
            raise MalformedMessage("a record's offset is not its batch's")
        yield _Place(offset, start, attributes_at, reader.position, end)
        reader.position = end


def _is_blank(body: memoryview, place: _Place) -> bool:
    return bytes(body[place.rest_at : place.end]) == _BLANK
