"""Retention deletes what a topic need not store any longer."""

import os

import pytest
from support.log.log_harness import Log, batch_of

from headwater.log.partitions import timestamps


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        yield opened


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.partition().segments]


def test_by_time_oldest_segments_first(log: Log):
    log.create(segment_ms=9_000, retention_ms=60_000)
    values = log.fill(30)  # a second apart: segments of ten
    assert bases(log) == [0, 10, 20]
    assert log.retain() == 0
    log.clock.advance(45)  # the first ten are older than a minute now
    assert log.retain() > 0
    assert bases(log) == [10, 20]
    assert log.partition().log_start_offset == 10
    assert log.values() == values[10:]
    assert not [name for name in log.names() if name.startswith("0" * 20 + ".")]


def test_the_active_segment_goes_by_time_too(log: Log):
    log.create(retention_ms=60_000)
    log.fill(5)
    log.clock.advance(100)
    assert log.retain() > 0
    assert bases(log) == [5]
    assert log.values() == []
    assert log.append(batch_of(b"next", timestamp_ms=log.clock.now_ms())) == 5
    log.crash()
    assert log.values() == [b"next"]


def test_by_size(log: Log):
    log.create(segment_bytes=1024, retention_bytes=3000)
    log.fill(40)
    log.retain()
    sizes = [segment.size_bytes for segment in log.partition().segments]
    assert sum(sizes) >= 3000 > sum(sizes[1:])
    before = bases(log)
    assert log.retain() == 0
    assert bases(log) == before


def test_a_size_of_nothing_keeps_nothing(log: Log):
    log.create(segment_bytes=1024, retention_bytes=0)
    log.fill(20)
    log.retain()
    assert log.partition().size_bytes == 0
    assert log.partition().log_start_offset == 20


@pytest.mark.parametrize(
    "configs", [{"retention_ms": -1}, {"retention_ms": 1, "cleanup_policy": "compact"}]
)
def test_what_is_retained_indefinitely(log: Log, configs: dict):
    log.create(segment_bytes=1024, **configs)
    values = log.fill(20)
    log.clock.advance(10**9)
    assert log.retain() == 0
    assert log.values() == values


def test_after_a_restart_ages_are_available_without_a_scan(log: Log):
    log.create(segment_bytes=1024, retention_ms=60_000)
    log.fill(20)
    log.restart()
    log.clock.advance(200)
    log.retain()
    assert log.store.scanned_bytes == 0
    assert log.partition().log_start_offset == 20


def test_deleted_records_stay_deleted(log: Log):
    log.create(segment_bytes=1024)
    values = log.fill(20)
    log.delete_records(13)
    for seed in range(5):
        log.power_cut(seed)
        assert log.partition().log_start_offset == 13
        assert log.values() == values[13:]
    log.restart()
    assert log.values() == values[13:]
    log.delete_records(20)
    log.crash()
    assert log.values() == []
    assert log.append(batch_of(b"x")) == 20


def test_concurrent_deletions_in_many_partitions(log: Log):
    import asyncio

    log.create("many", 20)

    async def delete_all() -> None:
        partitions = [log.partition("many", n) for n in range(20)]
        await asyncio.gather(
            *(log.store.delete_records({partition: 1}) for partition in partitions)
        )

    for number in range(20):
        log.append(batch_of(b"a"), "many", number)
        log.append(batch_of(b"b"), "many", number)
    log.run(delete_all())
    log.crash()
    assert {log.partition("many", n).log_start_offset for n in range(20)} == {1}


def test_a_failed_deletion_deletes_nothing(log: Log):
    log.create(segment_bytes=1024)
    values = log.fill(20)
    log.files.room_bytes = 0
    with pytest.raises(OSError):
        log.delete_records(15)
    assert log.values() == values


def test_retention_makes_room_on_a_full_disk(log: Log):
    log.create(segment_bytes=1024, retention_bytes=2000)
    log.fill(40)
    log.files.room_bytes = 0
    assert log.retain() > 0
    assert log.files.room_bytes > 1000
    log.append(batch_of(b"room"))


def test_a_pinned_slice_survives(log: Log):
    log.create(segment_bytes=1024, retention_ms=60_000)
    values = log.fill(20)
    partition = log.partition()
    part = partition.find(0, 1 << 20)
    assert partition.pin(part)
    late = partition.find(0, 1 << 20)
    log.clock.advance(1000)
    log.retain()
    assert partition.log_start_offset == 20
    assert os.path.exists(part.segment.log_path)
    buffer = bytearray(part.size_bytes)
    assert part.read(memoryview(buffer), 0) == part.size_bytes
    assert values[0] in buffer
    assert not partition.pin(late)  # too late for this one
    part.release()
    log.settle()
    assert not os.path.exists(part.segment.log_path)


def test_the_newest_record_counts_also_after_a_checkpoint_and_a_clean_stop(log: Log):
    """Nothing came after the checkpoint, so the stop had nothing to write."""
    log.create(retention_ms=60_000)
    log.fill(1)
    log.restart()
    log.clock.advance(50)
    values = log.fill(1)
    log.checkpoint()
    log.restart()
    log.clock.advance(30)
    assert log.retain() == 0
    assert log.values(1) == values


def test_records_without_timestamps_go_by_the_age_of_their_file(log: Log):
    log.create(segment_bytes=1024, retention_ms=60_000)
    for _ in range(20):
        log.append(batch_of(b"x" * 100, timestamp_ms=-1))
    first = log.partition().segments[0].log_path
    now_s = log.clock.now_ms() / 1000
    for segment in log.partition().segments:
        os.utime(segment.log_path, (now_s, now_s))
    assert log.retain() == 0
    os.utime(first, (now_s - 100, now_s - 100))
    assert log.retain() > 0
    assert not os.path.exists(first)


def test_a_lost_time_index_neither_hides_records_nor_retains_them_indefinitely(log: Log):
    log.create(segment_ms=9_000, retention_ms=60_000)
    log.fill(30)
    sealed = log.partition().segments[0]
    start_ms = log.clock.now_ms() - 30_000
    log.close()
    os.unlink(sealed.time_index_path)
    log.open()
    found = timestamps.first_at_or_after(log.partition(), start_ms + 3_000)
    assert found is not None
    assert found.offset == 3
    log.clock.advance(45)
    assert log.retain() > 0
    assert bases(log) == [10, 20]


def test_deleting_in_many_partitions_writes_the_checkpoint_once(log: Log):
    log.create("many", 50)
    for number in range(50):
        log.append(batch_of(b"a"), "many", number)
        log.append(batch_of(b"b"), "many", number)
    log.checkpoint()
    before = log.files.operations
    log.run(log.store.delete_records({log.partition("many", n): 1 for n in range(50)}))
    assert log.files.operations - before < 10
    log.crash()
    assert {log.partition("many", n).log_start_offset for n in range(50)} == {1}
