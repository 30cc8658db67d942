"""Steps that a query has several times: they are computed, and their state is stored, once.

Spark's plan repeats a common table expression that is used twice, a view that two views of a query
read, and a subquery over the same join, each time with other ids of the columns. Spark itself says
which plans give the same rows; their columns correspond by their order.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from headwater.pipelines.views.plans.catalyst import id_of, items, kind_of, nodes_of

_WITHOUT_STATE: Final = frozenset({"LogicalRDD", "LocalRelation", "OneRowRelation"})


@dataclass
class _Shared:
    """Plans that give the same rows."""

    nodes: list[Any]
    outputs: list[list[int]] = field(default_factory=list)  # ids of their columns


class SharedSteps:
    """Of one query. `needed` are the ids of columns that some step reads: a column that one of
    several equal steps has to give becomes one of each of them.
    """

    def __init__(self, plan: Any, needed: set[int]) -> None:
        by_hash: dict[int, list[_Shared]] = {}
        for node in nodes_of(plan):
            if kind_of(node) in _WITHOUT_STATE:
                continue
            candidates = by_hash.setdefault(int(node.semanticHash()), [])
            same = next((one for one in candidates if node.sameResult(one.nodes[0])), None)
            if same is None:
                candidates.append(same := _Shared([]))
            same.nodes.append(node)
            same.outputs.append([id_of(one) for one in items(node.output())])
        self._shared = [one for found in by_hash.values() for one in found if len(one.nodes) > 1]
        while any(_add_needed(one, needed) for one in self._shared):
            pass  # the columns of a step are those of the steps below it

    def __len__(self) -> int:
        return len(self._shared)

    def number_of(self, node: Any) -> int | None:
        """The same for all steps that give the same rows; None for a step that is there once."""
        ids = [id_of(one) for one in items(node.output())]
        for number, shared in enumerate(self._shared):
            if ids in shared.outputs and node.sameResult(shared.nodes[0]):
                return number
        return None


def _add_needed(shared: _Shared, needed: set[int]) -> bool:
    before = len(needed)
    for columns in zip(*shared.outputs, strict=True):
        if not needed.isdisjoint(columns):
            needed.update(columns)
    return len(needed) > before
