"""The analysed plan of a DataFrame, as a tree. It is never read as text: Spark cuts lists of more
than 25 fields out of that, and a column may have the name of anything.
"""

from collections.abc import Callable, Iterator
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
_REFERENCE: Final = "CTERelationRef"  # to a part of the same plan


@dataclass(frozen=True)
class Node:
    """One step of a plan; its children are what it reads."""

    name: str
    children: tuple["Node", ...] = ()
    function: str = ""  # of mapInArrow
    alias: str = ""
    has_op: bool = False  # whether `_op` is among the columns that it gives
    topic: str = ""  # of a stream: one, or several with commas between them
    pattern: str = ""

    def __iter__(self) -> Iterator["Node"]:
        """Itself and all below it, from the top, in the order in which Spark shows them."""
        yield self
        for each in self.children:
            yield from each


def plan_of(frame: "DataFrame") -> Node:
    return _node(frame._jdf.queryExecution().analyzed())  # noqa: SLF001


def text_of(frame: "DataFrame") -> str:
    """All of it, to tell plans apart."""
    plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    return str(plan.treeString(True, False, _ALL_FIELDS, False, False))


def moves_rows(plan: Node) -> bool:
    """Whether rows may not come as the log has them: each partition's in one task, in order."""
    return any("Join" in each.name or each.name.startswith(_MOVING) for each in plan)


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


def _makes_rows(node: Node) -> bool:
    return any(each in node.name for each in _MAKES_ROWS)


def _node(plan: Any) -> Node:
    name = plan.nodeName()
    children = plan.children()
    options = plan.extraOptions() if name == _STREAM else {}  # ours, or Spark's own connector's
    return Node(
        name,
        tuple(_node(children.apply(at)) for at in range(children.size())),
        plan.functionExpr().name() if name == "MapInArrow" else "",
        plan.alias() if name == "SubqueryAlias" else "",
        plan.schema().getFieldIndex(OP).isDefined(),
        options.get("topic") or options.get("subscribe") or "",
        options.get("pattern") or options.get("subscribePattern") or "",
    )
