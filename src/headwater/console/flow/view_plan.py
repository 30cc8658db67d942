"""The plan of a view as a graph: its tables on the left, the steps that their changes go through,
and the write. layout.py positions it as it does the flow.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from headwater.console.flow.graph import (
    IDLE,
    STEP,
    STORE,
    TOPIC,
    WELL,
    Edge,
    Graph,
    Node,
    shown_rate,
)
from headwater.pipelines.views.plan_steps import Step
from headwater.terminal.output import plural, size


def step_of(stored: Mapping[str, Any]) -> Step | None:
    """None if there is no plan, or one that another version has written."""
    try:
        return Step.from_json(stored)
    except (KeyError, TypeError, ValueError):
        return None


def plan_graph(plan: Step, store: str) -> Graph:
    """`store` is the address of the page of the view's store. Steps are numbered in pre-order, as
    the table below the picture has them.
    """
    graph = Graph()
    numbers = {id(step): number for number, step in enumerate(plan)}
    for step in plan:
        number = numbers[id(step)]
        moves = bool(step.rows_in_per_s or step.rows_out_per_s)
        graph.add(
            Node(
                f"step-{number}",
                _kind(step),
                step.does,
                _address(step, number, store),
                WELL if moves else IDLE,
                _notes(step),
                step.rows_out_per_s,
            )
        )
        for before in step.inputs:
            source, target = f"step-{numbers[id(before)]}", f"step-{number}"
            graph.join(Edge(source, target, before.rows_out_per_s))
    return graph


def labels_of(plan: Step) -> dict[str, tuple[str, str]]:
    """By node: the kind of the step in a word, and what is left to say."""
    return {f"step-{number}": (step.kind, _detail(step)) for number, step in enumerate(plan)}


def _detail(step: Step) -> str:
    if step.topic:
        return step.topic
    if step.kind == "join":
        return step.does.partition(" on ")[2] or step.does
    return step.does.removeprefix("write to ").removeprefix("filter ")


def _kind(step: Step) -> str:
    if step.topic:
        return TOPIC
    return STORE if step.kind == "write" else STEP


def _address(step: Step, number: int, store: str) -> str:
    if step.topic:
        return f"/topics/{quote(step.topic, safe='')}/"
    return store if step.kind == "write" else f"#row-{number}"


def _notes(step: Step) -> tuple[str, ...]:
    notes = []
    if step.state_rows is not None:
        notes.append(f"{plural(step.state_rows, 'row')}, {size(step.state_bytes or 0)}")
    if step.rows_out_per_s is not None:
        notes.append(shown_rate(step.rows_out_per_s))
    return tuple(notes)
