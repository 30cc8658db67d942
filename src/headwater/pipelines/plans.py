"""The analysed plan of a DataFrame, as a tree of nodes.

Its text is never parsed: Spark truncates lists of more than 25 fields in it, and a column may have
any name.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

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
_REFERENCE: Final = "CTERelationRef"  # to a part of the same plan


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
    while (step := plan.nodeName()) in ("Project", "Filter", "SubqueryAlias"):
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
    if plan.name == _STREAM:
        return [plan]
    return [stream for given in inputs_of(plan) for stream in streams_of(given, inputs_of)]


def _is_moving(node: Node) -> bool:
    return "Join" in node.name or node.name.startswith(_MOVING)


def _items(sequence: Any) -> list[Any]:
    """The items of a Scala Seq."""
    return [sequence.apply(at) for at in range(sequence.size())]


def _makes_rows(node: Node) -> bool:
    return any(kind in node.name for kind in _MAKES_ROWS)


def _node(plan: Any) -> Node:
    name = plan.nodeName()
    # Of a source of ours, or of Spark's own connector.
    options = plan.extraOptions() if name == _STREAM else plan.options() if name == _BOUNDED else {}
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
