"""The lag of every group: in records, in bytes and in time.

Records are the difference of two offsets. Bytes and time need the position of the group's next
record in the log: it is looked up in a reader thread when the group's offset has changed, a bounded
number at a time, and remembered; what is appended meanwhile only has to be counted. So ten thousand
groups that stand still cost nothing, and figures of very many busy ones are some seconds old.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import LogError
from headwater.log import segment as segments_on_disk
from headwater.log.archive.descriptor import ArchivedPosition, NotCached
from headwater.log.partitions.partition import PartitionLog
from headwater.log.partitions.reads import Slice
from headwater.protocol.records import NO_TIMESTAMP

if TYPE_CHECKING:
    from headwater.broker.broker import Broker

MEASURE_S = 5.0
LOOKUPS_PER_MEASURE = 2_000
LOOKUPS_AT_ONCE = 100
OFFSETS_PER_TURN = 1_000

Key = tuple[str, str, int]  # group, topic, partition


class _NextRecord(NamedTuple):
    """The position of a group's next record in the log."""

    offset: int
    partition: PartitionLog
    read_upto_bytes: int  # on the scale of `PartitionLog.committed_bytes`
    timestamp_ms: int


class Lag(NamedTuple):
    """Of a group in a partition. `size_bytes` and `seconds` are None until they were measured."""

    group: str
    partition: PartitionLog
    offset: int
    records: int
    size_bytes: int | None
    seconds: float | None
    retention_used: float | None  # 1: its next record may be deleted any moment; None: never

    @property
    def is_lost(self) -> bool:
        """Whether retention has passed the group."""
        return self.offset < self.partition.log_start_offset


class LagMeter:
    """See the module."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._next_records: dict[Key, _NextRecord] = {}
        self._last_key: Key | None = None  # where the last round ended, if it did not reach all

    async def measure(self) -> None:
        """Looks up the positions of groups whose offset has changed."""
        wanted: list[tuple[Key, PartitionLog, int]] = []
        seen: set[Key] = set()
        for count, (group, partition, offset, _) in enumerate(self._positions()):
            key = (group, partition.topic, partition.index)
            seen.add(key)
            cached = self._next_records.get(key)
            if offset >= partition.high_watermark:
                self._next_records.pop(key, None)
            elif cached is None or cached.offset != offset or cached.partition is not partition:
                wanted.append((key, partition, offset))
            if count % OFFSETS_PER_TURN == 0:
                await asyncio.sleep(0)
        for removed in self._next_records.keys() - seen:
            del self._next_records[removed]
        for some in self._in_turn(wanted):
            found = await self._broker.store.in_reader(self._look_up, some)
            for (key, partition, offset), (position, timestamp_ms) in zip(some, found, strict=True):
                behind_bytes = 0 if position is None else partition.bytes_from(position)
                read_upto_bytes = partition.committed_bytes - behind_bytes
                self._next_records[key] = _NextRecord(
                    offset, partition, read_upto_bytes, timestamp_ms
                )

    def lags(self) -> Iterator[Lag]:
        """Every group that has a position in a partition, as of now."""
        now_ms = self._broker.clock.now_ms()
        for group, partition, offset, settled in self._positions():
            records = max(partition.high_watermark - offset - settled, 0)
            if not records:
                yield Lag(group, partition, offset, 0, 0, 0.0, 0.0)
                continue
            position = self._next_records.get((group, partition.topic, partition.index))
            size_bytes = seconds = None
            if position is not None and position.partition is partition:
                size_bytes = min(
                    partition.committed_bytes - position.read_upto_bytes, partition.total_bytes
                )
                if position.timestamp_ms != NO_TIMESTAMP:
                    seconds = max(now_ms - position.timestamp_ms, 0) / 1000
            used = _retention_used(partition, size_bytes, seconds)
            yield Lag(group, partition, offset, records, size_bytes, seconds, used)

    def _positions(self) -> Iterator[tuple[str, PartitionLog, int, int]]:
        """Where each group goes on, and what a share group has settled behind that already."""
        for group, (topic, index), committed in self._broker.groups.offsets.all_committed():
            partition = self._broker.store.partitions.get((topic, index))
            if partition is not None:
                yield group, partition, committed.offset, 0
        yield from self._broker.queues.positions()

    def _in_turn(
        self, wanted: list[tuple[Key, PartitionLog, int]]
    ) -> Iterator[list[tuple[Key, PartitionLog, int]]]:
        """As many as a round may look up, beginning behind those of the round before."""
        if len(wanted) > LOOKUPS_PER_MEASURE:
            wanted.sort(key=lambda entry: entry[0])
            if self._last_key is not None:
                begin = next((i for i, (key, *_) in enumerate(wanted) if key > self._last_key), 0)
                wanted = wanted[begin:] + wanted[:begin]
            wanted = wanted[:LOOKUPS_PER_MEASURE]
            self._last_key = wanted[-1][0]
        for at in range(0, len(wanted), LOOKUPS_AT_ONCE):
            yield wanted[at : at + LOOKUPS_AT_ONCE]

    def _look_up(
        self, wanted: list[tuple[Key, PartitionLog, int]]
    ) -> list[tuple[Slice | ArchivedPosition | None, int]]:
        """(worker)"""
        return [self._find(partition, offset) for _, partition, offset in wanted]

    def _find(
        self, partition: PartitionLog, offset: int
    ) -> tuple[Slice | ArchivedPosition | None, int]:
        """(worker) The group's next batch, and its time."""
        # A consumer that reads it gets the error.
        with contextlib.suppress(LogError, NotCached, OSError):
            position = partition.position_of(max(offset, partition.log_start_offset))
            if isinstance(position, ArchivedPosition):
                return position, position.timestamp_ms
            if position is not None:
                storage = partition.storage
                headers = segments_on_disk.headers(storage, position.segment, position.position)
                for _, header in headers:
                    return position, header.max_timestamp
        return None, NO_TIMESTAMP


def _retention_used(
    partition: PartitionLog, size_bytes: int | None, seconds: float | None
) -> float | None:
    """How much of what retention grants a record is used up; the larger of time and size."""
    config = partition.config
    if "delete" not in config.cleanup_policy:
        return None
    used: list[float] = []
    if seconds is not None and config.retention_ms >= 0:
        used.append(seconds * 1000 / max(config.retention_ms, 1))
    if size_bytes is not None and config.retention_bytes >= 0:
        used.append(size_bytes / max(config.retention_bytes, 1))
    return max(used, default=None)
