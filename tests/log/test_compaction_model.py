"""Random workloads against a dictionary of last values, with crashes at any step of a pass."""

import contextlib
import errno
import random
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.log.compaction_harness import CompactedLog
from tiers import examples, seeds
from tiers import steps as steps_of

from headwater.log.compaction.compactor import CompactionLimits
from headwater.protocol.records import Record

KEYS = [b"", b"a", b"b", b"key-c", b"a longer key of some bytes", b"\x00" * 9]
Step = tuple[str, list[tuple[bytes, bytes | None]], int]

pairs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=40))),
    min_size=1,
    max_size=8,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), pairs, st.integers(0, 4)),
        st.tuples(st.just("compact"), st.just([]), st.just(0)),
        st.tuples(st.just("restart"), st.just([]), st.just(0)),
        st.tuples(st.just("crash"), st.just([]), st.just(0)),
        st.tuples(st.just("wait"), st.just([]), st.integers(1, 100_000)),
    ),
    max_size=25,
)


class Model:
    """What was appended, and what a reader may find of it."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[bytes, bytes | None]] = {}

    def put(self, offset: int, pairs: list[tuple[bytes, bytes | None]]) -> None:
        self.records.update(enumerate(pairs, offset))

    def check(self, found: list[Record], *, clean_upto: int) -> None:
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets)), "offsets ascend, and none comes twice"
        for record in found:
            assert self.records[record.offset] == (record.key, record.value)
        latest = {key: offset for offset, (key, _) in self.records.items()}
        there = set(offsets)
        for key, offset in latest.items():
            if self.records[offset][1] is not None:
                assert offset in there, f"the latest value of {key!r} is lost"
        # Who reads from the start has the state of one who has read everything.
        state: dict[bytes | None, bytes | None] = {}
        for record in found:
            state[record.key] = record.value
        wanted = {key: self.records[at][1] for key, at in latest.items()}
        assert {k: v for k, v in state.items() if v is not None} == {
            k: v for k, v in wanted.items() if v is not None
        }
        for record in found:
            if record.offset < clean_upto:
                later = [at for at, (key, _) in self.records.items() if key == record.key]
                assert not any(record.offset < at < clean_upto for at in later), "superseded"


@given(steps=steps, memory_slots=st.sampled_from([3, 10_000]))
@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_workload(steps: list[Step], memory_slots: int) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as path, CompactedLog(path) as log:
        log.limits = CompactionLimits(memory_bytes=30 * memory_slots)
        log.create(segment_bytes=1024, index_interval_bytes=64, delete_retention_ms=50_000)
        for what, records, number in steps:
            if what == "put":
                model.put(log.put(*records, codec=number), records)
            elif what == "compact":
                log.compact()
                assert log.partition().clean_offset == log.partition().high_watermark
            elif what == "restart":
                log.restart()
            elif what == "crash":
                log.crash()
            else:
                log.clock.advance(number)
            model.check(log.records(), clean_upto=log.partition().clean_offset)
            log.check_indexes()
        assert log.partition().next_offset == len(model.records)


def prepared(log: CompactedLog) -> Model:
    """A log of some segments, clean in front and dirty behind."""
    model, rng = Model(), Random(7)
    log.create(segment_bytes=1024, delete_retention_ms=0)
    for part in range(2):
        for _ in range(25):
            records = [
                (rng.choice(KEYS), rng.choice([None, rng.randbytes(rng.randrange(60))]))
                for _ in range(rng.randrange(1, 5))
            ]
            model.put(log.put(*records, codec=rng.randrange(5)), records)
        if part == 0:
            log.compact()
    assert log.roll() is None
    log.checkpoint()
    return model


def operations_of_a_pass(path: Path) -> int:
    with CompactedLog(path) as log:
        prepared(log)
        before = log.files.operations
        log.compact(roll=False)
        return log.files.operations - before


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    return operations_of_a_pass(tmp_path_factory.mktemp("count"))


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-cut"])
def test_a_crash_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, operations: int, power: bool
) -> None:
    """No offset twice, none lost, whatever of the swap had been done."""
    assert operations > 30
    for step in steps_of(operations + 1, first=int(power), every=5):
        with CompactedLog(tmp_path / str(step)) as log:
            model = prepared(log)
            log.files.die(after=step)
            with contextlib.suppress(OSError):  # the process is dead
                log.compact(roll=False)
            if power:
                log.power_cut(step)
            else:
                log.crash()
            assert not any("swap" in n or "cleaned" in n or "deleted" in n for n in log.names())
            model.check(log.records(), clean_upto=0)
            log.check_indexes()
            log.compact(roll=False)
            model.check(log.records(), clean_upto=log.partition().clean_offset)


@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("call", ["link", "rename", "unlink", "sync_directory"])
def test_a_swap_that_the_disk_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, which: int
) -> None:
    """The log goes on with the old segments; if the swap had begun, the next start completes it."""
    with CompactedLog(tmp_path) as log:
        model = prepared(log)
        calls, work = iter(range(1000)), getattr(log.files, call)

        def fails_once(*args: str) -> None:
            if next(calls) == which:
                raise OSError(errno.EIO, "refused")
            work(*args)

        monkeypatch.setattr(log.files, call, fails_once)
        log.compact(roll=False)
        monkeypatch.undo()
        model.check(log.records(), clean_upto=0)
        log.compact(roll=False)
        model.check(log.records(), clean_upto=log.partition().clean_offset)
        model.put(log.put((b"a", b"new")), [(b"a", b"new")])
        log.restart()
        model.check(log.records(), clean_upto=log.partition().clean_offset)
        log.compact()
        model.check(log.records(), clean_upto=log.partition().clean_offset)
        assert log.partition().clean_offset == log.partition().high_watermark


@pytest.mark.parametrize("seed", seeds(20))
def test_a_disk_that_fails_once_costs_only_the_pass(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with CompactedLog(tmp_path) as log:
        model = prepared(log)
        if seed % 2:
            log.files.fail_writes(after=rng.randrange(10))
        else:
            log.files.fail_syncs(after=rng.randrange(10))
        with contextlib.suppress(OSError):
            log.compact(roll=False)
        log.files.repair()
        model.check(log.records(), clean_upto=0)
        log.crash()
        model.check(log.records(), clean_upto=0)
