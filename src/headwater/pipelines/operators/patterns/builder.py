"""`hw.pattern`: row patterns built in Python, compiled into the same automaton as their text.

    hw.pattern().begin("ordered", where="what = 'order'").then("paid", where="what = 'pay'")

`next` is the very next row of the key. `then` is a later row: rows in between are skipped, as few
as possible. `not_followed_by` is that no such row comes before the next step, or, as the last step,
before its time is over: such a match is decided by its deadline.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.language.pattern_tree import (
    Excluded,
    Repeated,
    Sequence,
    StepDeadline,
    Tree,
    Variable,
)
from headwater.pipelines.operators.time.durations import Duration, microseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

_BEGIN, _NEXT, _THEN, _NOT = "begin", "next", "then", "not_followed_by"
_SKIPPED: Final = "before_{}"  # the variable of rows that a step skips
_TIMES: Final = {"+": (1, None), "*": (0, None), "?": (0, 1)}


@dataclass(frozen=True)
class _Step:
    kind: str
    name: str
    where: "str | Column | None"
    least: int = 1
    most: int | None = 1
    within_us: int | None = None  # of the row before


@dataclass(frozen=True)
class Pattern:
    """Steps of a pattern. It is not changed: each method gives another one."""

    steps: tuple[_Step, ...] = ()
    within_us: int | None = None

    def begin(self, name: str, where: "str | Column | None" = None, *, times: Any = 1) -> "Pattern":
        """The first row; without `where`, any."""
        if self.steps:
            raise PipelineError("pattern: begin is the first step", hint="then, or next")
        return self._with(_BEGIN, name, where, times, None)

    def next(
        self,
        name: str,
        where: "str | Column | None" = None,
        *,
        times: Any = 1,
        within: Duration | None = None,
    ) -> "Pattern":
        """The row of the key that follows; `within` so long after the last row of the step before.

        `times` is a number, a range (2, 5) or (2, None), or "+", "*" or "?".
        """
        return self._with(_NEXT, name, where, times, within)

    def then(
        self,
        name: str,
        where: "str | Column | None" = None,
        *,
        times: Any = 1,
        within: Duration | None = None,
    ) -> "Pattern":
        """A later row; those in between are skipped."""
        return self._with(_THEN, name, where, times, within)

    def not_followed_by(
        self, name: str, where: "str | Column", *, within: Duration | None = None
    ) -> "Pattern":
        """No such row before the next step, which is a `then`; or, as the last step, none before
        `within` (or that of the pattern) is over.
        """
        if self.steps and self.steps[-1].kind == _NOT:
            raise PipelineError(
                "pattern: not_followed_by twice in a row", hint="one with both conditions, by OR"
            )
        return self._with(_NOT, name, where, 1, within)

    def within(self, duration: Duration) -> "Pattern":
        """How long a match may take, from its first row to its last."""
        return replace(self, within_us=microseconds(duration, "within", at_least_us=1))

    # ── for hw.match ──────────────────────────────────────────────────────────────────────────

    @property
    def ends_in_absence(self) -> bool:
        return bool(self.steps) and self.steps[-1].kind == _NOT

    def tree(self) -> Tree:
        """Raises PipelineError for steps that make no pattern."""
        self._check()
        parts: list[Tree] = []
        within_us = None
        for number, step in enumerate(self.steps):
            absent = self._absent_before(number)
            if step.kind == _NOT and number < len(self.steps) - 1:
                continue
            if absent is not None and absent.within_us is not None:
                step = replace(step, within_us=step.within_us or absent.within_us)  # noqa: PLW2901
            if step.within_us != within_us:
                parts.append(StepDeadline(step.within_us))
                within_us = step.within_us
            if step.kind in (_THEN, _NOT):
                skipped = Variable(self._skipped(number))
                parts.append(Excluded(Repeated(skipped, 0, None, is_greedy=False)))
            variable = Variable(step.name)
            is_one = (step.least, step.most) == (1, 1)
            parts.append(variable if is_one else Repeated(variable, step.least, step.most))
        return Sequence(tuple(parts))

    def conditions(self) -> "Mapping[str, str | Column]":
        found = {}
        for number, step in enumerate(self.steps):
            if step.kind == _NOT and number < len(self.steps) - 1:
                continue
            if step.where is not None:
                found[step.name] = step.where
            absent = self._absent_before(number)
            if absent is not None:
                found[self._skipped(number)] = _negated(absent.where)
        return found

    def _absent_before(self, number: int) -> _Step | None:
        before = self.steps[number - 1] if number else None
        return before if before is not None and before.kind == _NOT else None

    def _skipped(self, number: int) -> str:
        """The variable of the rows before a step that are skipped."""
        return _SKIPPED.format(self.steps[number].name)

    def _with(
        self, kind: str, name: str, where: Any, times: Any, within: Duration | None
    ) -> "Pattern":
        if not isinstance(name, str) or not name.isidentifier():
            raise PipelineError(
                f"pattern: {name!r} is no name of a variable", hint="letters, _, 0-9"
            )
        taken = {step.name.upper() for step in self.steps}
        taken |= {_SKIPPED.format(step.name).upper() for step in self.steps}
        if {name.upper(), _SKIPPED.format(name).upper()} & taken:
            raise PipelineError(f"pattern: {name} is the name of another step")
        if not self.steps and kind != _BEGIN:
            raise PipelineError(f"pattern: {kind} is no first step", hint='.begin("a", where=…)')
        within_us = None if within is None else microseconds(within, "within", at_least_us=1)
        least, most = _times(times)
        return replace(self, steps=(*self.steps, _Step(kind, name, where, least, most, within_us)))

    def _check(self) -> None:
        if not self.steps:
            raise PipelineError("pattern: it has no steps", hint='hw.pattern().begin("a", where=…)')
        for number, step in enumerate(self.steps):
            if self._absent_before(number) is not None and step.kind != _THEN:
                raise PipelineError(
                    f"pattern: not_followed_by is before {step.kind}",
                    hint="then: between a row and the very next one there is nothing to exclude",
                )
        last = self.steps[-1]
        if last.kind == _NOT and last.within_us is None and self.within_us is None:
            raise PipelineError(
                "pattern: it ends in not_followed_by without within",
                hint='not_followed_by("b", where=…, within="1 hour"): by then it has not come',
            )


def pattern() -> Pattern:
    """A pattern for `hw.match`: `.begin(…)`, and then `.next`, `.then`, `.not_followed_by`."""
    return Pattern()


def _times(times: Any) -> tuple[int, int | None]:
    if isinstance(times, str) and times in _TIMES:
        return _TIMES[times]
    bounds = (times, times) if isinstance(times, int) else times
    if isinstance(bounds, tuple) and len(bounds) == 2:
        least, most = bounds
        is_range = isinstance(least, int) and 0 <= least <= 1_000
        if is_range and (
            most is None or (isinstance(most, int) and max(least, 1) <= most <= 1_000)
        ):
            return least, most
    raise PipelineError(
        f"pattern: times={times!r}", hint='3, (2, 5), (2, None), "+", "*" or "?"; up to 1,000'
    )


def _negated(where: Any) -> Any:
    """True where the condition is not true: false, or null."""
    if isinstance(where, str):
        return f"NOT coalesce(({where}), false)"
    from pyspark.sql import functions as F  # noqa: N812

    return ~F.coalesce(where, F.lit(False))
