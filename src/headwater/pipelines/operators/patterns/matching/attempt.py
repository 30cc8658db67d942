"""One attempt to match: the threads of an automaton that begin at one row.

Threads are in the order of preferment. All of them read a row before the next row is read, so an
attempt can wait for rows that have not come yet, and its state is small: a thread is its place in
the program, the labels of its rows, and its deadline. A thread that reaches the end of the program
is the match unless a preferred one reaches it later: those behind it end at once, and the match is
final when none is left before it.

Labels are a text with one character for each row (`label_of`), which Python searches and stores
fast. Where no condition depends on the rows that a thread has matched before, threads at the same
place have the same future, and only the preferred one goes on: there are never more threads than
instructions.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.matching.automaton import (
    Accept,
    AssertStart,
    Automaton,
    BeginIteration,
    EndIteration,
    Jump,
    SetDeadline,
    Split,
    Take,
)

NEVER_US: Final = 2**62  # a deadline that does not come
MOST_THREADS: Final = 10_000
_ACCEPT: Final = -1
_KEEP: Final = -1  # the deadline stays as it is
_FIRST_CHARACTER: Final = 33

Thread = tuple[int, str, int]  # place in the program, labels, deadline
# Whether a row meets the condition of a variable: the row's number and the labels, its own included
Holds = Callable[[int, int, str], bool]


def label_of(label: int) -> str:
    return chr(_FIRST_CHARACTER + label)


def variable_of(character: str) -> int:
    """The number of the variable of a label."""
    return (ord(character) - _FIRST_CHARACTER) >> 1


def is_excluded(character: str) -> bool:
    return bool((ord(character) - _FIRST_CHARACTER) & 1)


class TooManyThreads(PipelineError):
    """The rows can be mapped to variables in very many ways."""


class Machine:
    """An automaton, ready to run: the places that threads reach without reading a row."""

    def __init__(self, automaton: Automaton, *, merges: bool) -> None:
        """`merges`: no condition depends on rows that were matched before."""
        self.merges = merges
        self._program = automaton.program
        self.labels = [
            label_of(step.label) if isinstance(step, Take) else "" for step in self._program
        ]
        self.variables = [
            step.label >> 1 if isinstance(step, Take) else 0 for step in self._program
        ]
        self.has_deadlines = any(isinstance(step, SetDeadline) for step in self._program)
        self._reached: dict[tuple[int, bool], list[tuple[int, int | None]]] = {}

    def reached(self, place: int, is_start: bool = False) -> list[tuple[int, int | None]]:
        """The places of Take or Accept, preferred ones first, and what becomes of the deadline."""
        found = self._reached.get((place, is_start))
        if found is None:
            found = self._reached[place, is_start] = self._follow(place, is_start)
        return found

    def _follow(self, place: int, is_start: bool) -> list[tuple[int, int | None]]:
        found: dict[tuple[int, int | None], None] = {}
        none: frozenset[int] = frozenset()
        pending: list[tuple[int, frozenset[int], int | None]] = [(place, none, _KEEP)]
        visited = set()
        while pending:
            state = pending.pop()
            if state in visited:
                continue
            visited.add(state)
            at, begun, within_us = state
            step = self._program[at]
            if isinstance(step, Take):
                found[at, within_us] = None
            elif isinstance(step, Accept):
                found[_ACCEPT, within_us] = None
            elif isinstance(step, Split):
                pending.append((step.other, begun, within_us))
                pending.append((step.preferred, begun, within_us))
            elif isinstance(step, Jump):
                pending.append((step.to, begun, within_us))
            elif isinstance(step, BeginIteration):
                pending.append((at + 1, begun | {step.loop}, within_us))
            elif isinstance(step, EndIteration):
                if step.loop not in begun:
                    pending.append((at + 1, begun, within_us))
            elif isinstance(step, SetDeadline):
                pending.append((at + 1, begun, step.within_us))
            elif isinstance(step, AssertStart) and is_start:
                pending.append((at + 1, begun, within_us))
        return list(found)


class Attempt:
    """Begins at the row `start`; `read` is given this row and those that follow, one by one."""

    __slots__ = ("_limit_us", "_machine", "candidate", "expired", "start", "threads")

    def __init__(self, machine: Machine, start: int, limit_us: int) -> None:
        """`limit_us`: the last time that a row may have, by WITHIN."""
        self._machine = machine
        self._limit_us = limit_us
        self.start = start
        self.threads: list[Thread] = []
        self.candidate: str | None = None  # labels of a match that is preferred less than threads
        self.expired: str | None = None  # labels of the preferred thread that time has ended

    @classmethod
    def begun(cls, machine: Machine, start: int, limit_us: int) -> "Attempt":
        attempt = cls(machine, start, limit_us)
        for place, _ in machine.reached(0, is_start=start == 0):
            if place == _ACCEPT:
                attempt.candidate = ""
                break
            attempt.threads.append((place, "", limit_us))
        return attempt

    def read(self, number: int, time_us: int, holds: Holds) -> None:
        """A row whose time no thread's deadline is before. Raises TooManyThreads."""
        machine = self._machine
        labels_of, variables, merges = machine.labels, machine.variables, machine.merges
        verdicts: dict[int, bool] = {}
        threads: list[Thread] = []
        seen = set()
        for place, before, deadline_us in self.threads:
            variable = variables[place]
            labels = before + labels_of[place]
            verdict = verdicts.get(variable) if merges else None
            if verdict is None:
                verdict = verdicts[variable] = holds(variable, number, labels)
            if not verdict:
                continue
            for target, within_us in machine.reached(place + 1):
                if target == _ACCEPT:
                    self.candidate = labels
                    self.threads = threads
                    return
                until_us = deadline_us
                if within_us is None:
                    until_us = self._limit_us
                elif within_us != _KEEP:
                    until_us = min(self._limit_us, time_us + within_us)
                if merges:
                    if (target, until_us) in seen:
                        continue
                    seen.add((target, until_us))
                threads.append((target, labels, until_us))
        if len(threads) > MOST_THREADS:
            raise TooManyThreads(
                f"hw.match: a pattern has more than {MOST_THREADS:,} partial matches at one row",
                hint="its conditions depend on rows that were matched before, and it can map the"
                " same rows to variables in very many ways: make conditions exclude each other,"
                " or within shorter",
            )
        self.threads = threads

    def give_up(self) -> None:
        """It has no match, and has not run out of time."""
        self.threads, self.candidate, self.expired = [], None, None

    @property
    def deadline_us(self) -> int:
        """The first of its threads."""
        if not self._machine.has_deadlines:
            return self._limit_us
        return min((thread[2] for thread in self.threads), default=NEVER_US)

    def expire(self, time_us: int) -> None:
        """Ends threads whose deadline is before this time."""
        if self.deadline_us >= time_us:
            return
        alive = [thread for thread in self.threads if thread[2] >= time_us]
        if len(alive) < len(self.threads):
            self.expired = next(labels for _, labels, until in self.threads if until < time_us)
            self.threads = alive

    def to_json(self) -> list[Any]:
        return [self.start, self._limit_us, self.threads, self.candidate, self.expired]

    @classmethod
    def from_json(cls, machine: Machine, stored: Sequence[Any]) -> "Attempt":
        start, limit_us, threads, candidate, expired = stored
        attempt = cls(machine, start, limit_us)
        attempt.threads = [(place, labels, until_us) for place, labels, until_us in threads]
        attempt.candidate, attempt.expired = candidate, expired
        return attempt
