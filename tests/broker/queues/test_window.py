"""The state machine against a model that stores every record by itself."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tiers import examples

from headwater.broker.queues.window import (
    ACCEPT,
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Rules,
    Window,
)
from headwater.protocol.error_codes import ApiError, ErrorCode

LIMIT, LOCK_S, BACKOFF_S = 3, 30.0, 4.0
RULES = Rules(LOCK_S, LIMIT, True, BACKOFF_S, 10.0)
MEMBERS = ("one", "other")


@dataclass
class ModelRecord:
    """One record of the naive model."""

    state: int = AVAILABLE
    deliveries: int = 0
    member: str = ""
    until_s: float = 0.0
    change: object = None
    before: int = AVAILABLE


class WindowModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.window = Window(100)
        self.records: dict[int, ModelRecord] = {}
        self.next = 100
        self.now_s = 1000.0
        self.pending: list = []  # changes on their way to the disk, in order
        self.stored = Window(100)  # what a crash leaves

    # ── what happens ──────────────────────────────────────────────────────────────────────────

    @rule(count=st.integers(1, 12), limit=st.integers(1, 12), member=st.sampled_from(MEMBERS))
    def deliver(self, count, limit, member):
        first = self.window.first_due(self.now_s)
        first = self.window.next_offset if first is None else first
        last = max(first + count - 1, self.window.start_offset)
        expected = []
        for offset in range(first, last + 1):
            if offset == self.next and len(expected) < limit:
                self.records[offset] = ModelRecord()
                self.next += 1
            record = self.records.get(offset)
            if (
                record is not None
                and record.state == AVAILABLE
                and record.until_s <= self.now_s
                and len(expected) < limit
            ):
                record.state, record.member = ACQUIRED, member
                record.deliveries += 1
                record.until_s = self.now_s + LOCK_S
                expected.append((offset, record.deliveries))
        got = self.window.acquire(first, last, member, self.now_s, self.now_s + LOCK_S, limit)
        assert [(at, s.deliveries) for s in got for at in range(s.first, s.last + 1)] == expected

    @rule(count=st.integers(1, 5))
    def hole(self, count):
        for offset in range(self.next, self.next + count):
            self.records[offset] = ModelRecord(ARCHIVED)
        self.next += count
        self.window.drop(self.window.next_offset, self.next - 1)

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def acknowledge(self, data):
        held = [at for at, record in self.records.items() if record.state == ACQUIRED]
        first = data.draw(st.sampled_from(held or [self.next - 1]))
        member = self.records[first].member or MEMBERS[0]
        if data.draw(st.integers(0, 9)) == 0:
            member = data.draw(st.sampled_from(MEMBERS))
        last = first
        while last + 1 in held and data.draw(st.booleans()):
            last += 1
        if data.draw(st.integers(0, 9)) == 0:
            last += data.draw(st.integers(0, 3))
        kinds = data.draw(
            st.one_of(
                st.lists(st.integers(0, 4), min_size=1, max_size=1),
                st.lists(st.integers(0, 4), min_size=last - first + 1, max_size=last - first + 1),
            )
        )
        start = self.window.start_offset
        mine = all(
            at in self.records
            and self.records[at].state == ACQUIRED
            and self.records[at].member == member
            for at in range(max(first, start), last + 1)
        )
        batch = Acknowledgement(first, last, kinds)
        if last >= start and not mine:
            with pytest.raises(ApiError) as refused:
                self.window.acknowledge(member, [batch], self.now_s, RULES)
            beyond = last >= self.next
            assert refused.value.code == (
                ErrorCode.INVALID_REQUEST if beyond else ErrorCode.INVALID_RECORD_STATE
            )
            return
        change = self.window.acknowledge(member, [batch], self.now_s, RULES)
        for offset in range(max(first, start), last + 1):
            kind = kinds[0] if len(kinds) == 1 else kinds[offset - first]
            self._said(self.records[offset], kind, change)
        self._submit(change)

    def _said(self, record: ModelRecord, kind: int, change) -> None:
        record.before = record.state
        if kind == RENEW:
            record.until_s = self.now_s + LOCK_S
            return
        if kind == RELEASE:
            self._back(record, change)
            return
        record.state = {ACCEPT: ACKNOWLEDGED, GAP: ARCHIVED, REJECT: ARCHIVING}[kind]
        record.change = change

    def _back(self, record: ModelRecord, change) -> None:
        record.before = record.state
        if record.deliveries >= LIMIT:
            record.state, record.change = ARCHIVING, change
        else:
            delay_s = min(BACKOFF_S * 2 ** (record.deliveries - 1), 10.0)
            record.state, record.member, record.until_s = AVAILABLE, "", self.now_s + delay_s

    @rule(seconds=st.sampled_from([1.0, 4.0, 29.0, 31.0]))
    def time_passes(self, seconds):
        self.now_s += seconds
        due_s = self.window.next_event_s(self.now_s - seconds)
        change = self.window.expire(self.now_s, RULES)
        expired = [
            record
            for record in self.records.values()
            if record.state == ACQUIRED and record.until_s <= self.now_s
        ]
        assert not expired or due_s <= self.now_s  # the timer would have come in time
        for offset in expired:
            self._back(offset, change)
        self._submit(change)

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member):
        change = self.window.release(member, self.now_s, RULES)
        for record in self.records.values():
            if record.state == ACQUIRED and record.member == member:
                self._back(record, change)
        self._submit(change)

    @precondition(lambda self: len(self.records) > 10)
    @rule(count=st.integers(1, 8))
    def retention(self, count):
        """What the log loses is settled, unless that is on its way already."""
        offset = self.window.start_offset + count
        self.window.forget_before(offset)
        for at in range(self.next, offset):
            self.records[at] = ModelRecord(ARCHIVED)
        self.next = max(self.next, offset)
        for at, record in self.records.items():
            if at < offset and record.state in (AVAILABLE, ACQUIRED):
                record.state, record.deliveries = (
                    ARCHIVED,
                    0,
                )  # no consumer got an answer: it need not last

    @rule()
    def bury(self):
        for offset, record in list(self.records.items()):
            if record.state == ARCHIVING and record.change is None:
                change = self.window.archived(offset, offset)
                record.before, record.state, record.change = ARCHIVING, ARCHIVED, change
                self._submit(change)
                return

    @precondition(lambda self: self.records)
    @rule(data=st.data())
    def acknowledge_more(self, data):
        self.acknowledge(data)

    # ── the disk ──────────────────────────────────────────────────────────────────────────────

    def _submit(self, change) -> None:
        if change:
            self.pending.append((change, self.window.projected_start(), list(change.spans)))

    @rule(count=st.integers(1, 3))
    def written(self, count):
        for _ in range(min(count, len(self.pending))):
            change, start_offset, spans = self.pending.pop(0)
            self.stored.restore(start_offset, spans)
            dying = self.window.confirm(change)
            mine = [at for at, record in self.records.items() if record.change is change]
            assert {at for span in dying for at in range(span.first, span.last + 1)} == {
                at for at in mine if self.records[at].state == ARCHIVING
            }
            for at in mine:
                self.records[at].change = None
                self.records[at].member = ""

    @precondition(lambda self: self.pending)
    @rule()
    def disk_fails(self):
        """Nothing behind a failed write is written either."""
        for change, _, _ in reversed(self.pending):
            self.window.undo(change)
            for record in self.records.values():
                if record.change is change:
                    record.state, record.change = record.before, None
        self.pending.clear()

    @precondition(lambda self: len(self.records) > 20)
    @rule()
    def crash(self):
        self.pending.clear()
        self.window = Window(100)
        self.window.restore(self.stored.start_offset, list(self.stored.spans()))
        settled = {
            at
            for at, record in self.records.items()
            if record.state in (ACKNOWLEDGED, ARCHIVED)
            and record.change is None
            and record.deliveries
        }
        retained: dict[int, ModelRecord] = {}
        for span in self.window.spans():
            for at in range(span.first, span.last + 1):
                retained[at] = ModelRecord(span.state, span.deliveries)
        for at in settled:  # what was confirmed to a consumer stays so
            assert at < self.window.start_offset or retained[at].state in (ACKNOWLEDGED, ARCHIVED)
        self.next = self.window.next_offset
        self.records = retained

    # ── what always holds ─────────────────────────────────────────────────────────────────────

    @invariant()
    def the_same(self):
        window = self.window
        spans = list(window.spans())
        at = window.start_offset
        for span in spans:  # no holes, no overlaps
            assert span.first == at
            at = span.last + 1
        assert at == window.next_offset == self.next
        for offset in range(100, window.start_offset):
            record = self.records.get(offset)
            assert record is None or (
                record.state in (ACKNOWLEDGED, ARCHIVED) and record.change is None
            )
        counts = [0] * 5
        for span in spans:
            counts[span.state] += span.last - span.first + 1
            for offset in range(span.first, span.last + 1):
                record = self.records[offset]
                if record.state in (ACKNOWLEDGED, ARCHIVED):
                    assert span.state in (ACKNOWLEDGED, ARCHIVED)
                else:
                    assert (span.state, span.deliveries) == (record.state, record.deliveries)
        assert counts == window.counts
        times = [
            record.until_s
            for record in self.records.values()
            if record.state == ACQUIRED
            or (record.state == AVAILABLE and record.until_s > self.now_s)
        ]
        assert window.next_event_s(self.now_s) == min(times, default=None)
        if spans and spans[0].state in (ACKNOWLEDGED, ARCHIVED):
            assert self.pending  # else it would be in front of the window


WindowModel.TestCase.settings = settings(
    max_examples=examples(400), stateful_step_count=50, deadline=None
)
TestWindow = WindowModel.TestCase


def test_a_million_acknowledged_records_behind_a_slow_one_are_one_run():
    window = Window(0)
    for first in range(0, 1_000_000, 500):
        window.acquire(first, first + 499, "m", 0.0, 30.0, 500)
        front = 1 if first == 0 else 0
        change = window.acknowledge(
            "m", [Acknowledgement(first + front, first + 499, [ACCEPT])], 0.0, RULES
        )
        window.confirm(change)
    assert window.run_count == 2
    assert (window.start_offset, window.in_flight, window.settled) == (0, 1, 999_999)


def test_every_other_record_rejected_takes_no_memory_either():
    window = Window(0)
    rules = RULES._replace(dead_letters=False)
    window.acquire(0, 9_999, "m", 0.0, 30.0, 10_000)
    kinds = [ACCEPT, REJECT] * 4_999
    window.confirm(window.acknowledge("m", [Acknowledgement(1, 9_998, kinds)], 0.0, rules))
    assert window.run_count == 3


def test_what_is_written_of_acknowledgements_in_order_is_the_start_offset_alone():
    window = Window(0)
    window.acquire(0, 499, "m", 0.0, 30.0, 500)
    change = window.acknowledge("m", [Acknowledgement(0, 499, [ACCEPT])], 0.0, RULES)
    assert change
    assert change.spans == []
    assert window.projected_start() == 500
    assert window.start_offset == 0  # until that is durable
    window.confirm(change)
    assert window.start_offset == 500


def test_records_the_log_has_lost_are_passed_over():
    window = Window(0)
    window.acquire(0, 9, "m", 0.0, 30.0, 10)
    window.forget_before(5)
    assert (window.start_offset, window.counts[ACQUIRED]) == (5, 5)
    window.forget_before(50)
    assert (window.start_offset, window.next_offset, window.in_flight) == (50, 50, 0)


@pytest.mark.parametrize(("deliveries", "delay_s"), [(1, 4.0), (2, 8.0), (3, 10.0), (5000, 10.0)])
def test_rests_double_up_to_a_limit(deliveries, delay_s):
    assert RULES.delay_s(deliveries) == delay_s
