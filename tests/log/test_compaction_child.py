"""The process that cleans: started when needed, killed at any moment, never in the broker's way."""

import asyncio
import contextlib
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.log.compaction_harness import NUMBA_CACHE, CompactedLog
from tiers import long

from headwater import extras
from headwater.log.compaction.compactor import Child, CompactionLimits, Compactor
from headwater.log.compaction.job import Job, Source

SLOW = CompactionLimits(bytes_per_s=8_000)
PATIENCE_S = 60  # the first one may have to compile


@pytest.fixture
def log(tmp_path: Path):
    with CompactedLog(tmp_path) as log:
        log.create(segment_bytes=4096)
        for n in range(40):
            log.put((b"a", b"%d" % n + b"x" * 300), (b"b%d" % (n % 3), b"%d" % n))
        assert log.roll() is None
        log.checkpoint()
        yield log


def process_of(compactor: Compactor) -> asyncio.subprocess.Process | None:
    return compactor._child._process


async def started(compactor: Compactor) -> asyncio.subprocess.Process:
    async with asyncio.timeout(PATIENCE_S):
        while (process := process_of(compactor)) is None:
            await asyncio.sleep(0.01)
    return process


async def writing(log: CompactedLog) -> None:
    """Waits until the child has begun a cleaned segment."""
    async with asyncio.timeout(PATIENCE_S):
        while not any("cleaned" in name for name in log.names()):
            await asyncio.sleep(0.01)


def test_missing_compiled_loops_are_reported_once(log: CompactedLog, monkeypatch, caplog) -> None:
    """Not at every start of the process."""
    monkeypatch.setattr(extras, "is_installed", lambda module: module != "numba")
    caplog.set_level(logging.INFO)
    compactor = Compactor(log.store, CompactionLimits())
    for passes in (1, 2):
        log.run(compactor.run())
        log.settle()
        assert compactor.numbers.passes == passes
        assert process_of(compactor) is None
        log.put((b"a", b"again" + b"x" * 300), (b"a", b"and again"))
        assert log.roll() is None
    assert caplog.text.count("without compiled loops") == 1


def test_a_pass_in_a_process_of_its_own(log: CompactedLog) -> None:
    compactor = Compactor(log.store, CompactionLimits())
    log.run(compactor.run())
    log.settle()
    assert compactor.numbers.passes == 1
    assert compactor.numbers.bytes_written < compactor.numbers.bytes_read
    assert process_of(compactor) is None
    assert [r.key for r in log.records()] == [b"b1", b"b2", b"a", b"b0"]


def test_its_death_costs_only_the_pass(log: CompactedLog) -> None:
    compactor = Compactor(log.store, SLOW)

    async def kill() -> None:
        running = asyncio.create_task(compactor.run())
        process = await started(compactor)
        await writing(log)
        process.kill()
        async with asyncio.timeout(PATIENCE_S):
            await running

    log.run(kill())
    log.settle()
    assert compactor.numbers.failures == 1
    assert "process ended" in compactor.numbers.last_error
    assert not any("cleaned" in name for name in log.names())
    assert len(log.records()) == 80
    log.compact(roll=False)
    assert len(log.records()) == 4


def test_torn_compiled_code_is_thrown_away(
    log: CompactedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut does that; every child would end as soon as it begins."""
    compactor = Compactor(log.store, CompactionLimits())
    log.run(compactor.run())  # so that there is compiled code
    cache = Path(log.path) / "numba-cache"
    shutil.copytree(NUMBA_CACHE, cache)
    for path in cache.rglob("*.nbi"):
        path.write_bytes(b"")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache))
    log.put((b"a", b"1"))
    log.roll()
    log.run(compactor.run())
    assert compactor.numbers.failures == 1
    assert not cache.exists()


def test_it_ends_with_the_compactor(log: CompactedLog) -> None:
    compactor = Compactor(log.store, SLOW)

    async def stop() -> asyncio.subprocess.Process:
        running = asyncio.create_task(compactor.run())
        process = await started(compactor)
        await writing(log)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        return process

    process = log.run(stop())
    assert process.returncode is not None
    log.restart()
    assert len(log.records()) == 80


@long
def test_it_ends_when_the_pipe_closes(tmp_path: Path, log: CompactedLog) -> None:
    """The broker was killed: no other process would end it."""

    async def orphan() -> int:
        process = await Child(str(tmp_path))._start()
        partition = log.partition()
        sources = [Source(s.base_offset, s.size_bytes) for s in partition.segments[:-1]]
        job = Job(
            directory=partition.directory, sources=sources, first_dirty_offset=0, end_offset=80,
            now_ms=0, delete_retention_ms=0, segment_bytes=4096, segment_index_bytes=4096,
            index_interval_bytes=4096, memory_bytes=1 << 20, bytes_per_s=8_000,
        )  # fmt: skip

        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        await process.stdin.drain()
        await writing(log)
        process.stdin.close()
        async with asyncio.timeout(PATIENCE_S):
            return await process.wait()

    assert log.run(orphan()) == 0


def test_a_topic_deleted_meanwhile(log: CompactedLog) -> None:
    compactor = Compactor(log.store, SLOW)

    async def delete() -> None:
        running = asyncio.create_task(compactor.run())
        await started(compactor)
        await writing(log)
        await log.store.delete_topic("t")
        await log.store.create_topic("t", 1, {"cleanup.policy": "compact"})
        process = process_of(compactor)
        if process is not None:
            process.kill()
        async with asyncio.timeout(PATIENCE_S):
            await running

    log.run(delete())
    log.settle()
    assert log.partition().segments == ()
    log.put((b"a", b"new"))
    assert log.pairs() == [(b"a", b"new")]


def test_the_broker_never_imports_what_is_slow_to_import() -> None:
    code = (
        "import sys, headwater.broker.main, headwater.log.compaction.compactor;"
        "sys.exit(bool({'numba', 'numpy', 'llvmlite'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
