"""A disk that loses what was written: every sync that could have covered it says so.

Linux reports a failed writeback once to each open file description and counts the pages as clean
afterwards (`headwater.testing.files` models it). What was acknowledged with `durability=fsync` has
to be there after a power cut; with `durability=os`, what is left has to be a readable prefix.
"""

import asyncio
import contextlib
import errno
import threading
from random import Random

import pytest
from support.log.log_harness import PENDING, Log, batch_of
from tiers import seeds

from headwater.errors import StorageFailed
from headwater.log.disk.syncing import SYNC_TOGETHER
from headwater.log.partitions import committer
from headwater.log.segment import Segment
from headwater.protocol import records
from headwater.testing.files import FaultyFiles

RECORDS = 30
SMALL = {"segment_bytes": 4000, "index_interval_bytes": 300}


class WatchedFiles(FaultyFiles):
    """Says when a batch is in the page cache, and holds syncs of chosen threads."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.written = threading.Event()

    def pwritev(self, fd, parts, position):
        super().pwritev(fd, parts, position)
        self.written.set()


def value_of(number: int) -> bytes:
    return b"%06d" % number + bytes(200 + 37 * (number % 5))


def thread_is(name: str) -> bool:
    return threading.current_thread().name.startswith(name)


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", range(4))
def test_a_checkpoint_hears_of_the_error_that_a_commit_waits_for(tmp_path, seed: int):
    """Both sync the same descriptor: the checkpoint's call takes the only report of the loss."""
    files = WatchedFiles(seed)
    with Log(tmp_path / "data", files=files) as log:
        log.create()
        values = log.fill(3)
        entered, gate = threading.Event(), threading.Event()

        def hold(path: str) -> None:
            if thread_is("work") and path.endswith(".log"):
                entered.set()
                gate.wait(60)

        async def both():
            files.before_sync = hold
            checkpoint = asyncio.ensure_future(log.store.checkpoints.write())
            await until(entered.is_set)
            files.written.clear()
            batch, outcome = batch_of(value_of(3)), []
            header = records.check_produced(memoryview(batch))
            log.partition().append(memoryview(batch), header, outcome.append)
            await until(files.written.is_set)
            files.fail_writeback()
            gate.set()
            await checkpoint
            await until(lambda: outcome)
            return outcome[0]

        outcome = log.run(both())
        files.before_sync = None
        log.settle()
        assert isinstance(outcome, StorageFailed)
        log.append(batch_of(b"next"))
        log.power_cut(seed)
        assert log.values() == [*values, b"next"]


class MeetingFiles(FaultyFiles):
    """Two threads that sync the file system meet; then what both have written is lost."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.meeting: threading.Barrier | None = None
        self.have_met = False

    def sync_together(self, root_fd, paths):
        if self.meeting is not None:
            with contextlib.suppress(threading.BrokenBarrierError):  # a third one, later
                if self.meeting.wait() == 0:
                    self.fail_writeback()
                self.meeting.wait()
                self.have_met = True
                self.meeting.abort()
        super().sync_together(root_fd, paths)


class Parked:
    """Stands in a commit's place and occupies a committing thread until the gate opens."""

    error, needs_sync = None, False

    def __init__(self, gate: threading.Event) -> None:
        self.gate, self.entered = gate, threading.Event()

    def write(self) -> None:
        self.entered.set()
        self.gate.wait(60)

    def finish(self, _) -> None:
        pass


@pytest.mark.parametrize("seed", range(3))
def test_each_thread_that_syncs_the_file_system_hears_of_the_error(
    tmp_path, monkeypatch, seed: int
):
    """Two groups of commits: the sync of the first must not take the error from the second."""
    group = SYNC_TOGETHER + 4
    monkeypatch.setattr(committer, "SYNC_TOGETHER_MAX", group)
    files = MeetingFiles(seed)
    with Log(tmp_path / "data", files=files) as log:
        log.create(partitions=2 * group)

        async def append_to_all(gate: threading.Event | None = None) -> list[list]:
            outcomes: list[list] = []
            for index in range(2 * group):
                batch, outcome = batch_of(value_of(index)), []
                header = records.check_produced(memoryview(batch))
                log.partition("t", index).append(memoryview(batch), header, outcome.append)
                outcomes.append(outcome)
            if gate is not None:
                gate.set()
            await until(lambda: all(outcomes))
            return outcomes

        async def append_in_two_groups() -> list[list]:
            gate = threading.Event()
            parked = [Parked(gate) for _ in range(committer.THREADS)]
            for commit in parked:
                log.store.committer.submit(commit)  # type: ignore[arg-type]
            await until(lambda: all(commit.entered.is_set() for commit in parked))
            return await append_to_all(gate)

        log.run(append_to_all())
        files.meeting = threading.Barrier(2, timeout=60)
        outcomes = log.run(append_in_two_groups())
        assert files.have_met, "there were no two groups"
        log.settle()
        log.power_cut(seed)
        for index, (outcome,) in enumerate(outcomes):
            assert outcome is not None or log.partition("t", index).high_watermark == 2, index


@pytest.mark.parametrize("drops_pages", [False, True])
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_failing_disk_and_then_a_power_cut(tmp_path, durability: str, drops_pages: bool):
    """Records, checkpoints and segments that end, while the disk fails at any of their steps."""
    for seed in seeds(30):
        dice = Random(seed)
        files = FaultyFiles(seed)
        files.drops_pages = drops_pages
        with Log(tmp_path / f"{seed}", files=files) as log:
            log.create(**SMALL, headwater_durability=durability)
            sent, acknowledged, fails_at = [], [], sorted(dice.sample(range(RECORDS), 3))
            for number in range(RECORDS):
                if number in fails_at:
                    match dice.randrange(3):
                        case 0:
                            files.fail_writeback()
                        case 1:
                            files.fail_syncs(after=dice.randrange(4))
                        case _:
                            files.fail_syncs(dice.randrange(1, 4))
                sent += log.send(batch_of(value_of(number), timestamp_ms=log.clock.now_ms()))
                log.clock.advance(1)
                if dice.random() < 0.3:
                    log.checkpoint()
                if dice.random() < 0.1:
                    log.roll()
                if dice.random() < 0.5:
                    log.settle()
                    log.run(log.store.probe())
            log.settle()
            acknowledged = [bytes(append.batch[61:]) for append in sent if append.state is None]
            assert PENDING not in [append.state for append in sent]
            if dice.random() < 0.3:
                log.close()
            log.files.repair()
            log.power_cut(seed)
            found = [batch[61:] for batch in log.batches()]
            assert found == acknowledged[: len(found)], (seed, len(found), len(acknowledged))
            if durability == "fsync":
                assert len(found) == len(acknowledged), seed
            log.check_indexes()
            assert log.store.corrupt == []


def checks(log: Log, values: list[bytes], seed: int) -> None:
    """Of a log with durability=os: what is left after a power cut is a readable prefix."""
    log.power_cut(seed)
    found = log.values()
    assert found == values[: len(found)]
    log.check_indexes()


@pytest.mark.parametrize("seed", range(5))
def test_a_checkpoint_whose_sync_failed_is_not_believed_the_next_time(tmp_path, seed: int):
    with Log(tmp_path / "data", files=FaultyFiles(seed)) as log:
        partition = log.create(index_interval_bytes=300, headwater_durability="os")
        values = log.fill(10, 400)
        log.files.fail_writeback()
        log.checkpoint()
        assert partition.recovery_point == 0
        assert log.store.failed == {partition}
        log.checkpoint()
        assert partition.recovery_point == 0  # nothing was repaired meanwhile
        log.run(log.store.probe())
        log.settle()
        assert log.store.failed == set()
        log.checkpoint()
        assert partition.recovery_point == 10
        log.power_cut(seed)
        assert log.values() == values
        log.check_indexes()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_segment_whose_last_sync_failed_is_not_sealed_by_the_next(
    tmp_path, durability: str, seed: int
):
    with Log(tmp_path / "data", files=FaultyFiles(seed)) as log:
        log.create(index_interval_bytes=300, headwater_durability=durability)
        values = log.fill(10, 400)
        log.files.fail_writeback()
        assert log.roll() is not None
        assert log.roll() is None
        assert len(log.partition().segments) == 2
        log.power_cut(seed)
        assert log.values() == values
        log.check_indexes()


@pytest.mark.parametrize("seed", range(5))
def test_a_process_that_dies_after_a_lost_writeback_leaves_it_to_the_next(tmp_path, seed: int):
    """The next process finds in the page cache what the disk does not have."""
    with Log(tmp_path / "data", files=FaultyFiles(seed)) as log:
        log.create(index_interval_bytes=300, headwater_durability="os")
        values = log.fill(10, 400)
        log.files.fail_writeback()
        log.checkpoint()
        log.crash()
        assert log.values() == values
        log.power_cut(seed)
        assert log.values() == values


def test_what_memory_has_lost_too_stops_the_partition_until_a_restart(tmp_path):
    for seed in range(10):
        files = FaultyFiles(seed)
        files.drops_pages = True
        with Log(tmp_path / f"{seed}", files=files) as log:
            partition = log.create(index_interval_bytes=300, headwater_durability="os")
            values = log.fill(10, 400)
            log.files.fail_writeback()
            log.checkpoint()
            with pytest.raises(StorageFailed) as refused:
                log.append(batch_of(b"next"))
            assert "after a restart the log ends there" in refused.value.detail
            assert log.store.failed == {partition}
            epoch = log.store.leader_epoch
            log.restart()
            assert log.store.leader_epoch == epoch + 1
            found = log.values()
            assert found == values[: len(found)]
            assert log.append(batch_of(b"next")) == len(found)
            checks(log, [*found, b"next"], seed)


def test_a_segment_starts_with_what_was_synced(tmp_path):
    """A repair writes no more again than what came since."""
    with Log(tmp_path / "data") as log:
        log.create(headwater_durability="os")
        log.fill(5)
        assert active_of(log).synced[0] == 0
        log.checkpoint()
        size_bytes = active_of(log).size_bytes
        assert active_of(log).synced[0] == size_bytes
        log.fill(1)
        log.restart()
        assert active_of(log).synced[0] == active_of(log).size_bytes > size_bytes


def active_of(log: Log) -> Segment:
    return log.partition().segments[-1]


@pytest.mark.parametrize("seed", range(3))
def test_a_sync_of_the_file_system_for_some_leaves_the_error_to_the_others(tmp_path, seed: int):
    """Deleting records syncs the partitions that they are of; its call takes the report of what
    another partition has lost. A checkpoint must not believe the next call for that one.
    """
    with Log(tmp_path / "data", files=FaultyFiles(seed)) as log:
        log.create("others", partitions=SYNC_TOGETHER)
        partition = log.create(headwater_durability="os")
        for index in range(SYNC_TOGETHER):
            log.append(batch_of(value_of(index)), "others", index)
        values = log.fill(10, 400)
        log.files.fail_writeback()
        others = [log.partition("others", index) for index in range(SYNC_TOGETHER)]
        with contextlib.suppress(OSError):
            log.run(log.store.delete_records(dict.fromkeys(others, 1)))
        log.checkpoint()
        assert partition.recovery_point == 0
        log.run(log.store.probe())
        log.settle()
        log.checkpoint()
        assert partition.recovery_point == 10
        log.power_cut(seed)
        assert log.values() == values


class ClosedFiles(FaultyFiles):
    """Files whose names end in `refused` cannot be opened."""

    refused = "nothing"

    def open(self, path, *, create=False):
        if path.endswith(self.refused):
            raise OSError(errno.EROFS, "read-only")
        return super().open(path, create=create)


@pytest.mark.parametrize("seed", range(3))
def test_a_lost_writeback_is_remembered_if_the_next_file_cannot_be_opened(tmp_path, seed: int):
    """As on a file system that became read-only by the same failure."""
    files = ClosedFiles(seed)
    with Log(tmp_path / "data", files=files, max_open_files=1) as log:
        partition = log.create(headwater_durability="os")
        values = log.fill(5)
        log.checkpoint()
        values += log.fill(5)  # too little for an index: only the log has lost something
        files.fail_writeback()
        files.refused = ".index"
        log.checkpoint()
        files.refused = "nothing"
        log.run(log.store.probe())
        log.settle()
        log.checkpoint()
        assert partition.recovery_point == 10
        log.power_cut(seed)
        assert log.values() == values


def test_a_start_whose_first_sync_fails_writes_a_large_tail_again(tmp_path):
    """More than a commit takes, so that what is unsure begins inside a batch."""
    with Log(tmp_path / "data") as log:
        log.create()
        values = [b"%d" % number + bytes(700_000) for number in range(8)]
        for value in values:
            log.append(batch_of(value))
        log.store.abandon()

        def fail_once(path: str) -> None:
            if path.endswith(".log"):
                log.files.before_sync = None
                raise OSError(errno.EIO, "the disk")

        log.files.before_sync = fail_once
        log.open()
        assert log.files.before_sync is None
        assert log.values() == values
