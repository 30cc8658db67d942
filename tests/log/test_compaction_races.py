"""What happens to a partition while it is being cleaned: retention, deletion, other settings."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import pytest
from support.log.archive_harness import FaultyObjects
from support.log.compaction_harness import CompactedLog
from tiers import steps

from headwater.errors import CorruptLog
from headwater.log import retention
from headwater.log.archive.options import ArchiveOptions
from headwater.log.archive.uploads import next_to_archive
from headwater.log.compaction import swap
from headwater.log.compaction.compactor import Compactor
from headwater.log.compaction.job import Job, Report
from headwater.protocol.records import TRANSACTIONAL

DAY_S = 86_400


@pytest.fixture
def log(tmp_path: Path):
    with CompactedLog(tmp_path) as log:
        log.create(segment_bytes=3000)
        yield log


def compact_but(log: CompactedLog, meanwhile: Callable[[Report], None]) -> Compactor:
    """Cleans; `meanwhile` is called before the broker hears of each cleaned segment."""

    async def cleaner(job: Job) -> AsyncGenerator[Report, None]:
        async for report in log.clean(job):
            if report.inputs:
                meanwhile(report)
            yield report

    compactor = Compactor(log.store, log.limits, cleaner=cleaner)
    log.run(compactor.run())
    log.settle()
    return compactor


def two_groups(log: CompactedLog) -> None:
    """Two small segments that are merged, then a large one, then the active one."""
    log.put((b"gone", b"x" * 300), (b"k", b"1" * 10))
    log.roll()
    log.put((b"k", b"2"), (b"stays", b"x" * 300))
    log.roll()
    log.put((b"large", b"x" * 2500), (b"k", None))
    log.roll()


def test_what_retention_takes_away_costs_no_other_segment(log: CompactedLog) -> None:
    two_groups(log)
    seen: list[list[int]] = []

    def delete_the_first(report: Report) -> None:
        if not seen:
            log.partition().delete_before(2)
        seen.append(report.inputs)

    compact_but(log, delete_the_first)
    assert seen[0][:2] == [0, 2]
    log.crash()
    assert {b"stays", b"large"} <= {key for key, _ in log.pairs()}


def test_no_tombstone_goes_before_what_it_deletes(log: CompactedLog) -> None:
    two_groups(log)
    done: list[Report] = []

    def delete_the_first(report: Report) -> None:
        if not done:
            log.partition().delete_before(2)
        done.append(report)

    compact_but(log, delete_the_first)
    for _ in range(3):
        log.clock.advance(DAY_S + 1)
        log.put((b"other", b"1"))
        log.compact()
    assert (b"k", b"2") not in log.pairs()


def test_what_an_earlier_pass_left_is_not_taken_over(log: CompactedLog) -> None:
    log.put(
        (b"a", b"1"), producer_id=7, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL
    )
    log.end(7, commit=True)
    log.put((b"b", b"1"), (b"b", b"2"))
    log.roll()
    leftover = Path(log.partition().directory) / f"{0:020d}.cleaned.txnindex"
    leftover.write_bytes(bytes(34))
    log.compact(roll=False)
    assert (b"b", b"1") not in log.pairs()
    assert log.partition().segments[0].written.txn_entries == 0


@pytest.mark.parametrize("after", range(20))
def test_a_swap_that_failed_does_no_harm_to_the_next_topic(log: CompactedLog, after: int) -> None:
    two_groups(log)
    assert log.records()  # the files are open

    def fail(_: Report) -> None:
        log.files.die(after=after)

    compact_but(log, fail)
    log.files.revive()
    log.run(log.store.delete_topic("t"))
    log.settle()
    log.create()
    log.put((b"new", b"1"))
    log.crash()
    assert log.pairs() == [(b"new", b"1")]


class OneOnly(FaultyObjects):
    """An archive that goes down after the first segment."""

    async def put(self, name: str, parts: AsyncIterator[bytes]) -> None:
        await super().put(name, parts)
        if name.endswith(".archived") and not self.count("put", f"{2:020d}.log"):
            self.is_down = True


def test_a_topic_that_is_archived_from_now_on_is_cleaned_no_more(tmp_path: Path) -> None:
    """What is cleaned has the name of what is archived, and holds more."""
    objects = OneOnly()
    with CompactedLog(tmp_path, archive=ArchiveOptions(objects=objects)) as log:
        log.create(segment_bytes=3000)
        two_groups(log)

        async def until(condition: Callable[[], object]) -> None:
            async with asyncio.timeout(8):
                while not condition():
                    await asyncio.sleep(0.001)

        async def cleaner(job: Job) -> AsyncGenerator[Report, None]:
            configs = {"remote.storage.enable": "true", "local.retention.bytes": "0"}
            await log.store.set_configs("t", {**configs, "retention.bytes": "100000"})
            await until(lambda: log.partition().archived)
            async for report in log.clean(job):
                yield report

        async def archived() -> None:
            objects.is_down = False
            log.clock.advance(100)
            await until(lambda: next_to_archive(log.partition()) is None)
            await retention.apply_locally(log.store, [log.partition()])

        log.run(Compactor(log.store, log.limits, cleaner=cleaner).run())
        log.run(archived())
        log.settle()
        assert [segment.base_offset for segment in log.partition().archived] == [0, 2, 4]


def test_a_damaged_manifest_of_a_swap_removes_nothing(log: CompactedLog) -> None:
    two_groups(log)
    before = log.pairs()
    log.store.abandon()
    directory = Path(log.path) / "t-0"
    stem = directory / f"{0:020d}"
    for suffix in ("log", "index", "timeindex"):
        Path(f"{stem}.cleaned.{suffix}").write_bytes(b"")
    manifest = bytearray(swap._encode_manifest(["log", "index", "timeindex"], [0, 2]))
    for at in range(len(manifest)):
        damaged = bytes((*manifest[:at], manifest[at] ^ 1, *manifest[at + 1 :]))
        Path(f"{stem}.swap").write_bytes(damaged)
        with pytest.raises(CorruptLog):
            log.open()
    os.unlink(f"{stem}.swap")
    log.open()
    assert log.pairs() == before


@pytest.mark.parametrize("after", steps(30))
def test_a_power_cut_at_any_step_of_a_swap(tmp_path: Path, after: int) -> None:
    for seed in range(5):
        with CompactedLog(tmp_path / str(seed)) as log:
            log.create(segment_bytes=3000)
            two_groups(log)
            log.checkpoint()
            compact_but(log, lambda _: log.files.die(after=after))
            log.power_cut(seed)
            found = log.records()
            offsets = [record.offset for record in found]
            assert offsets == sorted(set(offsets))
            values = {record.key: record.value for record in found}
            assert values == {
                b"gone": b"x" * 300, b"stays": b"x" * 300, b"large": b"x" * 2500, b"k": None
            }  # fmt: skip
            assert log.put((b"next", b"1")) == 6
