"""The search for matches in the rows of one key, one attempt after another.

The standard's rule: an attempt at a row gives its preferred match, or none. After a match the next
attempt begins where AFTER MATCH SKIP says, else at the next row. A row is given to the search when
the watermark has passed it; a deadline comes among rows, after those of its own time. So what is
found follows from the rows alone, and `time_us` of each result is that of the row or the deadline
that decided it.

A stream has no last row: without a deadline, an attempt waits for its next row.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from headwater.pipelines.operators.patterns.matching.attempt import (
    NEVER_US,
    Attempt,
    Holds,
    Machine,
    TooManyThreads,
    variable_of,
)

PAST_LAST_ROW: Final = "past last row"
TO_NEXT_ROW: Final = "to next row"
TO_FIRST: Final = "to first"
TO_LAST: Final = "to last"

MATCHED: Final = "matched"
TIMED_OUT: Final = "timed out"
UNMATCHED: Final = "unmatched"


@dataclass(frozen=True, slots=True)
class Found:
    """A match; a partial one whose time ran out; or a row that no match has (without labels)."""

    kind: str
    start: int  # the number of its first row
    labels: str
    number: int  # MATCH_NUMBER
    time_us: int


@dataclass(frozen=True)
class SearchRules:
    skip: str = PAST_LAST_ROW
    target: frozenset[int] = frozenset()  # variables that TO_FIRST and TO_LAST lead to
    within_us: int | None = None
    history: int = 0  # rows before a match that its conditions and measures can name
    lookahead: int = 0  # rows after one, too
    gives_timed_out: bool = False  # else they are counted only
    gives_unmatched: bool = False
    numbers: bool = False  # MATCH_NUMBER is asked for: it is stored for each key for ever
    remembers_start: bool = False  # as is whether a key has had rows, for the anchor ^
    gives_up: bool = False  # an attempt with too many partial matches; else that is an error


class Search:
    """Of one key, in one batch. Rows have numbers; those that it may need are from `first` on."""

    def __init__(
        self,
        rules: SearchRules,
        machine: Machine,
        times_us: list[int],
        stored: list[Any] | None = None,
    ) -> None:
        """`times_us`: of the stored rows, from `first` on; more come with `add`."""
        self._rules = rules
        self._machine = machine
        self.times_us = times_us
        self.first = 0
        self._start = 0  # where the attempt is, or where the next one begins
        self._position = 0  # the next row that the attempt reads
        self._number = 0
        self._covered = 0  # rows before it are in a match, or were given as unmatched
        self._attempt: Attempt | None = None
        self.misses = 0  # AFTER MATCH SKIP named a row that is not in the match, or is its first
        self.timeouts = 0
        self.given_up = 0
        if stored is not None:
            attempt: list[Any] | None
            (self.first, self._start, self._position, self._number, self._covered, attempt) = stored
            if attempt is not None:
                self._attempt = Attempt.from_json(machine, attempt)

    def add(
        self, time_us: int, holds: Holds, can_start: Callable[[int], bool] | None
    ) -> Iterator[Found]:
        """The next row. `can_start`: whether an attempt at a row (by its number) can succeed."""
        yield from self.pass_time(time_us, holds, can_start)
        self.times_us.append(time_us)
        yield from self._advance(time_us, holds, can_start)

    def pass_time(
        self, before_us: int, holds: Holds, can_start: Callable[[int], bool] | None
    ) -> Iterator[Found]:
        """All deadlines before this time are due."""
        while (due_us := self.timer_us) < before_us:
            assert self._attempt is not None
            self._attempt.expire(due_us + 1)
            if not self._attempt.threads:
                yield from self._decide(due_us)
                yield from self._advance(due_us, holds, can_start)

    @property
    def timer_us(self) -> int:
        """The next deadline. With a lookahead it waits for rows before it that cannot be read."""
        if self._attempt is None:
            return NEVER_US
        deadline_us = self._attempt.deadline_us
        unread = self._position - self.first
        if unread < len(self.times_us) and self.times_us[unread] <= deadline_us:
            return NEVER_US
        return deadline_us

    def forget(self) -> int:
        """How many of the first rows are not needed any more; they are removed."""
        needed = max(self.first, self._start - self._rules.history)
        dropped = min(needed - self.first, len(self.times_us))
        del self.times_us[:dropped]
        self.first += dropped
        return dropped

    def to_json(self) -> list[Any] | None:
        """After `forget`. None: a key without state would go on in the same way."""
        return self.snapshot() if self.has_state else None

    @property
    def has_state(self) -> bool:
        is_open = bool(self.times_us) or self._attempt is not None
        has_number = self._rules.numbers and self._number > 0
        return is_open or has_number or self._rules.remembers_start

    def snapshot(self) -> list[Any]:
        """After `forget`. Also what a key without state needs for its rows to have numbers."""
        attempt = None if self._attempt is None else self._attempt.to_json()
        return [
            self.first,
            self._start,
            self._position,
            self._number,
            self._covered,
            attempt,
        ]

    def _advance(
        self, now_us: int, holds: Holds, can_start: Callable[[int], bool] | None
    ) -> Iterator[Found]:
        end = self.first + len(self.times_us) - self._rules.lookahead
        within_us = self._rules.within_us
        while True:
            if self._attempt is None:
                if self._start >= end:
                    return
                if can_start is not None and not can_start(self._start):
                    yield from self._next_row(now_us)
                    continue
                limit_us = NEVER_US
                if within_us is not None:
                    limit_us = self.times_us[self._start - self.first] + within_us
                self._attempt = Attempt.begun(self._machine, self._start, limit_us)
                self._position = self._start
            attempt = self._attempt
            while attempt.threads and self._position < end:
                time_us = self.times_us[self._position - self.first]
                attempt.expire(time_us)
                if not attempt.threads:
                    break
                self._read(attempt, time_us, holds)
                self._position += 1
            if attempt.threads:
                return
            yield from self._decide(now_us)

    def _read(self, attempt: Attempt, time_us: int, holds: Holds) -> None:
        try:
            attempt.read(self._position, time_us, holds)
        except TooManyThreads:
            if not self._rules.gives_up:
                raise
            attempt.give_up()
            self.given_up += 1

    def _decide(self, now_us: int) -> Iterator[Found]:
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        labels = attempt.candidate
        if labels is not None:
            self._number += 1
            yield Found(MATCHED, attempt.start, labels, self._number, now_us)
            self._covered = max(self._covered, attempt.start + max(len(labels), 1))
            self._start = self._after(attempt.start, labels)
            return
        if attempt.expired:
            self.timeouts += 1
            if self._rules.gives_timed_out:
                self._number += 1
                yield Found(TIMED_OUT, attempt.start, attempt.expired, self._number, now_us)
        yield from self._next_row(now_us)

    def _next_row(self, now_us: int) -> Iterator[Found]:
        if self._rules.gives_unmatched and self._start >= self._covered:
            yield Found(UNMATCHED, self._start, "", 0, now_us)
        self._start += 1

    def _after(self, start: int, labels: str) -> int:
        rules = self._rules
        if not labels or rules.skip == TO_NEXT_ROW:
            return start + 1
        if rules.skip == PAST_LAST_ROW:
            return start + len(labels)
        places = range(len(labels))
        order = places if rules.skip == TO_FIRST else reversed(places)
        found = next((at for at in order if variable_of(labels[at]) in rules.target), 0)
        if not found:
            self.misses += 1
            return start + 1
        return start + found
