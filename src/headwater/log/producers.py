"""What a partition knows of its idempotent producers: enough to refuse gaps and repeats.

For each producer id: its epoch and its last five batches (a client has at most five in flight).
An entry is never changed, only replaced, so that a failed commit can put the old one back.

The snapshot file beside the segments is in Kafka's format. Kafka keeps the last batch of each
producer there; here a producer has an entry for each of its batches, oldest first, so that all
five are still known after a restart. (Kafka, reading it, takes the last.)

    int16 version (1), uint32 CRC-32C of the rest, int32 count, then for each batch
    int64 id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta,
    int64 timestamp, int32 coordinator epoch, int64 first offset of its open transaction
"""

import struct
from typing import NamedTuple

from headwater.errors import ApiError, CorruptLog
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.records import NO_PRODUCER_ID, BatchHeader, crc32c

BATCHES_KEPT = 5
_HEAD = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")


class SequencedBatch(NamedTuple):
    last_sequence: int
    last_offset: int
    offset_delta: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & 0x7FFFFFFF

    @property
    def base_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Producer(NamedTuple):
    epoch: int
    seen_ms: int  # by the broker's clock: records may be of any time
    batches: tuple[SequencedBatch, ...]


class Producers:
    """The idempotent producers of one partition, as of the last appended batch."""

    __slots__ = ("by_id",)

    def __init__(self) -> None:
        self.by_id: dict[int, Producer] = {}

    def duplicate_of(self, header: BatchHeader) -> SequencedBatch | None:
        """The batch of which this one is a repetition, if it is one of the last five."""
        producer = self.by_id.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return None
        for batch in producer.batches:
            if (
                batch.last_sequence == header.last_sequence
                and batch.first_sequence == header.base_sequence
            ):
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Raises the error code that Kafka gives to a batch out of turn."""
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            # Unknown, perhaps because its records have expired: any sequence may be its next.
            return
        if header.producer_epoch < producer.epoch:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                "the producer's epoch is older than its last one",
                detail=f"{header.producer_epoch} after {producer.epoch}",
            )
        if header.producer_epoch > producer.epoch:
            expected = 0
        else:
            expected = (producer.batches[-1].last_sequence + 1) & 0x7FFFFFFF
        if header.base_sequence != expected:
            raise ApiError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                "the batch is not the producer's next",
                detail=f"producer {header.producer_id}: {header.base_sequence} after {expected}",
            )

    def note(self, header: BatchHeader, now_ms: int) -> Producer | None:
        """Takes an appended batch in; gives the entry that was there before, for `restore`."""
        before = self.by_id.get(header.producer_id)
        batch = SequencedBatch(header.last_sequence, header.last_offset, header.last_offset_delta)
        earlier: tuple[SequencedBatch, ...] = ()
        if before is not None and before.epoch == header.producer_epoch:
            earlier = before.batches[-(BATCHES_KEPT - 1) :]
        self.by_id[header.producer_id] = Producer(header.producer_epoch, now_ms, (*earlier, batch))
        return before

    def restore(self, producer_id: int, before: Producer | None) -> None:
        if before is None:
            self.by_id.pop(producer_id, None)
        else:
            self.by_id[producer_id] = before

    def undo(self, header: BatchHeader, before: Producer | None, now_ms: int) -> None:
        """Takes back a batch whose write failed; `before` is what `note` gave.

        A producer that this batch was the first of stays known, as one whose next batch is this
        one again: unknown, it might go on with the batches behind it, which are on their way.
        """
        if before is None:
            nothing = SequencedBatch((header.base_sequence - 1) & 0x7FFFFFFF, -1, -1)
            before = Producer(header.producer_epoch, now_ms, (nothing,))
        self.by_id[header.producer_id] = before

    def expire(self, before_ms: int) -> None:
        """Forgets producers that have sent nothing since.

        Kafka goes by the records' own timestamps, and so forgets at once who copies old ones.
        """
        for producer_id in [i for i, each in self.by_id.items() if each.seen_ms < before_ms]:
            del self.by_id[producer_id]

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """Takes in a batch that is in the log; what was accepted once is not judged again."""
        if header.producer_id != NO_PRODUCER_ID and header.base_sequence >= 0:
            self.note(header, now_ms)

    def to_snapshot(self) -> bytes:
        body = bytearray(_COUNT.pack(sum(len(each.batches) for each in self.by_id.values())))
        for producer_id, producer in self.by_id.items():
            for batch in producer.batches:
                body += _ENTRY.pack(
                    producer_id, producer.epoch, batch.last_sequence, batch.last_offset,
                    batch.offset_delta, producer.seen_ms, -1, -1,
                )  # fmt: skip
        return _HEAD.pack(1, crc32c(bytes(body))) + bytes(body)

    @classmethod
    def from_snapshot(cls, data: bytes) -> "Producers":
        """Raises CorruptLog if the bytes are not a whole snapshot."""
        if len(data) < _HEAD.size + _COUNT.size:
            raise CorruptLog("a producer snapshot is cut short")
        version, crc = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        (count,) = _COUNT.unpack_from(body)
        if version != 1 or crc32c(body) != crc or len(body) != _COUNT.size + count * _ENTRY.size:
            raise CorruptLog("a producer snapshot does not match its CRC")
        producers = cls()
        for at in range(_COUNT.size, len(body), _ENTRY.size):
            producer_id, epoch, last_sequence, last_offset, delta, seen_ms, _, _ = (
                _ENTRY.unpack_from(body, at)
            )
            before = producers.by_id.get(producer_id)
            earlier = before.batches if before is not None and before.epoch == epoch else ()
            batch = SequencedBatch(last_sequence, last_offset, delta)
            producers.by_id[producer_id] = Producer(epoch, seen_ms, (*earlier, batch))
        return producers
