"""Window functions and ORDER BY … LIMIT over deltas: both number the rows of a partition."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.views.nodes.window_node import WindowFunctions
from headwater.pipelines.views.plans.calls import ROW_NUMBER, sort_key, window_call
from headwater.pipelines.views.plans.catalyst import children, id_of, items, kind_of
from headwater.pipelines.views.plans.delta_plans import (
    DeltaPlan,
    PlanBuilder,
    check_no_subquery,
    is_attribute,
    schema_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LIMITS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset"})
Deltas = Callable[[Any], DeltaPlan]  # of a step of the query
# Expressions over a delta with these columns.
Projected = Callable[[DeltaPlan, list[Any], list[Any]], DeltaPlan]


def windowed(builder: PlanBuilder, node: Any, delta: Deltas) -> DeltaPlan:
    child = children(node)[0]
    output = builder.output(child)
    names = {id_of(one): f"c{at}" for at, one in enumerate(output)}
    columns = [(f"c{at}", one) for at, one in enumerate(output)]

    def column(expression: Any) -> str:
        if is_attribute(expression) and id_of(expression) in names:
            return names[id_of(expression)]
        columns.append((f"x{len(columns)}", expression))
        return columns[-1][0]

    partition = tuple(column(one) for one in items(node.partitionSpec()))
    order = tuple(sort_key(one, column) for one in items(node.orderSpec()))
    expressions = items(node.windowExpressions())
    calls = tuple(window_call(builder.catalyst, one, column) for one in expressions)
    found = _windows(builder, delta(child), columns, partition, order, calls)
    results = [(f"w{at}", one.toAttribute()) for at, one in enumerate(expressions)]
    return builder.named(found, [(f"c{at}", one) for at, one in enumerate(output)] + results)


def _windows(
    builder: PlanBuilder,
    given: DeltaPlan,
    columns: list[tuple[str, Any]],
    partition: tuple[str, ...],
    order: tuple[Any, ...],
    calls: tuple[Any, ...],
) -> "DataFrame":
    columns = builder.some(columns, "c")
    operator = WindowFunctions(schema_of(columns), partition, order, calls)
    return builder.run("window", operator, [builder.columns(given, columns)], [partition])


def limited(builder: PlanBuilder, node: Any, delta: Deltas, projected: Projected) -> DeltaPlan:
    """ORDER BY … LIMIT … OFFSET: rows by their number."""
    steps = []
    while kind_of(node) in LIMITS:
        steps.append(node)
        node = children(node)[0]
    limit: int | None = None
    offset = 0
    for step in reversed(steps):  # LIMIT 3 OFFSET 2 is a limit over an offset
        if kind_of(step) == "Offset":
            offset += int(step.offsetExpr().eval(None))
        else:
            last = offset + int(step.limitExpr().eval(None))
            limit = last if limit is None else min(limit, last)
    if kind_of(node) == "Project":  # a limit and a projection can change places
        projection, node = items(node.projectList()), children(node)[0]
    else:
        projection = builder.output(node)
    by = items(node.order()) if kind_of(node) == "Sort" else []
    check_no_subquery(node, by)
    child = children(node)[0] if kind_of(node) == "Sort" else node
    output = builder.output(child)
    names = {id_of(one): f"c{at}" for at, one in enumerate(output)}
    columns = [(f"c{at}", one) for at, one in enumerate(output)]

    def column(expression: Any) -> str:
        if is_attribute(expression) and id_of(expression) in names:
            return names[id_of(expression)]
        columns.append((f"x{len(columns)}", expression))
        return columns[-1][0]

    order = tuple(sort_key(one, column) for one in by)
    numbered = _windows(builder, delta(child), columns, (), order, (ROW_NUMBER,))
    plan = numbered._jdf.queryExecution().analyzed()  # noqa: SLF001
    number = items(plan.output())[-3]
    condition = plan
    if limit is not None:
        condition = builder.catalyst.filter(builder.catalyst.at_most(number, limit), condition)
    if offset:
        condition = builder.catalyst.filter(builder.catalyst.more_than(number, offset), condition)
    chosen = builder.named_plan(condition, [(f"c{at}", one) for at, one in enumerate(output)])
    return projected(chosen, output, projection)
