"""Work that is cut short by other work: cancelled callers, deletions and stops at a bad moment."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from support.log.log_harness import Log, batch_of

from headwater.errors import StorageFailed
from headwater.log import retention
from headwater.log import segment as segments_on_disk
from headwater.log.segment import Segment, Written
from headwater.log.store import READ_THREADS
from headwater.protocol import records
from headwater.testing.files import FaultyFiles


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        yield opened


class HeldSync:
    """The first sync of a path that ends so stands still until `go` is set."""

    def __init__(self, files: FaultyFiles, suffix: str, *, fails: bool = False) -> None:
        self.go = threading.Event()
        self._reached = threading.Event()
        self._suffix = suffix
        self._fails = fails
        files.before_sync = self._before

    def _before(self, path: str) -> None:
        if path.endswith(self._suffix) and not self._reached.is_set():
            self._reached.set()
            self.go.wait(60)
            if self._fails:
                raise OSError(errno.EIO, "the disk is unwell", path)

    async def reached(self) -> None:
        async with asyncio.timeout(60):
            while not self._reached.is_set():
                await asyncio.sleep(0.001)


async def cancelled(task: "asyncio.Task[object]") -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def stop_during(checkpoint: "asyncio.Task[None]", log: Log, held: HeldSync) -> None:
    await held.reached()
    checkpoint.cancel()
    threading.Timer(0.1, held.go.set).start()
    await cancelled(checkpoint)
    await log.store.close()


def check_all_is_there(log: Log) -> None:
    assert log.values() == [b"a", b"b"]
    assert log.append(batch_of(b"c")) == 2


def test_a_stop_in_the_middle_of_a_checkpoint_that_fails(log: Log):
    log.create()
    log.append(batch_of(b"a"))
    log.checkpoint()
    log.append(batch_of(b"b"))

    async def stop() -> None:
        held = HeldSync(log.files, ".index", fails=True)
        checkpoint = asyncio.create_task(log.store.checkpoints.write())
        await stop_during(checkpoint, log, held)

    log.run(stop())
    check_all_is_there(log.open())


def test_a_commit_that_ends_during_a_cancelled_checkpoint(log: Log):
    log.create()
    log.append(batch_of(b"a"))
    log.checkpoint()

    async def stop() -> None:
        commit = HeldSync(log.files, ".log")
        batch = batch_of(b"b")
        partition = log.partition()
        done = asyncio.Event()
        header = records.read_header(batch)
        partition.append(memoryview(batch), header, lambda _: done.set())
        await commit.reached()
        held = HeldSync(log.files, ".index")
        checkpoint = asyncio.create_task(log.store.checkpoints.write())
        await asyncio.sleep(0)  # it has seen how far the partition is
        commit.go.set()
        await done.wait()
        await stop_during(checkpoint, log, held)

    log.run(stop())
    check_all_is_there(log.open())


def test_a_clean_stop_is_believed_only_if_the_log_ends_where_it_says(log: Log):
    log.create()
    log.append(batch_of(b"a"))
    log.checkpoint()
    stale = log.files.read(f"{log.path}/recovery-point-offset-checkpoint")
    log.append(batch_of(b"b"))
    log.close()
    log.files.write_atomically(f"{log.path}/recovery-point-offset-checkpoint", stale)
    check_all_is_there(log.open())


def test_a_cancelled_request_does_not_cancel_the_catalog_write_it_waits_for(log: Log):
    async def interrupted() -> None:
        held = HeldSync(log.files, "catalog.jsonl")
        abandoned = asyncio.create_task(log.store.next_producer_id())
        await held.reached()
        abandoned.cancel()
        creation = asyncio.create_task(log.store.create_topic("a", 1, {}))
        await asyncio.wait({creation}, timeout=0.1)
        held.go.set()
        await cancelled(abandoned)
        await creation
        await log.store.create_topic("b", 1, {})

    log.run(interrupted())
    log.crash()
    assert set(log.store.catalog.topics) == {"a", "b"}


def test_a_topic_deleted_during_a_checkpoint_takes_nothing_of_the_next_along(log: Log):
    log.create()
    log.append(batch_of(b"old"))
    log.files.fail_writes()
    with pytest.raises(StorageFailed):
        log.append(batch_of(b"refused"))

    async def delete() -> None:
        held = HeldSync(log.files, ".index")
        checkpoint = asyncio.create_task(log.store.checkpoints.write())
        await held.reached()
        deletion = asyncio.create_task(log.store.delete_topic("t"))
        async with asyncio.timeout(60):
            while ("t", 0) in log.store.partitions:
                await asyncio.sleep(0.001)
        held.go.set()
        await checkpoint
        await deletion

    log.run(delete())
    log.create()
    log.append(batch_of(b"new"))
    log.restart()
    assert log.values() == [b"new"]


class TestRetentionThatWaitsForATimeIndex:
    """Two segments, the first of them too old; their age is not in memory after a restart."""

    @pytest.fixture
    def aged(self, log: Log):
        log.create(segment_ms=9_000, retention_ms=60_000)
        log.fill(30)
        log.restart()
        log.clock.advance(45)
        return log

    async def retain_during(self, log: Log, change: Coroutine[Any, Any, None]) -> None:
        go = threading.Event()
        for _ in range(READ_THREADS):
            log.store.readers.submit(go.wait, 20)
        retaining = asyncio.create_task(retention.apply(log.store, [log.partition()]))
        await asyncio.sleep(0)  # it waits for a reading thread now
        await change
        go.set()
        await retaining

    def test_records_deleted_meanwhile_do_not_count_again(self, aged: Log):
        change = aged.store.delete_records({aged.partition(): 10})
        aged.run(self.retain_during(aged, change))
        assert [segment.base_offset for segment in aged.partition().segments] == [10, 20]

    def test_a_topic_deleted_meanwhile(self, aged: Log):
        aged.run(self.retain_during(aged, aged.store.delete_topic("t")))
        assert ("t", 0) not in aged.store.partitions


class ReaderInBetween(FaultyFiles):
    """Someone opens the first segment's file at the last moment before its name goes."""

    log: Log | None = None

    def rename(self, source: str, target: str) -> None:
        if os.path.isdir(source):
            self._read(f"{source}/{0:020d}.log")
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._read(path)
        super().unlink(path)

    def _read(self, path: str) -> None:
        if self.log is not None and path.endswith(".log"):
            with (
                contextlib.suppress(FileNotFoundError),
                self.log.store.storage.open_files.use(path),
            ):
                pass


class TestAReaderWhileNamesGo:
    @pytest.fixture
    def read_log(self, tmp_path):
        with Log(tmp_path / "data", files=ReaderInBetween()) as opened:
            opened.files.log = opened
            yield opened

    def test_a_new_topic_of_the_name_does_not_write_into_the_old_ones_files(self, read_log: Log):
        read_log.create()
        read_log.append(batch_of(b"old"))
        read_log.run(read_log.store.delete_topic("t"))
        read_log.settle()
        read_log.create()
        read_log.append(batch_of(b"new"))
        read_log.crash()
        assert read_log.values() == [b"new"]

    def test_no_descriptor_keeps_the_bytes_of_a_removed_segment(self, read_log: Log):
        partition = read_log.create(segment_bytes=1024)
        read_log.fill(30)
        first = partition.segments[0]
        read_log.delete_records(partition.segments[-1].base_offset)
        assert first.doomed
        read_log.files.log = None
        assert len(read_log.store.storage.open_files) <= 3  # of the active segment


def test_a_reader_that_comes_too_late_leaves_no_file(log: Log):
    partition = log.create(segment_bytes=1024)
    log.fill(30)
    first, storage = partition.segments[0], log.store.storage
    log.delete_records(partition.segments[-1].base_offset)
    for read in (
        lambda: segments_on_disk.locate(storage, first, 0),
        lambda: segments_on_disk.load_timestamps(storage, just_opened(first)),
    ):
        with pytest.raises(FileNotFoundError):
            read()
    assert not [name for name in log.names() if name.startswith("0" * 20 + ".")]


def just_opened(segment: Segment) -> Segment:
    """As after a restart: its timestamps are not loaded."""
    directory = segment.log_path.rpartition("/")[0]
    return Segment(directory, segment.base_offset, Written(size_bytes=segment.size_bytes))
