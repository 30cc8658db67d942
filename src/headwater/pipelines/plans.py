"""The analysed plan of a DataFrame, as a tree of nodes.

Its text is never parsed: Spark truncates lists of more than 25 fields in it, and a column may have
any name.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater.pipelines.position import POSITION, RESULTS, WATERMARK_PARTITION
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Steps that spread a partition over tasks, or reorder its rows. Operators shuffle, too.
_MOVING: Final = (
    "Repartition", "Rebalance", "Aggregate", "Window", "Deduplicate", "Distinct", "Sort",
    "FlatMap", "Transform", "GlobalLimit", "Intersect", "Except", "CoGroup",
)  # fmt: skip
_MAKES_ROWS: Final = (
    "Aggregate",
    "Join",
    "WithState",
)  # of several rows: not a change of any of them
_ALL_FIELDS: Final = 2**31 - 1
_STREAM: Final = "StreamingRelationV2"
_BOUNDED: Final = "DataSourceV2Relation"
_IN_MEMORY: Final = ("LocalRelation", "LogicalRDD")
_PASSING: Final = ("Project", "Filter", "SubqueryAlias")  # they preserve the order of rows
# The condition IS_RESULT (position.py) as Spark writes it.
_IS_RESULT_SQL: Final = f"(NOT ({POSITION}.`partition` <=> {WATERMARK_PARTITION}))"
_RAISING: Final = ("raise_error", "assert_true")
_REFERENCE: Final = "CTERelationRef"  # to a part of the same plan
# In the metadata of the last column of rows in memory: the options of the source they stand for.
IN_MEMORY_OPTIONS: Final = "headwater.source"


@dataclass(frozen=True)
class Node:
    """One step of a plan; its children are its inputs."""

    name: str
    children: tuple["Node", ...] = ()
    function: str = ""  # of mapInArrow
    alias: str = ""
    has_op: bool = False  # whether `_op` is in its output
    topic: str = ""  # of a source: one, or several separated by commas
    pattern: str = ""
    text: str = ""  # only to distinguish steps

    def __iter__(self) -> Iterator["Node"]:
        """Itself and all below it, in pre-order."""
        yield self
        for child in self.children:
            yield from child


def plan_of(frame: "DataFrame") -> Node:
    return _node(frame._jdf.queryExecution().analyzed())  # noqa: SLF001


def moves_rows(plan: Node) -> bool:
    """Whether rows may lose the order of the log: each partition in one task, in order."""
    return any(_is_moving(node) for node in plan)


def disorders_rows(plan: Node, is_operator: Callable[[Node], bool]) -> bool:
    """Whether rows of one key may come in any order: after a shuffle of Spark's. An operator
    preserves their order, an aggregation has one row of each group.
    """
    if is_operator(plan) or plan.name == "Aggregate":
        return False
    return _is_moving(plan) or any(disorders_rows(child, is_operator) for child in plan.children)


def comes_from(frame: "DataFrame", columns: Collection[str], names: Collection[str]) -> bool | None:
    """Whether one of the columns is, or is computed from, an output of the operator on top of the
    plan with one of the names. None: undecided, or the operator has no such output.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    wanted = {
        attribute.exprId().id()
        for attribute in _items(plan.output())
        if attribute.name() in columns
    }
    while (step := plan.nodeName()) in _PASSING:
        if step == "Project":
            for expression in _items(plan.projectList()):
                if expression.exprId().id() in wanted:
                    made_of = _items(expression.references().toSeq())
                    wanted |= {one.exprId().id() for one in made_of}
        plan = plan.children().apply(0)
    if step != "MapInArrow":
        return None
    given = [
        attribute.exprId().id() for attribute in _items(plan.output()) if attribute.name() in names
    ]
    return bool(wanted.intersection(given)) if given else None


@dataclass(frozen=True)
class Step:
    """One projection, condition or alias of a plan."""

    alias: str = ""
    condition: str = ""  # SQL
    # Of each column its name, the column that it is unchanged (or None), and its expression in SQL.
    columns: tuple[tuple[str, str | None, str], ...] | None = None  # None: no projection


@dataclass(frozen=True)
class Base:
    """What a plan of nothing but such steps is derived from."""

    column_id: int  # Spark's, of its first column
    steps: tuple[Step, ...]  # from the base on


def first_column_id(frame: "DataFrame") -> int:
    return _column_id(frame._jdf.queryExecution().analyzed())  # noqa: SLF001


def base_of(frame: "DataFrame", alias: str) -> Base | None:
    """Down to this alias, or to a source. None if there are other steps."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    steps: list[Step] = []
    while (step := plan.nodeName()) in _PASSING:
        if step == "SubqueryAlias" and plan.alias() == alias:
            break
        if step == "Project":
            steps.append(Step(columns=tuple(map(_projected, _items(plan.projectList())))))
        elif step == "Filter":
            steps.append(Step(condition=plan.condition().sql()))
        else:
            steps.append(Step(alias=plan.alias()))
        plan = plan.children().apply(0)
    if step not in _PASSING and plan.children().size():
        return None
    return Base(_column_id(plan), tuple(reversed(steps)))


def _column_id(plan: Any) -> int:
    return int(plan.output().apply(0).exprId().id())


def _projected(column: Any) -> tuple[str, str | None, str]:
    value = column.child() if column.nodeName() == "Alias" else column
    is_unchanged = value.nodeName() == "AttributeReference"
    return column.name(), value.name() if is_unchanged else None, value.sql()


@dataclass(frozen=True)
class Results:
    """Window results in a DataFrame."""

    kinds: frozenset[str]  # FINAL, CHANGING, … (position.py); empty: there are none
    is_only: bool  # all rows are results of one operator, in its order


def results_in(frame: "DataFrame") -> Results:
    """Results of the operators nearest to the top of the plan."""
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    while plan.nodeName() in _PASSING:
        plan = plan.children().apply(0)
    is_only = plan.nodeName() == "MapInArrow"
    kinds = frozenset(_result_kinds(plan))
    return Results(kinds, is_only and len(kinds) == 1)


def _result_kinds(plan: Any) -> Iterator[str]:
    if plan.nodeName() == "MapInArrow":
        for attribute in _items(plan.output()):
            metadata = attribute.metadata()
            if attribute.name() == POSITION and metadata.contains(RESULTS):
                yield metadata.getString(RESULTS)
    else:
        for child in _items(plan.children()):
            yield from _result_kinds(child)


def with_watermark_rows(frame: "DataFrame") -> "DataFrame | None":
    """The frame with the watermark rows (operators/runtime/watermark_rows.py) of the operator below
    its projections and conditions. None: there is no such operator, something else is in between,
    or a function that may not accept nulls.
    """
    from pyspark.sql import DataFrame

    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    above = []
    while plan.nodeName() in _PASSING and not drops_watermark_rows(plan):
        above.append(plan)
        plan = plan.children().apply(0)
    session: Any = frame.sparkSession
    if plan.nodeName() != "Filter" or not all(_accepts_nulls(step, session) for step in above):
        return None
    is_watermark = plan.condition().child()  # what is negated
    plan = plan.children().apply(0)
    (position,) = (column for column in _items(plan.output()) if column.name() == POSITION)
    catalyst = session._jvm.org.apache.spark.sql.catalyst  # noqa: SLF001
    for step in reversed(above):
        if not plan.outputSet().contains(position):
            return None
        if step.nodeName() == "Filter":
            condition = catalyst.expressions.Or(step.condition(), is_watermark)
            plan = catalyst.plans.logical.Filter(condition, plan)
        else:
            children = session._jvm.PythonUtils.toSeq([plan])  # noqa: SLF001
            plan = step.withNewChildren(children)
    if not plan.outputSet().contains(position):
        return None
    rows = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(  # noqa: SLF001
        session._jsparkSession,  # noqa: SLF001
        plan,
    )
    return DataFrame(rows, session)


def without_conditions(frame: "DataFrame") -> "DataFrame | None":
    """The frame with the rows that its conditions leave out. None: more is done to the rows of its
    source than to select, compute and filter.
    """
    from pyspark.sql import DataFrame

    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    above = []
    while plan.nodeName() in _PASSING:
        if plan.nodeName() != "Filter":
            above.append(plan)
        plan = plan.children().apply(0)
    if plan.children().size():
        return None
    session: Any = frame.sparkSession
    for step in reversed(above):
        plan = step.withNewChildren(session._jvm.PythonUtils.toSeq([plan]))  # noqa: SLF001
    rows = session._jvm.org.apache.spark.sql.classic.Dataset.ofRows(  # noqa: SLF001
        session._jsparkSession,  # noqa: SLF001
        plan,
    )
    return DataFrame(rows, session)


def passes_watermarks(frame: "DataFrame") -> bool:
    return with_watermark_rows(frame) is not None


def drops_watermark_rows(plan: Any) -> bool:
    """Whether the step of Spark's is the condition (position.IS_RESULT) that an operator's result
    begins with.
    """
    return bool(
        plan.nodeName() == "Filter"
        and plan.children().apply(0).nodeName() == "MapInArrow"
        and plan.condition().sql() == _IS_RESULT_SQL
    )


def _accepts_nulls(step: Any, session: Any) -> bool:
    """Functions of the user may not, and some of Spark's raise errors."""
    patterns = session._jvm.org.apache.spark.sql.catalyst.trees.TreePattern  # noqa: SLF001
    functions = patterns.PYTHON_UDF(), patterns.SCALA_UDF()
    for expression in _items(step.expressions()):
        if any(expression.containsPattern(function) for function in functions):
            return False
        if any(name in expression.sql().lower() for name in _RAISING):
            return False
    return True


def reads_alias(plan: Node, alias: str) -> bool:
    return any(node.alias == alias for node in plan)


def gives_op(plan: Node, is_operator: Callable[[Node], bool]) -> bool:
    """Whether `_op` reaches the top of the plan, unless a projection leaves it out: from a source
    or from an operator, which decides for its inputs. Rows that Spark computes from several have
    no such column.
    """
    if _makes_rows(plan) or plan.name == _REFERENCE:
        return False
    if is_operator(plan) or not plan.children:
        return plan.has_op
    if any(gives_op(child, is_operator) for child in plan.children):
        return True
    return plan.has_op and not any(_makes_rows(node) for node in plan)


def streams_of(
    plan: Node, inputs_of: Callable[[Node], tuple[Node, ...]] = lambda node: node.children
) -> list[Node]:
    """The streams at the bottom of the plan, or of the inputs that `inputs_of` selects."""
    if plan.name == _STREAM or (plan.name in _IN_MEMORY and (plan.topic or plan.pattern)):
        return [plan]
    return [stream for given in inputs_of(plan) for stream in streams_of(given, inputs_of)]


def _is_moving(node: Node) -> bool:
    return "Join" in node.name or node.name.startswith(_MOVING)


def _items(sequence: Any) -> list[Any]:
    """The items of a Scala Seq."""
    return [sequence.apply(at) for at in range(sequence.size())]


def _makes_rows(node: Node) -> bool:
    return any(kind in node.name for kind in _MAKES_ROWS)


def source_options_of(leaf: Any) -> Any:
    """The options of a data source, or of the one that rows in memory stand for; else None."""
    name = leaf.nodeName()
    if name == _STREAM:
        return leaf.extraOptions()
    if name == _BOUNDED:
        return leaf.options()
    if name in _IN_MEMORY and leaf.output().nonEmpty():
        metadata = leaf.output().last().metadata()
        if metadata.contains(IN_MEMORY_OPTIONS):
            return orjson.loads(metadata.getString(IN_MEMORY_OPTIONS))
    return None


def _node(plan: Any) -> Node:
    if drops_watermark_rows(plan):  # a part of the operator below
        return _node(plan.children().apply(0))
    name = plan.nodeName()
    options = source_options_of(plan) or {}  # of our source, or of Spark's own connector
    return Node(
        name,
        tuple(_node(child) for child in _items(plan.children())),
        plan.functionExpr().name() if name == "MapInArrow" else "",
        plan.alias() if name == "SubqueryAlias" else "",
        plan.schema().getFieldIndex(OP).isDefined(),
        options.get("topic") or options.get("subscribe") or "",
        options.get("pattern") or options.get("subscribePattern") or "",
        plan.simpleString(_ALL_FIELDS),
    )
