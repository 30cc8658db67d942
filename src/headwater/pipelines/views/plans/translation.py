"""The incremental plan of a query: each step over tables becomes a step over their deltas.

Spark parses, analyses and optimises the query over tables of the same columns. Then, from the
tables up:

| step of the query                  | over deltas                                           |
|------------------------------------|-------------------------------------------------------|
| a table                            | node: the former row removed, the new one added       |
| Project, Filter, Union, Expand,    | the same step by Spark, with weights: it is linear    |
| Generate                           |                                                       |
| Join                               | node by join key; other conditions by Spark behind it |
| Aggregate                          | node by group; expressions around it by Spark         |
| Window, ORDER BY … LIMIT,          | node by partition                                     |
| row_number() … <= n                |                                                       |
| session_window() in GROUP BY        | node by the rest of the group, below the Aggregate    |
| a condition on now()               | node: rows come and go by the time of the batch       |
| scalar subquery                    | a join with its one row                               |
| VALUES, an aggregate of no rows    | there from the first record of any table on           |
| a step that is there several times | one step                                              |

A node is an operator (operators/runtime): a step on Arrow tables with state by bucket. So a query
of any depth is one plan of Spark's, and small batches run in the driver as those of pipelines do.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headwater.errors import QueryRefused
from headwater.pipelines.position import POSITION
from headwater.pipelines.views.nodes import join as joins
from headwater.pipelines.views.nodes.aggregate import Aggregate
from headwater.pipelines.views.nodes.deltas import WEIGHT
from headwater.pipelines.views.nodes.moving_filter import Bound, MovingFilter
from headwater.pipelines.views.plans.calls import aggregate_call
from headwater.pipelines.views.plans.catalyst import (
    children,
    id_of,
    ids_of,
    items,
    kind_of,
    nodes_of,
    offset_of,
    parts_of,
)
from headwater.pipelines.views.plans.clock import conjuncts, mark_of
from headwater.pipelines.views.plans.delta_plans import (
    WORDS,
    DeltaPlan,
    PlanBuilder,
    check_no_subquery,
    is_attribute,
    schema_of,
)
from headwater.pipelines.views.plans.join_plans import (
    by_rows,
    joined,
    not_in,
    padded,
    values_of_not_in,
)
from headwater.pipelines.views.plans.outline import Outline
from headwater.pipelines.views.plans.sharing import SharedSteps
from headwater.pipelines.views.plans.window_plans import LIMITS, limited, top_of_groups, windowed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_HOWS: Final = {
    "Inner": joins.INNER,
    "Cross": joins.INNER,
    "LeftOuter": joins.LEFT,
    "LeftSingle": joins.LEFT,
    "RightOuter": joins.RIGHT,
    "FullOuter": joins.FULL,
    "LeftSemi": joins.SEMI,
    "LeftAnti": joins.ANTI,
    "ExistenceJoin": joins.EXISTENCE,
}
_PASSED: Final = frozenset({"Sort", "ResolvedHint", "Repartition", "RepartitionByExpression"})
_WITH_SUBQUERIES: Final = frozenset({"Project", "Filter", "Join", "Aggregate", "Expand"})


def needed_columns(plan: Any) -> set[int]:
    """Ids of the columns that a step of the query reads, or the result has."""
    needed = {id_of(one) for one in items(plan.output())}
    for node in nodes_of(plan):
        needed |= ids_of(node)
        for subquery in items(node.subqueries()):
            needed |= {id_of(one) for one in items(subquery.output())}
        if kind_of(node) == "Union":  # its columns are those of its inputs by their order
            for child in children(node):
                needed |= {id_of(one) for one in items(child.output())}
    return needed


@dataclass
class Translation(PlanBuilder):
    """Of one query. `relation` gives the delta of a table, with the columns that it reads."""

    relation: Callable[[Any], "DataFrame"]
    outline: Outline
    records: Sequence["DataFrame"]  # those of all tables
    shared: SharedSteps
    _made: dict[int, tuple[list[Any], DeltaPlan]] = field(default_factory=dict)  # of shared steps
    _present: "DataFrame | None" = None

    def delta(self, node: Any) -> DeltaPlan:
        with self.outline.step(node):
            number = self.shared.number_of(node)
            if number is None:
                return self._delta(node)
            if number not in self._made:
                self._made[number] = items(node.output()), self._delta(node)
                return self._made[number][1]
            self.outline.share()
            return self._renamed(*self._made[number], items(node.output()))

    def _delta(self, node: Any) -> DeltaPlan:
        kind = kind_of(node)
        if kind == "LogicalRDD":
            return self._table(node)
        if kind in _PASSED:
            return self.delta(children(node)[0])
        if kind in LIMITS:
            return limited(self, node, self.delta, self._projected)
        if kind not in _WITH_SUBQUERIES:
            check_no_subquery(node, items(node.expressions()))
        translate: Mapping[str, Callable[[Any], DeltaPlan]] = {
            "Project": self._project,
            "Filter": self._filter,
            "Union": self._union,
            "Expand": self._expand,
            "Generate": self._generate,
            "Join": self._join,
            "Aggregate": self._aggregate,
            "Window": lambda one: windowed(self, one, self.delta),
            "WindowGroupLimit": lambda one: top_of_groups(self, one, self.delta),
            "LocalRelation": self._constants,
            "OneRowRelation": self._constants,
        }
        if kind not in translate:
            raise QueryRefused(
                f"{WORDS.get(kind, kind)} cannot be maintained incrementally",
                detail=str(node.simpleString(100)),
                offset=offset_of(node),
            )
        return translate[kind](node)

    def _renamed(
        self, columns: Sequence[Any], delta: DeltaPlan, output: Sequence[Any]
    ) -> DeltaPlan:
        """The same rows for an equal step, whose columns have other ids."""
        expressions = [
            mine
            if id_of(mine) == id_of(made)
            else self.catalyst.alias(made, mine.name(), mine.exprId())
            for made, mine in zip(columns, output, strict=True)
            if id_of(mine) in self.needed
        ]
        return self.over(delta, expressions)

    # Linear steps

    def _table(self, node: Any) -> DeltaPlan:
        columns = [(one.name(), one) for one in self.output(node)]
        return self.named(self.relation(node), columns)

    def _project(self, node: Any) -> DeltaPlan:
        child = children(node)[0]
        return self._projected(self.delta(child), self.output(child), items(node.projectList()))

    def _projected(
        self, given: DeltaPlan, output: Sequence[Any], expressions: Sequence[Any]
    ) -> DeltaPlan:
        return self.over(*self._with_subqueries(given, output, expressions))

    def _filter(self, node: Any) -> DeltaPlan:
        child = children(node)[0]
        given = self._where(self.delta(child), self.output(child), node.condition())
        return self.over(given, self.output(child))

    def _where(self, given: DeltaPlan, output: Sequence[Any], condition: Any) -> DeltaPlan:
        """By Spark; what depends on the clock by a node."""
        given, (condition,) = self._with_subqueries(given, output, [condition])
        marks, other = [], None
        for part in conjuncts(condition):
            mark = mark_of(part)
            if mark is not None:
                marks.append(mark)
            else:
                other = part if other is None else self.catalyst.both(other, part)
        if other is not None:
            plan = self.catalyst.filter(other, given.plan)
            given = DeltaPlan(plan, given.weight, given.position)
        if not marks:
            return given
        columns = [(f"c{at}", one) for at, one in enumerate(output)]
        bounds = tuple(
            Bound(f"b{at}", mark.offset_us, mark.is_until) for at, mark in enumerate(marks)
        )
        times = [(bound.column, mark.time) for bound, mark in zip(bounds, marks, strict=True)]
        operator = MovingFilter(schema_of(columns + times), bounds)
        frame = self.columns(given, columns + times)
        key = tuple(name for name, _ in columns + times)
        return self.named(self.run("moving", operator, [frame], [key]), columns)

    def _union(self, node: Any) -> DeltaPlan:
        plans = []
        for child in children(node):
            given = self.delta(child)
            columns = [*items(child.output()), given.weight, given.position]
            plans.append(
                self.catalyst.project(
                    [self.catalyst.alias(one, f"c{at}") for at, one in enumerate(columns)],
                    given.plan,
                )
            )
        united = self.catalyst.union(plans)
        *columns, weight, position = items(united.output())
        renamed = [
            self.catalyst.alias(column, target.name(), target.exprId())
            for column, target in zip(columns, items(node.output()), strict=True)
        ]
        return self.over(DeltaPlan(united, weight, position), renamed)

    def _expand(self, node: Any) -> DeltaPlan:
        child = children(node)[0]
        projections = [items(projection) for projection in items(node.projections())]
        given, every = self._with_subqueries(
            self.delta(child), self.output(child), [one for row in projections for one in row]
        )
        added = [given.weight.newInstance(), given.position.newInstance()]
        width = len(items(node.output()))
        rows = [
            [*every[at : at + width], given.weight, given.position]
            for at in range(0, len(every), width)
        ]
        plan = self.catalyst.expand(rows, [*items(node.output()), *added], given.plan)
        return DeltaPlan(plan, *added)

    def _generate(self, node: Any) -> DeltaPlan:
        given = self.delta(children(node)[0])
        plan = self.catalyst.generate(node, given.plan)
        made = DeltaPlan(plan, given.weight, given.position)
        return self.over(made, self.output(node))

    # Nodes

    def _join(self, node: Any) -> DeltaPlan:
        how = _HOWS.get(str(node.joinType()).partition("(")[0])
        if how is None:
            raise QueryRefused(
                f"a join of the kind {node.joinType()} cannot be maintained incrementally",
                offset=offset_of(node),
            )
        left, right = children(node)
        keys, other_keys, condition = self.catalyst.equi_keys(node)
        check_no_subquery(node, [*keys, *other_keys])
        sides = self.delta(left), self.delta(right)
        outputs = self.output(left), self.output(right)
        exists = node.joinType().exists() if how == joins.EXISTENCE else None
        is_product = not keys and not any(map(_has_one_row, (left, right)))
        if condition is None:
            of_keys = (keys, other_keys)
            is_product &= how not in (joins.SEMI, joins.ANTI, joins.EXISTENCE)
            return joined(self, how, sides, outputs, of_keys, exists, is_product=is_product)
        values = values_of_not_in(condition, outputs[0]) if how == joins.ANTI and not keys else None
        if values is not None:
            return not_in(self, sides, outputs, values)
        of_keys = (keys, other_keys)
        matched = joined(self, joins.INNER, sides, outputs, of_keys, None, is_product=is_product)
        matched = self._where(matched, [*outputs[0], *outputs[1]], condition)
        if how == joins.INNER:
            return self.over(matched, [*outputs[0], *outputs[1]])
        if how in (joins.SEMI, joins.ANTI, joins.EXISTENCE):
            return by_rows(self, how, sides[0], outputs[0], matched, exists)
        parts = [self.over(matched, [*outputs[0], *outputs[1]])]
        for at, outer in ((0, (joins.LEFT, joins.FULL)), (1, (joins.RIGHT, joins.FULL))):
            if how in outer:
                alone = by_rows(self, joins.ANTI, sides[at], outputs[at], matched, None)
                parts.append(padded(self, alone, outputs, at))
        return self.all_of(parts, [*outputs[0], *outputs[1]])

    def _aggregate(self, node: Any) -> DeltaPlan:
        grouping = items(node.groupingExpressions())
        results = items(node.aggregateExpressions())
        calls: list[Any] = []
        for expression in results:
            for part in parts_of(expression):
                if kind_of(part) == "AggregateExpression" and not any(
                    part.semanticEquals(other) for other in calls
                ):
                    calls.append(part)
        described = [aggregate_call(self.catalyst, call, f"a{at}") for at, call in enumerate(calls)]
        arguments = [
            (call.column, argument) for call, argument in described if call.column is not None
        ]
        child = children(node)[0]
        given, expressions = self._with_subqueries(
            self.delta(child),
            self.output(child),
            [*grouping, *(expression for _, expression in arguments)],
        )
        keys = [(f"g{at}", one) for at, one in enumerate(expressions[: len(grouping)])]
        arguments = [
            (name, one)
            for (name, _), one in zip(arguments, expressions[len(grouping) :], strict=True)
        ]
        operator = Aggregate(schema_of(keys), schema_of(arguments), tuple(c for c, _ in described))
        frame = self.columns(given, keys + arguments)
        if not keys:
            frame = self._with_presence(frame)
        found = self.run("group", operator, [frame], [tuple(name for name, _ in keys)])
        plan = found._jdf.queryExecution().analyzed()  # noqa: SLF001
        *columns, weight, position = items(plan.output())
        of_keys, of_calls = columns[: len(keys)], columns[len(keys) :]

        def replacement(expression: Any) -> Any:
            for original, column in zip(calls, of_calls, strict=True):
                if expression.semanticEquals(original):
                    return column
            for original, column in zip(grouping, of_keys, strict=True):
                if expression.semanticEquals(original):
                    return column
            return None

        made = [
            self.catalyst.alias(replacement(one), one.name(), one.exprId())
            if is_attribute(one)
            else self.catalyst.replaced(one, replacement)
            for one in results
        ]
        return self._projected(DeltaPlan(plan, weight, position), [*of_keys, *of_calls], made)

    # Subqueries

    def _with_subqueries(
        self, given: DeltaPlan, output: Sequence[Any], expressions: Sequence[Any]
    ) -> tuple[DeltaPlan, list[Any]]:
        """The delta joined with the one row of each scalar subquery in the expressions, and the
        expressions with columns instead of the subqueries.
        """
        subqueries: list[tuple[Any, Any]] = []
        for expression in expressions:
            for part in parts_of(expression):
                if kind_of(part) == "ScalarSubquery" and not any(
                    part.semanticEquals(other) for other, _ in subqueries
                ):
                    subqueries.append((part, self._scalar(part)))
        if not subqueries:
            return given, list(expressions)
        columns = list(output)
        for part, _ in subqueries:
            plan = part.plan()
            rows = self.delta(plan)
            given = joined(
                self, joins.LEFT, (given, rows), (columns, self.output(plan)), ([], []), None
            )
            columns = [*columns, *self.output(plan)]

        def replacement(expression: Any) -> Any:
            for part, column in subqueries:
                if expression.semanticEquals(part):
                    return column
            return None

        return given, [self.catalyst.replaced(one, replacement) for one in expressions]

    def _scalar(self, subquery: Any) -> Any:
        """The column of a subquery's row; null if it has none."""
        plan = subquery.plan()
        most = plan.maxRows()
        if not most.isDefined() or most.get() > 1:
            raise QueryRefused(
                "a scalar subquery may have several rows",
                detail=str(plan.simpleString(100)),
                hint="an aggregate without GROUP BY has one: (SELECT max(…) FROM …)",
                offset=offset_of(subquery),
            )
        (column,) = self.output(plan)
        return column

    # What is there without rows

    def _constants(self, node: Any) -> DeltaPlan:
        """VALUES, SELECT without FROM, and what the optimiser finds to be without rows."""
        output = self.output(node)
        present = self.named(self._presence(), [])
        if kind_of(node) == "OneRowRelation":
            return present
        ordinals = {id_of(one): at for at, one in enumerate(items(node.output()))}
        rows = [
            [
                *(
                    self.catalyst.field_of(row, node.schema(), ordinals[id_of(one)])
                    for one in output
                ),
                present.weight,
                present.position,
            ]
            for row in items(node.data())
        ]
        if not rows:
            columns = [
                self.catalyst.alias(self.catalyst.null(one.dataType()), one.name(), one.exprId())
                for one in output
            ]
            empty = self.catalyst.filter(self.catalyst.false(), present.plan)
            return self.over(DeltaPlan(empty, present.weight, present.position), columns)
        added = [present.weight.newInstance(), present.position.newInstance()]
        return DeltaPlan(self.catalyst.expand(rows, [*output, *added], present.plan), *added)

    def _presence(self) -> "DataFrame":
        """A delta without columns: one row, from the first record of any table on."""
        from pyspark.sql import functions as F  # noqa: N812

        if self._present is None:
            weight = F.lit(0).cast("bigint").alias(WEIGHT)
            frames = [frame.select(weight, POSITION) for frame in self.records]
            every = reduce(lambda one, other: one.union(other), frames)
            operator = Aggregate(pa.schema([]), pa.schema([]), ())
            self._present = self.run("presence", operator, [every], [()])
        return self._present

    def _with_presence(self, frame: "DataFrame") -> "DataFrame":
        """With a row that counts as none, so that an aggregate of no rows has its row, too."""
        from pyspark.sql import functions as F  # noqa: N812

        columns = [
            F.lit(None).cast(field.dataType).alias(field.name)
            for field in frame.schema
            if field.name not in (WEIGHT, POSITION)
        ]
        weight = F.lit(0).cast("bigint").alias(WEIGHT)
        return frame.union(self._presence().select(*columns, weight, POSITION))


def _has_one_row(plan: Any) -> bool:
    most = plan.maxRows()
    return bool(most.isDefined() and most.get() <= 1)
