"""Whatever fails, whenever: a consumer reads what was produced, and nothing that was deleted."""

import asyncio
import contextlib
from random import Random

import pytest
from support.log.archive_harness import ArchivedLog, FaultyObjects
from support.log.log_harness import batch_of
from tiers import seeds

from headwater.errors import LogError
from headwater.log import retention
from headwater.log.archive import uploads

STEPS = 60


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(uploads, "CHUNK_BYTES", 600)


class Model:
    """A log under a random schedule, and what it must hold."""

    def __init__(self, log: ArchivedLog, random: Random) -> None:
        self.log = log
        self.random = random
        self.values: list[bytes] = []
        self.start = 0

    def append(self) -> None:
        for _ in range(self.random.randrange(1, 15)):
            value = b"%06d" % len(self.values) + bytes(self.random.randrange(200))
            self.log.append(batch_of(value, timestamp_ms=self.log.clock.now_ms()))
            self.values.append(value)

    def let_work(self) -> None:
        """Background work goes on for a moment, and stops anywhere."""

        async def moment() -> None:
            for _ in range(self.random.randrange(40)):
                await asyncio.sleep(0.0005)

        self.log.run(moment())
        self.log.clock.advance(self.random.choice([0.1, 5, 61]))

    def drop_locally(self) -> None:
        self.log.run(retention.apply_locally(self.log.store, [self.log.partition()]))
        self.log.settle()

    def delete(self) -> None:
        if self.random.random() < 0.3:
            self.start = self.random.randrange(self.start, len(self.values) + 1)
            self.log.delete_records(self.start)

    def fault(self) -> None:
        self.log.objects.fail_share = self.random.choice([0.0, 0.1, 0.5])
        self.log.objects.is_down = self.random.random() < 0.2

    def empty_cache(self) -> None:
        self.log.archive.cache.drop()
        self.log.settle()

    def crash(self) -> None:
        how = self.random.random()
        if how < 0.4:
            self.log.crash()
        elif how < 0.7:
            self.log.power_cut(self.random.randrange(1000))
        else:
            self.log.restart()

    def read(self) -> None:
        """From anywhere; an archive that fails may refuse, but never give something else."""
        partition = self.log.partition()
        assert partition.log_start_offset == self.start
        assert partition.high_watermark == len(self.values)
        offset = self.random.randrange(self.start, len(self.values) + 1)
        with contextlib.suppress(LogError):
            assert self.log.values(offset) == self.values[offset:]

    def check(self) -> None:
        """All is well again: everything is there, here and in the archive, and nothing else."""
        log = self.log
        log.objects.fail_share, log.objects.is_down = 0.0, False
        log.clock.advance(61)
        if self.values:
            log.archive_all()
        while log.archive.deletions.pending:
            log.clock.advance(11)
            log.wait(lambda: True)
        self.drop_locally()
        log.clock.advance(61)  # what failed a moment ago is asked for again
        assert log.partition().log_start_offset == self.start
        assert log.values() == self.values[self.start :]
        described = {log.partition().object_name(base, ".archived") for base in log.archived()}
        assert {name for name in log.objects.objects if name.endswith(".archived")} == described


@pytest.mark.parametrize("seed", seeds(12))
def test_random_schedules(tmp_path, seed):
    random = Random(seed)
    with ArchivedLog(tmp_path / "data", objects=FaultyObjects(seed), cache_bytes=3000) as log:
        log.create(local_retention_bytes=0, retention_bytes=10_000_000, segment_bytes=1500)
        model = Model(log, random)
        steps = [
            *([model.append] * 4), *([model.let_work] * 4), *([model.read] * 3),
            model.drop_locally, model.drop_locally, model.delete, model.fault, model.empty_cache,
            model.crash,
        ]  # fmt: skip
        for _ in range(STEPS):
            random.choice(steps)()
        model.check()


@pytest.mark.parametrize("power", [False, True])
def test_a_death_at_any_moment_of_archiving(tmp_path, power):
    """The process dies behind the n-th change of a file, for every n until it gets through."""
    for after in range(400):
        path = tmp_path / str(after)
        with ArchivedLog(path) as log:
            log.create(local_retention_bytes=0, retention_bytes=10_000_000)
            log.objects.is_down = True
            values = log.fill(30)
            log.checkpoint()
            log.objects.is_down, log.archive.uploads.failures = False, 0
            before = log.files.operations
            log.files.die(after=after)
            finished = _archive_and_delete(log)
            changes = log.files.operations - before
            finished = finished and changes < after
            log.power_cut(after) if power else log.crash()
            start = log.partition().log_start_offset
            assert start in (0, 20)
            assert log.values() == values[start:]
            log.clock.advance(61)
            log.archive_all()
            log.let_go_locally()
            log.delete_all()
            assert log.values() == values[start:]
            names = {log.partition().object_name(base, ".archived") for base in log.archived()}
            assert {name for name in log.objects.objects if name.endswith(".archived")} == names
            if finished:
                assert changes > 5
                return
    pytest.fail("it never got through")


def _archive_and_delete(log: ArchivedLog) -> bool:
    """Archives, lets go locally, deletes; False if the disk died on the way."""
    log.clock.advance(61)
    try:
        log.wait(
            lambda: (
                log.archive.uploads.failures
                or log.store.failed
                or not log.archive.not_archived_bytes(log.partition())
            )
        )
        if log.archive.uploads.failures:
            return False
        log.run(retention.apply_locally(log.store, [log.partition()]))
        log.settle()
        log.run(log.store.delete_records({log.partition(): 20}))
        log.wait(lambda: log.archive.deletions.failures or not log.archive.deletions.pending)
        log.settle()
    except OSError:
        return False
    return not log.archive.deletions.failures
