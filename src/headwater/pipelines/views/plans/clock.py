"""Conditions on the current time in a query: `WHERE ordered_at > now() - interval 1 hour`.

Spark's optimiser makes a constant of now(). So such conditions are replaced in the analysed query
by marks: functions of one column that the optimiser moves as it moves any condition, and does not
look into. What remains of them in its plan is translated (MovingFilter).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from headwater.errors import QueryRefused
from headwater.pipelines.views.plans.catalyst import (
    Catalyst,
    children,
    items,
    kind_of,
    nodes_of,
    offset_of,
    parts_of,
)

_CLOCK: Final = frozenset(
    {
        "CurrentTimestamp",
        "Now",
        "LocalTimestamp",
        "CurrentDate",
        "CurrentTime",
        "CurrentTimestampLike",
    }
)
_NOW: Final = ("Now", "CurrentTimestamp")
_WRAPPED: Final = ("Cast", "DatetimeSub")  # around now() - interval; of the same type
# Whether a row is there until (else: from) its time, and whether the moment itself is included,
# if the time stands on the left of the comparison.
_COMPARISONS: Final = {
    "GreaterThan": (True, False),
    "GreaterThanOrEqual": (True, True),
    "LessThan": (False, False),
    "LessThanOrEqual": (False, True),
}
_MIRRORED: Final = {
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}
_UNTIL: Final = "headwater until "
_FROM: Final = "headwater from "


@dataclass(frozen=True)
class Mark:
    """A row is there until the time plus the offset, or from then on."""

    time: Any  # an expression
    offset_us: int
    is_until: bool


def reads_clock(plan: Any) -> bool:
    return any(_has_clock(one) for node in nodes_of(plan) for one in items(node.expressions()))


def with_marks(catalyst: Catalyst, plan: Any) -> Any:
    """The analysed plan, with marks for conditions on now(). Raises QueryRefused for other uses of
    a clock.
    """
    if not reads_clock(plan):
        return plan
    below = [with_marks(catalyst, child) for child in children(plan)]
    plan = plan.withNewChildren(catalyst.seq(below))
    for subquery in items(plan.subqueries()):
        if reads_clock(subquery):
            raise QueryRefused(
                "sql: now() in a subquery of a condition cannot be maintained incrementally",
                hint="write the subquery as a join: FROM a JOIN (SELECT … WHERE … now()) b ON …",
                offset=offset_of(subquery),
            )
    used = [one for one in items(plan.expressions()) if _has_clock(one)]
    if not used:
        return plan
    if kind_of(plan) == "Filter":
        (child,) = below
        return catalyst.filter(_marked(catalyst, plan.condition()), child)
    if kind_of(plan) == "Join":
        return catalyst.join(plan, _marked(catalyst, plan.condition().get()))
    raise _refused(used[0])


def mark_of(expression: Any) -> Mark | None:
    """The mark that an expression is."""
    if kind_of(expression) != "ScalaUDF" or not expression.udfName().isDefined():
        return None
    name = str(expression.udfName().get())
    for prefix, is_until in ((_UNTIL, True), (_FROM, False)):
        if name.startswith(prefix):
            return Mark(children(expression)[0], int(name.removeprefix(prefix)), is_until)
    return None


def conjuncts(condition: Any) -> Iterator[Any]:
    if kind_of(condition) == "And":
        for part in children(condition):
            yield from conjuncts(part)
    else:
        yield condition


def _marked(catalyst: Catalyst, condition: Any) -> Any:
    found: Any = None
    for part in conjuncts(condition):
        for one in _of_comparison(catalyst, part) if _has_clock(part) else [part]:
            found = one if found is None else catalyst.both(found, one)
    return found


def _of_comparison(catalyst: Catalyst, condition: Any) -> list[Any]:
    kind = kind_of(condition)
    if kind == "Between":
        low = catalyst.compared("GreaterThanOrEqual", condition.input(), condition.lower())
        high = catalyst.compared("LessThanOrEqual", condition.input(), condition.upper())
        return [
            made
            for one in (low, high)
            for made in (_of_comparison(catalyst, one) if _has_clock(one) else [one])
        ]
    if kind not in _COMPARISONS:
        raise _refused(condition)
    time, clock = children(condition)
    if _has_clock(time):
        time, clock, kind = clock, time, _MIRRORED[kind]
    offset_us = _offset_us(clock)
    if offset_us is None or _has_clock(time) or kind_of(time.dataType()) != "TimestampType":
        raise _refused(condition)
    is_until, includes_it = _COMPARISONS[kind]
    # time > now + offset: until time - offset; with equality, a microsecond longer.
    at_us = -offset_us + (1 if is_until == includes_it else 0)
    return [catalyst.mark(f"{_UNTIL if is_until else _FROM}{at_us}", time)]


def _offset_us(expression: Any) -> int | None:
    """Of now() plus or minus an interval of days, hours, …; None if it is something else."""
    kind = kind_of(expression)
    if kind in _NOW:
        return 0
    if kind in _WRAPPED and kind_of(expression.dataType()) == "TimestampType":
        return _offset_us(children(expression)[0])
    if kind == "TimestampAddInterval":
        start, interval = children(expression)
        before_us = _offset_us(start)
        is_exact = kind_of(interval.dataType()) == "DayTimeIntervalType" and interval.foldable()
        if before_us is not None and is_exact:
            return before_us + int(interval.eval(None))
    return None


def _has_clock(expression: Any) -> bool:
    return any(kind_of(part) in _CLOCK for part in parts_of(expression))


def _refused(expression: Any) -> QueryRefused:
    clock = next(part for part in parts_of(expression) if kind_of(part) in _CLOCK)
    place = offset_of(clock)
    return QueryRefused(
        f"sql: {expression.sql()} changes although no record arrives",
        detail="now() can be in conditions that compare it with a time, joined by AND",
        hint="WHERE ordered_at > now() - interval 1 hour; intervals of days, hours and less",
        offset=offset_of(expression) if place is None else place,
    )
