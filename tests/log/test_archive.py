"""Sealed segments go to the archive, come back from it, and are deleted in it."""

import asyncio
import itertools
from pathlib import Path

import pytest
from support.log.archive_harness import ArchivedLog, FaultyObjects
from support.log.log_harness import Log, batch_of

from headwater.errors import ArchiveUnavailable, ConfigError, CorruptLog
from headwater.log.archive import uploads
from headwater.log.archive.descriptor import NotCached
from headwater.log.archive.objects import DirectoryObjects
from headwater.log.archive.options import ArchiveOptions


@pytest.fixture
def archived(tmp_path):
    with ArchivedLog(tmp_path / "data") as log:
        yield log


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(uploads, "CHUNK_BYTES", 700)


def test_sealed_segments_are_archived_and_the_active_one_is_not(archived):
    partition = archived.create()
    archived.fill(50)
    archived.archive_all()
    assert archived.archived() == [segment.base_offset for segment in partition.segments[:-1]]
    assert len(archived.archived()) >= 3
    for segment in partition.segments[:-1]:
        name = partition.object_name(segment.base_offset, ".log")
        with open(segment.log_path, "rb") as file:
            assert archived.objects.objects[name] == file.read()


def test_nothing_of_other_topics_is_archived(archived):
    archived.create(remote_storage_enable="false")
    archived.fill(50)
    archived.checkpoint()
    assert archived.objects.objects == {}


def test_local_files_go_once_archived_and_everything_is_still_read(archived, small_chunks):
    partition = archived.create(local_retention_ms=1000, retention_ms=10_000_000)
    values = archived.fill(60)
    archived.archive_all()
    archived.clock.advance(100)
    archived.let_go_locally()
    assert len(partition.segments) == 1
    assert partition.log_start_offset == 0
    assert partition.local_start_offset > 40
    assert [name for name in archived.names() if name.endswith(".log")] == [
        f"{partition.segments[0].base_offset:020d}.log"
    ]
    assert archived.values() == values
    for offset in range(60):
        assert archived.values(offset) == values[offset:]


def test_records_come_back_after_a_restart_and_after_a_crash(archived, small_chunks):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    values = archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    archived.restart()
    assert archived.partition().log_start_offset == 0
    assert archived.values() == values
    archived.crash()
    assert archived.values() == values
    assert archived.objects.count("put", ".log") == len(archived.archived())  # none twice


@pytest.mark.parametrize("count", [30, 60])
def test_a_power_cut_that_brings_back_an_older_local_segment_makes_no_hole(archived, count):
    """Removals reach the disk in any order: the first segment is back, the others are not."""
    archived.create(local_retention_bytes=0)
    values = archived.fill(count)
    archived.archive_all()
    first, second, *_ = [segment.base_offset for segment in archived.partition().segments]
    files = sorted(Path(archived.partition().directory).glob(f"{first:020d}.*"))
    contents = {file: file.read_bytes() for file in files}
    archived.let_go_locally()
    archived.store.abandon()
    for file, data in contents.items():
        file.write_bytes(data)
    archived.open()
    assert archived.partition().segments[0].base_offset > second
    assert archived.values() == values
    archived.settle()
    assert not Path(f"{archived.partition().directory}/{first:020d}.log").exists()


def test_local_retention_waits_for_the_archive_and_says_so(archived):
    partition = archived.create(local_retention_ms=1, retention_ms=10_000_000)
    archived.objects.is_down = True
    values = archived.fill(50)
    archived.wait(lambda: archived.archive.uploads.failures)
    archived.let_go_locally()
    sealed_bytes = sum(segment.size_bytes for segment in partition.segments[:-1])
    assert archived.archive.waiting_bytes == {partition: sealed_bytes}
    assert "it is down" in archived.archive.uploads.last_error
    assert archived.values() == values
    archived.objects.is_down = False
    archived.clock.advance(61)
    archived.archive_all()
    archived.let_go_locally()
    assert archived.archive.waiting_bytes == {}
    assert archived.archive.uploads.last_error == ""
    assert len(partition.segments) == 1
    assert archived.values() == values


def test_total_retention_deletes_objects_and_moves_the_start(archived):
    partition = archived.create(local_retention_ms=1000, retention_ms=30_000)
    values = archived.fill(60)  # a second apart
    archived.archive_all()
    archived.let_go_locally()
    before = archived.archived()
    archived.retain()
    assert partition.log_start_offset > 20
    archived.delete_all()
    retained = archived.archived()
    assert retained[0] == partition.log_start_offset
    assert retained == before[-len(retained) :]
    logs = [name for name in archived.object_names() if name.endswith(".log")]
    assert logs == [f"0/{base:020d}.log" for base in retained]
    assert archived.values() == values[partition.log_start_offset :]
    assert not [name for name in archived.names() if name.endswith(".deleted")]


def test_retention_by_size_counts_both_places(archived):
    partition = archived.create(local_retention_bytes=0, retention_bytes=6000)
    archived.fill(100)
    archived.archive_all()
    archived.let_go_locally()
    archived.retain()
    total_bytes = (
        sum(segment.size_bytes for segment in partition.archived_only()) + partition.size_bytes
    )
    assert 6000 <= total_bytes < 8000


def test_delete_records_deletes_objects(archived):
    partition = archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    values = archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    second = archived.archived()[1]
    archived.delete_records(second + 3)
    archived.delete_all()
    assert partition.log_start_offset == second + 3
    assert archived.archived()[0] == second
    assert f"0/{0:020d}.log" not in archived.object_names()
    assert archived.values() == values[second + 3 :]
    archived.crash()
    assert archived.partition().log_start_offset == second + 3
    assert archived.values() == values[second + 3 :]


def test_deletion_is_taken_up_again_after_a_crash(archived):
    archived.create()
    archived.fill(60)
    archived.archive_all()
    archived.objects.is_down = True
    archived.delete_records(50)
    archived.wait(lambda: archived.archive.deletions.failures)
    assert archived.partition().log_start_offset == 50
    archived.objects.is_down = False
    archived.crash()
    archived.delete_all()
    retained = archived.archived()
    logs = [name for name in archived.object_names() if name.endswith(".log")]
    assert logs == [f"0/{base:020d}.log" for base in retained]


def test_a_deleted_topic_leaves_no_object_behind(archived):
    archived.create()
    archived.fill(60)
    archived.archive_all()
    assert archived.objects.objects
    archived.run(archived.store.delete_topic("t"))
    archived.delete_all()
    assert archived.objects.objects == {}


def test_a_topic_deleted_while_the_archive_is_down_is_deleted_there_after_a_crash(archived):
    archived.create()
    archived.fill(60)
    archived.archive_all()
    archived.objects.is_down = True
    archived.run(archived.store.delete_topic("t"))
    archived.wait(lambda: archived.archive.deletions.failures)
    archived.create()
    archived.fill(5)
    archived.objects.is_down = False
    archived.crash()
    archived.delete_all()
    assert archived.objects.objects == {}
    assert len(archived.values()) == 5


def test_a_new_topic_of_the_same_name_does_not_meet_the_old_ones_objects(archived):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    archived.fill(60, size_bytes=90)
    archived.archive_all()
    archived.run(archived.store.delete_topic("t"))
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    values = archived.fill(60, size_bytes=110)
    archived.archive_all()
    archived.let_go_locally()
    archived.delete_all()
    assert archived.values() == values


def test_enabling_later_archives_what_is_there(archived):
    partition = archived.create(remote_storage_enable="false")
    archived.fill(60)
    configs = {"segment.bytes": "2000", "remote.storage.enable": "true"}
    archived.run(archived.store.set_configs("t", configs))
    archived.archive_all()
    assert archived.archived() == [segment.base_offset for segment in partition.segments[:-1]]


def test_disabling_is_refused_while_something_is_archived(archived):
    archived.create()
    archived.fill(60)
    archived.archive_all()
    with pytest.raises(ConfigError, match="cannot be turned off"):
        archived.run(archived.store.set_configs("t", {}))
    archived.delete_records(60)
    archived.run(archived.store.set_configs("t", {}))
    archived.delete_all()
    assert [name for name in archived.object_names() if name != "topic.json"] == []


def test_a_compacted_topic_cannot_be_archived(archived):
    with pytest.raises(ConfigError, match="compacted"):
        archived.create(cleanup_policy="compact,delete")


def test_local_retention_cannot_exceed_the_total(archived):
    with pytest.raises(ConfigError, match=r"local\.retention\.ms"):
        archived.create(local_retention_ms=1000, retention_ms=999)


def test_archiving_needs_an_archive(tmp_path):
    with Log(tmp_path / "data") as log, pytest.raises(ConfigError, match="needs an archive"):
        log.create(remote_storage_enable="true")


def test_without_the_archive_local_records_are_served_and_the_others_refused(tmp_path):
    with ArchivedLog(tmp_path / "data") as log:
        log.create(local_retention_bytes=0, retention_bytes=10_000_000)
        values = log.fill(60)
        log.archive_all()
        log.let_go_locally()
        start = log.partition().local_start_offset
        log.close()
    with Log(tmp_path / "data") as log:
        assert log.partition().log_start_offset == 0
        assert log.values(start) == values[start:]
        with pytest.raises(ArchiveUnavailable):
            log.read(0)


def test_finding_by_time_in_the_archive(archived, small_chunks):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    began_ms = archived.clock.now_ms()
    archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    for offset in range(60):
        assert archived.find_time(began_ms + offset * 1000) == (began_ms + offset * 1000, offset)
        later = archived.find_time(began_ms + offset * 1000 - 500)
        assert later is not None
        assert later.offset == offset
    assert archived.find_time(began_ms + 60_000) is None


def test_timestamps_out_of_order_are_found_in_the_archive(archived, small_chunks):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    times = [(number * 37) % 60 for number in range(60)]
    for number, time in enumerate(times):
        archived.append(batch_of(b"%04d" % number + bytes(100), timestamp_ms=1_000_000 + time))
    archived.archive_all()
    archived.let_go_locally()
    for time in range(60):
        expected = next(offset for offset, written in enumerate(times) if written >= time)
        assert archived.find_time(1_000_000 + time).offset == expected


def test_many_readers_fetch_a_chunk_once(archived):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    archived.objects.requests.clear()
    with pytest.raises(NotCached) as missing:
        archived.partition().find(0, 100)

    async def all_of_them():
        archived.objects.hold = asyncio.Event()
        waits = [archived.archive.chunks.fetched(missing.value.chunk) for _ in range(20)]
        waiting = asyncio.gather(*waits)
        while not archived.objects.count("get"):
            await asyncio.sleep(0)
        archived.objects.hold.set()
        await waiting

    archived.run(all_of_them())
    assert archived.objects.count("get") == 1


def test_the_cache_is_bounded_and_everything_is_read_through_it(tmp_path, small_chunks):
    with ArchivedLog(tmp_path / "data", cache_bytes=2000) as log:
        log.create(local_retention_bytes=0, retention_bytes=10_000_000)
        values = log.fill(200)
        log.archive_all()
        log.let_go_locally()
        for _ in range(3):
            for offset in range(0, 190, 7):
                log.read(offset, 300)
                assert log.archive.cache.size_bytes <= 2000
        assert log.values() == values


def test_what_is_being_sent_stays_in_the_cache(tmp_path, small_chunks):
    with ArchivedLog(tmp_path / "data", cache_bytes=2000) as log:
        partition = log.create(local_retention_bytes=0, retention_bytes=10_000_000)
        log.fill(100)
        log.archive_all()
        log.let_go_locally()
        log.read(0)
        part = partition.find(0, 1000)
        assert partition.pin(part)
        expected = bytearray(part.size_bytes)
        part.read(memoryview(expected), 0)
        for offset in range(0, 90, 5):
            log.read(offset, 300)
        assert not part.segment.doomed  # and counts
        again = bytearray(part.size_bytes)
        part.read(memoryview(again), 0)
        assert again == expected
        part.release()


def test_a_full_disk_empties_the_cache_first(archived, small_chunks):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    archived.read(0)
    archived.read(20)
    archived.wait(lambda: archived.archive.chunks.waiting == 0)  # also what was fetched ahead
    assert archived.archive.cache.size_bytes > 0
    archived.files.room_bytes = 10
    with pytest.raises(ArchiveUnavailable, match="cache"):
        archived.read(40)
    assert archived.archive.cache.size_bytes == 0


def test_a_damaged_object_is_found_out_and_never_served(archived):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    values = archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    name = archived.partition().object_name(0, ".log")
    good = archived.objects.objects[name]
    damaged = bytearray(good)
    damaged[200] ^= 1
    archived.objects.objects[name] = bytes(damaged)
    with pytest.raises(CorruptLog):
        archived.read(0)
    assert archived.archive.chunks.corrupt == {name}
    second = archived.archived()[1]
    assert archived.values(second) == values[second:]
    archived.objects.objects[name] = good
    archived.clock.advance(61)
    assert archived.values() == values
    assert archived.archive.chunks.corrupt == set()


def test_a_truncated_answer_is_asked_for_again(archived):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    values = archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    counter = itertools.count()
    archived.objects.garble = lambda _, data: data[:-1] if next(counter) % 2 == 0 else data
    assert archived.values() == values


def test_what_does_not_read_back_as_it_was_put_does_not_count(archived):
    archived.create()
    archived.objects.garble = lambda _, data: bytes(len(data))
    archived.fill(60)
    archived.wait(lambda: archived.archive.uploads.failures)
    assert archived.archived() == []
    archived.objects.garble = None
    archived.clock.advance(61)
    archived.archive_all()


def test_a_failure_is_the_answer_for_a_moment_then_it_is_tried_again(archived):
    archived.create(local_retention_bytes=0, retention_bytes=10_000_000)
    values = archived.fill(60)
    archived.archive_all()
    archived.let_go_locally()
    archived.objects.is_down = True
    with pytest.raises(ArchiveUnavailable):
        archived.read(0)
    archived.objects.is_down = False
    asked = archived.objects.count("get")
    with pytest.raises(ArchiveUnavailable):
        archived.read(0)
    assert archived.objects.count("get") == asked
    archived.clock.advance(2)
    assert archived.values() == values


def test_a_damaged_local_segment_is_left_out_and_the_others_are_archived(archived):
    archived.objects.is_down = True
    partition = archived.create()
    archived.fill(60)
    damaged = partition.segments[1]
    with open(damaged.log_path, "r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff\xff\xff")
    archived.objects.is_down = False
    archived.clock.advance(61)
    expected = [
        segment.base_offset for segment in partition.segments[:-1] if segment is not damaged
    ]
    archived.wait(lambda: archived.archived() == expected)
    assert archived.store.corrupt == [damaged.log_path]


def test_a_lost_log_directory_begins_again_where_the_archive_ends(tmp_path):
    objects = FaultyObjects()
    with ArchivedLog(tmp_path / "data", objects=objects) as log:
        log.create()
        values = log.fill(60)
        log.archive_all()
        end = log.partition().archived_end
        log.close()
        for name in log.names():
            if not name.endswith(".archived"):
                log.files.unlink(f"{log.partition().directory}/{name}")
        log.open()
        assert log.values() == values[:end]
        assert log.append(batch_of(b"more")) == end
        assert log.values() == [*values[:end], b"more"]


def test_a_directory_as_the_archive(tmp_path, small_chunks):
    objects = DirectoryObjects(str(tmp_path / "archive"))
    with ArchivedLog(tmp_path / "data", objects=objects) as log:
        partition = log.create(local_retention_bytes=0, retention_bytes=10_000_000)
        values = log.fill(60)
        log.archive_all()
        log.let_go_locally()
        assert log.values() == values
        names = log.run(objects.names(log.store.catalog.cluster_id))
        assert sorted(names) == sorted(
            [
                f"{log.store.catalog.cluster_id}/{partition.topic_id}/topic.json",
                *(
                    partition.object_name(base, suffix)
                    for base in log.archived()
                    for suffix in (".log", ".index", ".timeindex", ".archived")
                ),
            ]
        )
        log.run(log.store.delete_topic("t"))
        log.delete_all()
        assert list((tmp_path / "archive").iterdir()) == []


def test_a_directory_that_is_gone_is_no_empty_archive(tmp_path):
    objects = DirectoryObjects(str(tmp_path / "archive"))
    with ArchivedLog(tmp_path / "data", objects=objects) as log:
        log.create()
        log.fill(60)
        log.archive_all()
        (tmp_path / "archive").rename(tmp_path / "unmounted")
        log.run(log.store.delete_topic("t"))
        log.wait(lambda: log.archive.deletions.failures)
        (tmp_path / "unmounted").rename(tmp_path / "archive")
        log.clock.advance(11)
        log.delete_all()
        assert list((tmp_path / "archive").iterdir()) == []


def test_an_archive_that_is_no_address_is_refused(tmp_path):
    with (
        pytest.raises(ConfigError, match="not understood"),
        Log(tmp_path / "data", archive=ArchiveOptions("ftp://nowhere")),
    ):
        pass


def test_a_descriptor_of_another_topic_is_left_out(tmp_path, caplog):
    with ArchivedLog(tmp_path / "data") as log:
        log.create()
        log.fill(60)
        log.archive_all()
        stray = log.files.read(log.partition().archived[0].path)
        log.create("u")
        log.append(batch_of(b"mine"), "u")
        name = f"{log.partition('u').directory}/{0:020d}.archived"
        log.files.write_atomically(name, stray)
        log.restart()
        assert log.partition("u").archived == ()
        assert log.values(topic="u") == [b"mine"]
        assert "another topic's" in caplog.text
