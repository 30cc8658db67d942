"""The state of a partition's idempotent producers: enough to refuse gaps and repeats.

For each producer id: its epoch, its last five batches (a client has at most five in flight), and
where its open transaction begins. An entry is never changed, only replaced, so that a failed
commit can put the old one back.

The snapshot file beside the segments is in Kafka's format. Kafka stores the last batch of each
producer there; here a producer has an entry for each of its batches, oldest first, so that all
five are still there after a restart. (Kafka, reading it, takes the last.)

    int16 version (1), uint32 CRC-32C of the rest, int32 count, then for each batch
    int64 id, int16 epoch, int32 last sequence, int64 last offset, int32 offset delta,
    int64 timestamp, int32 coordinator epoch, int64 first offset of its open transaction

A producer of whose epoch there is no batch yet, only a marker, has one entry with the last
sequence -1.
"""

import bisect
import struct
from typing import NamedTuple

from headwater.errors import CorruptLog
from headwater.log.partitions.transactions import AbortedTransaction, OpenTransaction
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.records import (
    TRANSACTIONAL,
    BatchHeader,
    Marker,
    crc32c,
)

BATCHES_KEPT = 5
NONE_OPEN = -1
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
    batches: tuple[SequencedBatch, ...]  # of this epoch
    coordinator_epoch: int = -1  # of the last marker
    first_offset: int = NONE_OPEN  # of its open transaction


Changes = dict[int, Producer | None]


class Producers:
    """The producers of one partition, as of some offset; the one seen last comes last.

    `tracks_changes`: what changes is collected (`take_changes`), so that a copy of all of them can
    follow without being made again each time.
    """

    __slots__ = ("_changes", "_open", "by_id")

    def __init__(self, *, tracks_changes: bool = False) -> None:
        self.by_id: dict[int, Producer] = {}
        self._open: list[tuple[int, int]] = []  # (first offset, producer id) of transactions
        self._changes: Changes | None = {} if tracks_changes else None

    def copy(self, *, tracks_changes: bool = False) -> "Producers":
        """If it tracks changes, all that is in it counts as changed."""
        copy = Producers(tracks_changes=tracks_changes)
        copy.by_id = self.by_id.copy()  # one step, also as other threads see it
        copy._open = self._open.copy()
        if tracks_changes:
            copy._changes = dict(copy.by_id)
        return copy

    def take_changes(self) -> "Changes":
        """What has changed since the last call; None for a producer that was removed."""
        assert self._changes is not None
        changes, self._changes = self._changes, {}
        return changes

    # ── what may come ──

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
        """Raises the error code that Kafka gives to a batch out of turn.

        One without a sequence is a coordinator's: only epoch and transaction are looked at. A
        repetition of more than five batches ago is out of order too, as in Kafka since 1.1.
        """
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            # Unknown, perhaps because its records have expired: any sequence may be its next.
            return
        _check_epoch(producer, header.producer_epoch)
        if header.base_sequence >= 0:
            if header.producer_epoch > producer.epoch or not producer.batches:
                expected = 0
            else:
                expected = (producer.batches[-1].last_sequence + 1) & 0x7FFFFFFF
            if header.base_sequence != expected:
                raise ApiError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    "the batch is not the producer's next",
                    detail=f"producer {header.producer_id}:"
                    f" {header.base_sequence}, expected {expected}",
                )
        if producer.first_offset != NONE_OPEN and not header.attributes & TRANSACTIONAL:
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                "a batch outside of the producer's open transaction",
                detail=f"producer {header.producer_id}",
            )

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
        """Raises the error code that Kafka gives to the marker of a coordinator of the past."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            return
        _check_epoch(producer, epoch)
        if coordinator_epoch < producer.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                "the coordinator's epoch is older than that of the last marker",
                detail=f"{coordinator_epoch} after {producer.coordinator_epoch}",
            )

    # ── what came ──

    def record(self, header: BatchHeader, now_ms: int) -> Producer:
        """Takes an appended batch in; gives its producer's new entry."""
        before = self.by_id.get(header.producer_id)
        earlier: tuple[SequencedBatch, ...] = ()
        coordinator_epoch, first_offset = -1, NONE_OPEN
        if before is not None:
            _, _, earlier, coordinator_epoch, first_offset = before
            if before.epoch != header.producer_epoch:
                earlier = ()
        if header.base_sequence >= 0:
            last = SequencedBatch(
                header.last_sequence, header.last_offset, header.last_offset_delta
            )
            earlier = (*earlier[-(BATCHES_KEPT - 1) :], last)
        if header.attributes & TRANSACTIONAL and first_offset == NONE_OPEN:
            first_offset = header.base_offset
        after = Producer(header.producer_epoch, now_ms, earlier, coordinator_epoch, first_offset)
        self.put(header.producer_id, after)
        return after

    def record_marker(
        self, header: BatchHeader, marker: Marker, now_ms: int
    ) -> tuple[Producer, AbortedTransaction | None]:
        """Takes a marker in; gives the new entry, and the transaction if it aborts one.

        With a new epoch the producer goes on from sequence 0 (KIP-890).
        """
        producer_id, offset = header.producer_id, header.base_offset
        before = self.by_id.get(producer_id)
        batches: tuple[SequencedBatch, ...] = ()
        if before is not None and before.epoch == header.producer_epoch:
            batches = before.batches
        after = Producer(header.producer_epoch, now_ms, batches, marker.coordinator_epoch)
        self.put(producer_id, after)
        if before is None or before.first_offset == NONE_OPEN or marker.commit:
            return after, None
        stable = self._open[0][0] if self._open else offset + 1
        return after, AbortedTransaction(producer_id, before.first_offset, offset, stable)

    def put(self, producer_id: int, producer: Producer | None) -> None:
        """Replaces an entry."""
        before = self.by_id.pop(producer_id, None)
        if producer is not None:
            self.by_id[producer_id] = producer
        if self._changes is not None:
            self._changes.pop(producer_id, None)  # it comes last there, too
            self._changes[producer_id] = producer
        was = NONE_OPEN if before is None else before.first_offset
        now = NONE_OPEN if producer is None else producer.first_offset
        if was != now:
            if was != NONE_OPEN:
                del self._open[bisect.bisect_left(self._open, (was, producer_id))]
            if now != NONE_OPEN:
                bisect.insort(self._open, (now, producer_id))

    def undo(self, header: BatchHeader, before: Producer | None, now_ms: int) -> None:
        """Takes back a batch whose write failed, to the entry `before` it.

        A producer that this batch was the first of stays tracked, as one whose next batch is this
        one again: untracked, it might go on with the batches behind it, which are on their way.
        """
        if before is None and header.base_sequence >= 0:
            nothing = SequencedBatch((header.base_sequence - 1) & 0x7FFFFFFF, -1, -1)
            before = Producer(header.producer_epoch, now_ms, (nothing,))
        self.put(header.producer_id, before)

    def expired(self, before_ms: int) -> list[int]:
        """The producers that have sent nothing since, and have no transaction open.

        Kafka goes by the records' own timestamps, and so expires a copier of old ones at once.
        """
        found = []
        for producer_id, producer in self.by_id.items():
            if producer.seen_ms >= before_ms:
                break  # those behind it were seen later
            if producer.first_offset == NONE_OPEN:
                found.append(producer_id)
        return found

    # ── transactions ──

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        return self._open[0][0] if self._open else None

    def open_transactions(self) -> dict[int, OpenTransaction]:
        found = {}
        for first_offset, producer_id in self._open:
            producer = self.by_id[producer_id]
            found[producer_id] = OpenTransaction(
                producer.epoch, first_offset, producer.seen_ms, producer.coordinator_epoch
            )
        return found

    # ── files ──

    def to_snapshot(self) -> bytes:
        body = bytearray(_COUNT.size)
        for producer_id, producer in self.by_id.items():
            epoch, seen_ms, batches, coordinator_epoch, first_offset = producer
            for last_sequence, last_offset, delta in batches or (_NO_BATCH,):
                body += _ENTRY.pack(
                    producer_id, epoch, last_sequence, last_offset, delta, seen_ms,
                    coordinator_epoch, first_offset,
                )  # fmt: skip
        _COUNT.pack_into(body, 0, (len(body) - _COUNT.size) // _ENTRY.size)
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
            producer_id, epoch, *batch, seen_ms, coordinator_epoch, first_offset = (
                _ENTRY.unpack_from(body, at)
            )
            before = producers.by_id.get(producer_id)
            batches = before.batches if before is not None and before.epoch == epoch else ()
            if batch[0] != _NO_BATCH.last_sequence:
                batches = (*batches, SequencedBatch._make(batch))
            first_offset = max(first_offset, NONE_OPEN)
            entry = Producer(epoch, seen_ms, batches, coordinator_epoch, first_offset)
            producers.put(producer_id, entry)
        return producers


_NO_BATCH = SequencedBatch(-1, -1, 0)


def _check_epoch(producer: Producer, epoch: int) -> None:
    if epoch < producer.epoch:
        raise ApiError(
            ErrorCode.INVALID_PRODUCER_EPOCH,
            "the producer's epoch is older than its last one",
            detail=f"{epoch} after {producer.epoch}",
        )
