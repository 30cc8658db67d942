"""Plans of Spark's whose rows are deltas, and what every step of a query builds them with."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headwater.errors import QueryRefused
from headwater.pipelines.operators.runtime.contract import Operator
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.position import POSITION
from headwater.pipelines.views.nodes.deltas import WEIGHT
from headwater.pipelines.views.plans.catalyst import (
    Catalyst,
    arrow_type,
    id_of,
    items,
    kind_of,
    parts_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class DeltaPlan:
    """A plan of Spark's whose rows are a delta: the columns of a step of the query, by their ids,
    a weight and a position.
    """

    plan: Any
    weight: Any  # attributes of the plan
    position: Any


@dataclass
class PlanBuilder:
    """Of one query."""

    catalyst: Catalyst
    name: Callable[[str], str]  # of the next node of that kind
    needed: set[int]  # columns that some step of the query reads (needed_columns)

    def output(self, node: Any) -> list[Any]:
        """The columns of a step that another one needs, or the result has."""
        return [one for one in items(node.output()) if id_of(one) in self.needed]

    def some(self, columns: list[tuple[str, Any]], letter: str) -> list[tuple[str, Any]]:
        """A table of Arrow's without columns has no rows: `EXISTS (SELECT 1 FROM …)`."""
        return columns or [(f"{letter}0", self.catalyst.literal(0))]

    def over(self, given: DeltaPlan, expressions: Sequence[Any]) -> DeltaPlan:
        plan = self.catalyst.project([*expressions, given.weight, given.position], given.plan)
        return DeltaPlan(plan, given.weight, given.position)

    def all_of(self, parts: Sequence[DeltaPlan], output: Sequence[Any]) -> DeltaPlan:
        plans = [
            self.catalyst.project(
                [
                    self.catalyst.alias(one, f"c{at}")
                    for at, one in enumerate([*output, part.weight, part.position])
                ],
                part.plan,
            )
            for part in parts
        ]
        united = self.catalyst.union(plans)
        *columns, weight, position = items(united.output())
        renamed = [
            self.catalyst.alias(column, target.name(), target.exprId())
            for column, target in zip(columns, output, strict=True)
        ]
        return self.over(DeltaPlan(united, weight, position), renamed)

    def columns(self, given: DeltaPlan, columns: Sequence[tuple[str, Any]]) -> "DataFrame":
        """The input of a node: expressions under these names, weight and position."""
        expressions = [self.catalyst.alias(expression, name) for name, expression in columns]
        expressions.append(self.catalyst.alias(given.weight, WEIGHT))
        expressions.append(self.catalyst.alias(given.position, POSITION))
        return self.catalyst.frame(self.catalyst.project(expressions, given.plan))

    def named(self, frame: "DataFrame", columns: Sequence[tuple[str, Any]]) -> DeltaPlan:
        """The result of a node: columns of these names stand for these attributes."""
        return self.named_plan(frame._jdf.queryExecution().analyzed(), columns)  # noqa: SLF001

    def named_plan(self, plan: Any, columns: Sequence[tuple[str, Any]]) -> DeltaPlan:
        found = {one.name(): one for one in items(plan.output())}
        expressions = [
            self.catalyst.alias(found[name], target.name(), target.exprId())
            for name, target in columns
        ]
        return self.over(DeltaPlan(plan, found[WEIGHT], found[POSITION]), expressions)

    def run(
        self,
        kind: str,
        operator: Operator,
        frames: Sequence["DataFrame"],
        keys: Sequence[tuple[str, ...]],
    ) -> "DataFrame":
        sides = [
            Side(frame, key, tuple(name for name in frame.columns if name != POSITION))
            for frame, key in zip(frames, keys, strict=True)
        ]
        return run_operator(kind, operator, sides, name=self.name(kind))


def schema_of(columns: Sequence[tuple[str, Any]]) -> pa.Schema:
    return pa.schema([(name, arrow_type(one.dataType())) for name, one in columns])


def is_attribute(expression: Any) -> bool:
    return kind_of(expression) == "AttributeReference"


def check_no_subquery(node: Any, expressions: Sequence[Any]) -> None:
    """Spark would ask one over tables without rows."""
    for expression in expressions:
        if any(kind_of(part) == "ScalarSubquery" for part in parts_of(expression)):
            raise QueryRefused(
                f"a scalar subquery in {WORDS.get(kind_of(node), kind_of(node))}"
                " cannot be maintained incrementally",
                hint="select it in a subquery before: FROM (SELECT *, (SELECT …) AS x FROM …)",
            )


WORDS: Final = {
    "Range": "range()",
    "CTERelationRef": "a common table expression that is used twice",
    "UnionLoop": "a recursive query",
    "Sample": "TABLESAMPLE",
    "Window": "a window function",
    "Sort": "ORDER BY … LIMIT",
    "Join": "an equality of a join",
}
