"""The analysed plan of a DataFrame, as a tree. What it does is never read out of its text: Spark
cuts lists of more than 25 fields out of that, and a column may have the name of anything.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# What lets rows of a partition be in several tasks, or in another order. Operators shuffle, too.
_MOVING: Final = (
    "Repartition", "Rebalance", "Aggregate", "Window", "Deduplicate", "Distinct", "Sort",
    "FlatMap", "Transform", "GlobalLimit", "Intersect", "Except", "CoGroup",
)  # fmt: skip
_MAKES_ROWS: Final = ("Aggregate", "Join", "WithState")  # of several: no change of any of them
_ALL_FIELDS: Final = 2**31 - 1
_STREAM: Final = "StreamingRelationV2"
_BOUNDED: Final = "DataSourceV2Relation"
_REFERENCE: Final = "CTERelationRef"  # to a part of the same plan


@dataclass(frozen=True)
class Node:
    """One step of a plan; its children are what it reads."""

    name: str
    children: tuple["Node", ...] = ()
    function: str = ""  # of mapInArrow
    alias: str = ""
    has_op: bool = False  # whether `_op` is among the columns that it gives
    topic: str = ""  # of a source: one, or several with commas between them
    pattern: str = ""
    text: str = ""  # all of it, to tell steps apart, and for nothing else

    def __iter__(self) -> Iterator["Node"]:
        """Itself and all below it, from the top, in the order in which Spark shows them."""
        yield self
        for each in self.children:
            yield from each


def plan_of(frame: "DataFrame") -> Node:
    return _node(frame._jdf.queryExecution().analyzed())  # noqa: SLF001


def moves_rows(plan: Node) -> bool:
    """Whether rows may not come as the log has them: each partition's in one task, in order."""
    return any(_is_moving(each) for each in plan)


def disorders_rows(plan: Node, is_operator: Callable[[Node], bool]) -> bool:
    """Whether rows of one key may come in any order: behind a shuffle of Spark's. An operator gives
    them in theirs, an aggregation gives one of each group.
    """
    if is_operator(plan) or plan.name == "Aggregate":
        return False
    return _is_moving(plan) or any(disorders_rows(each, is_operator) for each in plan.children)


def comes_from(frame: "DataFrame", columns: Collection[str], names: Collection[str]) -> bool | None:
    """Whether one of the columns is, or is made of, one that the operator on top of the plan gives
    under one of the names. None: it cannot be told, or the operator gives none of these.
    """
    plan: Any = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    wanted = {each.exprId().id() for each in _each(plan.output()) if each.name() in columns}
    while (step := plan.nodeName()) in ("Project", "Filter", "SubqueryAlias"):
        if step == "Project":
            for each in _each(plan.projectList()):
                if each.exprId().id() in wanted:
                    made_of = _each(each.references().toSeq())
                    wanted |= {one.exprId().id() for one in made_of}
        plan = plan.children().apply(0)
    if step != "MapInArrow":
        return None
    given = [each.exprId().id() for each in _each(plan.output()) if each.name() in names]
    return bool(wanted.intersection(given)) if given else None


def reads_alias(plan: Node, alias: str) -> bool:
    return any(each.alias == alias for each in plan)


def gives_op(plan: Node, is_operator: Callable[[Node], bool]) -> bool:
    """Whether `_op` reaches the top of the plan, unless a projection leaves it out: from a source
    or from an operator, which answers for what is below it. Rows that Spark makes of several have
    no such column.
    """
    if _makes_rows(plan) or plan.name == _REFERENCE:
        return False
    if is_operator(plan) or not plan.children:
        return plan.has_op
    if any(gives_op(each, is_operator) for each in plan.children):
        return True
    return plan.has_op and not any(_makes_rows(each) for each in plan)


def streams_of(
    plan: Node, inputs_of: Callable[[Node], tuple[Node, ...]] = lambda node: node.children
) -> list[Node]:
    """Those at the bottom of the plan, or of what `inputs_of` names of each step's inputs."""
    if plan.name == _STREAM:
        return [plan]
    return [each for given in inputs_of(plan) for each in streams_of(given, inputs_of)]


def _is_moving(node: Node) -> bool:
    return "Join" in node.name or node.name.startswith(_MOVING)


def _each(sequence: Any) -> list[Any]:
    """Of a Seq of Scala's."""
    return [sequence.apply(at) for at in range(sequence.size())]


def _makes_rows(node: Node) -> bool:
    return any(each in node.name for each in _MAKES_ROWS)


def _node(plan: Any) -> Node:
    name = plan.nodeName()
    # Of a source of ours, or of Spark's own connector.
    options = plan.extraOptions() if name == _STREAM else plan.options() if name == _BOUNDED else {}
    return Node(
        name,
        tuple(_node(each) for each in _each(plan.children())),
        plan.functionExpr().name() if name == "MapInArrow" else "",
        plan.alias() if name == "SubqueryAlias" else "",
        plan.schema().getFieldIndex(OP).isDefined(),
        options.get("topic") or options.get("subscribe") or "",
        options.get("pattern") or options.get("subscribePattern") or "",
        plan.simpleString(_ALL_FIELDS),
    )
