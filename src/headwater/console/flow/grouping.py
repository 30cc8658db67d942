"""A flow with more nodes than can be read at once: those that stand alike are shown as one."""

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
    """At most so many nodes, if need be by showing several of one kind as one: first those that
    hang on the same others, then those whose names begin alike, at last all of a kind.
    """
    for rule in (_by_neighbours, _by_prefix, _by_kind):
        if len(graph.nodes) <= most:
            break
        graph = _merged(graph, rule(graph), most)
    return graph


def _by_neighbours(graph: Graph) -> dict[str, Any]:
    before: dict[str, set[str]] = {each: set() for each in graph.nodes}
    after: dict[str, set[str]] = {each: set() for each in graph.nodes}
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
    """The largest classes first, as few as it takes."""
    members: dict[Any, list[Node]] = {}
    for name, node in graph.nodes.items():
        members.setdefault(classes[name], []).append(node)
    place: dict[str, str] = {name: name for name in graph.nodes}
    nodes = dict(graph.nodes)
    for some in sorted(members.values(), key=lambda each: (-len(each), each[0].id)):
        if len(nodes) <= most or len(some) < 2:
            break
        one = _as_one(some)
        for each in some:
            del nodes[each.id]
            place[each.id] = one.id
        nodes[one.id] = one
    merged = Graph(nodes)
    for edge in graph.edges.values():
        source, target = place[edge.source], place[edge.target]
        known = merged.edges.get((source, target))
        if source == target:
            continue
        merged.join(
            Edge(
                source,
                target,
                _sum((known.per_s if known else None, edge.per_s)),
                _sum((known.lag if known else None, edge.lag)),
                edge.is_behind or (known is not None and known.is_behind),
            )
        )
    return merged


def _as_one(some: Sequence[Node]) -> Node:
    kind = some[0].kind
    nodes = sum(_number_in(each) for each in some)
    blamed = [f"{each.name}: {each.cause}" for each in some if each.cause]
    more = f" … and {len(blamed) - 3} more" if len(blamed) > 3 else ""
    per_s = _sum([each.per_s for each in some])
    lag = _sum([each.lag for each in some])
    notes = [shown_rate(per_s)] if per_s else []
    notes += [f"{plural(int(lag), 'record')} behind"] if lag else []
    page = {SOURCE: "captures"}.get(kind, f"{kind}s")
    return Node(
        f"{some[0].id}+{nodes - 1}",
        kind,
        f"{nodes} {page}",
        f"/{page}",
        min((each.state for each in some), key=_WORST.index),
        tuple(notes),
        per_s,
        None if lag is None else int(lag),
        "; ".join(blamed[:3]) + more if blamed else None,
    )


def _number_in(node: Node) -> int:
    head, plus, more = node.id.rpartition("+")
    return int(more) + 1 if plus and head and more.isdigit() else 1


def _sum(numbers: Iterable[float | None]) -> Any:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None
