"""Window functions and ORDER BY … LIMIT over deltas: both number the rows of a partition.

Where only the first rows of each partition are needed, a node of its own has them (TopRows).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headwater.pipelines.views.nodes.top_rows import TopRows
from headwater.pipelines.views.nodes.window_node import WindowFunctions
from headwater.pipelines.views.plans.calls import ROW_NUMBER, ranking, sort_key, window_call
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


class _Columns:
    """The input of a node: the columns of a step, and expressions over them."""

    def __init__(self, builder: PlanBuilder, child: Any) -> None:
        self.output = [(f"c{at}", one) for at, one in enumerate(builder.output(child))]
        self.all = list(self.output)
        self._names = {id_of(one): name for name, one in self.output}

    def name(self, expression: Any) -> str:
        if is_attribute(expression) and id_of(expression) in self._names:
            return self._names[id_of(expression)]
        self.all.append((f"x{len(self.all)}", expression))
        return self.all[-1][0]


def windowed(builder: PlanBuilder, node: Any, delta: Deltas) -> DeltaPlan:
    child = children(node)[0]
    columns = _Columns(builder, child)
    partition = tuple(columns.name(one) for one in items(node.partitionSpec()))
    order = tuple(sort_key(one, columns.name) for one in items(node.orderSpec()))
    expressions = items(node.windowExpressions())
    calls = tuple(window_call(builder.catalyst, one, columns.name) for one in expressions)
    found = _windows(builder, delta(child), columns.all, partition, order, calls)
    results = [(f"w{at}", one.toAttribute()) for at, one in enumerate(expressions)]
    return builder.named(found, columns.output + results)


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


def top_of_groups(builder: PlanBuilder, node: Any, delta: Deltas) -> DeltaPlan:
    """What Spark puts below a window function whose number a condition limits: rows of which no
    more are needed.
    """
    child = children(node)[0]
    columns = _Columns(builder, child)
    partition = tuple(columns.name(one) for one in items(node.partitionSpec()))
    order = tuple(sort_key(one, columns.name) for one in items(node.orderSpec()))
    function = ranking(node.rankLikeFunction())
    given = delta(child)
    return _top(builder, given, columns, partition, order, function, int(node.limit()))


def _top(
    builder: PlanBuilder,
    given: DeltaPlan,
    columns: _Columns,
    partition: tuple[str, ...],
    order: tuple[Any, ...],
    function: str,
    limit: int,
) -> DeltaPlan:
    described = builder.some(columns.all, "c")
    operator = TopRows(schema_of(described), partition, order, function, limit)
    found = builder.run("top", operator, [builder.columns(given, described)], [partition])
    return builder.named(found, columns.output)


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
    columns = _Columns(builder, child)
    order = tuple(sort_key(one, columns.name) for one in by)
    given = delta(child)
    output = [one for _, one in columns.output]
    if limit is not None:
        given = _top(builder, given, columns, (), order, "row_number", limit)
    if offset:
        numbered = _windows(builder, given, columns.all, (), order, (ROW_NUMBER,))
        plan = numbered._jdf.queryExecution().analyzed()  # noqa: SLF001
        number = items(plan.output())[-3]
        condition = builder.catalyst.filter(builder.catalyst.more_than(number, offset), plan)
        given = builder.named_plan(condition, columns.output)
    return projected(given, output, projection)
