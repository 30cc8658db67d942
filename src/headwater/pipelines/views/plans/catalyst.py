"""Plans and expressions of Spark's analyser and optimiser (Catalyst), read and built from Python.

Expressions are never evaluated or rewritten here: they are moved from the plan of a query over
tables into plans over the tables' deltas. Attributes are identified by their expression ids, so a
column of a delta gets the id of the column of the query that it stands for.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Catalyst:
    """Builds plans in the JVM of one Spark session."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark
        java: Any = spark._jvm  # noqa: SLF001
        self._jvm = java
        self._plans: Any = java.org.apache.spark.sql.catalyst.plans.logical
        self._expressions: Any = java.org.apache.spark.sql.catalyst.expressions
        self._literal: Any = getattr(getattr(self._expressions, "Literal$"), "MODULE$")

    def seq(self, found: Sequence[Any]) -> Any:
        java = self._jvm.java.util.ArrayList()
        for one in found:
            java.add(one)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(java).toSeq()

    def frame(self, plan: Any) -> "DataFrame":
        from pyspark.sql.classic.dataframe import DataFrame

        made = self._jvm.org.apache.spark.sql.classic.Dataset.ofRows(
            self._spark._jsparkSession,  # noqa: SLF001
            plan,
        )
        return DataFrame(made, self._spark)

    def alias(self, expression: Any, name: str, expr_id: Any = None) -> Any:
        """Under a new id, or under that of the column that it stands for."""
        return self._expressions.Alias(
            expression,
            name,
            expr_id or self._expressions.NamedExpression.newExprId(),
            self.seq([]),
            self._none(),
            self.seq([]),
        )

    def project(self, expressions: Sequence[Any], plan: Any) -> Any:
        return self._plans.Project(self.seq(expressions), plan)

    def filter(self, condition: Any, plan: Any) -> Any:
        return self._plans.Filter(condition, plan)

    def join(self, node: Any, condition: Any) -> Any:
        """The join with another condition."""
        left, right = children(node)
        some = self._jvm.scala.Option.apply(condition)
        return self._plans.Join(left, right, node.joinType(), some, node.hint())

    def aggregate(self, grouping: Sequence[Any], results: Sequence[Any], plan: Any) -> Any:
        groups, found = self.seq(grouping), self.seq(results)
        return self._plans.Aggregate(groups, found, plan, self._none())

    def merged_sessions(self, session: Any, by: Sequence[Any], plan: Any, mark: str) -> Any:
        """The plan with one more column, of the session's type and with this mark in its metadata:
        a window function over rows of the same `by`, in the order of the session's start.
        """
        spark: Any = self._jvm.org.apache.spark.sql
        module = "MODULE$"
        aggregates = self._expressions.aggregate
        start = self._expressions.GetStructField(session, 0, self._none())
        ascending = getattr(getattr(self._expressions, "Ascending$"), module)
        first = getattr(getattr(self._expressions, "NullsFirst$"), module)
        order = self.seq([self._expressions.SortOrder(start, ascending, first, self.seq([]))])
        complete = getattr(getattr(aggregates, "Complete$"), module)
        function = aggregates.AggregateExpression(
            aggregates.Max(session),
            complete,
            False,
            self._none(),
            self._expressions.NamedExpression.newExprId(),
        )
        frame = self._expressions.SpecifiedWindowFrame(
            getattr(getattr(self._expressions, "RowFrame$"), module),
            getattr(getattr(self._expressions, "UnboundedPreceding$"), module),
            getattr(getattr(self._expressions, "UnboundedFollowing$"), module),
        )
        over = self._expressions.WindowSpecDefinition(self.seq(by), order, frame)
        metadata = spark.types.Metadata.fromJson(json.dumps({mark: True}))
        merged = self._expressions.Alias(
            self._expressions.WindowExpression(function, over),
            "session_window",
            self._expressions.NamedExpression.newExprId(),
            self.seq([]),
            self._jvm.scala.Option.apply(metadata),
            self.seq([]),
        )
        return self._plans.Window(self.seq([merged]), self.seq(by), order, plan, self._none())

    def union(self, plans: Sequence[Any]) -> Any:
        return self._plans.Union(self.seq(plans), False, False)

    def expand(self, projections: Sequence[Any], output: Sequence[Any], plan: Any) -> Any:
        rows = self.seq([self.seq(one) for one in projections])
        return self._plans.Expand(rows, self.seq(output), plan)

    def generate(self, node: Any, plan: Any) -> Any:
        return self._plans.Generate(
            node.generator(),
            self.seq([]),
            node.outer(),
            node.qualifier(),
            node.generatorOutput(),
            plan,
        )

    def null(self, kind: Any) -> Any:
        return self._literal.create(None, kind)

    def literal(self, value: int) -> Any:
        return self._literal.apply(value)

    def false(self) -> Any:
        return self._literal.FalseLiteral()

    def field_of(self, row: Any, schema: Any, at: int) -> Any:
        """A value of a constant row, which never leaves the JVM: Python has no types for it."""
        constant = self._expressions.Literal(row, schema)
        return self._expressions.GetStructField(constant, at, self._none())

    def struct(self, expressions: Sequence[Any]) -> Any:
        return self._expressions.CreateStruct.apply(self.seq(expressions))

    def when(self, condition: Any, expression: Any) -> Any:
        """Null where the condition is false or null."""
        return self._expressions.If(condition, expression, self.null(expression.dataType()))

    def present(self, expression: Any) -> Any:
        return self._expressions.IsNotNull(expression)

    def absent(self, expression: Any) -> Any:
        return self._expressions.IsNull(expression)

    def all_present(self, expressions: Sequence[Any]) -> Any:
        found: Any = None
        for expression in expressions:
            present = self.present(expression)
            found = present if found is None else self._expressions.And(found, present)
        return found

    def both(self, one: Any, other: Any) -> Any:
        return self._expressions.And(one, other)

    def compared(self, kind: str, one: Any, other: Any) -> Any:
        return getattr(self._expressions, kind)(one, other)

    def mark(self, name: str, argument: Any) -> Any:
        """A condition on the argument that the optimiser cannot look into, and nobody evaluates."""
        return self._expressions.ScalaUDF(
            self.seq([]),  # a function to Scala
            getattr(getattr(self._jvm.org.apache.spark.sql.types, "BooleanType$"), "MODULE$"),
            self.seq([argument]),
            self.seq([]),
            self._none(),
            self._jvm.scala.Option.apply(name),
            True,
            True,
        )

    def at_most(self, column: Any, limit: int) -> Any:
        return self._expressions.LessThanOrEqual(column, self.literal(limit))

    def more_than(self, column: Any, limit: int) -> Any:
        return self._expressions.GreaterThan(column, self.literal(limit))

    def equi_keys(self, join: Any) -> tuple[list[Any], list[Any], Any]:
        """Keys of the left and of the right side, and what else the condition says, or None."""
        found = self._jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys.unapply(join)
        if not found.isDefined():
            condition = join.condition()
            return [], [], condition.get() if condition.isDefined() else None
        _, left, right, other, *_ = items(found.get().productIterator().toSeq())
        return items(left), items(right), other.get() if other.isDefined() else None

    def replaced(self, expression: Any, by: Callable[[Any], Any]) -> Any:
        """`by` gives what an expression is replaced with, or None to look at its parts."""
        new = by(expression)
        if new is not None:
            return new
        parts = items(expression.children())
        changed = [self.replaced(part, by) for part in parts]
        if all(one is other for one, other in zip(parts, changed, strict=True)):
            return expression
        return expression.withNewChildren(self.seq(changed))

    def _none(self) -> Any:
        return self._jvm.scala.Option.empty()


def items(seq: Any) -> list[Any]:
    return [seq.apply(at) for at in range(seq.size())]


def kind_of(node: Any) -> str:
    """The class of a plan or an expression: "Project", "EqualTo"."""
    return str(node.getClass().getSimpleName()).rstrip("$")


def offset_of(node: Any) -> int | None:
    """Where the text of the query has this plan or expression, if Spark has not lost it."""
    start = node.origin().startIndex()
    return int(start.get()) if start.isDefined() else None


def children(node: Any) -> list[Any]:
    return items(node.children())


def id_of(attribute: Any) -> int:
    return int(attribute.exprId().id())


def ids_of(expression: Any) -> set[int]:
    """Of all columns that the expression reads."""
    return {id_of(one) for one in items(expression.references().toSeq())}


def parts_of(expression: Any) -> Iterator[Any]:
    """The expression and all below it, in pre-order."""
    yield expression
    for part in children(expression):
        yield from parts_of(part)


def nodes_of(plan: Any) -> Iterator[Any]:
    """The plan and all below it, those of subqueries, too."""
    yield plan
    for child in children(plan):
        yield from nodes_of(child)
    for subquery in items(plan.subqueries()):
        yield from nodes_of(subquery)


def arrow_type(data_type: Any) -> pa.DataType:
    """With nullable parts: an outer join makes nulls of anything."""
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import _parse_datatype_json_value

    described = data_type.asNullable().json()
    return to_arrow_type(_parse_datatype_json_value(json.loads(described)), timezone="UTC")
