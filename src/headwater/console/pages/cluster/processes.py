"""/cluster/processes: the processes of `headwater up`, restarted, paused and resumed;
/cluster/logs: what they have written.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.history.plots import Plot
from headwater.console.project.logs import MOST_LINES, read_log
from headwater.console.project.operators import require_operator
from headwater.console.project.overview import Overview, overview_of
from headwater.console.project.processes import data_dir_of, read_processes
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.rendering import Question, ask, both, confirmed, seen, shown
from headwater.errors import NotReady, UsageError
from headwater.supervisor import requests
from headwater.supervisor.log_file import files_of
from headwater.supervisor.plan import BROKER, CONSOLE, PAUSED_KINDS

log = logging.getLogger(__name__)

PROCESSES: Final = "/cluster/processes"
_LOG_AGE_S: Final = 2.0
_MOST_LINES_OF_PLOT: Final = 5
_WHAT_RESTARTS: Final = {
    BROKER: "Every client loses its connection for some seconds, and connects again. What is"
    " acknowledged is stored.",
    CONSOLE: "This page does not answer for some seconds, and jobs of the console end.",
}


async def _processes(request: Request) -> Response:
    overview = overview_of(request)
    children = await overview.access.call(read_processes, overview.config)
    names = [child["name"] for child in children]
    lines = await overview.small_lines({name: f"process.cpu/{name}" for name in names})
    usages = {
        name: {
            "cpu_cores": _newest(lines[name]),
            "memory_bytes": _newest(memory),
        }
        for name, memory in (
            await overview.small_lines({name: f"process.memory/{name}" for name in names})
        ).items()
    }
    data = {
        "processes": [{**child, **usages[child["name"]]} for child in children],
        "plots": await overview.plots(request, *plots_of_processes(names)) if names else [],
    }
    return shown(
        request, "processes.html", data, tab="processes", lines=lines, paused_kinds=PAUSED_KINDS
    )


def _newest(values: Sequence[float | None]) -> float | None:
    """Of now or the minute before: the last minute may have no sample yet."""
    return next((value for value in reversed(values[-2:]) if value is not None), None)


def plots_of_processes(names: list[str]) -> list[Plot]:
    shown_names = names[:_MOST_LINES_OF_PLOT]
    return [
        Plot("CPU", "cores", [(name, f"process.cpu/{name}") for name in shown_names]),
        Plot("Memory", "B", [(name, f"process.memory/{name}") for name in shown_names]),
    ]


async def _act(request: Request) -> Response:
    overview = overview_of(request)
    await require_operator(overview.access)
    form = request.state.form
    action, name = request.path_params["action"], str(form.get("child", ""))
    child = await _existing(overview, name)
    kind = child["kind"]
    if action not in (requests.RESTART, requests.PAUSE, requests.RESUME):
        raise NoSuchThing(f"there is no {action} of a process")
    if action == requests.PAUSE and kind not in PAUSED_KINDS:
        raise UsageError(f"the {kind} cannot be paused", detail="other processes need it")
    if action != requests.RESUME and not confirmed(request):
        if action == requests.RESTART:
            what = _WHAT_RESTARTS.get(kind, "It continues from its stored position.")
        else:
            what = (
                "It ends, and is not started again before you resume it, or `headwater up` is"
                " started again. What it follows waits: a database retains its log for a capture."
            )
        return ask(
            request,
            Question(f"{action.title()} {name}?", f"{action.title()} it", what, back=PROCESSES),
        )
    asked = await overview.access.call(
        requests.ask, data_dir_of(overview.config), child["name"], action
    )
    if not asked:
        raise NotReady("`headwater up` has just ended", hint="start it again")
    log.info("%s: %s, asked for by %s", name, action, overview.access.user or "a visitor")
    return seen(PROCESSES)


async def _existing(overview: Overview, name: str) -> dict[str, Any]:
    children = await overview.access.call(read_processes, overview.config)
    if not children:
        raise NotReady(
            "`headwater up` does not run here",
            hint="processes that were started by hand are restarted there",
        )
    found = next((child for child in children if child["name"] == name), None)
    if found is None:
        raise NoSuchThing(f"there is no process {name}", hint=f"{PROCESSES} lists them")
    return found


async def _logs(request: Request) -> Response:
    """For operators: a log may have rows of stores, and texts of the configuration."""
    overview = overview_of(request)
    await require_operator(overview.access, to_look=True)
    query = request.query_params
    child, search, level = (query.get(name, "")[:200] for name in ("child", "search", "level"))
    data_dir = data_dir_of(overview.config)
    children = await overview.access.call(read_processes, overview.config)
    lines, has_log = await overview.access.read(
        ("log", child, search, level), _read, data_dir, child, search, level, max_age_s=_LOG_AGE_S
    )
    data = {
        "child": child,
        "search": search,
        "level": level,
        "children": ["up", *(one["name"] for one in children)],
        "has_log": has_log,
        "lines": lines,
    }
    return shown(request, "logs.html", data, tab="logs", most=MOST_LINES)


def _read(data_dir: Path, child: str, search: str, level: str) -> tuple[list[dict[str, Any]], bool]:
    if not files_of(data_dir):
        return [], False
    return read_log(data_dir, child=child, search=search, level=level), True


ROUTES: Final = [
    *both(PROCESSES, _processes),
    Route(f"{PROCESSES}/{{action}}", _act, methods=["POST"]),
    *both("/cluster/logs", _logs),
]
