"""A log on a disk that can fail, driven step by step from a test without a running loop."""

import asyncio
import os
from collections.abc import Coroutine
from random import Random
from typing import Any, NamedTuple, Self

from headwater.errors import StorageFailed
from headwater.log import retention
from headwater.log.index import OFFSET_ENTRY, TIME_ENTRY
from headwater.log.partitions.partition import PartitionLog
from headwater.log.store import LogStore
from headwater.protocol import records
from headwater.protocol.records import CONTROL, TRANSACTIONAL, Record, build_batch, read_header
from headwater.testing.clock import FakeClock
from headwater.testing.files import FaultyFiles

PENDING = "pending"


def batch_of(
    *values: bytes,
    timestamp_ms: int = 1_700_000_000_000,
    producer: Any = None,
    codec: int = 0,
    transactional: bool = False,
) -> bytearray:
    """A batch of records with these values; `producer` is (id, epoch, first sequence)."""
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return build_batch(
        [Record(0, timestamp_ms, None, value) for value in values],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if transactional else 0,
    )


class End(NamedTuple):
    """The end of a transaction, to be sent as a coordinator does."""

    producer_id: int
    epoch: int
    commit: bool


class Sent(NamedTuple):
    """An append under way: `outcome` gets one element when it is over, None for durable."""

    offset: int
    outcome: list[StorageFailed | None]
    batch: bytearray

    @property
    def state(self) -> Any:
        return self.outcome[0] if self.outcome else PENDING


class Log:
    """A store with one partition in the foreground."""

    def __init__(self, path: Any, *, files: FaultyFiles | None = None, **options: Any) -> None:
        self.path = str(path)
        self.files = files or FaultyFiles()
        self.clock = FakeClock()
        self.options = options
        self.runner = asyncio.Runner()
        self.store: LogStore = None  # type: ignore[assignment]

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.runner.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.store is not None:
            self.store.abandon()
        self.runner.close()

    # ── the store ──

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def open(self) -> "Log":
        async def begin() -> None:
            self.store.open()

        self.store = LogStore(self.path, self.clock, files=self.files, **self.options)
        try:
            self.run(begin())
        except BaseException:
            self.store.abandon()
            raise
        return self

    def close(self) -> None:
        self.run(self.store.close())

    def restart(self) -> "Log":
        self.close()
        return self.open()

    def crash(self) -> "Log":
        """The process dies; what it wrote stays in the page cache."""
        self.store.abandon()
        self.files.revive()
        return self.open()

    def power_cut(self, seed: int) -> "Log":
        self.store.abandon()
        self.files.power_cut(Random(seed))
        return self.open()

    def create(self, topic: str = "t", partitions: int = 1, **configs: Any) -> PartitionLog:
        texts = {name.replace("_", "."): str(value) for name, value in configs.items()}
        self.run(self.store.create_topic(topic, partitions, texts))
        return self.partition(topic)

    def partition(self, topic: str = "t", index: int = 0) -> PartitionLog:
        return self.store.partitions[topic, index]

    # ── writing ──

    def send(self, *batches: bytearray | End, topic: str = "t", index: int = 0) -> list[Sent]:
        """Begins appends, all at one moment, and does not wait for them."""

        async def begin() -> list[Sent]:
            return [self._begin(batch, self.partition(topic, index)) for batch in batches]

        begun: list[Sent] = self.run(begin())
        return begun

    def _begin(self, batch: bytearray | End, partition: PartitionLog) -> Sent:
        done: list[StorageFailed | None] = []
        if not isinstance(batch, End):
            header = records.check_produced(memoryview(batch))
            return Sent(partition.append(memoryview(batch), header, done.append), done, batch)
        offset = partition.append_marker(
            batch.producer_id,
            batch.epoch,
            commit=batch.commit,
            coordinator_epoch=0,
            done=done.append,
        )
        append = [*(partition._committing or ()), *partition._pending][-1]
        assert append.batch is not None
        return Sent(offset, done, append.batch.view.obj)  # type: ignore[arg-type]

    def end(self, producer_id: int, epoch: int = 0, *, commit: bool) -> int:
        """Ends a transaction and waits; raises StorageFailed if the disk refused."""
        (sent,) = self.send(End(producer_id, epoch, commit))
        self.settle()
        assert sent.outcome, "a marker was never answered"
        if sent.outcome[0] is not None:
            raise sent.outcome[0]
        return sent.offset

    def settle(self) -> None:
        """Waits until no work is in flight, with or without a caller that waits for it."""

        async def wait() -> None:
            async with asyncio.timeout(60):
                while self.store.workers._unfinished or any(
                    not partition.is_idle for partition in self.store.partitions.values()
                ):
                    await asyncio.sleep(0.0005)  # a spin would starve the threads

        self.run(wait())

    def append(self, batch: bytearray, topic: str = "t", index: int = 0) -> int:
        """Appends and waits; raises StorageFailed if the disk refused."""
        (sent,) = self.send(batch, topic=topic, index=index)
        self.settle()
        assert sent.outcome, "an append was never answered"
        if sent.outcome[0] is not None:
            raise sent.outcome[0]
        return sent.offset

    def fill(self, count: int, size_bytes: int = 100, topic: str = "t") -> list[bytes]:
        """Appends `count` batches of one record each, a second apart; their values."""
        values = [b"%06d" % number + bytes(size_bytes) for number in range(count)]
        for value in values:
            self.append(batch_of(value, timestamp_ms=self.clock.now_ms()), topic)
            self.clock.advance(1)
        return values

    def roll(self) -> StorageFailed | None:
        outcome: list[StorageFailed | None] = []

        async def begin() -> None:
            self.partition().roll(outcome.append)

        self.run(begin())
        self.settle()
        return outcome[0]

    def checkpoint(self) -> None:
        self.run(self.store.checkpoints.write())
        self.settle()

    def delete_records(self, offset: int) -> None:
        self.run(self.store.delete_records({self.partition(): offset}))
        self.settle()

    def retain(self) -> int:
        deleted = self.run(retention.apply(self.store, [self.partition()]))
        self.settle()
        return sum(deleted.values())

    # ── reading ──

    def batches(
        self, offset: int | None = None, *, topic: str = "t", max_bytes: int = 1 << 20
    ) -> list[bytes]:
        """Every whole batch that a consumer gets from `offset` on."""
        partition = self.partition(topic)
        position = partition.log_start_offset if offset is None else offset
        found: list[bytes] = []
        while position < partition.high_watermark:
            partition.check_offset(position)
            data = self.read(position, max_bytes, topic)
            if not data:
                break
            found += split(data)
            position = read_header(found[-1]).last_offset + 1
        return found

    def read(self, offset: int, max_bytes: int = 1 << 20, topic: str = "t") -> bytes:
        part = self.partition(topic).find(offset, max_bytes)
        if part is None:
            return b""
        buffer = bytearray(part.size_bytes)
        assert part.read(memoryview(buffer), 0) == part.size_bytes
        return bytes(buffer)

    def values(self, offset: int | None = None, topic: str = "t") -> list[bytes | None]:
        start = self.partition(topic).log_start_offset if offset is None else offset
        return [
            record.value
            for batch in self.batches(offset, topic=topic)
            if not read_header(batch).attributes & CONTROL
            for record in records.records_of(batch)
            if record.offset >= start
        ]

    def committed_values(self, offset: int | None = None) -> list[bytes | None]:
        return [record.value for record in self.committed_records(offset)]

    def committed_records(self, offset: int | None = None) -> list[Record]:
        """What an application gets that reads committed records only, as its client sees to it."""
        partition = self.partition()
        start = partition.log_start_offset if offset is None else offset
        end = partition.last_stable_offset
        aborted = sorted(
            partition.aborted_transactions(start, end), key=lambda transaction: transaction[1]
        )
        ignored: set[int] = set()
        found: list[Record] = []
        for batch in self.batches(start):
            header = read_header(batch)
            if header.base_offset >= end:
                break
            while aborted and aborted[0].first_offset <= header.last_offset:
                ignored.add(aborted.pop(0).producer_id)
            if header.attributes & CONTROL:
                marker = records.read_marker(batch)
                if marker is not None and not marker.commit:
                    ignored.discard(header.producer_id)
            elif not (header.attributes & TRANSACTIONAL and header.producer_id in ignored):
                found += [r for r in records.records_of(batch) if r.offset >= start]
        return found

    # ── looking at the files ──

    def names(self, topic: str = "t") -> list[str]:
        directory = self.partition(topic).directory
        return sorted(os.listdir(directory)) if os.path.isdir(directory) else []

    def check_indexes(self) -> None:
        """Every index entry is what index.py says it is."""
        for segment in self.partition().segments:
            with open(segment.log_path, "rb") as file:
                data = file.read()[: segment.size_bytes]
            boundaries, newest, at = {}, {}, 0
            newest_ms = -1
            for batch in split(data):
                header = read_header(batch)
                boundaries[header.base_offset - segment.base_offset] = at
                newest_ms = max(newest_ms, header.max_timestamp)
                newest[header.last_offset - segment.base_offset] = newest_ms
                at += len(batch)
            offsets = _entries(segment.index_path, OFFSET_ENTRY, segment.written.offset_entries)
            assert offsets == sorted(set(offsets))
            for relative, position in offsets:
                assert boundaries[relative] == position
            times = _entries(segment.time_index_path, TIME_ENTRY, segment.written.time_entries)
            assert [entry[0] for entry in times] == sorted({entry[0] for entry in times})
            for timestamp_ms, relative in times:
                assert newest[relative] == timestamp_ms


def _entries(path: str, form: Any, count: int) -> list[tuple[int, int]]:
    if count == 0:  # also if a crash has brought back a deleted log without its index
        return []
    with open(path, "rb") as file:
        data = file.read()
    assert len(data) >= count * form.size
    return [form.unpack_from(data, number * form.size) for number in range(count)]


def split(data: bytes) -> list[bytes]:
    """The batches in a run of them, each checked."""
    batches = []
    position = 0
    while position < len(data):
        header = read_header(data, position)
        batch = data[position : position + header.size_bytes]
        records.check_stored(batch)
        assert len(batch) == header.size_bytes
        batches.append(batch)
        position += header.size_bytes
    return batches
