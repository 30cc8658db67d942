"""Merging of similar nodes, for a flow with more of them than can be read at once."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headwater.console.flow.graph import (
    BEHIND,
    BROKEN,
    IDLE,
    SOURCE,
    WELL,
    Edge,
    Graph,
    Node,
    shown_rate,
)
from headwater.terminal.output import plural

MOST_NODES: Final = 60
_WORST: Final = (BROKEN, BEHIND, WELL, IDLE)


def grouped(graph: Graph, most: int = MOST_NODES) -> Graph:
    """At most `most` nodes, if need be by merging several of one kind: first those with the same
    neighbours, then those whose names begin alike, at last all of a kind.
    """
    for rule in (_by_neighbours, _by_prefix, _by_kind):
        if len(graph.nodes) <= most:
            break
        graph = _merged(graph, rule(graph), most)
    return graph


def _by_neighbours(graph: Graph) -> dict[str, Any]:
    before: dict[str, set[str]] = {name: set() for name in graph.nodes}
    after: dict[str, set[str]] = {name: set() for name in graph.nodes}
    for source, target in graph.edges:
        after[source].add(target)
        before[target].add(source)
    return {
        name: (node.kind, frozenset(before[name]), frozenset(after[name]))
        for name, node in graph.nodes.items()
    }


def _by_prefix(graph: Graph) -> dict[str, Any]:
    return {name: (node.kind, node.name.split(".")[0]) for name, node in graph.nodes.items()}


def _by_kind(graph: Graph) -> dict[str, Any]:
    return {name: node.kind for name, node in graph.nodes.items()}


def _merged(graph: Graph, classes: Mapping[str, Any], most: int) -> Graph:
    """Merges the largest classes first, as few as it takes."""
    members: dict[Any, list[Node]] = {}
    for name, node in graph.nodes.items():
        members.setdefault(classes[name], []).append(node)
    merged_into: dict[str, str] = {name: name for name in graph.nodes}
    nodes = dict(graph.nodes)
    for some in sorted(members.values(), key=lambda nodes: (-len(nodes), nodes[0].id)):
        if len(nodes) <= most or len(some) < 2:
            break
        one = _as_one(some)
        for node in some:
            del nodes[node.id]
            merged_into[node.id] = one.id
        nodes[one.id] = one
    merged = Graph(nodes)
    for edge in graph.edges.values():
        source, target = merged_into[edge.source], merged_into[edge.target]
        merged_edge = merged.edges.get((source, target))
        if source == target:
            continue
        merged.join(
            Edge(
                source,
                target,
                _sum((merged_edge.per_s if merged_edge else None, edge.per_s)),
                _sum((merged_edge.lag if merged_edge else None, edge.lag)),
                edge.is_behind or (merged_edge is not None and merged_edge.is_behind),
            )
        )
    return merged


def _as_one(some: Sequence[Node]) -> Node:
    kind = some[0].kind
    nodes = sum(_number_in(node) for node in some)
    blamed = [f"{node.name}: {node.cause}" for node in some if node.cause]
    more = f" … and {len(blamed) - 3} more" if len(blamed) > 3 else ""
    per_s = _sum([node.per_s for node in some])
    lag = _sum([node.lag for node in some])
    notes = [shown_rate(per_s)] if per_s else []
    notes += [f"{plural(int(lag), 'record')} behind"] if lag else []
    page = {SOURCE: "captures"}.get(kind, f"{kind}s")
    return Node(
        f"{some[0].id}+{nodes - 1}",
        kind,
        f"{nodes} {page}",
        f"/{page}",
        min((node.state for node in some), key=_WORST.index),
        tuple(notes),
        per_s,
        None if lag is None else int(lag),
        "; ".join(blamed[:3]) + more if blamed else None,
    )


def _number_in(node: Node) -> int:
    head, plus, more = node.id.rpartition("+")
    return int(more) + 1 if plus and head and more.isdigit() else 1


def _sum(numbers: Iterable[float | None]) -> Any:
    present = [number for number in numbers if number is not None]
    return sum(present) if present else None
