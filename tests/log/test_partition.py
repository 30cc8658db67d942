"""Appending and reading one partition through its public methods."""

import threading

import pytest
from support.log.log_harness import PENDING, Log, batch_of, split

from headwater.errors import OffsetOutOfRange
from headwater.log.partitions import partition as partition_module
from headwater.log.partitions import timestamps
from headwater.log.partitions.producers import Producers
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.records import LOG_APPEND_TIME, read_header


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        yield opened


def segment_bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.partition().segments]


def test_reading_from_every_offset_also_inside_a_batch(log: Log):
    log.create(segment_bytes=1500, index_interval_bytes=200)
    for number in range(0, 60, 3):
        log.append(batch_of(*(b"%d" % (number + n) + bytes(50) for n in range(3))))
    assert len(segment_bases(log)) > 2
    for offset in range(60):
        assert [int(v.rstrip(b"\0")) for v in log.values(offset)] == list(range(offset, 60))
        first = read_header(log.read(offset, 1))
        assert first.base_offset <= offset <= first.last_offset
    assert log.read(60) == b""


@pytest.mark.parametrize("max_bytes", [0, 1, 200, 333, 1000, 5000])
def test_byte_limits_are_respected_but_for_one_batch(log: Log, max_bytes: int):
    log.create(segment_bytes=3000, index_interval_bytes=300)
    values = log.fill(40)
    for offset in range(0, 40, 7):
        data = log.read(offset, max_bytes)
        batches = split(data)
        assert len(data) <= max_bytes or len(batches) == 1
        assert read_header(batches[0]).base_offset == offset
    assert len(log.batches(max_bytes=max_bytes)) == len(values)


def test_offsets_outside_of_the_log(log: Log):
    partition = log.create()
    log.fill(5)
    log.delete_records(2)
    for offset in (2, 3, 5):
        partition.check_offset(offset)
    for offset in (-1, 0, 1, 6, 2**62):
        with pytest.raises(OffsetOutOfRange):
            partition.check_offset(offset)


def test_nothing_is_readable_before_it_is_durable(log: Log):
    log.create()
    log.fill(1)
    gate = threading.Event()
    log.files.before_sync = lambda _: gate.wait(60)
    (sent,) = log.send(batch_of(b"later"))
    partition = log.partition()
    assert (partition.high_watermark, partition.next_offset) == (1, 2)
    assert sent.state == PENDING
    assert log.read(1) == b""
    gate.set()
    log.settle()
    assert sent.state is None
    assert log.values(1) == [b"later"]


def test_a_reader_at_the_end_needs_no_search(log: Log):
    partition = log.create()
    log.fill(3)
    assert partition.read_recent(2, 1 << 20) is not None
    assert partition.read_recent(3, 1 << 20) is None
    assert partition.read_recent(2, 10) is None  # it would not fit: the search counts bytes


def test_waiters_wake_when_records_become_readable(log: Log):
    partition = log.create()
    woken: list[tuple[int, int]] = []
    partition.waiters = {lambda size: woken.append((partition.high_watermark, size))}
    log.fill(2)
    batch_bytes = partition.size_bytes // 2
    assert woken == [(1, batch_bytes), (2, batch_bytes)]


class TestRolling:
    def test_by_size(self, log: Log):
        log.create(segment_bytes=1024)
        log.fill(20)
        assert len(segment_bases(log)) > 1
        assert all(segment.size_bytes <= 1024 for segment in log.partition().segments)

    def test_a_batch_larger_than_a_segment_has_its_own(self, log: Log):
        log.create(segment_bytes=1024)
        log.append(batch_of(b"small"))
        log.append(batch_of(bytes(5000)))
        log.append(batch_of(b"small"))
        assert segment_bases(log) == [0, 1, 2]
        assert log.values() == [b"small", bytes(5000), b"small"]

    def test_by_age_of_records(self, log: Log):
        log.create(segment_ms=10_000)
        log.fill(35)  # a second apart
        assert segment_bases(log) == [0, 11, 22, 33]

    def test_age_counts_over_a_restart(self, log: Log):
        log.create(segment_ms=10_000)
        log.fill(5)
        log.restart()
        log.fill(10)
        assert segment_bases(log) == [0, 11]

    def test_by_size_of_index(self, log: Log):
        log.create(segment_index_bytes=16, index_interval_bytes=0)
        log.fill(12)
        assert len(segment_bases(log)) > 3
        for segment in log.partition().segments[:-1]:
            assert segment.written.offset_entries == 2

    def test_within_one_commit(self, log: Log):
        log.create(segment_bytes=1024)
        sent = log.send(*(batch_of(b"%d" % n + bytes(300)) for n in range(12)))
        log.settle()
        assert all(append.state is None for append in sent)
        assert len(segment_bases(log)) > 3
        assert [int(v[:2].rstrip(b"\0")) for v in log.values()] == list(range(12))
        log.check_indexes()

    def test_on_demand_an_empty_segment_is_not_sealed(self, log: Log):
        log.create()
        log.fill(2)
        assert log.roll() is None
        assert log.roll() is None
        assert segment_bases(log) == [0, 2]


def test_log_append_time(log: Log):
    log.create(message_timestamp_type="LogAppendTime")
    log.clock.advance(1000)
    log.append(batch_of(b"a", timestamp_ms=5))
    header = read_header(log.read(0))
    assert header.attributes & LOG_APPEND_TIME
    assert header.max_timestamp == log.clock.now_ms()
    assert timestamps.first_at_or_after(log.partition(), 6) == (log.clock.now_ms(), 0)


class TestTimestamps:
    def test_first_at_or_after(self, log: Log):
        log.create(segment_bytes=1500, index_interval_bytes=200)
        times = [1000, 1005, 1003, 1020, 1010, 1030, 1030, 1025, 1050, 1049] * 3
        times = [t + 100 * (n // 10) for n, t in enumerate(times)]
        for number, time_ms in enumerate(times):
            log.append(batch_of(b"%d" % number + bytes(150), timestamp_ms=time_ms))
        partition = log.partition()
        for wanted in range(990, 1300):
            expected = next(((t, n) for n, t in enumerate(times) if t >= wanted), None)
            assert timestamps.first_at_or_after(partition, wanted) == expected
        assert timestamps.latest_timestamp(partition) == (1250, 28)

    def test_inside_a_batch_and_behind_the_log_start(self, log: Log):
        log.create()
        batch = batch_of(b"a", b"b", b"c", timestamp_ms=1000)
        log.append(batch)
        log.delete_records(1)
        assert timestamps.first_at_or_after(log.partition(), 1000) == (1000, 1)

    def test_after_restarts(self, log: Log):
        log.create(segment_bytes=1500, index_interval_bytes=200)
        begun = log.clock.now_ms()
        log.fill(30)
        for again in (log.restart, log.crash):
            again()
            found = timestamps.first_at_or_after(log.partition(), begun + 17_500)
            assert found == (begun + 18_000, 18)
            assert timestamps.latest_timestamp(log.partition()) == (begun + 29_000, 29)


class TestIdempotence:
    def append(self, log: Log, sequence: int, count: int = 1, epoch: int = 0, pid: int = 9) -> int:
        return log.append(
            batch_of(
                *(b"%d" % (sequence + n) for n in range(count)), producer=(pid, epoch, sequence)
            )
        )

    def refusal(self, log: Log, sequence: int, **more: int) -> ErrorCode:
        with pytest.raises(ApiError) as refused:
            self.append(log, sequence, **more)
        return refused.value.code

    def test_the_last_five_are_recognised(self, log: Log):
        log.create()
        for sequence in range(7):
            assert self.append(log, sequence) == sequence
        for sequence in range(2, 7):
            assert self.append(log, sequence) == sequence
        assert self.refusal(log, 1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert log.partition().next_offset == 7

    @pytest.mark.parametrize("again", ["restart", "crash", "checkpointed crash"])
    def test_the_last_five_are_recognised_after(self, log: Log, again: str):
        log.create()
        for sequence in range(7):
            self.append(log, sequence)
        if again == "checkpointed crash":
            log.checkpoint()
        log.restart() if again == "restart" else log.crash()
        for sequence in range(2, 7):
            assert self.append(log, sequence) == sequence
        assert self.refusal(log, 8) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.append(log, 7) == 7

    def test_gaps_and_half_repetitions(self, log: Log):
        log.create()
        self.append(log, 0, count=3)
        assert self.refusal(log, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.refusal(log, 0, count=2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.refusal(log, 2, count=2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.append(log, 3) == 3

    def test_epochs(self, log: Log):
        log.create()
        self.append(log, 0, epoch=1)
        self.append(log, 1, epoch=1)
        assert self.refusal(log, 2, epoch=0) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert self.refusal(log, 2, epoch=2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert self.append(log, 0, epoch=2) == 2  # no repetition: another epoch
        assert self.refusal(log, 1, epoch=1) == ErrorCode.INVALID_PRODUCER_EPOCH

    def test_an_unknown_producer_may_begin_anywhere(self, log: Log):
        log.create()
        assert self.append(log, 1234) == 0
        assert self.append(log, 1235) == 1

    def test_sequences_wrap(self, log: Log):
        log.create()
        self.append(log, 2**31 - 3, count=2)
        assert self.append(log, 2**31 - 1, count=3) == 2  # 2^31 - 1, 0, 1
        assert self.append(log, 2**31 - 1, count=3) == 2
        assert self.append(log, 2) == 5
        log.restart()
        assert self.append(log, 2**31 - 1, count=3) == 2

    def test_a_repetition_of_what_is_under_way_waits_for_it(self, log: Log):
        log.create()
        batch = batch_of(b"x", producer=(9, 0, 0))
        original, repetition = log.send(batch, bytearray(batch))
        assert repetition.offset == original.offset == 0
        assert repetition.state == PENDING
        log.settle()
        assert original.state is repetition.state is None
        assert log.partition().next_offset == 1

    def test_a_repetition_of_what_fails_fails_too(self, log: Log):
        log.create()
        log.files.fail_syncs()
        batch = batch_of(b"x", producer=(9, 0, 0))
        original, repetition = log.send(batch, bytearray(batch))
        log.settle()
        assert original.state is repetition.state is not None
        assert self.append(log, 0) == 0  # and the number is free again

    @pytest.mark.parametrize("crashes_before", [False, True])
    def test_after_retention_the_producer_goes_on(self, log: Log, crashes_before: bool):
        log.create(segment_bytes=1024)
        self.append(log, 0)
        log.checkpoint()
        for sequence in range(1, 5):
            self.append(log, sequence)
        log.roll()
        if crashes_before:
            log.crash()
        log.delete_records(5)
        log.crash()
        assert self.append(log, 4) == 4
        assert self.append(log, 5) == 5

    def test_producers_do_not_mix(self, log: Log):
        log.create()
        for sequence in range(3):
            for pid in (1, 2, 3):
                self.append(log, sequence, pid=pid)
        log.crash()
        assert [self.append(log, 2, pid=pid) for pid in (1, 2, 3)] == [6, 7, 8]


def test_a_producer_of_old_records_is_tracked_as_long_as_any_other(log: Log):
    """A copy of last year's records is no reason to store one of them twice."""
    log.create()
    day_ms = 24 * 3600 * 1000
    last_year = batch_of(b"old", timestamp_ms=log.clock.now_ms() - 365 * day_ms, producer=(5, 0, 0))
    assert log.append(bytearray(last_year)) == 0
    for again in (log.partition, log.restart, log.crash):
        again()
        log.partition().expire_producers(log.clock.now_ms() - day_ms)
        assert log.append(bytearray(last_year)) == 0
    log.clock.advance(2 * 24 * 3600)
    log.partition().expire_producers(log.clock.now_ms() - day_ms)
    assert log.append(bytearray(last_year)) == 1


def test_producers_of_a_partition_are_bounded(log: Log, monkeypatch):
    """Idle ones make way, those that may repeat a batch never do, a new one waits if all may."""
    monkeypatch.setattr(partition_module, "MAX_PRODUCERS", 4)
    log.create()
    log.append(batch_of(b"open", producer=(1, 0, 0), transactional=True))
    for producer_id in (2, 3, 4):
        log.append(batch_of(b"first", producer=(producer_id, 0, 0)))
    with pytest.raises(ApiError) as refused:
        log.append(batch_of(b"new", producer=(5, 0, 0)))
    assert refused.value.code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert log.append(batch_of(b"first", producer=(2, 0, 0))) == 1  # still tracked: a duplicate
    log.clock.advance(partition_module.PRODUCER_IDLE_MS / 1000)
    assert log.append(batch_of(b"second", producer=(3, 0, 1))) == 4
    log.clock.advance(1)
    assert log.append(batch_of(b"new", producer=(5, 0, 0))) == 5
    assert {producer_id for producer_id in range(1, 6) if log.partition().tracks(producer_id)} == {
        1,
        3,
        5,
    }
    assert log.append(batch_of(b"second", producer=(3, 0, 1))) == 4
    log.crash()
    assert log.append(batch_of(b"second", producer=(3, 0, 1))) == 4
    assert log.append(batch_of(b"new", producer=(5, 0, 0))) == 5


def test_a_checkpoint_keeps_the_order_in_which_producers_were_seen(log: Log, monkeypatch):
    """Idle producers are found by it: the search ends at the first that was seen late."""
    monkeypatch.setattr(partition_module, "MAX_PRODUCERS", 2)
    log.create()
    log.append(batch_of(b"a", producer=(1, 0, 0)))
    log.append(batch_of(b"b", producer=(2, 0, 0)))
    log.clock.advance(partition_module.PRODUCER_IDLE_MS / 1000)
    log.append(batch_of(b"c", producer=(1, 0, 1)))
    log.checkpoint()
    log.crash()
    log.clock.advance(1)
    log.append(batch_of(b"d", producer=(3, 0, 0)))
    assert log.partition().producers.by_id.keys() == {1, 3}


def test_a_checkpoint_copies_no_producers_on_the_loop(log: Log, monkeypatch):
    log.create()
    for producer_id in range(50):
        log.append(batch_of(b"x", producer=(producer_id, 0, 0)))
    log.checkpoint()
    log.append(batch_of(b"y", producer=(7, 0, 1)))
    log.append(batch_of(b"y", producer=(100, 0, 0)))

    def copied(self, **_):
        raise AssertionError("all producers were copied")

    with monkeypatch.context() as patched:
        patched.setattr(Producers, "copy", copied)
        taken, take = [], Producers.take_changes
        patched.setattr(
            Producers, "take_changes", lambda self: taken.append(take(self)) or taken[-1]
        )
        log.checkpoint()
    assert [sorted(changes) for changes in taken] == [[7, 100]]
    before = dict(log.partition().durable_producers.by_id)
    assert log.partition().recovery_point == 52
    path = f"{log.partition().directory}/{52:020d}.snapshot"
    assert Producers.from_snapshot(log.files.read(path)).by_id == before
