"""A full or failing disk: producers learn of it, readers go on, nothing is corrupted."""

import errno
import os
import threading

import pytest
from support.log.log_harness import PENDING, Log, batch_of
from tiers import seeds

from headwater.errors import CorruptLog, StorageFailed
from headwater.log.disk import ballast
from headwater.testing.files import FaultyFiles


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        yield opened


def test_a_full_disk_refuses_writers_and_serves_readers(log: Log):
    partition = log.create(segment_bytes=2000)
    values = log.fill(5)
    log.files.room_bytes = 100
    for _ in range(3):
        with pytest.raises(StorageFailed) as error:
            log.append(batch_of(bytes(500)))
        assert os.strerror(errno.ENOSPC) in error.value.detail
        assert log.values() == values
    assert log.store.failed == {partition}
    assert partition.next_offset == partition.high_watermark == 5
    log.files.room_bytes = None
    assert log.append(batch_of(b"room again")) == 5
    assert log.store.failed == set()
    assert log.values() == [*values, b"room again"]
    log.check_indexes()


def test_a_full_disk_at_the_very_first_record(log: Log):
    log.create()
    log.files.room_bytes = 10
    with pytest.raises(StorageFailed):
        log.append(batch_of(b"x"))
    log.files.room_bytes = None
    assert log.append(batch_of(b"y")) == 0
    log.crash()
    assert log.values() == [b"y"]


@pytest.mark.parametrize("after", range(8))
@pytest.mark.parametrize("kind", ["write", "sync"])
def test_each_write_and_sync_of_a_commit_that_rolls_fails_once(log: Log, kind: str, after: int):
    log.create(segment_bytes=1024, index_interval_bytes=100)
    values = log.fill(4)
    if kind == "write":
        log.files.fail_writes(after=after, partial_bytes=77)
    else:
        log.files.fail_syncs(after=after)
    sent = log.send(*(batch_of(b"%d" % n + bytes(300)) for n in range(10)))
    log.settle()
    failed = [append.state is not None for append in sent]
    assert failed == sorted(failed)
    done = [b"%d" % n + bytes(300) for n in range(failed.count(False))]
    log.files.repair()
    assert log.values() == values + done
    log.append(batch_of(b"after"))
    for again in (log.crash, log.restart):
        assert log.values() == [*values, *done, b"after"]
        log.check_indexes()
        again()
    assert log.store.scanned_bytes == 0


def test_a_failed_sync_is_not_believed_the_second_time(log: Log):
    """Linux reports a failed writeback once; the pages then look clean."""
    log.create()
    values = log.fill(3)
    for seed in range(10):
        log.files.fail_syncs()
        with pytest.raises(StorageFailed):
            log.append(batch_of(bytes(2000)))
        value = b"%d" % seed + bytes(1000)
        log.append(batch_of(value))
        values.append(value)
        log.power_cut(seed)
        assert log.values() == values


def test_a_failed_sync_and_then_a_crash_and_then_a_power_cut(log: Log):
    """What recovery found in the page cache and showed to readers has to be on the disk."""
    for seed in range(10):
        log.create(f"t{seed}")
        log.files.fail_syncs()
        with pytest.raises(StorageFailed):
            log.append(batch_of(bytes(3000)), f"t{seed}")
        log.crash()
        found = log.batches(topic=f"t{seed}")
        log.power_cut(seed)
        assert log.batches(topic=f"t{seed}") == found


def test_a_clean_stop_after_a_failed_write_leaves_nothing_of_it(log: Log):
    log.create(segment_bytes=1024)
    values = log.fill(3)
    log.files.fail_writes(after=1, partial_bytes=200)
    log.send(*(batch_of(bytes(300)) for _ in range(8)))
    log.settle()
    assert log.partition().broken
    high_watermark = log.partition().high_watermark
    log.restart()
    assert log.store.scanned_bytes == 0
    assert log.partition().high_watermark == high_watermark
    assert log.append(batch_of(b"next")) == high_watermark
    assert log.values()[:3] == values
    assert log.values()[-1] == b"next"


def test_the_leader_epoch_is_saved_though_the_first_try_failed(log: Log):
    log.create()
    log.fill(1)
    log.crash()
    log.files.fail_writes()
    with pytest.raises(StorageFailed):
        log.append(batch_of(b"x"))
    log.append(batch_of(b"y"))
    log.restart()
    assert log.partition().epochs.entries == ((0, 0), (1, 1))


def test_producers_go_back_with_a_failed_commit(log: Log):
    log.create()
    log.append(batch_of(b"0", producer=(5, 0, 0)))
    log.files.fail_syncs()
    sent = log.send(*(batch_of(b"%d" % n, producer=(5, 0, n)) for n in range(1, 5)))
    log.settle()
    assert all(isinstance(append.state, StorageFailed) for append in sent)
    for number in range(1, 5):
        assert log.append(batch_of(b"%d" % number, producer=(5, 0, number))) == number
    assert log.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_read_that_fails_is_reported_and_the_next_may_succeed(log: Log):
    log.create()
    values = log.fill(3)
    log.files.fail_reads()
    with pytest.raises(CorruptLog):
        log.read(0)
    assert log.store.corrupt
    assert log.values() == values


def test_a_slow_sync_keeps_producers_waiting_and_readers_going(log: Log):
    log.create()
    log.create("other")
    values = log.fill(3)
    entered, gate = threading.Event(), threading.Event()

    def block(path: str) -> None:
        if "/t-0/" in path:
            entered.set()
            gate.wait(60)

    log.files.before_sync = block
    first = log.send(batch_of(b"first"))
    assert entered.wait(60)
    rest = log.send(*(batch_of(b"rest %d" % n) for n in range(5)))
    assert log.values() == values
    assert log.partition().high_watermark == 3

    async def other() -> None:
        import asyncio

        done = asyncio.get_running_loop().create_future()
        batch = batch_of(b"o")
        from headwater.protocol.records import read_header

        log.partition("other").append(memoryview(batch), read_header(batch), done.set_result)
        assert await asyncio.wait_for(done, 60) is None

    log.run(other())  # another partition does not wait
    assert {append.state for append in first + rest} == {PENDING}
    syncs_before = log.files.operations
    gate.set()
    log.settle()
    assert {append.state for append in first + rest} == {None}
    # The five that came meanwhile were written and synced together.
    assert log.files.operations - syncs_before == 3


def test_a_bug_while_committing_acknowledges_nothing(log: Log):
    log.create("many", 60)

    def bug(path: str) -> None:
        raise ValueError(path)

    log.files.before_sync = bug
    sent = [append for n in range(60) for append in log.send(batch_of(b"x"), topic="many", index=n)]
    log.settle()
    assert all(isinstance(append.state, StorageFailed) for append in sent)
    log.files.before_sync = None
    assert log.append(batch_of(b"y"), "many", 3) == 0


def test_a_checkpoint_that_fails_is_made_later(log: Log):
    log.create()
    log.fill(3)
    log.files.room_bytes = 0
    log.checkpoint()
    log.files.room_bytes = None
    log.checkpoint()
    log.crash()
    assert log.store.scanned_bytes < 600
    assert log.partition().recovery_point == 3


@pytest.mark.parametrize("seed", seeds(12))
@pytest.mark.parametrize("restarts", [True, False])
def test_a_cut_whose_sync_failed_is_made_again(tmp_path, restarts: bool, seed: int):
    """What was cut away must not come back behind the records of a sealed segment.

    Whether a failed sync has written a thing or not is chance, hence the seeds.
    """
    with Log(tmp_path / "data", files=FaultyFiles(seed)) as log:
        log.create(segment_bytes=4000)
        values = log.fill(2)
        log.files.fail_syncs(2)  # of the commit, and of the cut that takes it back
        for _ in range(2):
            with pytest.raises(StorageFailed):
                log.append(batch_of(bytes(900)))
        log.files.repair()
        if restarts:
            log.close()
            log.open()
        assert log.roll() is None
        log.power_cut(seed)
        assert log.values() == values


def on_a_full_disk(log: Log) -> None:
    """With a ballast, and not a byte beside it."""
    log.files.room_bytes = 3 * ballast.SIZE_BYTES
    log.run(log.store.probe())
    assert log.store.ballast.is_there
    log.files.room_bytes = 0
    with pytest.raises(StorageFailed):
        log.append(batch_of(bytes(500)), "kept")


def resume(log: Log) -> None:
    """What was deleted has made room, and more of it has come."""
    assert log.files.room_bytes is not None
    log.files.room_bytes += 2 * ballast.SIZE_BYTES
    log.run(log.store.probe())
    log.settle()
    assert log.store.ballast.is_there
    assert log.store.failed == set()
    log.append(batch_of(b"again"), "kept")


def test_a_topic_is_deleted_on_a_full_disk(log: Log):
    log.create("kept")
    log.create()
    log.fill(5)
    on_a_full_disk(log)
    log.run(log.store.delete_topic("t"))
    assert not log.store.has_topic("t")
    with pytest.raises(StorageFailed):  # producers do not take the room that deletions need
        log.append(batch_of(b"x"), "kept")
    resume(log)
    log.crash()
    assert not log.store.has_topic("t")
    assert log.values(topic="kept") == [b"again"]


def test_records_are_deleted_on_a_full_disk(log: Log):
    log.create("kept")
    log.create(segment_bytes=1024)
    values = log.fill(20)
    on_a_full_disk(log)
    log.delete_records(15)
    assert log.values() == values[15:]
    resume(log)
    log.crash()
    assert log.values() == values[15:]


def test_a_shorter_retention_deletes_on_a_full_disk(log: Log):
    """Also the active segment, for which another has to be begun."""
    log.create("kept")
    log.create()
    log.fill(5)
    on_a_full_disk(log)
    log.run(log.store.set_configs("t", {"retention.ms": "1000"}))
    log.clock.advance(60)
    assert log.retain() > 0
    assert log.values() == []
    resume(log)
    log.crash()
    assert log.values() == []
    assert log.partition().log_start_offset == 5


def test_a_start_on_a_full_disk(log: Log):
    log.create("kept")
    values = log.fill(3, topic="kept")
    on_a_full_disk(log)
    log.store.abandon()
    log.open()
    assert not log.store.ballast.is_there
    assert log.values(topic="kept") == values
    resume(log)


def test_a_start_without_a_ballast_leaves_the_last_room_to_deletions(log: Log):
    """The ballast made way before the start, and nothing was deleted since."""
    log.create("kept")
    log.create()
    log.fill(5)
    on_a_full_disk(log)
    log.run(log.store.set_configs("t", {"retention.ms": "1000"}))
    assert not log.store.ballast.is_there
    log.crash()
    with pytest.raises(StorageFailed):
        log.append(batch_of(b"x"), "kept")
    log.run(log.store.delete_topic("t"))
    resume(log)
