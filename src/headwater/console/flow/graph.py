"""The nodes and edges of the flow graph."""

from dataclasses import dataclass, field
from typing import Any

from headwater.terminal.output import count

SOURCE, TOPIC, PIPELINE, STORE, GROUP = "source", "topic", "pipeline", "store", "group"
STEP = "step"  # of a view's plan
WELL, BEHIND, BROKEN, IDLE = "well", "behind", "broken", "idle"


@dataclass(frozen=True, slots=True)
class Node:
    """A part of the flow; `cause` is why records wait for it, None if they do not."""

    id: str
    kind: str
    name: str
    href: str
    state: str = WELL
    notes: tuple[str, ...] = ()
    per_s: float | None = None
    lag: int | None = None
    cause: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "kind": self.kind,
            "name": self.name,
            "href": self.href,
            "state": self.state,
            "notes": list(self.notes),
            "records_per_s": self.per_s,
            "lag": self.lag,
            "cause": self.cause,
        }


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    per_s: float | None = None
    lag: int | None = None
    is_behind: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "from": self.source,
            "to": self.target,
            "records_per_s": self.per_s,
            "lag": self.lag,
            "is_behind": self.is_behind,
        }


@dataclass(slots=True)
class Graph:
    nodes: dict[str, Node] = field(default_factory=dict)
    edges: dict[tuple[str, str], Edge] = field(default_factory=dict)

    def add(self, node: Node) -> None:
        self.nodes[node.id] = node

    def join(self, edge: Edge) -> None:
        self.edges[edge.source, edge.target] = edge

    @property
    def causes(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.cause is not None]

    def as_json(self) -> dict[str, Any]:
        return {
            "nodes": [node.as_json() for node in self.nodes.values()],
            "edges": [edge.as_json() for edge in self.edges.values()],
            "causes": [{"id": cause.id, "cause": cause.cause} for cause in self.causes],
        }


def shown_rate(per_s: float | None) -> str:
    per_s = per_s or 0.0
    return f"{count(round(per_s))}/s" if per_s >= 10 else f"{per_s:.1f}/s"
