"""What compaction retains and what it removes, by Kafka's rules."""

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.log.compaction_harness import CompactedLog

from headwater.log.compaction import output
from headwater.log.compaction.compactor import CompactionLimits
from headwater.protocol.records import Record, build_batch

DELETE_HORIZON = 0x40
DAY_S = 86_400


@pytest.fixture
def log(tmp_path: Path):
    with CompactedLog(tmp_path) as log:
        log.create()
        yield log


def test_the_latest_of_each_key_stays_at_its_offset(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    log.put((b"c", b"1"), (b"b", b"2"))
    log.compact()
    assert [(r.offset, r.key, r.value) for r in log.records()] == [
        (2, b"a", b"2"),
        (3, b"c", b"1"),
        (4, b"b", b"2"),
    ]


@pytest.mark.parametrize("codec", range(5))
def test_a_batch_keeps_what_it_is(log: CompactedLog, codec: int) -> None:
    producer = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 40}
    log.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"), codec=codec, **producer)
    (before,) = log.headers()
    log.put((b"a", b"2"), (b"c", b"2"))
    log.compact()
    after, _ = log.headers()
    assert after.record_count == 1
    same = before._replace(length=0, crc=0, record_count=0)
    assert after._replace(length=0, crc=0, record_count=0) == same


def test_headers_and_timestamps_stay(log: CompactedLog) -> None:
    record = Record(1, 1_700_000_000_123, b"k", b"v", [("h", b"1"), ("h", None)])
    log.append(build_batch([Record(0, 1_700_000_000_000, b"a", b"1"), record]))
    log.put((b"a", b"2"))
    log.compact()
    assert log.records()[0] == record
    assert log.headers()[0].max_timestamp == 1_700_000_000_123


def test_the_active_segment_is_not_touched(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"a", b"2"))
    compactor = log.compact(roll=False)
    assert compactor.numbers.passes == 0
    assert len(log.records()) == 2


def test_a_producers_sequence_outlives_its_batches(log: CompactedLog) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    log.put((b"a", b"1"), **producer)
    log.put((b"a", b"2"), producer_id=8, producer_epoch=0, base_sequence=0)
    log.compact()
    assert len(log.records()) == 1
    log.crash()
    assert (
        log.put((b"a", b"1"), **producer) == 0
    )  # a duplicate, though compaction has removed its batch
    assert len(log.records()) == 1


def test_an_empty_log_goes_on_at_its_offset(log: CompactedLog) -> None:
    log.put((b"a", None))
    log.compact()
    log.clock.advance(DAY_S + 1)
    log.put((b"b", b"1"), (b"b", None))
    log.compact()
    log.clock.advance(DAY_S + 1)
    log.put((b"c", None))
    log.compact()
    log.clock.advance(DAY_S + 1)
    log.put((b"d", b"1"))
    log.compact()
    assert log.pairs() == [(b"d", b"1")]
    log.crash()
    assert log.partition().log_start_offset == 0
    assert log.put((b"e", b"1")) == 5


# ── tombstones ──


def test_a_tombstone_stays_for_a_while_after_its_first_pass(log: CompactedLog) -> None:
    log.clock.advance(100 * DAY_S)  # how old the record is does not matter
    log.put((b"a", b"1"))
    tombstone_at = log.put((b"a", None), (b"b", b"1"))
    log.compact()
    (header,) = log.headers()
    assert header.attributes & DELETE_HORIZON
    assert header.base_timestamp == log.clock.now_ms() + DAY_S * 1000
    found = log.records()
    assert [(r.offset, r.key, r.value) for r in found] == [
        (tombstone_at, b"a", None),
        (tombstone_at + 1, b"b", b"1"),
    ]
    assert {r.timestamp_ms for r in found} == {log.clock.now_ms()}
    log.clock.advance(DAY_S - 1)
    log.put((b"c", b"1"))
    log.compact()
    assert (b"a", None) in log.pairs()
    log.clock.advance(2)
    log.put((b"d", b"1"))
    log.compact()
    assert log.pairs() == [(b"b", b"1"), (b"c", b"1"), (b"d", b"1")]


@pytest.mark.parametrize("codec", [0, 3])
def test_a_tombstone_among_many(log: CompactedLog, codec: int) -> None:
    pairs = [(b"%d" % n, None if n % 3 == 0 else b"x" * n) for n in range(200)]
    log.put(*pairs, codec=codec)
    log.compact()
    assert log.pairs() == pairs
    log.clock.advance(DAY_S)
    log.put((b"0", b"new"))
    log.compact()
    assert log.pairs() == [pair for pair in pairs if pair[1] is not None] + [(b"0", b"new")]


def test_a_record_without_a_key_goes(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(cleanup_policy="delete")
        log.put((None, b"1"), (b"a", b"1"))
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        log.run(log.store.set_configs("t", configs))
        log.compact()
        assert log.pairs() == [(b"a", b"1")]


# ── when ──


def test_dirty_ratio(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(min_cleanable_dirty_ratio=0.5)
        log.put(*[(b"%d" % n, b"x" * 100) for n in range(100)])
        assert log.compact().numbers.passes == 1  # all of it is dirty
        log.put(*[(b"%d" % n, b"y" * 100) for n in range(60)])
        assert log.compact().numbers.passes == 0
        assert len(log.records()) == 160
        log.put(*[(b"%d" % n, b"z" * 100) for n in range(60)])
        assert log.compact().numbers.passes == 1
        assert len(log.records()) == 100


def test_min_compaction_lag(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(min_compaction_lag_ms=10_000)
        log.put((b"a", b"1"), (b"a", b"2"))
        assert log.compact().numbers.passes == 0
        log.clock.advance(11)
        assert log.compact().numbers.passes == 1
        assert log.pairs() == [(b"a", b"2")]


def test_max_compaction_lag_seals_the_active_segment(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(max_compaction_lag_ms=60_000, min_cleanable_dirty_ratio=1)
        log.put((b"a", b"1"), (b"a", b"2"))
        log.compact(roll=False)
        assert len(log.records()) == 2
        log.clock.advance(61)
        log.compact(roll=False)  # seals it
        log.compact(roll=False)
        assert log.pairs() == [(b"a", b"2")]


def test_a_topic_without_the_policy_is_left_alone(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(cleanup_policy="delete")
        log.put((b"a", b"1"), (b"a", b"2"))
        assert log.compact().numbers.passes == 0


def test_compact_and_delete(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(cleanup_policy="compact,delete", retention_ms=3_600_000)
        log.put((b"a", b"1"), (b"a", b"2"))
        log.compact()
        log.clock.advance(3601)
        log.put((b"b", b"1"))
        assert log.retain() > 0
        assert log.pairs() == [(b"b", b"1")]


def test_retention_passes_an_empty_segment(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(cleanup_policy="compact,delete", retention_bytes=10, segment_bytes=1024)
        for _ in range(5):
            log.put((b"a", b"x" * 1000))
        log.compact()
        log.put((b"b", b"x" * 1000))
        log.put((b"c", b"x" * 1000))
        log.retain()
        assert log.pairs() == [(b"c", b"x" * 1000)]


# ── size ──


def test_small_segments_are_merged(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        partition = log.create(segment_bytes=16_384)
        for n in range(1000):
            log.put((b"%d" % (n % 7), b"%d" % n + b"x" * 200))
        assert len(partition.segments) > 10
        log.compact()
        assert len(partition.segments) == 2  # and the active one
        assert [r.offset for r in log.records()] == list(range(993, 1000))
        log.check_indexes()
        log.restart()
        assert [r.offset for r in log.records()] == list(range(993, 1000))


def test_segments_stay_below_their_size(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        partition = log.create(segment_bytes=16_384, index_interval_bytes=100)
        for n in range(500):
            log.put((b"%d" % (n % 250), b"x" * 200))
        log.compact()
        assert all(segment.size_bytes <= 16_384 for segment in partition.segments)
        log.check_indexes()
        assert len(log.records()) == 250
        for record in log.records():
            assert log.records(record.offset)[0].offset == record.offset


def test_more_keys_than_the_memory_holds(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.limits = CompactionLimits(memory_bytes=30 * 100)
        log.create(segment_bytes=4096)
        for n in range(60):
            log.put(*[(b"%d" % (n * 10 + i), b"1") for i in range(10)])
        for n in range(60):
            log.put(*[(b"%d" % (n * 10 + i), b"2") for i in range(10)])
        compactor = log.compact()
        assert compactor.numbers.passes > 5
        assert log.pairs() == [(b"%d" % n, b"2") for n in range(600)]


def test_a_segment_without_a_superseded_record_is_not_rewritten(log: CompactedLog) -> None:
    log.put((b"a", b"1"))
    path = log.partition().segments[0].log_path
    before = os.stat(path).st_ino
    compactor = log.compact()
    assert compactor.numbers.passes == 1
    assert os.stat(path).st_ino == before


def test_what_is_clean_is_remembered(log: CompactedLog, tmp_path: Path) -> None:
    log.put((b"a", b"1"), (b"a", b"2"))
    log.compact()
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 2\n"
    log.restart()
    assert log.partition().clean_offset == 2
    assert log.compact(roll=False).numbers.passes == 0
    log.run(log.store.delete_topic("t"))
    assert (tmp_path / "cleaner-offset-checkpoint").read_text() == "0\n0\n"


def test_batches_larger_than_a_window(log: CompactedLog) -> None:
    large = bytes(range(256)) * (6 << 12)  # 6 MiB
    for codec in (0, 4):
        log.put((b"a", large), (b"b", b"1"), codec=codec)
        log.put((b"c", b"1"))
        log.put((b"d%d" % codec, large), (b"b", b"2"), (b"e", None), codec=codec)
    log.compact()
    found = [(r.offset, r.key, r.value and len(r.value)) for r in log.records()]
    assert found == [
        (3, b"d0", len(large)),
        (6, b"a", len(large)),
        (8, b"c", 1),
        (9, b"d4", len(large)),
        (10, b"b", 1),
        (11, b"e", None),
    ]
    assert all(r.value == large for r in log.records() if r.value and len(r.value) > 1)


@pytest.mark.parametrize("upto", [1, 4, 6, 12])
@pytest.mark.parametrize("step", ["link", "write_atomically", "rename"])
def test_retention_in_the_middle_of_a_swap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, upto: int
) -> None:
    with CompactedLog(tmp_path) as log:
        partition = log.create(cleanup_policy="compact,delete", segment_bytes=1024)
        for n in range(12):
            log.put((b"a%d" % (n % 2), b"%d " % n + b"x" * 300))
        work = getattr(log.files, step)
        is_done = threading.Event()

        def retain() -> None:
            partition.delete_before(upto)
            is_done.set()

        def meanwhile(*args: Any, **options: Any) -> None:
            if step == "link" or ".swap" in str(args) or ".cleaned." in str(args):
                log.store.on_loop(retain)
                assert is_done.wait(60)
            work(*args, **options)

        monkeypatch.setattr(log.files, step, meanwhile)
        log.compact()
        monkeypatch.undo()
        assert is_done.is_set()
        retained = [(r.key, r.value[:2]) for r in log.records() if r.value]
        assert retained == [(b"a0", b"10"), (b"a1", b"11")][: max(0, 12 - upto)]
        assert not any("deleted" in n or "cleaned" in n or "swap" in n for n in log.names())
        log.crash()
        assert partition.high_watermark == log.partition().high_watermark == 12


# ── readers ──


def test_a_reader_in_the_middle_goes_on(log: CompactedLog) -> None:
    log.put((b"a", b"1"), (b"b", b"1"))
    log.put((b"a", b"2"))
    partition = log.partition()
    part = partition.find(0, 1 << 20)
    assert part is not None
    assert partition.pin(part)
    before = log.read(0)
    log.compact()
    buffer = bytearray(part.size_bytes)
    assert part.read(memoryview(buffer), 0) == part.size_bytes
    assert buffer == before
    assert any(".deleted." in name for name in log.names())
    assert [r.offset for r in log.records()] == [1, 2]

    async def release() -> None:
        part.release()

    log.run(release())
    log.settle()
    assert not any(".deleted." in name for name in log.names())


def test_a_fetch_inside_a_hole_finds_what_is_behind_it(log: CompactedLog) -> None:
    for n in range(10):
        log.put((b"a", b"%d" % n))
    log.compact()
    for offset in range(10):
        assert [r.offset for r in log.records(offset)] == [9]
    assert log.records(10) == []


# ── damage and full disks ──


def test_a_damaged_segment_is_left_alone(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        partition = log.create(segment_bytes=1024)
        for n in range(6):
            log.put((b"a", b"%d" % n + b"x" * 600), (b"b%d" % n, None))
        damaged = partition.segments[2]
        with open(damaged.log_path, "r+b") as file:
            file.seek(300)
            file.write(b"!")
        before = Path(damaged.log_path).read_bytes()
        compactor = log.compact()
        assert damaged.corrupt
        assert damaged in partition.segments
        assert Path(damaged.log_path).read_bytes() == before
        assert "as it was written" in compactor.numbers.last_error
        offsets = [s.base_offset for s in partition.segments]
        assert damaged.base_offset in offsets
        log.clock.advance(2 * DAY_S)
        log.put((b"c", b"1"))
        log.compact()
        # Tombstones behind the damage stay, those in front of it go.
        retained = [r.key for r in log.records(damaged.base_offset + 2)]
        assert [key for key in retained if key and key.startswith(b"b")] == [b"b3", b"b4", b"b5"]
        assert partition.segments[0].size_bytes == 0


def test_a_full_disk_ends_the_pass(log: CompactedLog) -> None:
    log.put((b"a", b"1" * 1000), (b"b", b"1" * 1000))
    log.put((b"a", b"2" * 1000))
    log.roll()
    log.checkpoint()
    log.files.room_bytes = 500
    compactor = log.compact(roll=False)
    assert compactor.numbers.failures == 1
    assert "No space left" in compactor.numbers.last_error
    assert len(log.records()) == 3
    assert not any("cleaned" in name for name in log.names())
    log.files.repair()
    log.compact(roll=False)
    assert len(log.records()) == 2


def test_what_a_dead_pass_left_is_removed_at_the_start(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create()
        log.put((b"a", b"1"))
        directory = Path(log.partition().directory)
        for name in ("00000000000000000000.cleaned.log", "00000000000000000000.3.deleted.log"):
            (directory / name).write_bytes(b"half a segment")
        log.crash()
        assert not any("cleaned" in name or "deleted" in name for name in log.names())
        assert log.pairs() == [(b"a", b"1")]


@pytest.mark.parametrize("codec", [0, 3])
def test_tombstones_may_stay_indefinitely(tmp_path: Path, codec: int) -> None:
    with CompactedLog(tmp_path) as log:
        log.create(delete_retention_ms=2**63 - 1)
        log.put((b"a", None), (b"b", b"1"), codec=codec)
        compactor = log.compact()
        assert compactor.numbers.failures == 0
        log.clock.advance(1000 * DAY_S)
        log.put((b"c", b"1"))
        log.compact()
        assert (b"a", None) in log.pairs()


def test_a_segment_that_was_cut_short_ends_the_pass_over_it(tmp_path: Path) -> None:
    with CompactedLog(tmp_path) as log:
        log.create()
        log.put((b"a", b"1" * 500))
        log.roll()
        path = log.partition().segments[0].log_path
        os.truncate(path, 200)
        compactor = log.compact(roll=False)
        assert "00000000000000000000.log" in compactor.numbers.last_error


def test_a_pass_is_no_faster_than_it_may_be(
    log: CompactedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    waits_s: list[float] = []
    fake = SimpleNamespace(monotonic=lambda: began_s + sum(waits_s), sleep=waits_s.append)
    monkeypatch.setattr(output, "time", fake)
    log.limits = CompactionLimits(bytes_per_s=1000)
    for n in range(20):
        log.put((b"%d" % (n % 10), bytes(500)))
    numbers = log.compact().numbers
    expected_s = (numbers.bytes_read + numbers.bytes_written) / 1000
    assert sum(waits_s) == pytest.approx(expected_s, rel=0.1)
    assert expected_s > 20
