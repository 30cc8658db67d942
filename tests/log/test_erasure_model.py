"""Random workloads with erasures against a model, and crashes at every step of an erasure.

What was not erased is as it was written; what was is nowhere in the directory, byte by byte.
"""

import contextlib
import errno
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.log.erasure_harness import ErasableLog, bytes_in
from tiers import examples
from tiers import steps as steps_of

from headwater.protocol.erased_records import record_is_erased
from headwater.protocol.records import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    Record,
    build_batch,
    read_header,
    records_of,
)

PRODUCER = 7

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 6), st.integers(0, 4)),
        st.tuples(st.just("transaction"), st.integers(1, 4), st.integers(0, 1)),
        st.tuples(st.just("erase"), st.integers(1, 8), st.integers(0, 2**32)),
        st.tuples(st.just("compact"), st.just(0), st.just(0)),
        st.tuples(st.just("roll"), st.just(0), st.just(0)),
        st.tuples(st.just("delete_before"), st.integers(0, 2**32), st.just(0)),
        st.tuples(st.just("restart"), st.just(0), st.just(0)),
        st.tuples(st.just("crash"), st.just(0), st.just(0)),
    ),
    max_size=20,
)


@dataclass
class Model:
    """What was written, and what of it was erased."""

    random: Random
    records: dict[int, Record] = field(default_factory=dict)
    bodies: dict[int, bytes] = field(default_factory=dict)  # of each record's batch, as it is sent
    erased: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    sequence: int = 0

    def unique_records(self, count: int) -> list[Record]:
        """Records whose keys, values and headers no other record has."""
        return [
            Record(
                number,
                1_700_000_000_000 + self.random.randrange(100_000),
                b"key-" + self.random.randbytes(12),
                b"value-" + self.random.randbytes(self.random.randrange(12, 60)),
                [("header", b"header-" + self.random.randbytes(12))],
            )
            for number in range(count)
        ]

    def put(self, log: ErasableLog, count: int, codec: int, *, ends: bool | None = None) -> None:
        written = self.unique_records(count)
        if ends is None:
            sent = build_batch(written, codec=codec)
        else:
            sent = build_batch(
                written, producer_id=PRODUCER, producer_epoch=0, base_sequence=self.sequence,
                attributes=TRANSACTIONAL,
            )  # fmt: skip
            self.sequence += count
        offset = log.append(sent)
        for number, record in enumerate(written):
            self.records[offset + number] = record._replace(offset=offset + number)
            self.bodies[offset + number] = bytes(sent[HEADER_BYTES:])
        if ends is not None:
            log.end(PRODUCER, commit=ends)
            if not ends:  # compaction removes what was aborted
                self.aborted.update(range(offset, offset + count))

    def check(self, log: ErasableLog, *, is_compacted: bool) -> None:
        start = log.partition().log_start_offset
        found: dict[int, Record] = {}
        for batch in log.batches():
            if not read_header(batch).attributes & CONTROL:
                found |= {r.offset: r for r in records_of(batch)}
        for offset, record in self.records.items():
            if offset < start:
                continue
            if offset in self.erased:
                # Compaction removes records without a key.
                assert record_is_erased(found[offset]) if not is_compacted else True
                assert offset not in found or record_is_erased(found[offset])
            elif offset in found or not (is_compacted and offset in self.aborted):
                assert found[offset] == record
        assert found.keys() <= self.records.keys()
        stored = bytes_in(log.partition().directory)
        for offset in self.erased:
            record = self.records[offset]
            for secret in (record.key, record.value, record.headers[0][1], self.bodies[offset]):
                assert secret is not None
                assert secret not in stored, f"something of record {offset} is left"


@given(steps=steps, policy=st.sampled_from(["delete", "compact"]), seed=st.integers(0, 2**32))
@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_workload(steps: list[tuple[str, int, int]], policy: str, seed: int) -> None:
    model = Model(Random(seed))
    with tempfile.TemporaryDirectory() as path, ErasableLog(path) as log:
        log.create(cleanup_policy=policy, segment_bytes=1024, index_interval_bytes=64)
        for what, number, extra in steps:
            if what == "put":
                model.put(log, number, extra)
            elif what == "transaction":
                model.put(log, number, 0, ends=bool(extra))
            elif what == "erase" and model.records:
                chosen = Random(extra).choices(sorted(model.records), k=number)
                erasure = log.erase(*chosen)
                assert not erasure.error
                assert sum(erasure.counts["t", 0]) == len(set(chosen))
                model.erased.update(chosen)
            elif what == "compact":
                log.compact()
            elif what == "roll":
                assert log.roll() is None
            elif what == "delete_before":
                log.delete_records(number % (log.partition().high_watermark + 1))
            elif what == "restart":
                log.restart()
            elif what == "crash":
                log.crash()
            model.check(log, is_compacted=policy == "compact")
            log.check_indexes()


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────

CHOSEN = (3, 4, 18, 19, 40)


def prepared(log: ErasableLog) -> Model:
    """A log of some segments; the last record is in the active one."""
    model = Model(Random(7))
    log.create(cleanup_policy="delete", segment_bytes=1024, index_interval_bytes=64)
    for number in range(8):
        model.put(log, 4, number % 5)
        model.put(log, 1, 0, ends=number % 2 == 0)
    assert log.partition().high_watermark > max(CHOSEN)
    log.checkpoint()
    return model


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many changes of files an erasure makes."""
    with ErasableLog(tmp_path_factory.mktemp("count")) as log:
        prepared(log)
        before = log.files.operations
        log.erase(*CHOSEN)
        return log.files.operations - before


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-cut"])
def test_a_crash_at_any_step(tmp_path: Path, operations: int, power: bool) -> None:
    """An erasure that was accepted is completed by the next process; one that was not is not."""
    assert operations > 60
    accepted = 0
    for step in steps_of(operations + 1, first=int(power), every=17):
        with ErasableLog(tmp_path / str(step)) as log:
            model = prepared(log)
            aborted = log.partition().aborted_transactions(0, 1000)
            erasure_id = ""
            log.files.die(after=step)
            with contextlib.suppress(OSError):  # the process is dead
                erasure_id = log.accept(*CHOSEN)
                log.finish()
            if power:
                log.power_cut(step)
            else:
                log.crash()
            if erasure_id:
                erasure = log.finish()[erasure_id]
                assert not erasure.error
                assert sum(erasure.counts["t", 0]) == len(CHOSEN)
                model.erased.update(CHOSEN)
                accepted += 1
            else:
                log.finish()
                if any(record_is_erased(r) for r in log.records() if r.key is None):
                    model.erased.update(CHOSEN)  # durable, although the answer was lost
            model.check(log, is_compacted=False)
            log.check_indexes()
            assert log.partition().aborted_transactions(0, 1000) == aborted
            assert not [n for n in log.names() if "swap" in n or "cleaned" in n or "deleted" in n]
            model.put(log, 2, 0)
            model.check(log, is_compacted=False)
    assert accepted


@pytest.mark.parametrize("what", ["writes", "syncs", "reads"])
def test_a_disk_that_fails_once(tmp_path: Path, operations: int, what: str) -> None:
    """Whatever fails: readers have the old or the new, and the erasure ends after all."""
    for after in steps_of(operations // 2, every=21):
        with ErasableLog(tmp_path / str(after)) as log:
            model = prepared(log)
            erasure_id = log.accept(*CHOSEN)
            if what == "writes":
                log.files.fail_writes(after=after, error=errno.EIO)
            elif what == "syncs":
                log.files.fail_syncs(after=after)
            else:
                log.files.fail_reads(after=after)
            erasure = log.finish(hurried=True)[erasure_id]
            if not erasure.has_ended:  # a swap is only completed by the next start
                assert log.partition().is_stuck
                log.crash()
                erasure = log.finish()[erasure_id]
            assert not erasure.error
            model.erased.update(CHOSEN)
            log.files.fail_writes(0)
            log.files.fail_syncs(0)
            log.files.fail_reads(0)
            model.check(log, is_compacted=False)
            log.check_indexes()
