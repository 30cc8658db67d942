"""Consistent cuts: where all topics of a capture end behind one transaction of its database.

A transaction of the database may have changes in several topics. They are committed to the log
together, but a reader fetches each partition by itself. So the capture publishes, within the same
Kafka transaction, the offsets behind it, in the compacted topic `__headwater_cuts`:

    key                 value (JSON)
    shop/40271          {"written_ms": …, "ends": [["shop.public.orders", 0, first, end], …]}
    shop/all            the same, of all partitions that the capture has ever written

`end` is the offset behind the transaction's marker, `first` that of its first record. A key is a
second of the day: its last record has all partitions that were written in this second, so that a
cut survives the compaction of those before it in the same second. Compaction thus leaves a day of
cuts, one a second at most. `all` is written at the start and every hour, so that a partition whose
last record is older than a day has its end, too.

A source transaction that is larger than runner.SPLIT_BYTES is several of Kafka's, and has a cut
behind the last one only.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import orjson

from headwater.client.topics import NewTopic
from headwater.client.writing.sending import TopicPartition

TOPIC: Final = "__headwater_cuts"
NEW_TOPIC: Final = NewTopic(TOPIC, 1, {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)})
_ALL: Final = "all"
_ALL_EVERY_MS: Final = 3_600_000
_DAY_S: Final = 86_400
_MARKER: Final = 1  # offsets of a transaction's end


class Written(NamedTuple):
    """What a cut has of a partition."""

    first: int
    end: int


class Cut(NamedTuple):
    capture: str
    written_ms: int
    ends: Mapping[TopicPartition, Written]


class Cuts:
    """Of one process of a capture. To be used by the thread that sends."""

    def __init__(self, capture: str, records: Mapping[bytes, bytes]) -> None:
        """`records` are the latest ones of the topic, by key."""
        self._capture = capture
        self._all: dict[TopicPartition, Written] = {}
        for cut in sorted(_of_capture(capture, records), key=lambda cut: cut.written_ms):
            self._all |= cut.ends
        self._pending: dict[TopicPartition, Written] = {}  # since the last cut
        self._second = -1
        self._of_second: dict[TopicPartition, Written] = {}
        self._all_due_ms = 0

    def sent(
        self, ends: Mapping[TopicPartition, int], counts: Mapping[TopicPartition, int]
    ) -> None:
        """Records have been stored: the offset behind the last one of each partition. One that the
        broker has not reported (-1) has no place in the cut; readers ask for it.
        """
        for partition, end in ends.items():
            if end < 0:
                self._pending.pop(partition, None)
                continue
            new = Written(end - counts[partition], end + _MARKER)
            self._pending[partition] = _united(self._pending.get(partition), new)

    def records(self, written_ms: int) -> list[tuple[bytes, bytes]]:
        """The records of a transaction that ends at a cut; none if nothing was sent since the last.

        They become true with the transaction. After a failure the object is of no more use.
        """
        found = []
        if self._all and written_ms >= self._all_due_ms:
            # As of before this transaction: whose partitions follow, with their first offsets.
            self._all_due_ms = written_ms + _ALL_EVERY_MS
            found.append((_ALL, {one: Written(at.end, at.end) for one, at in self._all.items()}))
        if self._pending:
            second = written_ms // 1000
            if second != self._second:
                self._second, self._of_second = second, {}
            for partition, new in self._pending.items():
                self._of_second[partition] = _united(self._of_second.get(partition), new)
            self._all |= self._pending
            self._pending = {}
            found.append((str(second % _DAY_S), self._of_second))
        return [
            (f"{self._capture}/{name}".encode(), _encoded(written_ms, ends)) for name, ends in found
        ]


def decode(key: bytes | None, value: bytes | None) -> Cut | None:
    """None for a record that is no cut: a tombstone, or one of another program."""
    if key is None or value is None:
        return None
    try:
        capture, _, name = key.decode().rpartition("/")
        stored: Any = orjson.loads(value)
        ends = {
            (str(topic), int(partition)): Written(int(first), int(end))
            for topic, partition, first, end in stored["ends"]
        }
        return Cut(capture, int(stored["written_ms"]), ends) if capture and name else None
    except (ValueError, LookupError, TypeError):
        return None


def keys_of(capture: str, records: Mapping[bytes, bytes]) -> list[bytes]:
    prefix = f"{capture}/".encode()
    return [key for key in records if key.startswith(prefix) and b"/" not in key[len(prefix) :]]


def _of_capture(capture: str, records: Mapping[bytes, bytes]) -> list[Cut]:
    decoded = (decode(key, records[key]) for key in keys_of(capture, records))
    return [cut for cut in decoded if cut is not None]


def _encoded(written_ms: int, ends: Mapping[TopicPartition, Written]) -> bytes:
    return orjson.dumps(
        {"written_ms": written_ms, "ends": [[*one, *at] for one, at in ends.items()]}
    )


def _united(before: Written | None, new: Written) -> Written:
    return new if before is None else Written(before.first, new.end)
