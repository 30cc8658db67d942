"""Layered layout of the flow graph: columns by the longest path from a source.

The same graph gives the same picture, and a graph that changes a little changes the picture a
little: the order within a column starts from names, and then follows the neighbours' mean position
(the barycentre rule of Sugiyama, Tagawa and Toda), a fixed number of times.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headwater.console.flow.graph import (
    GROUP,
    PIPELINE,
    SOURCE,
    STEP,
    STORE,
    TOPIC,
    Edge,
    Graph,
    Node,
)

WIDTH: Final = 196  # of a node
HEIGHT: Final = 58
_GAP_X: Final = 92
_GAP_Y: Final = 18
_WAY: Final = 10  # height that an edge takes in a column that it passes
_MARGIN: Final = 8
_SWEEPS: Final = 6
_FIRST: Final = {SOURCE: 0, TOPIC: 1, PIPELINE: 2, STORE: 3, GROUP: 2, STEP: 2}

_Slot = tuple[str, ...]  # (node,), or (source, target) of an edge that passes by


@dataclass(frozen=True, slots=True)
class Placed:
    node: Node
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """An edge as the `d` of an SVG path, and where its label stands."""

    edge: Edge
    path: str
    label_x: int
    label_y: int


@dataclass(frozen=True, slots=True)
class Layout:
    nodes: list[Placed]
    edges: list[Drawn]
    width: int
    height: int


def layout(graph: Graph) -> Layout:
    columns_of = _columns(graph)
    slots = _slots(graph, columns_of)
    _order(graph, slots)
    corners = _corners(slots)
    nodes = [
        Placed(graph.nodes[slot[0]], *corners[column, slot])
        for column, some in enumerate(slots)
        for slot in some
        if len(slot) == 1
    ]
    edges = [
        _drawn(edge, columns_of, corners)
        for edge in sorted(graph.edges.values(), key=lambda edge: (edge.source, edge.target))
    ]
    width = max((node.x for node in nodes), default=0) + WIDTH + _MARGIN
    height = max((y for _, y in corners.values()), default=0) + HEIGHT + _MARGIN
    return Layout(nodes, edges, width, height)


def _columns(graph: Graph) -> dict[str, int]:
    """The column of each node, without empty columns. An edge that closes a cycle moves no node."""
    after: dict[str, list[str]] = {name: [] for name in graph.nodes}
    for source, target in sorted(graph.edges):
        after[source].append(target)
    column = {name: _FIRST[node.kind] for name, node in graph.nodes.items()}
    order, closing = _walk(after)
    for name in reversed(order):
        for target in after[name]:
            if (name, target) not in closing:
                column[target] = max(column[target], column[name] + 1)
    used = sorted(set(column.values()))
    return {name: used.index(number) for name, number in column.items()}


def _walk(after: Mapping[str, list[str]]) -> tuple[list[str], set[tuple[str, str]]]:
    """Nodes in depth-first postorder, and the edges that close cycles."""
    order: list[str] = []
    closing: set[tuple[str, str]] = set()
    state: dict[str, int] = {}  # 1: on the stack, 2: done
    for begin in sorted(after):
        stack = [(begin, iter(after[begin]))] if begin not in state else []
        if stack:
            state[begin] = 1
        while stack:
            name, targets = stack[-1]
            for target in targets:
                if state.get(target) == 1:
                    closing.add((name, target))
                elif target not in state:
                    state[target] = 1
                    stack.append((target, iter(after[target])))
                    break
            else:
                state[name] = 2
                order.append(name)
                stack.pop()
    return order, closing


def _slots(graph: Graph, column_of: Mapping[str, int]) -> list[list[_Slot]]:
    columns: list[list[_Slot]] = [[] for _ in range(max(column_of.values(), default=-1) + 1)]
    for name in sorted(graph.nodes, key=lambda name: graph.nodes[name].name):
        columns[column_of[name]].append((name,))
    for source, target in sorted(graph.edges):
        for between in range(column_of[source] + 1, column_of[target]):
            columns[between].append((source, target))
    return columns


def _order(graph: Graph, columns: list[list[_Slot]]) -> None:
    neighbours: dict[_Slot, list[list[_Slot]]] = {}  # in the column before, and in the one behind
    at = {slot: column for column, some in enumerate(columns) for slot in some if len(slot) == 1}
    for edge in sorted(graph.edges):
        source, target = edge
        if at[(target,)] <= at[(source,)]:
            continue
        way: list[_Slot] = [(source,), *[edge] * (at[(target,)] - at[(source,)] - 1), (target,)]
        for left, right in itertools.pairwise(way):
            neighbours.setdefault(left, [[], []])[1].append(right)
            neighbours.setdefault(right, [[], []])[0].append(left)
    for sweep in range(_SWEEPS):
        side = sweep % 2
        order = range(1, len(columns)) if side == 0 else range(len(columns) - 2, -1, -1)
        for index in order:
            beside = columns[index - 1] if side == 0 else columns[index + 1]
            height = {slot: (n + 0.5) / len(beside) for n, slot in enumerate(beside)}
            own = {slot: (n + 0.5) / len(columns[index]) for n, slot in enumerate(columns[index])}

            def mean(
                slot: _Slot,
                height: Mapping[_Slot, float] = height,
                own: Mapping[_Slot, float] = own,
                side: int = side,
            ) -> float:
                heights = [
                    height[neighbour]
                    for neighbour in neighbours.get(slot, [[], []])[side]
                    if neighbour in height
                ]
                return sum(heights) / len(heights) if heights else own[slot]

            columns[index].sort(key=mean)


def _corners(columns: list[list[_Slot]]) -> dict[tuple[int, _Slot], tuple[int, int]]:
    """Left upper corners. Columns stand centred on each other."""
    heights = [sum(_height(slot) + _GAP_Y for slot in some) - _GAP_Y for some in columns]
    tallest = max(heights, default=0)
    corners = {}
    for column, some in enumerate(columns):
        y = _MARGIN + (tallest - heights[column]) // 2
        for slot in some:
            corners[column, slot] = (_MARGIN + column * (WIDTH + _GAP_X), y)
            y += _height(slot) + _GAP_Y
    return corners


def _height(slot: _Slot) -> int:
    return HEIGHT if len(slot) == 1 else _WAY


def _drawn(
    edge: Edge,
    column_of: Mapping[str, int],
    corners: Mapping[tuple[int, _Slot], tuple[int, int]],
) -> Drawn:
    first, last = column_of[edge.source], column_of[edge.target]
    begin_x, begin_y = corners[first, (edge.source,)]
    end_x, end_y = corners[last, (edge.target,)]
    points = [(begin_x + WIDTH, begin_y + HEIGHT // 2)]
    for column in range(first + 1, last):
        x, y = corners[column, (edge.source, edge.target)]
        points += [(x, y + _WAY // 2), (x + WIDTH, y + _WAY // 2)]
    points.append((end_x, end_y + HEIGHT // 2))
    if last <= first:  # back to the left: below both
        low = max(begin_y, end_y) + HEIGHT + _GAP_Y // 2
        path = f"M{points[0][0]} {points[0][1]}C{points[0][0] + 60} {low} "
        path += f"{end_x - 60} {low} {end_x} {end_y + HEIGHT // 2}"
        return Drawn(edge, path, (begin_x + end_x + WIDTH) // 2, low)
    path = f"M{points[0][0]} {points[0][1]}"
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        half = (to_x - x) // 2
        path += f"C{x + half} {y} {to_x - half} {to_y} {to_x} {to_y}"
    (x, y), (to_x, to_y) = points[-2], points[-1]
    return Drawn(edge, path, (x + to_x) // 2, (y + to_y) // 2)
