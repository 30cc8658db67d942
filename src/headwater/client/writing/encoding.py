"""Encodes Arrow columns into record batches; the producer's id is filled in when they are sent.

    key, value     binary or string; null is null
    headers        list<struct<name: string, value: binary>>, optional
    timestamp      a time, or an int of milliseconds since 1970; optional, null: when it is encoded
    partition      an int, optional; null: by the key, as `batches.partition_of` has it

The records of a partition are in the order of their rows. Rows are gathered until they are worth a
pass of `encoding_kernels`, which writes them, partition for partition, into one buffer and cuts it
into batches; each is compressed at once. Who sends a batch, and in what transaction, is
written into it by `EncodedBatch.build`: encoding can happen in another process than sending.
"""

import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headwater.client.writing import encoding_kernels as kernels
from headwater.client.writing.batches import DEFAULT_MAX_BYTES
from headwater.errors import UsageError
from headwater.protocol import compression as codecs
from headwater.protocol.records import (
    CRC_AT,
    CRC_FROM,
    HEADER,
    HEADER_BYTES,
    LENGTH_ENDS_AT,
    TRANSACTIONAL,
    crc32c,
)

COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition")
_GATHERED_BYTES: Final = 32 << 20
# Length, attributes, timestamp and offset delta, lengths of key and value, number of headers.
_MOST_BYTES_AROUND_A_RECORD: Final = 5 + 1 + 10 + 5 + 5 + 5 + 5
_MOST_BYTES_AROUND_A_HEADER: Final = 5 + 5
_CRC = struct.Struct(">I")
_Array = Any  # of numpy


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A batch whose records are final. What `batches.BatchBuilder` is to the sender, this is too,
    but for the compression, which has been done.
    """

    count: int
    size_bytes: int  # of the records before compression
    base_timestamp_ms: int
    max_timestamp_ms: int
    codec: int
    packed: bytes

    def build(
        self,
        codec: int = codecs.LZ4,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        base_sequence: int = -1,
        is_transactional: bool = False,
    ) -> bytearray:
        """The batch as it goes over the wire. `codec` is passed over."""
        size_bytes = HEADER_BYTES + len(self.packed)
        batch = bytearray(size_bytes)
        attributes = self.codec | (TRANSACTIONAL if is_transactional else 0)
        HEADER.pack_into(
            batch, 0, 0, size_bytes - LENGTH_ENDS_AT, -1, 2, 0, attributes,
            self.count - 1, self.base_timestamp_ms, self.max_timestamp_ms,
            producer_id, producer_epoch, base_sequence, self.count,
        )  # fmt: skip
        batch[HEADER_BYTES:] = self.packed
        _CRC.pack_into(batch, CRC_AT, crc32c(memoryview(batch)[CRC_FROM:]))
        return batch


Encoded = dict[int, list[EncodedBatch]]  # by partition


def encode(rows: pa.Table | pa.RecordBatch, partitions: int, **options: Any) -> Encoded:
    """All of the rows; see Encoder for what can be set."""
    encoder = Encoder(partitions, **options)
    for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
        encoder.add(batch)
    return encoder.finish()


def partitions_of(rows: pa.RecordBatch, partitions: int) -> _Array:
    """Where the encoder puts each record; of the columns, key and partition count."""
    return _partitions_of(rows, _bytes_of(rows["key"]), partitions)


class Encoder:
    """Takes rows, gives batches of at most `max_bytes` before compression; a larger record is alone
    in its batch. It holds what is compressed and up to 32 MB of rows that are not.
    """

    def __init__(
        self,
        partitions: int,
        *,
        compression: str = "lz4",
        max_bytes: int = DEFAULT_MAX_BYTES,
        now_ms: int | None = None,
    ) -> None:
        self._partitions = partitions
        self._codec = codecs.NAMES.index(compression)
        self._max_bytes = max_bytes
        self._now_ms = int(time.time() * 1000) if now_ms is None else now_ms
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._encoded: Encoded = {}
        self.packed_bytes = 0  # of all batches so far

    def add(self, rows: pa.RecordBatch) -> None:
        """Raises UsageError if the columns are not as above, or a row has no such partition."""
        self._gathered.append(rows)
        self._gathered_bytes += rows.get_total_buffer_size()
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._flush()

    def finish(self) -> Encoded:
        """All batches, by partition, in the order in which they have to be sent."""
        self._flush()
        return self._encoded

    def _flush(self) -> None:
        rows, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if sum(batch.num_rows for batch in rows) == 0:
            return
        whole = rows[0] if len(rows) == 1 else pa.concat_batches(rows)
        for partition, batch in self._encode(whole):
            self.packed_bytes += len(batch.packed)
            self._encoded.setdefault(partition, []).append(batch)

    def _encode(self, rows: pa.RecordBatch) -> Iterable[tuple[int, EncodedBatch]]:
        _check_columns(rows.schema)
        keys, values = _bytes_of(rows["key"]), _bytes_of(rows["value"])
        firsts, names, contents = _headers_of(rows)
        times_ms = _times_of(rows, self._now_ms)
        at = _partitions_of(rows, keys, self._partitions)
        out = np.empty(
            _size(keys)
            + _size(values)
            + _size(names)
            + _size(contents)
            + _MOST_BYTES_AROUND_A_RECORD * rows.num_rows
            + _MOST_BYTES_AROUND_A_HEADER * len(names.lengths),
            np.uint8,
        )
        cuts = kernels.write_batches(
            at, self._partitions, self._max_bytes, times_ms, keys, values, firsts, names, contents,
            out,
        )  # fmt: skip
        for partition, start, end, count, base_ms, max_ms in cuts.tolist():
            packed = codecs.compress(self._codec, out[start:end].tobytes())
            yield partition, EncodedBatch(count, end - start, base_ms, max_ms, self._codec, packed)


class _Bytes(NamedTuple):
    """A column of byte strings, as the kernels take it: where each begins; -1 long is null."""

    data: _Array
    starts: _Array
    lengths: _Array


_NO_BYTES = _Bytes(np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))


def _size(column: _Bytes) -> int:
    return int(column.lengths.sum()) + int(np.count_nonzero(column.lengths < 0))


def _check_columns(schema: pa.Schema) -> None:
    unknown = [name for name in schema.names if name not in COLUMNS]
    if unknown or "key" not in schema.names or "value" not in schema.names:
        raise UsageError(
            "records are made of the columns key and value,"
            " and headers, timestamp and partition if they are there",
            detail=f"given: {', '.join(schema.names)}",
        )


def _bytes_of(column: pa.Array) -> _Bytes:
    kind = column.type
    if pa.types.is_null(kind):
        nothing = np.zeros(len(column), np.int64)
        return _Bytes(_NO_BYTES.data, nothing, nothing - 1)
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if not is_text and kind not in (pa.string_view(), pa.binary_view()):
            raise UsageError(
                "a record's key, value and headers are bytes or text", detail=str(kind)
            )
        wide = kind in (pa.large_string(), pa.string_view(), pa.binary_view())
        column = column.cast(pa.large_binary() if wide else pa.binary())
    word = np.int64 if pa.types.is_large_binary(column.type) else np.int32
    validity, offsets, data = column.buffers()
    bounds = np.frombuffer(offsets, word, len(column) + 1, column.offset * word().itemsize)
    lengths = np.diff(bounds).astype(np.int64)
    if validity is not None and column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = -1
    data = _NO_BYTES.data if data is None else np.frombuffer(data, np.uint8)
    return _Bytes(data, bounds[:-1].astype(np.int64), lengths)


def _headers_of(rows: pa.RecordBatch) -> tuple[_Array, _Bytes, _Bytes]:
    """Of each row the number of its first header, and one more; names and contents of all."""
    if "headers" not in rows.schema.names or pa.types.is_null(rows["headers"].type):
        return np.zeros(rows.num_rows + 1, np.int64), _NO_BYTES, _NO_BYTES
    column = rows["headers"]
    kind = column.type
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        raise UsageError("headers are a list of structs of name and value", detail=str(kind))
    # flatten leaves out what lies behind nulls, so the counts of the rows say where each begins.
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    firsts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    flat = column.flatten()
    names, contents = flat.field(0), flat.field(1)
    if flat.null_count or names.null_count:
        raise UsageError("a header has no name")
    return firsts, _bytes_of(names), _bytes_of(contents)


def _times_of(rows: pa.RecordBatch, now_ms: int) -> _Array:
    if "timestamp" not in rows.schema.names or pa.types.is_null(rows["timestamp"].type):
        return np.full(rows.num_rows, now_ms, np.int64)
    column = rows["timestamp"]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise UsageError("a record's timestamp is a time or milliseconds", detail=str(column.type))
    return column.cast(pa.int64()).fill_null(now_ms).to_numpy(zero_copy_only=False)


def _partitions_of(rows: pa.RecordBatch, keys: _Bytes, partitions: int) -> _Array:
    by_key = kernels.partitions_of_keys(keys, partitions)
    if "partition" not in rows.schema.names or pa.types.is_null(rows["partition"].type):
        return by_key
    column = rows["partition"]
    if not pa.types.is_integer(column.type):
        raise UsageError("a record's partition is an integer", detail=str(column.type))
    given = column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero(~is_null & ((given < 0) | (given >= partitions)))
    if len(wrong):
        raise UsageError(
            f"there is no partition {given[wrong[0]]}",
            detail=f"the topic has {partitions}; row {wrong[0]}",
        )
    return np.where(is_null, by_key, given)
