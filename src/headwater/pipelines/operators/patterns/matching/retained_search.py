"""The search of one key that late rows can still correct: two searches over the same rows.

    settled   has read the rows that no admitted row can be before any more
    head      has read all rows that the watermark has passed: its results have been emitted

Without late rows the head reads on. After a late row both what was emitted since the settled search
and what should have been are found by reading on from there, without the late rows and with them.
So emitted results are not stored: they follow from the settled search and the rows behind it.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.pipelines.operators.patterns.matching.attempt import NEVER_US, Holds, Machine
from headwater.pipelines.operators.patterns.matching.search import Found, Search, SearchRules


@dataclass(frozen=True, slots=True)
class Watermarks:
    settled_us: int  # no later row can be before it
    before_us: int  # of the batch before
    now_us: int

    @property
    def allowed_us(self) -> int:
        return self.now_us - self.settled_us


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows of the key from the first stored one on, and their conditions."""

    times_us: Sequence[int]
    holds: Holds
    can_start: Callable[[int], bool] | None


class RetainedSearch:
    """In one batch: either `read_on` or `read_again`, then the state after it."""

    def __init__(
        self, rules: SearchRules, machine: Machine, stored: list[Any] | None, watermarks: Watermarks
    ) -> None:
        self._rules = rules
        self._machine = machine
        self._watermarks = watermarks
        self._settled: list[Any] | None
        self._head: list[Any] | None
        self._read: int  # how many of the rows the settled search has read
        self._settled, self._read, self._head = stored or (None, 0, None)
        self.first: int = self._settled[0] if self._settled else 0  # the number of the first row
        self._has_state = True
        self.timer_us = NEVER_US  # the watermark that the key has to be visited at
        self.timeouts = 0
        self.misses = 0

    def read_on(self, line: Timeline, old: int) -> list[Found]:
        """Results of the rows that are behind the `old` ones."""
        times_us = line.times_us
        forgotten = self._head[0] - self.first if self._head else 0
        head = self._search(self._head, times_us[forgotten:old])
        found = [*_read(head, line, times_us[old:], self._watermarks.now_us)]
        self.timeouts, self.misses = head.timeouts, head.misses
        settled = self._search(self._settled, times_us[: self._read])
        for _ in self._settle(settled, line):
            pass  # the head has given these results
        self._end(head, line)
        return found

    def read_again(self, before: Timeline, after: Timeline) -> tuple[list[Found], list[Found]]:
        """All results behind the settled search: those that have been emitted, and those that
        there are with the late rows, which only `after` has.
        """
        emitted = self._search(self._settled, before.times_us[: self._read])
        unsettled_us = before.times_us[self._read :]
        was = [*_read(emitted, before, unsettled_us, self._watermarks.before_us)]
        search = self._search(self._settled, after.times_us[: self._read])
        found = [*self._settle(search, after)]
        unsettled_us = after.times_us[self._settled_rows(after) :]
        found += _read(search, after, unsettled_us, self._watermarks.now_us)
        self.timeouts = search.timeouts - emitted.timeouts
        self.misses = search.misses - emitted.misses
        self._end(search, after)
        return was, found

    def to_json(self) -> list[Any] | None:
        """None: the key needs no state."""
        return [self._settled, self._read, self._head] if self._has_state else None

    @property
    def first_after(self) -> int:
        """The number of the first row that is still needed."""
        assert self._settled is not None
        first: int = self._settled[0]
        return first

    def _search(self, stored: list[Any] | None, times_us: Sequence[int]) -> Search:
        return Search(self._rules, self._machine, list(times_us), stored)

    def _settled_rows(self, line: Timeline) -> int:
        """How many of the rows no later one can be before."""
        return bisect_left(line.times_us, self._watermarks.settled_us)

    def _settle(self, search: Search, line: Timeline) -> Iterator[Found]:
        """`search` has read what the settled one has. It goes on until now, and is stored."""
        times_us = line.times_us[self._read : self._settled_rows(line)]
        yield from _read(search, line, times_us, self._watermarks.settled_us)
        search.forget()
        self._has_state = search.has_state
        self._settled, self._read = search.snapshot(), len(search.times_us)
        self._visit_at(search.timer_us + self._watermarks.allowed_us)

    def _end(self, head: Search, line: Timeline) -> None:
        head.forget()
        self._head = head.snapshot()
        self._visit_at(head.timer_us)
        if self._settled_rows(line) < len(line.times_us):
            self._has_state = True
            self._visit_at(line.times_us[-1] + self._watermarks.allowed_us)

    def _visit_at(self, timer_us: int) -> None:
        self.timer_us = min(self.timer_us, timer_us)


def _read(
    search: Search, line: Timeline, times_us: Sequence[int], until_us: int
) -> Iterator[Found]:
    """The next rows, and the deadlines until then."""
    for time_us in times_us:
        yield from search.add(time_us, line.holds, line.can_start)
    yield from search.pass_time(until_us, line.holds, line.can_start)
