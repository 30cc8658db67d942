"""Producer snapshots: deduplication survives restarts and deleted segments, without a scan."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest
from support.log.log_harness import Log, batch_of

from headwater.protocol.error_codes import ApiError, ErrorCode


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        opened.create()
        yield opened


def write(log: Log, sequence: int, pid: int = 8) -> int:
    return log.append(batch_of(b"x", producer=(pid, 0, sequence)))


@contextlib.contextmanager
def one_commit(log: Log, then: Callable[[str], None] | None = None) -> Iterator[None]:
    """What is sent inside goes into one commit, behind one that is held up meanwhile."""
    go_on = threading.Event()
    log.files.before_sync = lambda _: go_on.wait(60) and None
    log.send(batch_of(b"plain"))
    try:
        yield
    finally:
        log.files.before_sync = then
        go_on.set()
    log.settle()
    log.files.before_sync = None


def begin_roll(log: Log) -> None:
    async def begin() -> None:
        log.partition().roll(lambda _: None)

    log.run(begin())


def snapshots(log: Log) -> list[int]:
    return [int(name[:20]) for name in log.names() if name.endswith(".snapshot")]


def test_one_with_every_segment(log: Log):
    log.append(batch_of(b"plain"))
    log.roll()
    assert snapshots(log) == []  # no producer
    write(log, 0)
    log.roll()
    write(log, 1)
    log.roll()
    assert snapshots(log) == [2, 3]


def test_the_state_is_that_of_the_roll_not_of_what_follows(log: Log):
    write(log, 0)
    with one_commit(log):
        log.send(batch_of(b"x", producer=(8, 0, 1)))
        begin_roll(log)
        log.send(batch_of(b"x", producer=(8, 0, 2)))
    assert snapshots(log) == [3]
    log.store.abandon()
    for name in log.names():  # the new segment never came to be
        if name.startswith(f"{3:020d}.") and not name.endswith(".snapshot"):
            log.files.unlink(f"{log.partition().directory}/{name}")
    log.open()
    assert log.partition().high_watermark == 3
    assert write(log, 1) == 2  # a duplicate
    assert write(log, 2) == 3  # not tracked


def test_deleted_segments_are_not_missed(log: Log):
    """A disk that refuses the checkpoint before a deletion, and then a crash."""
    write(log, 0)
    log.checkpoint()
    write(log, 1)
    log.crash()
    log.roll()
    log.partition().delete_before(2)  # as retention does if the checkpoint fails
    log.settle()
    log.crash()
    assert log.partition().log_start_offset == 2
    assert write(log, 1) == 1
    assert write(log, 2) == 2


def test_a_snapshot_from_before_a_gap_refuses_nothing(log: Log):
    write(log, 0)
    log.checkpoint()
    write(log, 1)
    log.roll()
    log.partition().delete_before(2)
    log.settle()
    log.store.abandon()
    log.files.unlink(f"{log.partition().directory}/{2:020d}.snapshot")
    log.open()
    assert write(log, 2) == 2


def test_a_failed_commit_takes_its_snapshot_along(log: Log):
    write(log, 0)

    def fail(path: str) -> None:
        if path.endswith(f"{3:020d}.log"):
            log.files.fail_syncs()

    with one_commit(log, then=fail):
        log.send(batch_of(b"x", producer=(8, 0, 1)))
        begin_roll(log)
        (last,) = log.send(batch_of(bytes(500), producer=(8, 0, 2)))
    assert last.state is not None
    assert log.partition().high_watermark == 2
    log.append(batch_of(b"plain"))
    log.append(batch_of(b"plain"))
    log.crash()
    assert write(log, 1) == 4


@pytest.mark.parametrize("end", ["restart", "crash"])
def test_a_damaged_one_is_replaced_by_the_one_before(log: Log, end: str):
    write(log, 0)
    log.checkpoint()
    write(log, 1)
    write(log, 2)
    log.close()
    assert snapshots(log) == [1, 3]
    for _ in range(2):  # also when it is opened once more before the next checkpoint
        with open(f"{log.partition().directory}/{3:020d}.snapshot", "r+b") as file:
            file.write(b"damage")
        log.open()
        assert log.store.scanned_bytes == 0
        assert [write(log, sequence) for sequence in (0, 1, 2)] == [0, 1, 2]
        with pytest.raises(ApiError) as refused:
            write(log, 4)
        assert refused.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        getattr(log, end)()
        assert [write(log, sequence) for sequence in (0, 1, 2)] == [0, 1, 2]
        log.close()


def test_no_snapshot_outlives_the_records_it_describes(log: Log):
    """Damage has cut the log in front of the last checkpoint."""
    write(log, 0)
    write(log, 1)
    log.checkpoint()
    position = len(batch_of(b"x"))
    log.store.abandon()
    with open(f"{log.partition().directory}/{0:020d}.log", "r+b") as file:
        file.seek(position + 30)
        file.write(b"\xff\xff")
    log.open()
    assert log.partition().high_watermark == 1
    assert write(log, 1) == 1  # no repetition of what is lost
    log.append(batch_of(b"plain"))
    log.crash()
    assert write(log, 1) == 1


def test_old_ones_go_with_a_checkpoint(log: Log):
    for sequence in range(4):
        write(log, sequence)
        log.roll()
    assert snapshots(log) == [1, 2, 3, 4]
    write(log, 4)
    log.checkpoint()
    assert snapshots(log) == [4, 5]
    log.clock.advance(100)
    log.partition().expire_producers(log.clock.now_ms())
    log.append(batch_of(b"plain"))
    log.checkpoint()
    assert snapshots(log) == []
    log.crash()
    assert write(log, 77) == 6


def test_what_a_crash_left_of_one_goes_too(log: Log):
    write(log, 0)
    directory = log.partition().directory
    for leftover in (".snapshot.tmp", ".snapshot.roll.tmp"):
        with open(f"{directory}/{0:020d}{leftover}", "wb") as file:
            file.write(b"half")
    log.checkpoint()
    assert snapshots(log) == [1]
    assert not any(name.endswith(".tmp") for name in log.names())


def test_recovery_points_are_not_ahead_of_snapshots(log: Log):
    """All points are written when a topic is deleted, also those of partitions that were opened
    after a crash and had no checkpoint since.
    """
    log.create()
    log.create("other")
    log.append(batch_of(b"0", producer=(5, 0, 0), transactional=True))
    log.crash()
    log.run(log.store.delete_topic("other"))
    log.crash()
    assert log.partition().tracks(5)
    assert list(log.partition().open_transactions) == [5]
