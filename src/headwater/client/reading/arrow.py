"""Fetched record batches into Arrow, without an object of Python per record.

    batch ──decompress──▶ bytes ──index_records──▶ where each key and value lies ──gather──▶ columns

The columns that can be asked for, by name:

    key, value   binary, null where the record has none
    offset       int64
    timestamp    timestamp[us, UTC]: the producer's, or the broker's where the topic has
                 LogAppendTime; null where there is none, or none that fits
    headers      list<struct<name: string, value: binary>>
    erased       bool: whether the record is what an erasure has left (protocol/erased_records.py)
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.client.reading.record_kernels import (
    BROKEN,
    MIN_RECORD_BYTES,
    NO_TIME,
    gather,
    index_headers,
    index_records,
)
from headwater.errors import MalformedMessage
from headwater.protocol import compression
from headwater.protocol.erased_records import ERASED_HEADER_BYTES
from headwater.protocol.records import (
    DECOMPRESSED_LIMIT_BYTES,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
)

TYPES: Final[dict[str, pa.DataType]] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
    "erased": pa.bool_(),
}
# What is put together into one Arrow batch; a batch of the log that is larger (at most
# DECOMPRESSED_LIMIT_BYTES) is one by itself. So Arrow's 32-bit offsets cannot overflow.
PIECE_BYTES: Final = 4 << 20

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int32]


def schema_of(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([(name, TYPES[name]) for name in columns])


class _Plain(NamedTuple):
    """The records of a batch, data[at:end], not compressed."""

    header: BatchHeader
    data: Bytes
    at: int
    end: int


def to_arrow(
    fetched: memoryview,
    batches: Iterable[tuple[BatchHeader, int]],
    start: int,
    stop: int,
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """The records with start <= offset < stop of these batches (each with its position in
    `fetched`), in their order, a few MiB at a time. `fetched` may be used otherwise once this
    has ended.

    Raises MalformedMessage, naming the offset of the batch, if one is not as it should be; the
    CRC is for the caller to check.
    """
    data = _view(fetched)
    schema = schema_of(columns)
    piece: list[_Plain] = []
    size_bytes = 0
    ratio = 4.0  # of the last batch that was compressed; the next will be similar
    for header, at in batches:
        plain = _plain(header, data, at, ratio * 1.1)
        if header.codec:
            ratio = (plain.end - plain.at) / header.size_bytes
        if piece and size_bytes + plain.end - plain.at > PIECE_BYTES:
            yield from _convert(piece, start, stop, schema)
            piece, size_bytes = [], 0
        piece.append(plain)
        size_bytes += plain.end - plain.at
    yield from _convert(piece, start, stop, schema)


def _view(data: bytes | memoryview) -> Bytes:
    view = np.frombuffer(data, np.uint8)
    view.flags.writeable = False  # for numba another type, and another compilation
    return view


def _plain(header: BatchHeader, data: Bytes, at: int, ratio: float) -> _Plain:
    start, end = at + HEADER_BYTES, at + header.size_bytes
    if header.codec and header.record_count:  # Kafka's compaction leaves batches with nothing
        try:
            plain = compression.decompress(
                header.codec, data[start:end].data, DECOMPRESSED_LIMIT_BYTES, ratio=ratio
            )
        except MalformedMessage as error:
            raise _broken(header, str(error)) from None
        data = _view(plain)
        start, end = 0, len(data)
    if not 0 <= header.record_count <= (end - start) // MIN_RECORD_BYTES:
        raise _broken(header, f"{header.record_count} records in {end - start} bytes")
    return _Plain(header, data, start, end)


def _broken(header: BatchHeader, reason: str) -> MalformedMessage:
    return MalformedMessage(f"the batch at offset {header.base_offset} is broken", detail=reason)


class _Index:
    """Where the parts of a piece's records lie, each within the bytes of its run."""

    def __init__(self, rows: int) -> None:
        self.rows = 0
        self.runs: list[tuple[Bytes, int, int]] = []  # bytes; first row, row behind the last
        self.offsets = np.empty(rows, np.int64)
        self.times = np.empty(rows, np.int64)
        self.key_at, self.key_bytes = _places(rows), _places(rows)
        self.value_at, self.value_bytes = _places(rows), _places(rows)
        self.header_at, self.headers = _places(rows), _places(rows)

    def add(self, plain: _Plain, start: int, stop: int) -> None:
        header = plain.header
        first = self.rows
        found = index_records(
            plain.data, plain.at, plain.end, header.record_count, header.base_offset,
            header.last_offset_delta, header.base_timestamp,
            header.attributes & LOG_APPEND_TIME != 0, header.max_timestamp, start, stop,
            first, self.offsets, self.times, self.key_at, self.key_bytes,
            self.value_at, self.value_bytes, self.header_at, self.headers,
        )  # fmt: skip
        if found == BROKEN:
            raise _broken(header, "a record is not as long as it says, or out of order")
        self.rows = found
        if self.runs and self.runs[-1][0] is plain.data:
            first = self.runs.pop()[1]
        self.runs.append((plain.data, first, found))


def _places(rows: int) -> Places:
    return np.empty(rows, np.int32)


def _convert(
    piece: Sequence[_Plain], start: int, stop: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    index = _Index(sum(plain.header.record_count for plain in piece))
    for plain in piece:
        index.add(plain, start, stop)
    if index.rows:
        arrays = [_column(index, name) for name in schema.names]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _column(index: _Index, name: str) -> pa.Array:
    rows = index.rows
    if name == "key":
        return _binary(index.runs, rows, index.key_at, index.key_bytes)
    if name == "value":
        return _binary(index.runs, rows, index.value_at, index.value_bytes)
    if name == "headers":
        return _headers(index)
    if name == "erased":
        return _erased(index)
    if name == "offset":
        return pa.Array.from_buffers(TYPES[name], rows, [None, pa.py_buffer(index.offsets)])
    is_null = index.times[:rows] == NO_TIME
    return pa.Array.from_buffers(TYPES[name], rows, [_validity(is_null), pa.py_buffer(index.times)])


def _binary(
    runs: Sequence[tuple[Bytes, int, int]],
    rows: int,
    starts: Places,
    sizes: Places,
    kind: pa.DataType = TYPES["value"],
) -> pa.Array:
    sizes = sizes[:rows]
    is_null = sizes < 0
    ends = np.empty(rows + 1, np.int32)
    ends[0] = 0
    out = np.empty(int(sizes.sum(dtype=np.int64)) + int(is_null.sum()), np.uint8)
    for data, first, last in runs:
        gather(data, first, last, starts, sizes, ends, out)
    return pa.Array.from_buffers(
        kind, rows, [_validity(is_null), pa.py_buffer(ends), pa.py_buffer(out)]
    )


def _headers(index: _Index) -> pa.Array:
    counts = index.headers[: index.rows]
    ends = np.zeros(index.rows + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    total = int(ends[-1])
    name_at, name_bytes, value_at, value_bytes = (_places(total) for _ in range(4))
    runs = []
    to = 0
    for data, first, last in index.runs:
        before = to
        to = index_headers(
            data, first, last, index.header_at, index.headers, to,
            name_at, name_bytes, value_at, value_bytes,
        )  # fmt: skip
        runs.append((data, before, to))
    names = _text(_binary(runs, total, name_at, name_bytes))
    values = _binary(runs, total, value_at, value_bytes)
    header = pa.StructArray.from_arrays([names, values], ["name", "value"])
    return pa.Array.from_buffers(
        TYPES["headers"], index.rows, [None, pa.py_buffer(ends)], children=[header]
    )


def _erased(index: _Index) -> pa.Array:
    rows = index.rows
    is_erased = (index.key_bytes[:rows] < 0) & (index.value_bytes[:rows] < 0)
    is_erased &= index.headers[:rows] > 0
    if is_erased.any():  # few records have neither key nor value: only these are looked into
        size_bytes = len(ERASED_HEADER_BYTES)
        for data, first, last in index.runs:
            for row in np.flatnonzero(is_erased[first:last]) + first:
                at = index.header_at[row]
                is_erased[row] = data[at : at + size_bytes].tobytes() == ERASED_HEADER_BYTES
    return pa.array(is_erased)


def _text(names: pa.BinaryArray) -> pa.StringArray:
    """What is no UTF-8 is replaced by signs that say so."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode("utf-8", "replace") for name in names.to_pylist()])


def _validity(is_null: npt.NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(~is_null, bitorder="little")) if is_null.any() else None
