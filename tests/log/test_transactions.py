"""Transactions in one partition: what is open, what is stable, what was aborted."""

import os
from random import Random

import pytest
from support.log.log_harness import End, Log, batch_of

from headwater.errors import CorruptLog, StorageFailed
from headwater.log.partitions.transactions import ENTRY, AbortedTransaction, OpenTransaction
from headwater.protocol import records
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.records import CONTROL, TRANSACTIONAL, Marker, Record, read_header
from headwater.testing import FaultyFiles


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        opened.create()
        yield opened


def write(log: Log, pid: int, sequence: int, *values: bytes, epoch: int = 0) -> int:
    batch = batch_of(*(values or (b"x",)), producer=(pid, epoch, sequence), transactional=True)
    return log.append(batch)


def refusal(log: Log, batch: bytearray) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        log.append(batch)
    return refused.value.code


def stable(log: Log) -> int:
    return log.partition().last_stable_offset


def aborted(log: Log, first: int = 0, end: int | None = None) -> list[AbortedTransaction]:
    partition = log.partition()
    return partition.aborted_transactions(first, partition.high_watermark if end is None else end)


def test_a_transaction_is_stable_when_it_has_ended(log: Log):
    log.append(batch_of(b"plain"))
    assert stable(log) == 1
    assert write(log, 7, 0, b"a", b"b") == 1
    log.append(batch_of(b"behind"))
    assert (stable(log), log.partition().high_watermark) == (1, 4)
    opened = {7: OpenTransaction(0, 1, log.clock.now_ms(), -1)}
    assert log.partition().open_transactions == opened
    assert log.end(7, commit=True) == 4
    assert stable(log) == 5
    assert log.partition().open_transactions == {}
    assert log.committed_values() == [b"plain", b"a", b"b", b"behind"]
    assert aborted(log) == []
    assert not any(name.endswith(".txnindex") for name in log.names())


def test_the_oldest_open_transaction_holds_the_others_back(log: Log):
    write(log, 1, 0, b"one")
    write(log, 2, 0, b"two")
    write(log, 3, 0, b"three")
    log.end(2, commit=True)
    assert stable(log) == 0
    log.end(1, commit=True)
    assert stable(log) == 2
    log.end(3, commit=False)
    assert stable(log) == 6
    assert log.committed_values() == [b"one", b"two"]


def test_aborted_transactions_are_listed_for_every_range(log: Log):
    write(log, 1, 0, b"1a")  # 0
    write(log, 2, 0, b"2a")  # 1
    log.end(1, commit=False)  # 2
    write(log, 1, 1, b"1b")  # 3
    log.end(2, commit=False)  # 4
    log.end(1, commit=True)  # 5
    first, second = AbortedTransaction(1, 0, 2, 1), AbortedTransaction(2, 1, 4, 3)
    for again in (log.partition, log.restart, log.crash):
        again()
        assert aborted(log) == [first, second]
        assert aborted(log, 0, 1) == [first]
        assert aborted(log, 3) == [second]
        assert aborted(log, 5) == []
        assert log.committed_values() == [b"1b"]
        assert log.committed_values(1) == [b"1b"]


def test_the_index_is_kafkas(log: Log):
    write(log, 7, 0)
    log.end(7, commit=False)
    with open(f"{log.partition().directory}/{0:020d}.txnindex", "rb") as file:
        data = file.read()
    assert data.hex() == "0000" + "".join(f"{number:016x}" for number in (7, 0, 1, 2))


def test_a_marker_is_kafkas(log: Log):
    write(log, 7, 0, epoch=3)
    offset = log.end(7, 4, commit=True)
    batch = log.read(offset)
    header = read_header(batch)
    assert header.attributes == TRANSACTIONAL | CONTROL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 4, -1)
    (record,) = records.records_of(batch)
    assert (record.key, record.value) == (bytes.fromhex("00000001"), bytes.fromhex("000000000000"))
    assert records.read_marker(batch) == Marker(True, 0)
    abort = records.build_marker(1, 2, Marker(False, 9), 0)
    (record,) = records.records_of(abort)
    assert (record.key, record.value) == (bytes.fromhex("00000000"), bytes.fromhex("000000000009"))


def test_a_marker_without_a_transaction_is_written_all_the_same(log: Log):
    assert log.end(7, commit=False) == 0
    assert log.end(7, commit=True) == 1
    assert stable(log) == 2
    assert aborted(log) == []


def test_epochs(log: Log):
    write(log, 7, 0, epoch=3)
    stale = batch_of(b"x", producer=(7, 2, 0), transactional=True)
    assert refusal(log, stale) == ErrorCode.INVALID_PRODUCER_EPOCH
    with pytest.raises(ApiError) as refused:
        log.end(7, 2, commit=True)
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    log.end(7, 4, commit=True)  # KIP-890: every end bumps it
    for again in (log.partition, log.restart, log.crash):
        again()
        late = batch_of(b"x", producer=(7, 3, 1), transactional=True)
        assert refusal(log, late) == ErrorCode.INVALID_PRODUCER_EPOCH
        gap = batch_of(b"x", producer=(7, 4, 1), transactional=True)
        assert refusal(log, gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert write(log, 7, 0, epoch=4) == 2


def test_with_the_same_epoch_sequences_go_on(log: Log):
    write(log, 7, 0)
    log.end(7, commit=True)
    log.crash()
    assert write(log, 7, 0) == 0  # a repetition
    assert log.partition().open_transactions == {}
    assert write(log, 7, 1) == 2


def test_the_marker_of_a_coordinator_of_the_past(log: Log):
    async def mark(coordinator_epoch: int) -> None:
        log.partition().append_marker(
            7, 0, commit=True, coordinator_epoch=coordinator_epoch, done=lambda _: None
        )

    write(log, 7, 0)
    log.run(mark(5))
    log.settle()
    log.crash()
    with pytest.raises(ApiError) as refused:
        log.run(mark(4))
    assert refused.value.code == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_nothing_else_of_the_producer_while_a_transaction_is_open(log: Log):
    write(log, 7, 0)
    plain = batch_of(b"x", producer=(7, 0, 1))
    assert refusal(log, bytearray(plain)) == ErrorCode.INVALID_TXN_STATE
    log.end(7, commit=True)
    assert log.append(plain) == 2


def test_a_coordinators_batch_has_no_sequence(log: Log):
    """Offsets that are committed in a transaction."""

    async def send(epoch: int) -> int:
        batch = records.build_batch(
            [Record(0, 0, b"group", b"offset")],
            producer_id=7,
            producer_epoch=epoch,
            attributes=TRANSACTIONAL,
        )
        view = memoryview(batch)
        return log.partition().append(view, read_header(view), lambda _: None)

    assert [log.run(send(0)), log.run(send(0))] == [0, 1]
    log.settle()
    assert stable(log) == 0
    log.crash()
    assert (stable(log), log.partition().high_watermark) == (0, 2)
    log.end(7, 1, commit=False)
    with pytest.raises(ApiError) as refused:
        log.run(send(0))
    assert refused.value.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert [entry[:3] for entry in aborted(log)] == [(7, 0, 2)]


def test_stable_only_when_the_marker_is_durable(log: Log):
    write(log, 7, 0)
    seen = []
    log.files.before_sync = lambda _: seen.append(stable(log))
    log.send(End(7, 0, commit=True))
    log.settle()
    log.files.before_sync = None
    assert seen == [0]  # while it was being synced
    assert stable(log) == 2


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_that_fails_leaves_the_transaction_open(log: Log, commit: bool):
    write(log, 7, 0, b"data")
    log.files.fail_syncs()
    with pytest.raises(StorageFailed):
        log.end(7, commit=commit)
    assert (stable(log), list(log.partition().open_transactions)) == (0, [7])
    assert aborted(log) == []
    write(log, 7, 1, b"more")
    log.end(7, commit=commit)
    assert log.committed_values() == ([b"data", b"more"] if commit else [])
    log.crash()
    assert log.committed_values() == ([b"data", b"more"] if commit else [])


def test_a_batch_that_fails_opens_nothing(log: Log):
    log.files.fail_syncs()
    with pytest.raises(StorageFailed):
        write(log, 7, 0)
    assert log.partition().open_transactions == {}
    log.append(batch_of(b"plain"))
    assert stable(log) == 1


def test_waiters_for_stable_records_wake_with_the_marker(log: Log):
    woken: list[int] = []
    log.partition().stable_waiters = {woken.append}
    plain = batch_of(b"plain")
    log.append(plain)
    assert woken == [len(plain)]
    write(log, 7, 0)
    log.append(batch_of(b"plain"))
    assert len(woken) == 1
    log.end(7, commit=False)
    assert len(woken) == 2


def test_a_slice_ends_where_the_stable_part_does(log: Log):
    for _ in range(3):
        log.append(batch_of(bytes(100)))
    write(log, 7, 0)
    log.append(batch_of(bytes(100)))
    partition = log.partition()
    part = partition.find(0, 1 << 20, stable(log))
    assert part is not None
    assert (part.size_bytes, part.next_offset) == (3 * len(batch_of(bytes(100))), 3)
    assert partition.find(3, 1 << 20, stable(log)) is None
    one = partition.find(1, 1, stable(log))
    assert one is not None
    assert one.next_offset == 2


@pytest.mark.parametrize("end", ["restart", "crash", "power_cut"])
def test_over_many_segments(tmp_path, end: str):
    with Log(tmp_path / "data") as log:
        log.create(segment_bytes=1200, index_interval_bytes=100)
        expected = []
        for number in range(60):
            pid = number % 3
            value = b"%d" % number + bytes(150)
            write(log, pid, number // 3, value)
            if number % 5 == 4:
                log.append(batch_of(b"plain"))
                expected.append((log.partition().high_watermark - 1, b"plain"))
            if number % 20 == 11:
                log.checkpoint()
        log.end(0, commit=True)
        log.end(1, commit=False)
        log.end(2, commit=False)
        assert len(log.partition().segments) > 5
        before = log.committed_values(), aborted(log), aborted(log, 30, 40)
        assert len(before[1]) == 2
        assert before[1] == before[2]
        if end == "power_cut":
            log.power_cut(seed=5)
        else:
            getattr(log, end)()
        assert (log.committed_values(), aborted(log), aborted(log, 30, 40)) == before
        assert stable(log) == log.partition().high_watermark


def test_the_index_goes_with_its_segment(log: Log):
    write(log, 7, 0)
    log.end(7, commit=False)
    log.roll()
    log.append(batch_of(b"x"))
    log.delete_records(2)
    assert aborted(log, 2) == []
    assert not any(name.endswith(".txnindex") for name in log.names())


def test_an_open_transaction_outlives_its_segment(log: Log):
    write(log, 7, 0, b"gone")
    log.roll()
    write(log, 7, 1, b"there")
    log.delete_records(1)
    for again in (log.partition, log.restart, log.crash):
        again()
        assert stable(log) == 1
        assert log.partition().open_transactions[7].first_offset == 0
    log.end(7, commit=False)
    assert log.committed_values() == []
    assert stable(log) == 3


def test_a_torn_index_is_rewritten(log: Log):
    write(log, 1, 0)
    log.end(1, commit=False)
    log.checkpoint()
    write(log, 2, 0)
    log.end(2, commit=False)
    write(log, 3, 0)
    log.end(3, commit=False)
    expected = aborted(log)
    path = f"{log.partition().directory}/{0:020d}.txnindex"
    for damage in (b"", ENTRY.pack(0, 9, 0, 1, 2), bytes(ENTRY.size), b"\0" * 20):
        log.store.abandon()
        with open(path, "r+b") as file:
            file.truncate(ENTRY.size)
            file.seek(0, os.SEEK_END)
            file.write(damage)
        log.open()
        assert aborted(log) == expected


def test_a_damaged_index_is_an_error_not_a_wrong_answer(log: Log):
    write(log, 1, 0)
    log.end(1, commit=False)
    write(log, 2, 0)
    log.end(2, commit=False)
    log.checkpoint()
    with open(f"{log.partition().directory}/{0:020d}.txnindex", "r+b") as file:
        file.write(b"\xff" * 10)
    for again in (log.partition, log.crash, log.restart):
        again()
        with pytest.raises(CorruptLog):
            aborted(log)


def test_an_idle_producer_with_a_transaction_is_not_forgotten(log: Log):
    write(log, 7, 0)
    write(log, 8, 0)
    log.end(8, commit=True)
    log.clock.advance(1000)
    log.partition().expire_producers(log.clock.now_ms())
    assert list(log.partition().producers.by_id) == [7]
    assert stable(log) == 0
    log.end(7, commit=True)
    assert stable(log) == log.partition().high_watermark


def test_no_entry_is_lost_by_a_power_cut_right_behind_it(tmp_path):
    for seed in range(30):
        with Log(tmp_path / f"data-{seed}") as log:
            log.create()
            random = Random(seed)
            for number in range(random.randrange(1, 8)):
                write(log, number, 0, b"no")
                log.end(number, commit=False)
                if random.random() < 0.3:
                    log.checkpoint()
                if random.random() < 0.2:
                    log.roll()
            expected = aborted(log)
            log.power_cut(seed)
            assert aborted(log) == expected
            assert log.committed_values() == []


@pytest.mark.parametrize("seed", range(8))
def test_a_checkpoint_that_fails_loses_no_entry(tmp_path, seed: int):
    """The kernel reports a failed sync once; the next one succeeds without writing anything."""
    with Log(tmp_path / "data", files=FaultyFiles(seed)) as log:
        log.create()
        write(log, 1, 0)
        log.end(1, commit=False)
        expected = aborted(log)

        def fail(path: str) -> None:
            if path.endswith(".txnindex"):
                log.files.fail_syncs()

        log.files.before_sync = fail
        log.checkpoint()
        log.files.before_sync = None
        log.files.repair()
        log.checkpoint()
        log.power_cut(seed)
        assert aborted(log) == expected


class NotedFiles(FaultyFiles):
    """Knows in which order names were removed and directories synced."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[str] = []

    def unlink(self, path: str) -> None:
        self.recorded.append(os.path.splitext(path)[1])
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        self.recorded.append("synced")
        super().sync_directory(path)


def test_records_cannot_come_back_without_what_was_aborted_of_them(tmp_path):
    """A power cut may undo any of the removals that were not synced."""
    files = NotedFiles()
    with Log(tmp_path / "data", files=files) as log:
        log.create()
        write(log, 1, 0, b"no")
        log.end(1, commit=False)
        log.roll()
        log.append(batch_of(b"yes"))
        files.recorded.clear()
        log.partition().delete_before(2)
        log.settle()
        assert files.recorded[0] == ".log"
        assert files.recorded[-2:] == ["synced", ".txnindex"]


def test_a_segment_without_aborted_transactions_has_no_index_of_them(log: Log) -> None:
    log.append(batch_of(b"no", producer=(7, 0, 0), transactional=True))
    outcome: list[object] = []

    async def at_once() -> None:
        log._begin(batch_of(b"first"), log.partition())  # the others wait for it
        log._begin(End(7, 0, commit=False), log.partition())
        log.partition().roll(outcome.append)

    log.run(at_once())
    log.settle()
    assert outcome == [None]
    assert [name for name in log.names() if name.endswith("txnindex")] == [f"{0:020d}.txnindex"]
