"""The window of in-flight records of a share partition: KIP-932's state machine, without I/O.

    available ──acquire──▶ acquired ──accept──▶ acknowledged
        ▲                   │  │  └──gap, reject──▶ archived ◀──────┐
        └─release, expiry───┘  └──reject, last delivery──▶ archiving ┘  (copied to the dead letters)

The window is [start_offset, next_offset): in front of it everything is settled, behind it nothing
was delivered yet. It is stored as runs of neighbouring records that share one state, so a fetch of
five hundred records is one run, and a million acknowledged ones behind a slow one are one too.

Durability is the caller's: a change that settles records carries a `Change`. Until it is confirmed
the records are neither redelivered nor passed by the start offset; `undo` gives them back to their
consumer. Giving records back (release, expiry) needs no such care: a crash does the same.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from headwater.protocol.error_codes import ApiError, ErrorCode

# The states, as ShareSnapshot and ShareUpdate records number them.
AVAILABLE: Final = 0
ACQUIRED: Final = 1
ACKNOWLEDGED: Final = 2
ARCHIVING: Final = 3
ARCHIVED: Final = 4

# The kinds of acknowledgement, as the protocol numbers them.
GAP: Final = 0
ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4
KINDS: Final = ("gap", "accept", "release", "reject", "renew")

_SETTLED: Final = (ACKNOWLEDGED, ARCHIVED)


class Span(NamedTuple):
    """Neighbouring records of one state."""

    first: int
    last: int
    state: int
    deliveries: int


class Acknowledgement(NamedTuple):
    """The acknowledgement of first..last: one kind for all, or one for each."""

    first: int
    last: int
    kinds: Sequence[int]


class Rules(NamedTuple):
    """What the group's settings mean for one change."""

    lock_s: float
    delivery_limit: int
    dead_letters: bool  # whether what is given up on is copied before it is archived
    backoff_s: float = 0.0
    backoff_max_s: float = 0.0

    def delay_s(self, deliveries: int) -> float:
        """How long a record rests after that many deliveries."""
        if not self.backoff_s:
            return 0.0
        return min(self.backoff_s * 2.0 ** min(deliveries - 1, 60), self.backoff_max_s)


class Change:
    """Records whose new state is on its way to the disk. False if there is nothing to write."""

    __slots__ = ("first", "last", "rejected", "spans")

    def __init__(self) -> None:
        self.first = -1
        self.last = -1
        self.spans: list[Span] = []  # to be written, besides the start offset
        self.rejected: list[tuple[int, int]] = []  # what consumers refused, for the dead letters

    def __bool__(self) -> bool:
        return self.first >= 0


class _Run:
    __slots__ = ("change", "deliveries", "first", "last", "member", "state", "until_s")

    def __init__(self, first: int, last: int, state: int, deliveries: int) -> None:
        self.first = first
        self.last = last
        self.state = state
        self.deliveries = deliveries
        self.member = ""
        # Acquired: when the lock ends. Available: when the next delivery may be, 0 for now.
        self.until_s = 0.0
        self.change: Change | None = None  # not durable yet

    @property
    def count(self) -> int:
        return self.last - self.first + 1


class Window:
    """See the module. Times are of the monotonic clock; offsets are inclusive."""

    __slots__ = ("_firsts", "_runs", "counts", "next_offset", "start_offset")

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        self.next_offset = start_offset
        self.counts = [0, 0, 0, 0, 0]  # records of each state
        self._firsts: list[int] = []
        self._runs: list[_Run] = []

    @property
    def in_flight(self) -> int:
        """Records of the window that are not settled: what the group's cap is about."""
        return self.counts[AVAILABLE] + self.counts[ACQUIRED] + self.counts[ARCHIVING]

    @property
    def settled(self) -> int:
        return self.counts[ACKNOWLEDGED] + self.counts[ARCHIVED]

    @property
    def run_count(self) -> int:
        return len(self._runs)

    def spans(self) -> Iterator[Span]:
        return (Span(run.first, run.last, run.state, run.deliveries) for run in self._runs)

    # ── delivering ────────────────────────────────────────────────────────────────────────────

    def first_due(self, now_s: float) -> int | None:
        """The first record inside the window that may be delivered (again) now."""
        if self.counts[AVAILABLE]:
            for run in self._runs:
                if run.state == AVAILABLE and run.until_s <= now_s:
                    return run.first
        return None

    def open_runs(self, now_s: float) -> Iterator[tuple[int, int, bool]]:
        """What is not settled, durably, in order: first, last, and whether it may be delivered."""
        for run in self._runs:
            if run.state not in _SETTLED or run.change is not None:
                yield run.first, run.last, run.state == AVAILABLE and run.until_s <= now_s

    def acquire(
        self, first: int, last: int, member: str, now_s: float, until_s: float, limit: int
    ) -> list[Span]:
        """Locks for `member` what may be delivered of first..last, `limit` records at most.

        What lies behind the window joins it; the caller begins no further than at its end.
        """
        acquired: list[Span] = []
        if first < self.next_offset and self.counts[AVAILABLE]:
            for run in self._cut(first, min(last, self.next_offset - 1)):
                if limit <= 0:
                    break
                if run.state == AVAILABLE and run.until_s <= now_s:
                    if run.count > limit:
                        self._boundary(run.first + limit)  # `run` is now the front part
                    self._lock(run, member, until_s)
                    acquired.append(Span(run.first, run.last, ACQUIRED, run.deliveries))
                    limit -= run.count
        if last >= self.next_offset and limit > 0:
            first = self.next_offset
            last = min(last, first + limit - 1)
            self._extend(last, ACQUIRED, 1, member, until_s)
            acquired.append(Span(first, last, ACQUIRED, 1))
        return acquired

    def drop(self, first: int, last: int) -> None:
        """Passes over what no consumer is to get: holes, control batches, aborted transactions.

        It need not be durable: a fetch that finds them again passes over them again.
        """
        for run in self._cut(max(first, self.start_offset), min(last, self.next_offset - 1)):
            if run.state == AVAILABLE:
                self._set(run, ARCHIVED)
        if last >= self.next_offset:
            self._extend(last, ARCHIVED, 0)
        self.advance()

    def offer(self, last: int) -> None:
        """Takes in records that are not delivered yet; for a group that chooses among them."""
        if last >= self.next_offset:
            self._extend(last, AVAILABLE, 0)

    # ── acknowledgements ─────────────────────────────────────────────────────────────────────

    def acknowledge(
        self, member: str, batches: Sequence[Acknowledgement], now_s: float, rules: Rules
    ) -> Change:
        """All of them or, raising the error code, none. What is in front of the window is over."""
        for batch in batches:
            self._check(member, batch)
        change = Change()
        for batch in batches:
            for first, last, kind in parts(batch):
                if last >= self.start_offset:
                    for run in self._cut(max(first, self.start_offset), last):
                        self._acknowledge(run, kind, change, now_s, rules)
        return self._close(change)

    def _check(self, member: str, batch: Acknowledgement) -> None:
        if batch.last < self.start_offset:
            return
        if batch.last >= self.next_offset:
            raise ApiError(ErrorCode.INVALID_REQUEST, "records that were never delivered")
        at = bisect_right(self._firsts, max(batch.first, self.start_offset)) - 1
        for run in self._runs[at:]:
            if run.first > batch.last:
                return
            if run.state != ACQUIRED or run.member != member:
                raise ApiError(
                    ErrorCode.INVALID_RECORD_STATE, "records that this member does not hold"
                )

    def _acknowledge(
        self, run: _Run, kind: int, change: Change, now_s: float, rules: Rules
    ) -> None:
        if kind == ACCEPT:
            self._settle(run, ACKNOWLEDGED, change)
        elif kind == GAP:
            self._settle(run, ARCHIVED, change)
        elif kind == RENEW:
            run.until_s = now_s + rules.lock_s
        elif kind == REJECT:
            self._settle(run, ARCHIVING if rules.dead_letters else ARCHIVED, change)
            change.rejected.append((run.first, run.last))
        else:
            self._give_back(run, change, now_s, rules)

    # ── without a request ──────────────────────────────────────────────────────────────────────

    def expire(self, now_s: float, rules: Rules) -> Change:
        """Takes back what was locked for too long."""
        return self._take_back(
            (run for run in self._runs if run.state == ACQUIRED and run.until_s <= now_s),
            now_s,
            rules,
        )

    def release(self, member: str, now_s: float, rules: Rules) -> Change:
        """Takes back what `member` holds."""
        return self._take_back(
            (run for run in self._runs if run.state == ACQUIRED and run.member == member),
            now_s,
            rules,
        )

    def archived(self, first: int, last: int) -> Change:
        """The dead letters of first..last have been copied."""
        change = Change()
        for run in self._cut(max(first, self.start_offset), last):
            if run.state == ARCHIVING:
                self._settle(run, ARCHIVED, change)
        return self._close(change)

    def forget_before(self, offset: int) -> None:
        """The log begins at `offset` now: what was in front of it can't be delivered again."""
        if offset <= self.start_offset:
            return
        if offset > self.next_offset:
            self._extend(offset - 1, ARCHIVED, 0)
        for run in self._cut(self.start_offset, offset - 1):
            if run.state in (AVAILABLE, ACQUIRED) and run.change is None:
                self._set(run, ARCHIVED)
        self.advance()

    def _take_back(self, runs: Iterable[_Run], now_s: float, rules: Rules) -> Change:
        change = Change()
        for run in runs:
            self._give_back(run, change, now_s, rules)
        return self._close(change)

    def next_event_s(self, now_s: float) -> float | None:
        """When the next lock or the next rest of a record ends."""
        times = (
            run.until_s
            for run in self._runs
            if run.state == ACQUIRED or (run.state == AVAILABLE and run.until_s > now_s)
        )
        return min(times, default=None)

    def oldest_lock_ends_s(self) -> float | None:
        return min((run.until_s for run in self._runs if run.state == ACQUIRED), default=None)

    # ── durability ────────────────────────────────────────────────────────────────────────────

    def confirm(self, change: Change) -> list[Span]:
        """It is durable. Returns what has to be copied to the dead letters now."""
        dying: list[Span] = []
        for run in self._touched(change):
            if run.change is change:
                run.change = None
                run.member = ""
                if run.state == ARCHIVING:
                    dying.append(Span(run.first, run.last, ARCHIVING, run.deliveries))
        self._merge(change.first, change.last)
        self.advance()
        return dying

    def undo(self, change: Change) -> None:
        """It could not be stored: who held the records holds them still."""
        for run in self._touched(change):
            if run.change is change:
                run.change = None
                self._set(run, ARCHIVING if run.state == ARCHIVED and not run.member else ACQUIRED)

    def projected_start(self) -> int:
        """The start offset when everything on its way is durable."""
        for run in self._runs:
            if run.state not in _SETTLED:
                return run.first
        return self.next_offset

    def advance(self) -> None:
        """Moves the start behind what is settled, durably."""
        passed = 0
        for run in self._runs:
            if run.state not in _SETTLED or run.change is not None:
                break
            self.counts[run.state] -= run.count
            passed += 1
        if passed:
            del self._runs[:passed]
            del self._firsts[:passed]
            self.start_offset = self._firsts[0] if self._firsts else self.next_offset

    def restore(self, start_offset: int, spans: Iterable[Span]) -> None:
        """Lays stored states over what is there; later ones count."""
        for span in spans:
            first = max(span.first, self.start_offset)
            if first > span.last:
                continue
            if first > self.next_offset:
                self._extend(first - 1, AVAILABLE, 0)
            if span.last >= self.next_offset:
                self._extend(span.last, AVAILABLE, 0)
            for run in self._cut(first, span.last):
                self._set(run, span.state if span.state != ACQUIRED else AVAILABLE)
                run.deliveries = span.deliveries
        if start_offset > self.start_offset:
            if start_offset > self.next_offset:
                self._extend(start_offset - 1, ARCHIVED, 0)
            for run in self._cut(self.start_offset, start_offset - 1):
                self._set(run, ARCHIVED)
        self._merge(self.start_offset, self.next_offset)
        self.advance()

    # ── runs ──────────────────────────────────────────────────────────────────────────────────

    def _lock(self, run: _Run, member: str, until_s: float) -> None:
        self._set(run, ACQUIRED)
        run.deliveries += 1
        run.member = member
        run.until_s = until_s

    def _settle(self, run: _Run, state: int, change: Change) -> None:
        self._set(run, state)
        run.change = change
        _note(change, run)

    def _give_back(self, run: _Run, change: Change, now_s: float, rules: Rules) -> None:
        if run.deliveries >= rules.delivery_limit:
            self._settle(run, ARCHIVING if rules.dead_letters else ARCHIVED, change)
            return
        self._set(run, AVAILABLE)
        run.member = ""
        delay_s = rules.delay_s(run.deliveries)
        run.until_s = now_s + delay_s if delay_s else 0.0
        _note(change, run)  # for its number of deliveries

    def _close(self, change: Change) -> Change:
        """What is written of a change: nothing that the new start offset implies already."""
        start_offset = self.projected_start()
        change.spans = _joined([span for span in change.spans if span.last >= start_offset])
        return change

    def _set(self, run: _Run, state: int) -> None:
        self.counts[run.state] -= run.count
        self.counts[state] += run.count
        run.state = state

    def _extend(
        self, last: int, state: int, deliveries: int, member: str = "", until_s: float = 0.0
    ) -> None:
        """Adds [next_offset, last], to the last run if that is the same."""
        self.counts[state] += last - self.next_offset + 1
        tail = self._runs[-1] if self._runs else None
        if (
            tail is not None
            and tail.state == state
            and tail.deliveries == deliveries
            and tail.member == member
            and tail.until_s == until_s
            and tail.change is None
        ):
            tail.last = last
        else:
            run = _Run(self.next_offset, last, state, deliveries)
            run.member = member
            run.until_s = until_s
            self._runs.append(run)
            self._firsts.append(self.next_offset)
        self.next_offset = last + 1

    def _cut(self, first: int, last: int) -> list[_Run]:
        """The runs of exactly first..last, which lie in the window."""
        if first > last:
            return []
        begin = self._boundary(first)
        end = self._boundary(last + 1)
        return self._runs[begin:end]

    def _boundary(self, offset: int) -> int:
        """The index of the run that begins at `offset`, which is made to do so."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0 or offset >= self.next_offset:
            return max(at, -1) + 1
        run = self._runs[at]
        if run.first == offset:
            return at
        rest = _Run(offset, run.last, run.state, run.deliveries)
        rest.member, rest.until_s, rest.change = run.member, run.until_s, run.change
        run.last = offset - 1
        self._runs.insert(at + 1, rest)
        self._firsts.insert(at + 1, offset)
        return at + 1

    def _touched(self, change: Change) -> list[_Run]:
        begin = max(bisect_right(self._firsts, change.first) - 1, 0)
        end = bisect_right(self._firsts, change.last)
        return self._runs[begin:end]

    def _merge(self, first: int, last: int) -> None:
        """Joins neighbours that have become the same, from the one in front of `first` on."""
        begin = max(bisect_right(self._firsts, first) - 2, 0)
        end = min(bisect_right(self._firsts, last) + 1, len(self._runs))
        merged: list[_Run] = []
        for run in self._runs[begin:end]:
            before = merged[-1] if merged else None
            if before is not None and _can_join(before, run):
                if before.state != run.state:
                    self._set(before, ARCHIVED)
                    self._set(run, ARCHIVED)
                before.last = run.last
                before.deliveries = max(before.deliveries, run.deliveries)
            else:
                merged.append(run)
        if len(merged) != end - begin:
            self._runs[begin:end] = merged
            self._firsts[begin:end] = [run.first for run in merged]


def _can_join(before: _Run, after: _Run) -> bool:
    if before.change is not None or after.change is not None:
        return False
    if before.state in _SETTLED and after.state in _SETTLED:
        # Which of the two they are is no longer distinguished: only that bounds the memory when
        # every other record is rejected.
        return True
    return (
        before.state == after.state == AVAILABLE
        and before.deliveries == after.deliveries
        and before.until_s == after.until_s
    )


def _note(change: Change, run: _Run) -> None:
    if change.first < 0 or run.first < change.first:
        change.first = run.first
    change.last = max(change.last, run.last)
    change.spans.append(Span(run.first, run.last, run.state, run.deliveries))


def _joined(spans: list[Span]) -> list[Span]:
    joined: list[Span] = []
    for span in spans:
        before = joined[-1] if joined else None
        if (
            before is not None
            and before.last + 1 == span.first
            and before.state == span.state
            and before.deliveries == span.deliveries
        ):
            joined[-1] = before._replace(last=span.last)
        else:
            joined.append(span)
    return joined


def parts(batch: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """The batch as ranges of one kind."""
    if len(batch.kinds) == 1:
        yield batch.first, batch.last, batch.kinds[0]
        return
    first = batch.first
    for kind, same in groupby(batch.kinds):
        count = sum(1 for _ in same)
        yield first, first + count - 1, kind
        first += count
