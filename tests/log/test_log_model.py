"""The log against a model of it: whatever happens, what was acknowledged is there.

The full tier looks for a good while longer.
"""

import contextlib
import itertools
import logging
import shutil
import tempfile
from collections import defaultdict
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.log.log_harness import PENDING, End, Log, Sent, batch_of
from tiers import count

from headwater.log.partitions.transactions import AbortedTransaction
from headwater.protocol import records
from headwater.protocol.records import CONTROL, TRANSACTIONAL, read_header

RETENTION_MS = 600_000
SIZES = st.integers(1, 900)
SEEDS = st.integers(0, 2**32)
IDEMPOTENT, TRANSACTIONAL_IDS = (7, 8), (21, 22, 23)
PRODUCERS = st.sampled_from([None, *IDEMPOTENT, *TRANSACTIONAL_IDS])


class Ended(NamedTuple):
    """A wish: end the transaction of a producer, perhaps with a new epoch (KIP-890)."""

    producer_id: int
    commit: bool
    new_epoch: bool


Wanted = tuple[int | None, list[int]] | Ended
BATCHES = st.tuples(PRODUCERS, st.lists(SIZES, min_size=1, max_size=3))
ENDS = st.builds(Ended, st.sampled_from(TRANSACTIONAL_IDS), st.booleans(), st.booleans())
WANTED = BATCHES | ENDS
PLACED_BYTES = 16  # base offset, length, epoch: set by the broker


def payload(batch: bytes | bytearray) -> bytes:
    return bytes(batch[PLACED_BYTES:])


class Position(NamedTuple):
    """Where a producer stands."""

    epoch: int = 0
    next_sequence: int = 0


class LogMachine(RuleBasedStateMachine):
    """Model: the batches in the log, in order, and those that may be there (`doubtful`)."""

    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        self.path = tempfile.mkdtemp()
        self.log = Log(self.path)
        # Or found after a restart: never to be lost.
        self.acknowledged: list[bytes] = []
        self.doubtful: list[bytes] = []  # refused, or under way when the process died
        self.start = 0
        self.maybe_starts: set[int] = set()  # deletions that failed
        self.end = 0
        self.positions: dict[int, Position] = defaultdict(Position)
        self.number = 0
        self.faulty = False

    def teardown(self) -> None:
        self.log.__exit__()
        shutil.rmtree(self.path, ignore_errors=True)
        logging.disable(logging.NOTSET)

    @initialize(durable_index=st.integers(0, 400), segment_bytes=st.sampled_from([1500, 4000]))
    def begin(self, durable_index: int, segment_bytes: int) -> None:
        self.log.open()
        self.log.create(
            segment_bytes=segment_bytes,
            index_interval_bytes=durable_index,
            retention_ms=RETENTION_MS,
        )

    # ── writing ──

    def new_batch(self, producer: int | None, sizes: list[int]) -> bytearray:
        values = []
        for size in sizes:
            self.number += 1
            values.append(b"%d:" % self.number + bytes(size))
        stamp = None if producer is None else (producer, *self.positions[producer])
        self.log.clock.advance(0.05)
        return batch_of(
            *values,
            timestamp_ms=self.log.clock.now_ms(),
            producer=stamp,
            transactional=producer in TRANSACTIONAL_IDS,
        )

    def send_all(self, wanted: list[Wanted]) -> list[Sent]:
        """Sends without waiting, as a client that has several batches in flight."""
        batches: list[bytearray | End] = []
        for step in wanted:
            if isinstance(step, Ended):
                epoch, sequence = self.positions[step.producer_id]
                if step.new_epoch:
                    epoch, sequence = epoch + 1, 0
                self.positions[step.producer_id] = Position(epoch, sequence)
                batches.append(End(step.producer_id, epoch, step.commit))
                continue
            producer, sizes = step
            batches.append(self.new_batch(producer, sizes))
            if producer is not None:
                epoch, sequence = self.positions[producer]
                self.positions[producer] = Position(epoch, sequence + len(sizes))
        return self.log.send(*batches)

    def account(self, sent: list[Sent]) -> None:
        """Takes over what became of the batches."""
        for append in sent:
            if append.state is None:
                header = read_header(append.batch)
                assert header.base_offset == append.offset == self.end
                self.acknowledged.append(bytes(append.batch))
                self.end = header.last_offset + 1
            else:
                self.doubtful.append(payload(append.batch))
        self.find_positions()
        failed = [append.state is not None for append in sent]
        assert failed == sorted(failed), "an append behind a failed one was acknowledged"

    def find_positions(self) -> None:
        """What failed is sent again under the same number."""
        self.positions.clear()
        for header in map(read_header, self.acknowledged):
            epoch, sequence = self.positions[header.producer_id]
            if header.producer_epoch != epoch:
                sequence = 0
            if header.base_sequence >= 0:
                sequence = header.last_sequence + 1
            self.positions[header.producer_id] = Position(header.producer_epoch, sequence)

    @rule(wanted=st.lists(WANTED, max_size=6))
    def append(self, wanted: list[Wanted]) -> None:
        sent = self.send_all(wanted)
        self.log.settle()
        assert all(append.state is not PENDING for append in sent)
        assert self.faulty or all(append.state is None for append in sent)
        self.account(sent)

    @rule(
        producer=st.sampled_from([*IDEMPOTENT, *TRANSACTIONAL_IDS]),
        back=st.integers(0, 4),
    )
    def append_again(self, producer: int, back: int) -> None:
        """A batch of which the client never saw the acknowledgement."""
        epoch = self.positions[producer].epoch
        of_producer = [
            batch
            for batch, header in ((batch, read_header(batch)) for batch in self.acknowledged)
            if (header.producer_id, header.producer_epoch) == (producer, epoch)
            and not header.attributes & CONTROL
        ]
        if back >= len(of_producer):
            return
        original = of_producer[-1 - back]
        if read_header(original).base_offset < self.start:
            return
        offset = self.log.append(bytearray(original))
        assert offset == read_header(original).base_offset

    @rule(sizes=st.lists(SIZES, min_size=1, max_size=2))
    def append_twice_at_once(self, sizes: list[int]) -> None:
        batch = self.new_batch(7, sizes)
        first, second = self.log.send(batch, bytearray(batch))
        self.log.settle()
        assert (first.offset, first.state) == (second.offset, second.state)
        self.account([first])

    @rule()
    def roll(self) -> None:
        assert self.log.roll() is None or self.faulty

    # ── keeping and forgetting ──

    @rule()
    def checkpoint(self) -> None:
        self.log.checkpoint()

    @precondition(lambda self: not self.faulty)
    @rule(sizes=st.lists(SIZES, min_size=1, max_size=3))
    def append_during_checkpoint(self, sizes: list[int]) -> None:
        sent = self.send_all([(8, sizes)])
        self.log.checkpoint()
        self.log.settle()
        self.account(sent)

    @rule(fraction=st.floats(0, 1))
    def delete_records(self, fraction: float) -> None:
        start = self.start + round((self.end - self.start) * fraction)
        try:
            self.log.delete_records(start)
        except OSError:
            assert self.faulty
            self.maybe_starts.add(start)
        else:
            self.start = start

    @precondition(lambda self: not self.faulty)
    @rule(seconds=st.integers(1, 900))
    def retain(self, seconds: int) -> None:
        self.log.clock.advance(seconds)
        self.log.retain()
        start = self.log.partition().log_start_offset
        oldest_ms = self.log.clock.now_ms() - RETENTION_MS
        for batch in self.acknowledged:
            header = read_header(batch)
            if self.start <= header.last_offset < start:
                assert header.max_timestamp < oldest_ms
        self.start = start

    # ── faults ──

    @rule(after=st.integers(0, 3), partial_bytes=st.integers(0, 700))
    def writes_fail(self, after: int, partial_bytes: int) -> None:
        self.log.files.fail_writes(after=after, partial_bytes=partial_bytes)
        self.faulty = True

    @rule(after=st.integers(0, 3), count=st.integers(1, 2))
    def syncs_fail(self, after: int, count: int) -> None:
        self.log.files.fail_syncs(count, after=after)
        self.faulty = True

    @rule()
    def writeback_fails(self) -> None:
        self.log.files.fail_writeback()
        self.faulty = True

    @rule(room_bytes=st.integers(0, 3000))
    def disk_fills(self, room_bytes: int) -> None:
        self.log.files.room_bytes = room_bytes
        self.faulty = True

    @precondition(lambda self: self.faulty)
    @rule()
    def disk_is_well_again(self) -> None:
        self.repair_disk()
        # Errors of writeback that no sync has met yet come up now.
        for _ in range(2):
            self.log.checkpoint()
            self.log.run(self.log.store.probe())
            self.log.settle()
        assert not self.log.store.failed

    def repair_disk(self) -> None:
        self.log.files.repair()
        self.faulty = False

    # ── the end of a process ──

    @precondition(lambda self: not self.faulty)
    @rule()
    def clean_restart(self) -> None:
        self.log.restart()
        assert self.log.store.scanned_bytes == 0
        self.compare_after_restart(may_hold_doubtful=False)

    @rule()
    def restart_on_a_bad_disk(self) -> None:
        self.log.close()
        self.repair_disk()
        self.log.open()
        self.compare_after_restart()

    @rule(
        after=st.integers(0, 25),
        wanted=st.lists(WANTED, max_size=4),
        then=st.sampled_from(["", "checkpoint", "roll", "delete", "retain"]),
        power=st.none() | SEEDS,
        again_after=st.none() | st.integers(0, 12),
    )
    def crash(
        self,
        after: int,
        wanted: list[Wanted],
        then: str,
        power: int | None,
        again_after: int | None,
    ) -> None:
        """The process dies somewhere in its work; perhaps once more while it recovers."""
        self.log.files.die(after=after)
        sent = self.send_all(wanted)
        self.log.settle()
        self.account(sent)
        with contextlib.suppress(OSError):
            self.last_work(then)
        self.log.store.abandon()
        self.repair_disk()
        self.lose_power(power)
        if again_after is not None:
            self.log.files.die(after=again_after)
            try:
                self.log.open()
            except OSError:
                pass
            else:
                self.log.store.abandon()
            self.log.files.revive()
            self.lose_power(None if power is None else power + 1)
        self.log.open()
        self.compare_after_restart()

    def last_work(self, what: str) -> None:
        match what:
            case "checkpoint":
                self.log.checkpoint()
            case "roll":
                self.log.roll()
            case "retain":
                self.log.clock.advance(400)
                before = self.log.partition().log_start_offset
                self.log.retain()
                self.maybe_starts.update(range(before, self.log.partition().log_start_offset + 1))
            case "delete":
                start = (self.start + self.end) // 2
                self.maybe_starts.add(start)
                self.log.delete_records(start)
                self.start = start

    def lose_power(self, seed: int | None) -> None:
        if seed is not None:
            self.log.files.power_cut(Random(seed))

    def compare_after_restart(self, *, may_hold_doubtful: bool = True) -> None:
        """All acknowledged batches are there; then, whole and in order, some doubtful ones."""
        partition = self.log.partition()
        assert partition.log_start_offset in {self.start} | self.maybe_starts
        self.start = partition.log_start_offset
        self.maybe_starts.clear()
        found = self.log.batches(self.start)
        retained = [
            stored for stored in self.acknowledged if read_header(stored).last_offset >= self.start
        ]
        assert found[: len(retained)] == retained
        more = found[len(retained) :]
        assert may_hold_doubtful or not more
        doubtful = iter(self.doubtful)
        for batch in more:
            assert any(payload(batch) == sent for sent in doubtful), "no client sent this"
            self.acknowledged.append(batch)
        self.find_positions()
        self.doubtful.clear()
        self.end = max(self.end, partition.high_watermark) if not more else partition.high_watermark
        assert self.end == partition.high_watermark
        self.log.check_indexes()

    # ── always ──

    @invariant()
    def every_record_of_the_model_can_be_read(self) -> None:
        if not self.log.store:
            return
        partition = self.log.partition()
        assert partition.high_watermark == partition.next_offset == self.end
        assert partition.log_start_offset == self.start
        retained = [
            stored for stored in self.acknowledged if read_header(stored).last_offset >= self.start
        ]
        assert self.log.batches() == retained
        offsets = [(h.base_offset, h.last_offset + 1) for h in map(read_header, retained)]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(offsets))

    @invariant()
    def transactions_are_as_their_batches_say(self) -> None:
        if not self.log.store:
            return
        partition = self.log.partition()
        opened, aborted = transactions_in(self.acknowledged)
        found = partition.open_transactions
        assert {producer_id: found[producer_id].first_offset for producer_id in found} == opened
        stable = min([self.end, *opened.values()])
        assert partition.last_stable_offset == max(stable, self.start)
        expected = [transaction for transaction in aborted if transaction.last_offset >= self.start]
        assert partition.aborted_transactions(self.start, self.end) == expected
        middle = (self.start + self.end) // 2
        assert partition.aborted_transactions(self.start, middle) == [
            transaction for transaction in expected if transaction.first_offset < middle
        ]


def transactions_in(batches: list[bytes]) -> tuple[dict[int, int], list[AbortedTransaction]]:
    """(first offsets of the open ones by producer id, the aborted ones)"""
    opened: dict[int, int] = {}
    aborted: list[AbortedTransaction] = []
    for batch in batches:
        header = read_header(batch)
        if header.attributes & CONTROL:
            marker, first_offset = records.read_marker(batch), opened.pop(header.producer_id, None)
            assert marker is not None
            if first_offset is not None and not marker.commit:
                offset = header.base_offset
                stable = min([offset + 1, *opened.values()])
                aborted.append(AbortedTransaction(header.producer_id, first_offset, offset, stable))
        elif header.attributes & TRANSACTIONAL:
            opened.setdefault(header.producer_id, header.base_offset)
    return opened, aborted


LogMachine.TestCase.settings = settings(
    max_examples=count(quick=30, full=3000),
    stateful_step_count=count(quick=25, full=40),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.timeout(count(quick=300, full=3600))
class TestLogModel(LogMachine.TestCase):  # type: ignore[misc,name-defined]
    pass
