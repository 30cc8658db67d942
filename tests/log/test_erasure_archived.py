"""Erasing what is in the archive: rewritten there too, while others read."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from support.log.archive_harness import FaultyObjects
from support.log.erasure_harness import ErasableArchivedLog
from support.log.log_harness import batch_of
from tiers import seeds
from tiers import steps as steps_of

from headwater.errors import ArchiveUnavailable
from headwater.log.archive import descriptor, uploads
from headwater.log.archive.descriptor import ChunkOf
from headwater.log.compaction import swap
from headwater.log.compaction.job import EraseJob, Report
from headwater.protocol.erased_records import record_is_erased

COUNT = 60
CHOSEN = (2, 3, 20, 41, 42)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNK_BYTES", 700)


@pytest.fixture
def log(tmp_path: Path):
    with ErasableArchivedLog(tmp_path / "data") as log:
        yield log


def filled(log: ErasableArchivedLog, *, locally: bool = False) -> list[bytes | None]:
    """COUNT records, most of them archived; `locally`: and still here. Their values."""
    log.create(local_retention_bytes=10_000_000 if locally else 0, retention_bytes=10_000_000)
    values: list[bytes | None] = list(log.fill(COUNT))
    log.archive_all()
    if not locally:
        log.let_go_locally()
        assert log.partition().local_start_offset > max(CHOSEN)
    return values


def start_of(offset: int) -> bytes:
    """Of the value that `fill` writes."""
    return b"%06d" % offset + bytes(20)


def check(log: ErasableArchivedLog, values: list[bytes | None]) -> None:
    """The chosen records are nowhere, and the others as they were."""
    log.settle()
    wanted = [None if at in CHOSEN else value for at, value in enumerate(values)]
    assert log.values() == wanted
    erased = [record.offset for record in log.records() if record_is_erased(record)]
    assert erased == list(CHOSEN)
    stored = log.stored_bytes()
    assert not [at for at in CHOSEN if start_of(at) in stored]
    assert start_of(4) in stored
    generations = {segment.base_offset: segment.generation for segment in log.partition().archived}
    logs = [name for name in log.object_names() if name.endswith(".log")]
    assert logs == sorted(
        f"0/{base:020d}{f'.{generation}' if generation else ''}.log"
        for base, generation in generations.items()
    ), "no object of an earlier generation is left"
    assert not [path for path in Path(log.path).iterdir() if path.name.startswith("erasure-")]


@pytest.mark.parametrize("locally", [False, True], ids=["only archived", "here too"])
def test_archived_records(log: ErasableArchivedLog, locally: bool) -> None:
    values = filled(log, locally=locally)
    assert log.values() == values  # and so in the cache
    erasure = log.erase(*CHOSEN)
    assert not erasure.error
    assert erasure.counts == {("t", 0): (len(CHOSEN), 0)}
    assert erasure.segments == erasure.segments_done
    check(log, values)
    assert log.erase(*CHOSEN).counts == {("t", 0): (0, len(CHOSEN))}
    log.restart()
    check(log, values)
    log.crash()
    check(log, values)


def test_twice_in_the_same_segment(log: ErasableArchivedLog) -> None:
    values = filled(log)
    for offset in CHOSEN:
        assert log.erase(offset).counts == {("t", 0): (1, 0)}
    assert max(segment.generation for segment in log.partition().archived) == 2
    check(log, values)


def test_times_are_found_as_before(log: ErasableArchivedLog) -> None:
    filled(log)
    start_ms = log.records()[0].timestamp_ms
    log.erase(*CHOSEN)
    assert log.find_time(start_ms + 20_000) == (start_ms + 20_000, 20)


def test_what_comes_later_is_archived_too(log: ErasableArchivedLog) -> None:
    values = filled(log)
    log.erase(*CHOSEN)
    later = [b"later-%d" % number + bytes(100) for number in range(COUNT)]
    for value in later:
        log.append(batch_of(value, timestamp_ms=log.clock.now_ms()))
    values += later
    log.archive_all()
    log.let_go_locally()
    assert len(log.archived()) > 5
    check(log, values)


def test_a_segment_on_its_way_to_the_archive(log: ErasableArchivedLog) -> None:
    """Its upload ends first, and what it has put there is erased as well."""
    log.create(retention_bytes=10_000_000)
    log.objects.hold = hold = asyncio.Event()
    values: list[bytes | None] = list(log.fill(COUNT))
    log.wait(lambda: log.archive.uploads.busy)
    erasure_id = log.accept(*CHOSEN)

    async def erase() -> None:
        eraser = log.eraser()
        running = asyncio.create_task(eraser.run())
        async with asyncio.timeout(60):
            while not log.partition().is_erasing:
                await asyncio.sleep(0.001)
            hold.set()
            while eraser.waiting:
                await asyncio.sleep(0.001)
        running.cancel()
        erasure = eraser.find(erasure_id)
        assert erasure is not None
        assert erasure.counts == {("t", 0): (len(CHOSEN), 0)}

    log.run(erase())
    log.archive_all()
    check(log, values)


def first_chunk(log: ErasableArchivedLog) -> ChunkOf:
    """With the offsets 2 and 3."""
    segment = log.partition().archived[0]
    chunk = descriptor.read_chunks(log.files, segment)[0]
    return ChunkOf(log.partition(), segment, chunk)


def test_a_chunk_that_is_being_fetched(log: ErasableArchivedLog) -> None:
    """What a reader fetches of the old object is in no file when the erasure has ended."""
    filled(log)
    chunk = first_chunk(log)
    old = log.partition().object_name(chunk.segment.base_offset, ".log")
    held = asyncio.Event()
    get = log.objects.get

    async def slow(name: str, start: int, end: int) -> bytes:
        data: bytes = await get(name, start, end)
        if name == old and asyncio.current_task() in fetching:
            await held.wait()
        return data

    log.objects.get = slow
    fetching: set[asyncio.Task[None] | None] = set()

    async def erase() -> None:
        fetching.add(log.archive.chunks.want(chunk))
        eraser = log.eraser()
        await eraser.add("0" * 32, {log.key(): [2, 3]})
        running = asyncio.create_task(eraser.run())
        async with asyncio.timeout(60):
            while chunk.segment in log.partition().archived:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            assert eraser.waiting
            held.set()
            while eraser.waiting:
                await asyncio.sleep(0.001)
        running.cancel()

    log.run(erase())
    stored = log.stored_bytes()
    assert start_of(4) in stored
    assert start_of(2) not in stored
    assert start_of(3) not in stored


def test_a_reader_with_the_old_descriptor_looks_again(log: ErasableArchivedLog) -> None:
    values = filled(log)
    chunk = first_chunk(log)
    log.erase(*CHOSEN)
    log.run(log.archive.chunks.fetched(chunk))  # no error, and nothing of it is fetched
    assert log.archive.cache.get(chunk) is None
    check(log, values)


def test_nothing_is_uploaded_meanwhile(log: ErasableArchivedLog) -> None:
    log.objects.is_down = True
    log.create(retention_bytes=10_000_000)
    values: list[bytes | None] = list(log.fill(COUNT))
    log.wait(lambda: not log.archive.uploads.busy)
    rewrite, waiting = log.rewrite, []

    async def watched(job: EraseJob) -> AsyncGenerator[Report, None]:
        waiting.append(uploads.next_to_archive(log.partition()))
        async for report in rewrite(job):
            yield report

    log.rewrite = watched
    log.erase(*CHOSEN)
    assert waiting
    assert waiting == [None] * len(waiting)
    log.objects.is_down = False
    log.clock.advance(61)
    log.archive_all()
    check(log, values)


def test_retention_deletes_all_generations(log: ErasableArchivedLog) -> None:
    """The current one, and those around it that a crash may have left."""
    filled(log)
    log.erase(2)
    log.erase(3)
    (segment, *_) = log.partition().archived
    assert segment.generation == 2
    for generation in (1, 3):
        name = log.partition().object_name(segment.base_offset, ".log", generation)
        log.objects.objects[name] = b"left by a crash"
    log.delete_records(50)
    log.delete_all()
    assert [name for name in log.object_names() if f"/{0:020d}" in name] == []


def test_an_archive_that_is_down_is_waited_for(log: ErasableArchivedLog) -> None:
    values = filled(log)
    log.objects.is_down = True
    erasure_id = log.accept(*CHOSEN)

    async def erase() -> None:
        eraser = log.eraser()
        running = asyncio.create_task(eraser.run())
        erasure = eraser.find(erasure_id)
        assert erasure is not None
        async with asyncio.timeout(60):
            while "down" not in erasure.error:
                await asyncio.sleep(0.001)
            log.objects.is_down = False
            while eraser.waiting:
                log.clock.advance(1)
                await asyncio.sleep(0.001)
        running.cancel()

    log.run(erase())
    check(log, values)


def test_a_broker_without_its_archive_says_so(tmp_path: Path) -> None:
    objects = FaultyObjects()
    with ErasableArchivedLog(tmp_path, objects=objects) as log:
        filled(log)
        log.options["archive"] = None
        log.restart()
        erasure_id = log.accept(*CHOSEN)

        async def erase() -> None:
            eraser = log.eraser()
            running = asyncio.create_task(eraser.run())
            erasure = eraser.find(erasure_id)
            assert erasure is not None
            async with asyncio.timeout(60):
                while "archive" not in erasure.error:
                    await asyncio.sleep(0.001)
            running.cancel()

        log.run(erase())


def test_retention_is_faster(log: ErasableArchivedLog) -> None:
    filled(log)
    log.delete_records(50)
    log.delete_all()
    assert log.erase(*CHOSEN).counts == {("t", 0): (0, len(CHOSEN))}
    assert all(start_of(at) not in log.stored_bytes() for at in CHOSEN)


@pytest.mark.parametrize("seed", seeds(18))
def test_an_archive_that_fails_at_random(tmp_path: Path, seed: int) -> None:
    objects = FaultyObjects(seed)
    with ErasableArchivedLog(tmp_path, objects=objects) as log:
        values = filled(log)
        objects.fail_share = 0.05
        erasure_id = log.accept(*CHOSEN)
        erasure = log.finish(hurried=True)[erasure_id]
        objects.fail_share = 0
        assert not erasure.error
        check(log, values)


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    with (
        pytest.MonkeyPatch.context() as patch,
        ErasableArchivedLog(tmp_path_factory.mktemp("count")) as log,
    ):
        patch.setattr(uploads, "CHUNK_BYTES", 700)
        filled(log)
        before = log.files.operations
        log.erase(*CHOSEN)
        return log.files.operations - before


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-cut"])
def test_a_crash_at_any_step(tmp_path: Path, operations: int, power: bool) -> None:
    assert operations > 50
    for step in steps_of(operations + 1, first=int(power), every=27):
        with ErasableArchivedLog(tmp_path / str(step)) as log:
            values = filled(log)
            erasure_id = log.accept(*CHOSEN)
            log.files.die(after=step)
            with contextlib.suppress(OSError, ArchiveUnavailable):  # the process is dead
                log.finish()
            if power:
                log.power_cut(step)
            else:
                log.crash()
            erasure = log.finish()[erasure_id]
            assert not erasure.error
            assert sum(erasure.counts["t", 0]) == len(CHOSEN)
            check(log, values)


def test_a_crash_between_two_requests_to_the_archive(tmp_path: Path) -> None:
    """The objects are those of the old generation or of the new one, and only one is left."""
    with ErasableArchivedLog(tmp_path / "count") as log:
        filled(log)
        before = len(log.objects.requests)
        log.erase(*CHOSEN)
        requests = len(log.objects.requests) - before
    for step in steps_of(requests, every=15):
        objects = FaultyObjects()
        with ErasableArchivedLog(tmp_path / str(step), objects=objects) as log:
            values = filled(log)
            log.accept(*CHOSEN)
            dies_at = len(objects.requests) + step

            async def work(log=log, objects=objects, dies_at=dies_at) -> None:
                running = asyncio.create_task(log.eraser().run())
                async with asyncio.timeout(60):
                    while len(objects.requests) < dies_at:
                        await asyncio.sleep(0)
                running.cancel()
                await asyncio.wait([running])

            log.run(work())
            log.crash()
            log.finish()
            check(log, values)


def test_local_files_go_in_the_middle_of_a_swap(
    log: ErasableArchivedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rewritten segment whose neighbour has left meanwhile does not come back into the log:
    readers would go from it over a hole.
    """
    values = filled(log, locally=True)
    partition = log.partition()
    finish, drops = swap._finish, []

    def slow(*args: Any) -> Any:
        dropped = threading.Event()

        def drop() -> None:
            partition.drop_local(partition.segments[2].base_offset)
            dropped.set()

        if not drops:
            drops.append(1)
            log.store.on_loop(drop)
            assert dropped.wait(60)
        return finish(*args)

    monkeypatch.setattr(swap, "_finish", slow)
    erasure = log.erase(*CHOSEN)
    assert not erasure.error
    assert partition.segments[0].base_offset > 0
    check(log, values)
    log.crash()
    check(log, values)


def test_a_descriptor_of_before_is_replaced_by_the_archives_own(log: ErasableArchivedLog) -> None:
    """A backup that is restored has the old descriptors; the archive has the current ones."""
    values = filled(log)
    partition = log.partition()
    old = {Path(segment.path): Path(segment.path).read_bytes() for segment in partition.archived}
    log.erase(*CHOSEN)
    log.close()
    for path, data in old.items():
        path.write_bytes(data)
    log.open()
    with pytest.raises(ArchiveUnavailable):
        log.values()
    log.close()
    for path in old:
        base_offset = int(path.name.split(".")[0])
        path.write_bytes(log.objects.objects[partition.object_name(base_offset, ".archived")])
    log.open()
    check(log, values)
