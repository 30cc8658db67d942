"""Predicate pushdown for lineage: where a condition on a frame arrives in Spark's plan.

Spark's optimiser moves it through projections, groups and joins as far towards the leaves of the
plan as it holds. Leaves are sources, and our operators, which are opaque to Spark.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame

_PASSED: Final = ("Project", "Filter")  # the optimiser leaves a condition right above a leaf
_JOINS: Final = ("Join", "AsOfJoin", "NearestByJoin")
_WITHOUT_RECORDS: Final = ("LocalRelation", "OneRowRelation", "Range", "CommandResult")


@dataclass(frozen=True)
class Arrival:
    """One leaf of the plan, and the conditions that arrived there."""

    operator: str | None  # its name; None: a source
    options: dict[str, str]  # of a source
    columns: tuple[str, ...]
    topics: tuple[str, ...]  # that its rows are read from
    condition: str | None  # SQL; None: any of its rows may count
    is_certain: bool  # all rows that meet it count; else some of them


def arrivals(frame: DataFrame, condition: Column, operators: Collection[str]) -> list[Arrival]:
    """Of the rows of the frame that meet the condition. A leaf without such rows is left out."""
    without = [text for leaf in _leaves(frame, operators) for text in (*leaf.arrived, *leaf.stuck)]
    found = []
    for leaf in _leaves(frame.where(condition), operators):
        is_new = any(
            text not in without and not is_trivial for text, is_trivial in leaf.arrived.items()
        )
        is_stuck = any(text not in without for text in leaf.stuck)
        is_certain = not leaf.is_joined and not is_stuck
        text = " AND ".join(leaf.arrived) or "true"
        found.append(
            Arrival(
                leaf.operator,
                leaf.options,
                leaf.columns,
                leaf.topics,
                text if is_certain or is_new else None,
                is_certain,
            )
        )
    return found


def options_of(frame: DataFrame) -> dict[str, str]:
    """Of the one source that the frame reads."""
    return _options(frame._jdf.queryExecution().analyzed().collectLeaves().head())  # noqa: SLF001


def has_operators(frame: DataFrame, operators: Collection[str]) -> bool:
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    return any(leaf.operator for leaf in _below(plan, _Path(), operators))


def topics_of(frame: DataFrame) -> tuple[str, ...]:
    """All that the frame is derived from."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    leaves = _below(plan, _Path(), ())
    return tuple(sorted({topic for leaf in leaves for topic in leaf.topics}))


@dataclass(frozen=True)
class _Leaf:
    operator: str | None
    options: dict[str, str]
    columns: tuple[str, ...]
    topics: tuple[str, ...]
    arrived: dict[str, bool]  # conditions on its columns right above it; True: only "is not null"
    stuck: list[str]  # conditions that stay higher up
    is_joined: bool


@dataclass(frozen=True)
class _Path:
    """From the top of the plan to a node."""

    near: list[Any] = field(default_factory=list)  # conditions with nothing but projections below
    stuck: list[Any] = field(default_factory=list)
    is_joined: bool = False


def _leaves(frame: DataFrame, operators: Collection[str]) -> list[_Leaf]:
    plan = frame._jdf.queryExecution().optimizedPlan()  # noqa: SLF001
    return list(_below(plan, _Path(), operators))


def _below(node: Any, path: _Path, operators: Collection[str]) -> Iterator[_Leaf]:
    name = node.nodeName()
    children = node.children()
    operator = _operator_of(node) if name == "MapInArrow" else None
    if operator in operators or children.size() == 0:
        if name not in _WITHOUT_RECORDS:
            yield _leaf(node, operator if operator in operators else None, path)
        return
    if name == "Filter":
        path = _Path([*path.near, *_conjuncts(node.condition())], path.stuck, path.is_joined)
    elif name not in _PASSED:
        is_joined = path.is_joined or name in _JOINS
        path = _Path([], [*path.stuck, *path.near], is_joined)
    for index in range(children.size()):
        yield from _below(children.apply(index), path, operators)


def _leaf(node: Any, operator: str | None, path: _Path) -> _Leaf:
    columns = node.outputSet()
    arrived = [condition for condition in path.near if condition.references().subsetOf(columns)]
    above = [condition for condition in path.near if not condition.references().subsetOf(columns)]
    output = node.output()
    leaves = node.collectLeaves()
    options = [_options(leaves.apply(index)) for index in range(leaves.size())]
    return _Leaf(
        operator,
        {} if operator else options[0],
        tuple(output.apply(index).name() for index in range(output.size())),
        tuple(sorted({topic for of_source in options for topic in _topics(of_source)})),
        {_sql(condition): condition.nodeName() == "IsNotNull" for condition in arrived},
        [condition.sql() for condition in (*path.stuck, *above)],
        path.is_joined,
    )


def _sql(condition: Any) -> str:
    """Without the aliases of frames, which the leaf does not have."""
    text = str(condition.sql())
    references = condition.references().toSeq()
    for index in range(references.size()):
        column = references.apply(index)
        qualifier = column.qualifier()
        if qualifier.size():
            text = text.replace(column.sql(), column.withQualifier(qualifier.take(0)).sql())
    return text


def _conjuncts(condition: Any) -> list[Any]:
    if condition.nodeName() != "And":
        return [condition]
    return [*_conjuncts(condition.left()), *_conjuncts(condition.right())]


def _operator_of(node: Any) -> str:
    return str(node.functionExpr().name())  # the name of an `OperatorTask`


def _options(leaf: Any) -> dict[str, str]:
    """Empty if it is no source of ours, nor Spark's own connector."""
    relation = leaf.relation() if "ScanRelation" in leaf.nodeName() else leaf
    if "DataSourceV2" not in relation.nodeName():
        return {}
    return dict(relation.options().asCaseSensitiveMap())


def _topics(options: dict[str, str]) -> list[str]:
    names = options.get("topic") or options.get("subscribe") or ""
    return [name for name in names.split(",") if name]
