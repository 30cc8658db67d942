"""Opening a log after a clean stop, a crash, a power cut, and with damage in its files."""

import os
import shutil
from random import Random

import pytest
from support.log.log_harness import Log, batch_of
from tiers import seeds

from headwater.errors import CorruptLog
from headwater.protocol.records import read_header


@pytest.fixture
def log(tmp_path):
    with Log(tmp_path / "data") as opened:
        yield opened


def flip(path: str, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def test_a_clean_stop_needs_no_scan(log: Log):
    log.create(segment_bytes=2000, index_interval_bytes=300)
    values = log.fill(50)
    log.restart()
    assert log.store.scanned_bytes == 0
    assert log.values() == values
    values += log.fill(20)
    log.restart()
    assert log.store.scanned_bytes == 0
    assert log.values() == values
    log.check_indexes()
    assert log.store.leader_epoch == 0


def test_a_clean_stop_during_a_checkpoint_forgets_nothing(log: Log):
    """The commit ends while the checkpoint, begun before it, is still being written."""
    log.create()
    log.fill(3)

    async def both() -> None:
        import asyncio

        outcome: list = []
        batch = batch_of(b"late")
        partition = log.partition()
        partition.append(memoryview(batch), read_header(batch), outcome.append)
        await log.store.checkpoints.write()
        while not outcome:
            await asyncio.sleep(0)

    log.run(both())
    log.settle()
    log.restart()
    assert log.partition().high_watermark == 4
    assert log.values()[-1] == b"late"
    assert log.append(batch_of(b"next")) == 4


def test_a_crash_scans_only_behind_the_recovery_point(log: Log):
    log.create(index_interval_bytes=1000)
    values = log.fill(200)
    log.checkpoint()
    values += log.fill(10)
    log.crash()
    size_bytes = log.partition().size_bytes
    assert log.store.scanned_bytes < 10 * 200 + 1000 + 200 < size_bytes / 5
    assert log.values() == values
    log.check_indexes()
    assert log.store.leader_epoch == 1


def test_a_crash_does_not_read_the_segments_in_front(log: Log):
    log.create(segment_bytes=2000)
    log.fill(50)
    log.checkpoint()
    log.store.abandon()
    sealed = [segment.log_path for segment in log.partition().segments[:-1]]
    for path in sealed:
        os.chmod(path, 0)
        os.rename(path, path + ".away")
        open(path, "wb").close()  # empty: reading it would fail
    log.open()
    assert log.store.corrupt == []
    assert log.partition().high_watermark == 50


def test_the_last_batch_torn_at_every_byte(log: Log, tmp_path):
    log.create()
    values = log.fill(3)
    before_bytes = log.partition().size_bytes
    log.append(batch_of(b"torn" * 20, producer=(5, 0, 0)))
    path = log.partition().segments[0].log_path
    whole_bytes = log.partition().size_bytes
    log.store.abandon()
    shutil.copytree(log.path, tmp_path / "copy")
    for size_bytes in range(before_bytes, whole_bytes + 1):
        shutil.rmtree(log.path)
        shutil.copytree(tmp_path / "copy", log.path)
        os.truncate(path, size_bytes)
        with Log(log.path) as torn:
            if size_bytes == whole_bytes:
                assert torn.values() == [*values, b"torn" * 20]
            else:
                assert torn.values() == values
                assert torn.partition().size_bytes == before_bytes == os.path.getsize(path)
                assert torn.partition().producers.by_id == {}
                assert not [name for name in torn.names() if name.endswith(".cut")]
                assert torn.append(batch_of(b"new")) == 3


def test_every_flipped_byte_of_the_last_batch_is_noticed(log: Log, tmp_path):
    log.create()
    values = log.fill(2)
    before_bytes = log.partition().size_bytes
    log.append(batch_of(b"flipped"))
    path = log.partition().segments[0].log_path
    whole_bytes = log.partition().size_bytes
    log.store.abandon()
    shutil.copytree(log.path, tmp_path / "copy")
    for at in range(whole_bytes - before_bytes):
        if 0 <= at < 8 or 12 <= at < 16:
            continue  # offset and epoch are set by the broker, outside of the CRC
        shutil.rmtree(log.path)
        shutil.copytree(tmp_path / "copy", log.path)
        flip(path, before_bytes + at)
        with Log(log.path) as damaged:
            assert damaged.values() == values


@pytest.mark.parametrize("at", [9, 10, 30, 61, 100])
def test_damage_in_the_middle_is_stored_in_a_file_beside(log: Log, at: int):
    """Also when the damage is in the length, so that nothing can be stepped over."""
    log.create()
    values = log.fill(10)
    segment = log.partition().segments[0]
    batch_bytes = segment.size_bytes // 10
    with open(segment.log_path, "rb") as file:
        lost = bytearray(file.read()[3 * batch_bytes :])
    lost[at] ^= 0x10
    log.store.abandon()
    flip(segment.log_path, 3 * batch_bytes + at)
    log.open()
    assert log.values() == values[:3]
    (cut,) = [name for name in log.names() if name.endswith(".cut")]
    with open(f"{log.partition().directory}/{cut}", "rb") as file:
        assert file.read() == lost
    assert log.append(batch_of(b"next")) == 3


def test_a_corrupt_sealed_segment_takes_only_itself_out_of_service(log: Log):
    log.create(segment_bytes=1500, index_interval_bytes=200, retention_ms=60_000)
    values = log.fill(40)
    damaged = log.partition().segments[1]
    following = log.partition().segments[2]
    log.close()
    with open(damaged.log_path, "r+b") as file:
        file.write(bytes(100))
    log.open()
    assert log.values(following.base_offset) == values[following.base_offset :]
    assert len(log.read(0)) == log.partition().segments[0].size_bytes
    with pytest.raises(CorruptLog) as error:
        log.read(damaged.base_offset)
    assert damaged.log_path in error.value.detail
    assert log.store.corrupt == [damaged.log_path]
    assert log.append(batch_of(b"on")) == 40
    log.clock.advance(3600)  # and it does not stand in the way of retention
    log.retain()
    assert log.partition().log_start_offset == 41


def test_a_damaged_index_only_costs_time(log: Log):
    log.create(segment_bytes=4000, index_interval_bytes=200)
    values = log.fill(60)
    segments = log.partition().segments
    log.close()
    random = Random(3)
    for segment in segments:
        for path in (segment.index_path, segment.time_index_path):
            size_bytes = os.path.getsize(path)
            with open(path, "wb") as file:
                file.write(random.randbytes(size_bytes))
    log.open()
    for offset in range(60):
        assert log.values(offset) == values[offset:]


def test_lost_indexes_are_no_loss(log: Log):
    log.create(segment_bytes=2000, index_interval_bytes=200)
    values = log.fill(40)
    for clean in (True, False):
        log.close() if clean else log.store.abandon()
        for segment in log.partition().segments:
            for path in (segment.index_path, segment.time_index_path):
                if os.path.exists(path):
                    os.unlink(path)
        log.open()
        assert log.values() == values
        assert log.append(batch_of(b"more")) == len(values)
        values.append(b"more")


def test_a_damaged_snapshot_is_rebuilt_from_the_log(log: Log):
    log.create()
    for sequence in range(4):
        log.append(batch_of(b"x", producer=(5, 0, sequence)))
    log.checkpoint()
    (name,) = [name for name in log.names() if name.endswith(".snapshot")]
    log.store.abandon()
    flip(f"{log.partition().directory}/{name}", 12)
    log.open()
    assert log.append(batch_of(b"x", producer=(5, 0, 3))) == 3
    assert log.partition().next_offset == 4


def test_damage_in_front_of_the_recovery_point_does_not_stop_the_start(log: Log):
    log.create(index_interval_bytes=200)
    log.fill(40)
    log.checkpoint()
    log.fill(5)
    log.store.abandon()
    with open(log.partition().segments[0].log_path, "r+b") as file:
        file.write(bytes(61))
    log.open()
    assert log.partition().high_watermark == 45
    assert log.values(40)
    with pytest.raises(CorruptLog):
        log.read(0)


@pytest.mark.parametrize("seed", seeds(40))
def test_power_cuts(log: Log, seed: int):
    """What was acknowledged is there; what was under way is there whole, or not at all."""
    random = Random(seed)
    log.create(segment_bytes=4000, index_interval_bytes=300)
    acknowledged: list[bytes] = []
    for _ in range(6):
        batches = [batch_of(random.randbytes(random.randint(1, 1500))) for _ in range(5)]
        log.files.die(after=random.randint(0, 25))
        sent = log.send(*batches)
        log.settle()
        before = len(acknowledged)
        acknowledged += [bytes(append.batch) for append in sent if append.state is None]
        doubtful = [bytes(append.batch[16:]) for append in sent if append.state is not None]
        log.power_cut(random.randrange(2**32))
        found = log.batches()
        assert found[: len(acknowledged)] == acknowledged
        extra = [batch[16:] for batch in found[len(acknowledged) :]]
        assert extra == doubtful[: len(extra)]
        assert len(acknowledged) >= before
        acknowledged = found
        log.check_indexes()


def test_leader_epochs_count_the_crashes(log: Log):
    log.create()
    log.fill(3)
    log.crash()
    log.fill(2)
    log.crash()
    log.crash()
    log.fill(1)
    log.restart()
    partition = log.partition()
    assert partition.epochs.entries == ((0, 0), (1, 3), (3, 5))
    end_of = [partition.epochs.end_of(epoch, partition.next_offset, 3) for epoch in range(5)]
    assert end_of == [(0, 3), (1, 5), (1, 5), (3, 6), (3, 6)]
    assert [read_header(batch).leader_epoch for batch in log.batches()] == [0, 0, 0, 1, 1, 3]
