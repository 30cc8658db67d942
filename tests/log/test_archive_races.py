"""An archive while other things go on: segments leave, chunks come back, settings change."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.log.archive_harness import ArchivedLog, FaultyObjects
from support.log.log_harness import batch_of

from headwater.errors import ArchiveUnavailable, ConfigError
from headwater.log.partitions import timestamps
from headwater.log.partitions.partition import PartitionLog


@pytest.fixture
def log(tmp_path: Path):
    with ArchivedLog(tmp_path / "data") as log:
        yield log


class Leaving(PartitionLog):
    """Its local segments go in the moment between two looks of a worker."""

    __slots__ = ()

    @property
    def local_start_offset(self) -> int:
        offset = PartitionLog.local_start_offset.fget(self)
        self.drop_local(self.segments[-1].base_offset)
        return offset


def test_a_reader_skips_nothing_that_just_left_for_the_archive(log: ArchivedLog) -> None:
    log.create()
    values = log.fill(40)
    log.archive_all()
    partition = log.partition()
    partition.__class__ = Leaving
    part = partition.find(5, 1 << 20)
    assert part is None or part.segment.base_offset <= 5
    partition.__class__ = PartitionLog
    assert log.values() == values


def test_a_chunk_that_comes_back_while_its_old_file_goes(tmp_path: Path) -> None:
    with ArchivedLog(tmp_path / "data") as log:
        log.create(local_retention_bytes=1)
        values = log.fill(40)
        log.archive_all()
        log.let_go_locally()
        assert log.read(0)
        go = threading.Event()
        for _ in range(2):
            log.store.workers.submit(go.wait)  # the threads have something else to do
        log.archive.cache.drop()
        assert log.read(0)
        go.set()
        log.settle()
        assert log.values() == values


def test_two_uploads_of_one_topic_describe_it_once(log: ArchivedLog) -> None:
    """Side by side they would write to the same file."""
    log.create(partitions=2)
    log.objects.hold = asyncio.Event()
    for index in range(2):
        for n in range(20):
            log.append(batch_of(b"%d" % n + bytes(200)), index=index)
    log.wait(lambda: len(log.objects.requests) == 2)
    log.objects.hold.set()
    log.wait(lambda: log.archive.uploads.uploaded_segments >= 2)
    assert log.objects.count("put", "topic.json") == 1


class LeavingLater(PartitionLog):
    """Its local segments go when a worker has looked at what is archived."""

    __slots__ = ()

    def archived_only(self):
        found = PartitionLog.archived_only(self)
        self.drop_local(self.segments[-1].base_offset)
        return found


def test_nothing_aborted_is_shown_that_just_left_for_the_archive(log: ArchivedLog) -> None:
    log.create()
    log.append(batch_of(b"no" + bytes(800), producer=(7, 0, 0), transactional=True))
    log.end(7, commit=False)
    log.fill(30)
    log.archive_all()
    partition = log.partition()
    expected = partition.aborted_transactions(0, 30)
    assert len(expected) == 1
    partition.__class__ = LeavingLater
    assert partition.aborted_transactions(0, 30) == expected


def test_a_start_inside_a_segment_counts_it_once(log: ArchivedLog) -> None:
    log.create()
    log.fill(40)
    log.archive_all()
    before = log.partition().total_bytes
    log.delete_records(3)
    assert log.partition().segments[0].base_offset == 0
    assert log.partition().total_bytes == before


def test_a_time_is_found_in_what_just_left_for_the_archive(log: ArchivedLog) -> None:
    log.create()
    began_ms = log.clock.now_ms()
    log.fill(40)
    log.archive_all()
    partition = log.partition()
    for segment in partition.segments:
        segment.pins += 1  # the files are still there for who has found them
    partition.__class__ = LeavingLater
    assert timestamps.first_at_or_after(partition, began_ms + 3000) == (began_ms + 3000, 3)


def test_a_reader_of_what_retention_just_deleted_may_ask_again(log: ArchivedLog) -> None:
    log.create(local_retention_bytes=0, retention_bytes=1 << 30)
    log.append(batch_of(b"no" + bytes(800), producer=(7, 0, 0), transactional=True))
    log.end(7, commit=False)
    log.fill(30)
    log.archive_all()
    log.let_go_locally()
    partition = log.partition()
    os.unlink(partition.archived[0].path)
    for read in (lambda: partition.find(0, 1), lambda: partition.aborted_transactions(0, 5)):
        with pytest.raises(ArchiveUnavailable):
            read()


def test_archiving_is_not_turned_off_while_a_segment_is_being_archived(log: ArchivedLog) -> None:
    log.create()
    log.objects.hold = asyncio.Event()
    log.fill(30)
    log.wait(lambda: log.archive.uploads.busy)
    with pytest.raises(ConfigError):
        log.run(log.store.set_configs("t", {"cleanup.policy": "compact"}))
    log.objects.hold.set()
    log.archive_all()


def test_nothing_is_remembered_of_a_deleted_topic(log: ArchivedLog) -> None:
    log.create()
    log.objects.is_down = True
    log.fill(30)
    log.wait(lambda: log.archive.uploads.failures)
    log.run(log.store.delete_topic("t"))
    log.objects.is_down = False
    log.clock.advance(100)
    log.delete_all()
    uploads = log.archive.uploads
    assert (uploads.begun, uploads.busy, uploads._backoff_s) == ({}, {}, {})


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 10)])
def test_a_cache_that_was_damaged_is_filled_again(log: ArchivedLog, damage) -> None:
    """Somebody may have emptied the directory to make room."""
    log.create(local_retention_bytes=0, retention_bytes=1 << 30)
    values = log.fill(30)
    log.archive_all()
    log.let_go_locally()
    assert log.values() == values
    for segment in log.archive.cache._segments.values():
        damage(segment.log_path)
        log.store.storage.open_files.forget(segment.log_path)
    with pytest.raises(ArchiveUnavailable):
        log.read(0)
    log.settle()
    assert log.read(0)
    assert log.store.corrupt == []


def refuse(log: ArchivedLog, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """From now on no file with such a name can be written."""
    write = log.files.write_atomically

    def refusing(path: str, data: bytes, **options: str) -> None:
        if path.endswith(suffix):
            raise OSError(f"refused: {path}")
        write(path, data, **options)

    monkeypatch.setattr(log.files, "write_atomically", refusing)


def test_nothing_local_goes_before_it_lasts_that_it_is_archived(
    log: ArchivedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create(local_retention_bytes=0, retention_bytes=1 << 30)
    refuse(log, monkeypatch, ".archived")
    values = log.fill(30)
    log.wait(lambda: log.archive.uploads.failures)
    log.let_go_locally()
    log.crash()
    assert log.values() == values


@pytest.mark.parametrize("seed", range(6))
def test_objects_go_after_it_lasts_that_they_are_not_needed(
    log: ArchivedLog, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    log.create(local_retention_bytes=0, retention_bytes=4000)
    values = log.fill(60)
    log.archive_all()
    log.let_go_locally()
    log.checkpoint()
    refuse(log, monkeypatch, "log-start-offset-checkpoint")  # then only the descriptors have it
    log.retain()
    log.delete_all()
    start = log.partition().log_start_offset
    assert start > 0
    log.power_cut(seed)
    assert log.partition().log_start_offset == start
    assert log.values() == values[start:]


def test_uploads_are_no_faster_than_they_may_be(log: ArchivedLog) -> None:
    log.create()
    log.archive.uploads._max_bytes_per_s = 10
    log.fill(30)  # a second apart: room for 300 bytes, of segments of 2000
    log.wait(lambda: log.archive.uploads.busy)
    assert log.archived() == []
    for _ in range(100):
        log.clock.advance(100)
        log.run(asyncio.sleep(0.01))
        if not log.archive.not_archived_bytes(log.partition()):
            break
    assert log.archived()


class SlowLogs(FaultyObjects):
    """An archive that takes its time for logs, and for nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def put(self, name: str, parts: AsyncIterator[bytes]) -> None:
        data = b"".join([part async for part in parts])

        async def once() -> AsyncIterator[bytes]:
            if name.endswith(".log"):
                await self.go.wait()
            yield data

        await super().put(name, once())


def test_nothing_is_left_of_a_topic_that_was_deleted_during_an_upload(tmp_path: Path) -> None:
    objects = SlowLogs()
    with ArchivedLog(tmp_path / "data", objects=objects) as log:
        log.create()
        log.fill(20)
        log.wait(lambda: objects.count("put", "topic.json"))
        log.run(log.store.delete_topic("t"))
        log.wait(lambda: log.archive.deletions.failures or not log.archive.deletions.pending)
        objects.go.set()
        log.wait(lambda: not log.archive.uploads.busy)
        log.clock.advance(100)
        log.delete_all()
        assert objects.objects == {}
