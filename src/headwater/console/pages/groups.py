"""/groups: all groups with their lag; /groups/NAME/: one, its members, partitions, lag over time,
and moving it elsewhere.
"""

import shlex
import time
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.history.plots import Plot
from headwater.console.project.overview import Overview, overview_of
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.paging import page_of
from headwater.console.web.rendering import Question, ask, both, confirmed, part, seen, shown
from headwater.errors import RequestRefused, UsageError
from headwater.inspect.groups import Seek, alter_offsets, delete_group, planned_seek
from headwater.inspect.positions import Position, parse_position
from headwater.terminal.output import plural

NAVIGATION_ENTRY: Final = NavigationEntry("Groups", "/groups")

_COLUMNS: Final = {
    "group": lambda group: group.name,
    "state": lambda group: group.state,
    "type": lambda group: group.kind,
    "topics": lambda group: len(group.topics),
    "lag": lambda group: group.lag,
}
_MOST_PARTITIONS: Final = 500  # on a page; all are in the JSON


async def _groups(request: Request) -> Response:
    groups = [group for group in await overview_of(request).groups() if group.kind != "share"]
    page = page_of(
        request, groups, columns=_COLUMNS, default_sort="-lag", text=lambda group: group.name
    )
    data: dict[str, Any] = {**page.as_json(), "groups": [row.as_json() for row in page.rows]}
    lines = await overview_of(request).small_lines(
        {group.name: f"group.lag/{group.name}" for group in page.rows}
    )
    return shown(request, "groups.html", data, listing=page, lines=lines)


async def _group(request: Request) -> Response:
    overview = overview_of(request)
    name = request.path_params["group"]
    group = await overview.group(name)
    plots = await overview.plots(
        request, Plot("Lag in records", "", [("records behind", f"group.lag/{name}")])
    )
    data = {**group, "plots": plots}
    return shown(
        request,
        "group.html",
        data,
        address=_address(name),
        shown_partitions=group["partitions"][:_MOST_PARTITIONS],
    )


async def _seek(request: Request) -> Response:
    """Shows what would change; the form that it shows does it."""
    overview = overview_of(request)
    name = request.path_params["group"]
    form = request.state.form
    to = _position(str(form.get("to", "")), str(form.get("value", "")).strip())
    topic = str(form.get("topic", ""))
    topics = [topic] if topic else []
    is_confirmed = confirmed(request)
    seek = await overview.access.call(_sought, overview, name, to, topics, is_confirmed)
    if is_confirmed:
        overview.forget(("group", name), "groups")
        return seen(_address(name))
    data = {
        "group": name,
        "changes": seek.as_json(),
        "is_active": seek.members > 0,
        "members": seek.members,
        "state": seek.state,
        "address": _address(name),
        # A time is frozen: what is confirmed is what was shown.
        "fields": {"to": "text", "value": _text(to), "topic": topic},
        "command": seek_command(name, _text(to), topic),
    }
    return part(request, "seek.html", data)


async def _delete(request: Request) -> Response:
    """A group with its offsets. One with members is refused by the broker."""
    overview = overview_of(request)
    name = request.path_params["group"]
    group = await overview.group(name)
    if group["members"]:
        raise RequestRefused(
            f"group {name} has {plural(len(group['members']), 'member')}",
            hint="stop its members first",
        )
    if not confirmed(request, type_name=name):
        lag = plural(group["lag"] or 0, "record")
        return ask(
            request,
            Question(
                f"Delete group {name}?",
                "Delete it permanently",
                f"Its offsets in {plural(len(group['partitions']), 'partition')} are deleted; it is"
                f" {lag} behind. A consumer of that name begins anew, as its auto.offset.reset"
                " says.",
                type_name=name,
                is_dangerous=True,
                back=_address(name),
            ),
        )
    await overview.access.call(delete_group, overview.kafka, name)
    overview.forget(("group", name), "groups")
    return seen("/groups")


def seek_command(group: str, to: str, topic: str) -> str:
    """For a shell: a group may be called anything, also what a shell would run."""
    only = ("--topic", topic) if topic else ()
    named = ("--", group) if group.startswith("-") else (group,)
    return shlex.join(("headwater", "group", "seek", f"--to={to}", *only, *named))


def _sought(
    overview: Overview, name: str, to: Position, topics: list[str], is_confirmed: bool
) -> Seek:
    seek = planned_seek(overview.kafka, name, to, topics)
    if is_confirmed:
        seek.require_idle()
        alter_offsets(
            overview.kafka, name, {change: at for change, (_, at) in seek.changes.items()}
        )
    return seek


def _position(to: str, value: str) -> Position:
    """Raises UsageError."""
    text = {"start": "start", "end": "end", "offset": value, "time": f"@{value}", "text": value}
    position = parse_position(text.get(to, ""), time.time_ns() // 1_000_000)
    if position is None:
        expected = {
            "offset": "an offset is a number from 0 on",
            "time": "2026-11-15T10:00, epoch milliseconds, or back from now: -1h",
        }
        raise UsageError(
            f"not a position: {value or to or 'nothing was given'}", detail=expected.get(to, "")
        )
    return position


def _text(position: Position) -> str:
    """As `headwater group seek --to` reads it."""
    match position.kind:
        case "time":
            return f"@{position.number}"
        case "plus":
            return f"+{position.number}"
        case "minus":
            return f"-{position.number}"
        case "offset":
            return str(position.number)
        case kind:
            return kind


def _address(name: str) -> str:
    return f"/groups/{quote(name, safe='')}/"


ROUTES: Final = [
    *both("/groups", _groups),
    Route("/groups/{group:path}/seek", _seek, methods=["POST"]),
    Route("/groups/{group:path}/delete", _delete, methods=["POST"]),
    *both("/groups/{group:path}/", _group),
]
