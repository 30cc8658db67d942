"""Joins of deltas: by keys, and by whether a row is among the pairs that a condition leaves."""

from typing import Any

from headwater.pipelines.views.nodes import join as joins
from headwater.pipelines.views.plans.catalyst import children, id_of, ids_of, kind_of
from headwater.pipelines.views.plans.delta_plans import (
    DeltaPlan,
    PlanBuilder,
    is_attribute,
    schema_of,
)


def joined(
    builder: PlanBuilder,
    how: str,
    sides: tuple[DeltaPlan, DeltaPlan],
    outputs: tuple[list[Any], list[Any]],
    keys: tuple[list[Any], list[Any]],
    exists: Any,
    *,
    is_product: bool = False,
) -> DeltaPlan:
    """A join by keys only."""
    frames, described = [], []
    for letter, delta, output, of_side in zip("lr", sides, outputs, keys, strict=True):
        names = {id_of(one): f"{letter}{at}" for at, one in enumerate(output)}
        columns = [(f"{letter}{at}", one) for at, one in enumerate(output)]
        key = []
        for number, expression in enumerate(of_side):
            name = names.get(id_of(expression)) if is_attribute(expression) else None
            if name is None:
                name = f"{letter}k{number}"
                columns.append((name, expression))
            key.append(name)
        columns = builder.some(columns, letter)
        frames.append(builder.columns(delta, columns))
        schema = schema_of(columns)
        described.append(joins.JoinSide(schema, tuple(key), (False,) * len(key)))
    node = joins.Join(described[0], described[1], how, is_product)
    found = builder.run("join", node, frames, [one.key for one in described])
    left = [(f"l{at}", one) for at, one in enumerate(outputs[0])]
    right = [(f"r{at}", one) for at, one in enumerate(outputs[1])]
    if how in (joins.SEMI, joins.ANTI, joins.EXISTENCE):
        right = [(joins.EXISTS, exists)] if exists is not None else []
    return builder.named(found, left + right)


def by_rows(
    builder: PlanBuilder,
    how: str,
    side: DeltaPlan,
    output: list[Any],
    matched: DeltaPlan,
    exists: Any,
) -> DeltaPlan:
    """Rows of one side by whether they are among the matched pairs: a join by all columns, in
    which null equals null.
    """
    columns = [(f"l{at}", one) for at, one in enumerate(output)]
    frames, described = [], []
    for letter, delta in (("l", side), ("r", matched)):
        of_side = builder.some([(f"{letter}{at}", one) for at, one in enumerate(output)], letter)
        frames.append(builder.columns(delta, of_side))
        key = tuple(name for name, _ in of_side)
        described.append(joins.JoinSide(schema_of(of_side), key, (True,) * len(key)))
    node = joins.Join(described[0], described[1], how)
    found = builder.run("match", node, frames, [one.key for one in described])
    return builder.named(found, columns + ([(joins.EXISTS, exists)] if exists else []))


def padded(
    builder: PlanBuilder, alone: DeltaPlan, outputs: tuple[list[Any], list[Any]], at: int
) -> DeltaPlan:
    null = [
        builder.catalyst.alias(builder.catalyst.null(one.dataType()), one.name(), one.exprId())
        for one in outputs[1 - at]
    ]
    columns = [*outputs[0], *null] if at == 0 else [*null, *outputs[1]]
    return builder.over(alone, columns)


def values_of_not_in(condition: Any, left: list[Any]) -> tuple[Any, Any] | None:
    """Of the condition by which Spark joins `x NOT IN (SELECT y …)`: x = y OR (x = y) IS NULL."""
    if kind_of(condition) != "Or":
        return None
    equal, unknown = children(condition)
    if kind_of(equal) != "EqualTo" or kind_of(unknown) != "IsNull":
        return None
    one, other = children(equal)
    if not children(unknown)[0].semanticEquals(equal):
        return None
    of_left = {id_of(column) for column in left}
    if ids_of(one) <= of_left and of_left.isdisjoint(ids_of(other)):
        return one, other
    return None


def not_in(
    builder: PlanBuilder,
    sides: tuple[DeltaPlan, DeltaPlan],
    outputs: tuple[list[Any], list[Any]],
    values: tuple[Any, Any],
) -> DeltaPlan:
    """Rows whose value is not in the other side. It is unknown, so the row is left out, where the
    value is null and the other side has any row, or where the other side has a null.
    """
    catalyst = builder.catalyst
    value, other = values
    unmatched = joined(builder, joins.ANTI, sides, outputs, ([value], [other]), None)

    def where(given: DeltaPlan, condition: Any) -> DeltaPlan:
        return DeltaPlan(catalyst.filter(condition, given.plan), given.weight, given.position)

    parts = []
    for rows, others in (
        (where(unmatched, catalyst.present(value)), where(sides[1], catalyst.absent(other))),
        (where(unmatched, catalyst.absent(value)), sides[1]),
    ):
        parts.append(joined(builder, joins.ANTI, (rows, others), (outputs[0], []), ([], []), None))
    return builder.all_of(parts, outputs[0])
