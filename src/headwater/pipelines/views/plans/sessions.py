"""`session_window(at, '10 minutes')` in a GROUP BY.

Spark's analyser gives every row a session of its own, from its time to the gap behind it; its
physical aggregates merge those that overlap. The optimised plan has no trace of that. So a step is
added to the analysed query below such an aggregate: a window function by the other columns of the
group, whose result is the merged session of each row (nodes/window_functions.py). The optimiser
treats it as any window function: a condition on the session's start is not moved below it.

In grouping sets the step is above Spark's Expand, which gives every row once for each set. The
number of the set is among the other columns, so rows of two sets do not meet; in a set without the
session it is null.
"""

from typing import Any, Final

from headwater.errors import QueryRefused
from headwater.pipelines.views.plans.catalyst import (
    Catalyst,
    children,
    id_of,
    items,
    kind_of,
    nodes_of,
    offset_of,
    parts_of,
)

SESSION: Final = "headwater.session"  # in the metadata of the merged session
_SPARKS: Final = "spark.sessionWindow"  # in that of the row's own


def has_sessions(plan: Any) -> bool:
    return any(_sessions_of(node) for node in nodes_of(plan))


def is_session(attribute: Any) -> bool:
    """Whether a column, or a window function's alias, is a merged session."""
    return bool(attribute.metadata().contains(SESSION))


def with_sessions(catalyst: Catalyst, plan: Any) -> Any:
    """The analysed plan, with merged sessions below aggregates by session_window(). Raises
    QueryRefused where it is used in other ways.
    """
    if not has_sessions(plan):
        return plan
    for subquery in items(plan.subqueries()):
        if has_sessions(subquery):
            raise QueryRefused(
                "session_window() in a subquery of a condition cannot be maintained incrementally",
                hint="write the subquery as a join: FROM a JOIN (SELECT … GROUP BY …) b ON …",
                offset=offset_of(subquery),
            )
    below = [with_sessions(catalyst, child) for child in children(plan)]
    plan = plan.withNewChildren(catalyst.seq(below))
    found = _sessions_of(plan)
    if not found:
        return plan
    (child,) = below
    session = found[0]
    grouping = items(plan.groupingExpressions())
    others = [one for one in grouping if not _is(one, session) and not one.foldable()]
    merged = catalyst.merged_sessions(session, others, child, SESSION)
    new = items(merged.output())[-1]

    def replacement(expression: Any) -> Any:
        return new if _is(expression, session) else None

    results = [
        catalyst.alias(new, one.name(), one.exprId())
        if _is(one, session)
        else catalyst.replaced(one, replacement)
        for one in items(plan.aggregateExpressions())
    ]
    groups = [catalyst.replaced(one, replacement) for one in grouping]
    return catalyst.aggregate(groups, results, merged)


def _sessions_of(node: Any) -> list[Any]:
    """The rows' own sessions that an aggregate groups by; Spark allows one."""
    if kind_of(node) != "Aggregate":
        return []
    return [
        part
        for expression in items(node.groupingExpressions())
        for part in parts_of(expression)
        if kind_of(part) == "AttributeReference" and part.metadata().contains(_SPARKS)
    ]


def _is(expression: Any, attribute: Any) -> bool:
    is_column = kind_of(expression) == "AttributeReference"
    return is_column and id_of(expression) == id_of(attribute)
