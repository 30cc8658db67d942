"""Erased records: what is left of them, of their batch, and of their segment."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from support.log.erasure_harness import ErasableLog, bytes_in

from headwater.errors import MalformedMessage
from headwater.log.compaction.job import EraseJob, Report
from headwater.log.partitions import timestamps
from headwater.protocol import compression, erased_records
from headwater.protocol.erased_records import ERASED_HEADER, record_is_erased
from headwater.protocol.records import (
    CONTROL,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Record,
    build_batch,
    check_stored,
    read_header,
    records_of,
)

NOW_MS = 1_700_000_000_000
SECRET = b"4711-secret-of-alice"


@pytest.fixture
def log(tmp_path: Path):
    with ErasableLog(tmp_path) as log:
        log.create(cleanup_policy="delete")
        yield log


def three(**batch: int) -> bytearray:
    return build_batch(
        [
            Record(0, NOW_MS + 5, b"bob", b"1", [("h", b"x")]),
            Record(1, NOW_MS, b"alice", SECRET, [("name", SECRET), ("empty", None)]),
            Record(2, NOW_MS + 9, None, b"3"),
        ],
        **batch,
    )


@pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)
def test_a_batch_keeps_all_but_the_contents(codec: int) -> None:
    batch = three(
        codec=codec, base_offset=40, producer_id=7, producer_epoch=2, base_sequence=11,
        attributes=TRANSACTIONAL,
    )  # fmt: skip
    assert erased_records.contents_at(batch, [39, 41, 44]) == [41]
    blanked = erased_records.erase(batch, [39, 41, 44])
    check_stored(bytes(blanked))
    before, after = read_header(batch), read_header(blanked)
    assert after.size_bytes == len(blanked)
    assert after._replace(length=0, crc=0) == before._replace(length=0, crc=0)
    first, second, third = records_of(blanked)
    assert [first, third] == [record for record in records_of(batch) if record.offset != 41]
    assert second == Record(41, NOW_MS, None, None, [(ERASED_HEADER, None)])
    assert record_is_erased(second)
    assert not record_is_erased(first)
    body = compression.decompress(after.codec, bytes(blanked[61:]), 1 << 20)
    assert SECRET not in bytes(body)
    assert b"alice" not in bytes(body)
    assert erased_records.contents_at(blanked, [41]) == []


def test_a_producer_cannot_forge_a_blank_with_contents() -> None:
    record = Record(0, NOW_MS, None, b"value", [(ERASED_HEADER, None)])
    assert not record_is_erased(record)
    assert erased_records.contents_at(build_batch([record]), [0]) == [0]


def test_the_time_of_the_broker_stays() -> None:
    batch = three(attributes=LOG_APPEND_TIME)
    blanked = erased_records.erase(batch, [1])
    assert [record.timestamp_ms for record in records_of(blanked)] == [NOW_MS + 9] * 3


def test_records_that_are_none_are_refused() -> None:
    batch = build_batch([Record(0, NOW_MS, b"k", b"v")])
    batch[61] = 0xFF  # the record's length
    with pytest.raises(MalformedMessage):
        erased_records.erase(batch, [0])


def test_a_record_of_the_active_segment(log: ErasableLog) -> None:
    log.append(three())
    erasure = log.erase(1)
    assert erasure.counts == {("t", 0): (1, 0)}
    assert [record.value for record in log.records()] == [b"1", None, b"3"]
    assert SECRET not in bytes_in(log.path)
    assert log.append(three()) == 3
    assert log.restart().partition().next_offset == 6
    log.check_indexes()


def test_other_batches_stay_byte_for_byte(log: ErasableLog) -> None:
    for number in range(30):
        log.append(three(codec=number % 5))
    before = log.batches()
    log.erase(*range(31, 36))
    after = log.batches()
    assert len(after) == len(before)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (old == new) == (number not in (10, 11))
    assert [r.offset for r in log.records() if record_is_erased(r)] == [31, 32, 33, 34, 35]
    log.check_indexes()


def test_several_segments_each_rewritten_once(tmp_path: Path) -> None:
    with ErasableLog(tmp_path) as log:
        log.create(cleanup_policy="delete", segment_bytes=1024, index_interval_bytes=64)
        values = log.fill(40)
        segments = {s.base_offset: s for s in log.partition().segments}
        assert len(segments) > 3
        touched = [log.partition().segments_from(at)[0].base_offset for at in (3, 4, 20)]
        erasure = log.erase(20, 3, 4, 3)
        assert erasure.counts == {("t", 0): (3, 0)}
        assert erasure.segments == erasure.segments_done == len(set(touched))
        for segment in log.partition().segments:
            if segment.base_offset in segments:
                is_new = segment is not segments[segment.base_offset]
                assert is_new == (segment.base_offset in touched)
        wanted = [None if at in (3, 4, 20) else value for at, value in enumerate(values)]
        assert log.values() == wanted
        log.check_indexes()
        assert log.crash().values() == wanted


def test_times_are_found_as_before(log: ErasableLog) -> None:
    log.fill(20)
    start_ms = log.records()[0].timestamp_ms
    log.erase(7)
    found = timestamps.first_at_or_after(log.partition(), start_ms + 7000)
    assert found == (start_ms + 7000, 7)
    assert timestamps.latest_timestamp(log.partition()) == (start_ms + 19_000, 19)


def test_what_is_gone_is_counted_as_gone(tmp_path: Path) -> None:
    with ErasableLog(tmp_path) as log:
        log.create(cleanup_policy="delete", segment_bytes=1024)
        log.fill(40)
        log.erase(30)
        log.delete_records(22)
        start = log.partition().segments[0].base_offset
        assert 0 < start < 22, "the bytes of some records in front of the start are still there"
        erasure = log.erase(0, 21, 30, 31)
        assert erasure.counts == {("t", 0): (2, 2)}
        assert b"%06d" % 21 not in bytes_in(log.path)
        assert log.partition().log_start_offset == 22


def test_a_segment_without_contents_is_not_rewritten(log: ErasableLog) -> None:
    log.append(three())
    log.erase(1)
    segment = log.partition().segments[0]
    assert log.erase(1).counts == {("t", 0): (0, 1)}
    assert log.partition().segments[0] is segment


def test_transactions_are_read_as_before(log: ErasableLog) -> None:
    producer = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL}
    log.append(three(base_sequence=0, **producer))
    marker = log.end(7, commit=True)
    log.append(three(base_sequence=3, **producer))
    aborted = log.end(7, commit=False)
    log.append(three(base_sequence=6, **producer))
    before = log.partition().aborted_transactions(0, 100)
    assert len(before) == 1
    erasure = log.erase(1, marker, 5, aborted, 9)
    assert erasure.counts == {("t", 0): (3, 2)}, "markers have no contents"
    assert [r.value for r in log.committed_records()] == [b"1", None, b"3"]
    for check in (lambda: None, log.restart, log.crash):
        check()
        assert log.partition().aborted_transactions(0, 100) == before
        assert log.partition().last_stable_offset == 8
        markers = [h.base_offset for h in log.headers() if h.attributes & CONTROL]
        assert markers == [marker, aborted]
        assert SECRET not in bytes_in(log.path)
    # The transaction goes on, and its producer's retry is still a duplicate.
    assert log.append(three(base_sequence=6, **producer)) == 8
    log.append(three(base_sequence=9, **producer))
    log.end(7, commit=True)
    assert [r.value for r in log.committed_records()][3:] == [b"1", None, b"3", b"1", SECRET, b"3"]


def test_a_reader_gets_the_old_file_or_the_new_one(log: ErasableLog) -> None:
    """A response whose length was sent is sent from the old file; the erasure ends after it."""
    log.append(three())
    part = log.partition().find(0, 1 << 20)
    assert part is not None
    assert log.partition().pin(part)
    erasure_id = log.accept(1)

    async def erase() -> bytes:
        eraser = log.eraser()
        running = asyncio.create_task(eraser.run())
        erasure = eraser.find(erasure_id)
        assert erasure is not None
        async with asyncio.timeout(60):
            while not erasure.leaving:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            assert not erasure.has_ended, "the old file is still there"
            buffer = bytearray(part.size_bytes)
            assert part.read(memoryview(buffer), 0) == part.size_bytes
            part.release()
            while not erasure.has_ended:
                await asyncio.sleep(0.001)
        running.cancel()
        return bytes(buffer)

    assert SECRET in log.run(erase())
    assert SECRET not in bytes_in(log.path)


def test_a_backup_being_made_is_waited_for(log: ErasableLog) -> None:
    log.append(three())
    staged = log.run(log.store.stage())
    erasure_id = log.accept(1)

    async def erase() -> None:
        eraser = log.eraser()
        running = asyncio.create_task(eraser.run())
        erasure = eraser.find(erasure_id)
        assert erasure is not None
        async with asyncio.timeout(60):
            while not erasure.leaving:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            assert not erasure.has_ended
            log.files.rmtree(staged)
            while not erasure.has_ended:
                await asyncio.sleep(0.001)
        running.cancel()

    log.run(erase())
    assert SECRET not in bytes_in(log.path)


# ── compacted topics ──────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def compacted(tmp_path: Path):
    with ErasableLog(tmp_path) as log:
        log.create(segment_bytes=1024)
        yield log


def test_a_blank_deletes_no_other_key(compacted: ErasableLog) -> None:
    compacted.put((b"a", b"1"), (b"alice", SECRET), (b"b", b"1"))
    compacted.erase(1)
    compacted.put((b"c", b"1"))
    compacted.compact()
    assert compacted.pairs() == [(b"a", b"1"), (b"b", b"1"), (b"c", b"1")]
    assert b"alice" not in bytes_in(compacted.path)


def test_no_older_value_of_the_key_comes_back(compacted: ErasableLog) -> None:
    compacted.put((b"order", b"of bob"))
    compacted.put((b"order", SECRET), (b"other", b"1"))
    compacted.erase(1)
    state = {r.key: r.value for r in compacted.records() if not record_is_erased(r)}
    assert state == {b"other": b"1"}


def test_no_pass_is_made_for_what_is_clean(compacted: ErasableLog) -> None:
    compacted.put((b"order", b"of bob"))
    compacted.put((b"order", SECRET), (b"other", b"1"))
    compacted.compact()
    compacted.put((b"other", b"2"))
    passes, clean = [], compacted.clean
    compacted.clean = lambda job: passes.append(job) or clean(job)
    compacted.erase(1)
    assert passes == []
    compacted.erase(3)
    assert len(passes) == 1


def test_a_tombstone_can_be_erased(compacted: ErasableLog) -> None:
    compacted.put((b"alice", SECRET), (b"b", b"1"))
    compacted.put((b"alice", None))
    compacted.erase(0, 2)
    assert [(r.key, r.value) for r in compacted.records() if not record_is_erased(r)] == [
        (b"b", b"1")
    ]
    assert b"alice" not in bytes_in(compacted.path)
    compacted.put((b"c", b"1"))
    compacted.compact()
    assert compacted.pairs() == [(b"b", b"1"), (b"c", b"1")]


# ── what goes wrong ───────────────────────────────────────────────────────────────────────────────


def test_a_damaged_segment_ends_it_with_an_error(log: ErasableLog) -> None:
    log.append(three())
    log.append(three())
    assert log.roll() is None
    path = log.partition().segments[0].log_path
    with open(path, "r+b") as file:
        file.seek(80)
        file.write(b"\xff\xff")
    erasure = log.erase(1, 4)
    assert "damaged" in erasure.error
    assert erasure.counts == {}
    assert log.read(3), "the rest of the segment can be read as before"
    assert not [name for name in log.names() if "cleaned" in name]


def test_the_segments_behind_a_damaged_one_are_rewritten(tmp_path: Path) -> None:
    with ErasableLog(tmp_path) as log:
        log.create(cleanup_policy="delete", segment_bytes=1024)
        log.fill(40)
        first, *_ = log.partition().segments
        with open(first.log_path, "r+b") as file:
            file.seek(80)
            file.write(b"\xff\xff")
        erasure = log.erase(0, 20, 30)
        assert "damaged" in erasure.error
        values = log.values(10)
        assert values[10] is values[20] is None
        assert b"%06d" % 20 + bytes(20) not in bytes_in(log.path)


def test_what_an_earlier_attempt_has_erased_counts(tmp_path: Path) -> None:
    with ErasableLog(tmp_path) as log:
        log.create(cleanup_policy="delete", segment_bytes=1024)
        log.fill(40)
        rewrite, jobs = log.rewrite, []

        async def failing(job: EraseJob) -> AsyncGenerator[Report, None]:
            jobs.append(job)
            if len(jobs) == 2:
                yield Report(error="the disk is full")
                return
            async for report in rewrite(job):
                yield report

        log.rewrite = failing
        erasure_id = log.accept(0, 20, 30)
        erasure = log.finish(hurried=True)[erasure_id]
        assert len(jobs) > 3
        assert erasure.error == ""
        assert erasure.counts == {("t", 0): (3, 0)}


def test_a_full_disk_is_waited_for(log: ErasableLog) -> None:
    log.append(three())
    assert log.roll() is None
    erasure_id = log.accept(1)
    log.files.room_bytes = 0

    async def erase() -> None:
        eraser = log.eraser()
        running = asyncio.create_task(eraser.run())
        erasure = eraser.find(erasure_id)
        assert erasure is not None
        async with asyncio.timeout(60):
            while not erasure.error:
                await asyncio.sleep(0.001)
            assert "t-0" in erasure.error
            log.files.room_bytes = None
            while not erasure.has_ended:
                log.clock.advance(1)
                await asyncio.sleep(0.001)
        running.cancel()
        assert not erasure.error

    log.run(erase())
    assert SECRET not in bytes_in(log.path)


def test_a_topic_of_the_same_name_is_another_one(log: ErasableLog) -> None:
    log.append(three())
    erasure_id = log.accept(1)
    log.run(log.store.delete_topic("t"))
    log.create(cleanup_policy="delete")
    log.append(three())
    erasure = log.finish()[erasure_id]
    assert erasure.counts == {("t", 0): (0, 1)}
    assert [record.value for record in log.records()] == [b"1", SECRET, b"3"]


def test_the_result_is_remembered(log: ErasableLog) -> None:
    log.append(three())
    first = log.erase(1).id
    log.restart()
    erasure = log.eraser().find(first)
    assert erasure is not None
    assert erasure.has_ended
    assert erasure.counts == {("t", 0): (1, 0)}
    log.clock.advance(25 * 3600)
    log.erase(2)
    assert log.eraser().find(first) is None
    assert os.path.exists(log.partition().segments[0].log_path)
