"""/flow: the live graph of sources, topics, pipelines and stores, and the same as a table."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from headwater.console.flow.graph import BEHIND, BROKEN, IDLE, WELL
from headwater.console.flow.layout import HEIGHT, WIDTH, layout
from headwater.console.project.overview import overview_of
from headwater.console.project.processes import read_processes
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.rendering import both, shown

NAVIGATION_ENTRY: Final = NavigationEntry("Flow", "/flow")

_STATUS: Final = {WELL: "good", BEHIND: "warn", BROKEN: "bad", IDLE: "idle"}
_WORDS: Final = {WELL: "flows", BEHIND: "behind", BROKEN: "trouble", IDLE: "quiet"}
_CHARACTERS: Final = 21  # of a name that fit into a node
_NOTE_CHARACTERS: Final = 31


async def _flow(request: Request) -> Response:
    overview = overview_of(request)
    graph = await overview.flow()
    processes = await overview.access.call(read_processes, overview.config)
    data: dict[str, Any] = {**graph.as_json(), "processes": processes}
    targets: dict[str, list[str]] = {}
    for edge in graph.edges.values():
        targets.setdefault(edge.source, []).append(graph.nodes[edge.target].name)
    return shown(
        request,
        "flow.html",
        data,
        graph=graph,
        missing=(await overview.project()).missing,
        picture=layout(graph),
        targets=targets,
        box=(WIDTH, HEIGHT),
        health=_STATUS,
        words=_WORDS,
        cut=cut,
        cut_note=lambda text: cut(text, _NOTE_CHARACTERS),
        thickness=thickness,
    )


def cut(text: str, most: int = _CHARACTERS) -> str:
    """The end of a name says more than its middle: orders of shop.public.orders."""
    if len(text) <= most:
        return text
    return "…" + text[-(most - 1) :] if "." in text else text[: most - 1] + "…"


def thickness(per_s: float | None) -> float:
    """Of an edge: ten times as much is one step more."""
    if not per_s:
        return 1.0
    return round(min(1.5 + max(0, len(str(int(per_s))) - 1) * 0.9, 6.0), 1)


ROUTES: Final = both("/flow", _flow)
