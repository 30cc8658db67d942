"""/captures: databases whose changes are followed; /captures/NAME/: one, its tables, how far it is,
what changed, and what is wrong with the way to mend it.
"""

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.capture.records.schema_changes import read_changes
from headwater.console.pages import jobs
from headwater.console.project.overview import Overview, no_such, overview_of
from headwater.console.project.processes import read_processes
from headwater.console.web.navigation import Place
from headwater.console.web.rendering import Question, ask, both, confirmed, shown
from headwater.errors import UsageError
from headwater.inspect.captures import FOLLOWING, NEW, CaptureState

PLACE: Final = Place("Captures", "/captures")

_CHANGES_AGE_S: Final = 10.0


async def _captures(request: Request) -> Response:
    state = await overview_of(request).project()
    captures = [_told(capture) for capture in state.captures]
    return shown(request, "captures.html", {"captures": captures})


async def _capture(request: Request) -> Response:
    overview = overview_of(request)
    known = await _existing(overview, request.path_params["capture"])
    topics = (await overview.access.topics()).topics
    changes = await overview.access.read(
        ("schema", known.name),
        read_changes,
        overview.access.bootstrap,
        overview.access.login,
        known.name,
        max_age_s=_CHANGES_AGE_S,
    )
    data = _told(known)
    for each in data["tables"]:
        topic = topics.get(each["topic"])
        each["records"] = topic.records if topic else None
        each["records_per_s"] = topic.records_per_s if topic else None
    processes = await overview.access.call(read_processes, overview.config)
    supervised = f"capture {known.name}"
    data |= {
        "schema_changes": changes,
        "process": next(
            (process for process in processes if process.get("name") == supervised), None
        ),
    }
    recent = await jobs.about(request, address_of(known.name))
    return shown(request, "capture.html", data, address=address_of(known.name), recent=recent[:5])


async def _snapshot(request: Request) -> Response:
    """Has a table copied again; the capture's process does it, while it follows the changes."""
    overview = overview_of(request)
    known = await _existing(overview, request.path_params["capture"])
    table = str(request.state.form.get("table", ""))
    _check_table(known, table)
    about = address_of(known.name)
    if not confirmed(request):
        return ask(
            request,
            Question(
                f"Copy {table} again?",
                "Copy it",
                "Every row of the table is read and written to its topic once more, while changes"
                " go on. Stores that follow the topic take the rows in again, and end up the same.",
                back=about,
            ),
        )
    return await jobs.start(
        request,
        "snapshot",
        f"Copy {table} again",
        ["capture", "snapshot", "--wait", f"--table={table}", "--", known.name],
        about=about,
    )


async def _verify(request: Request) -> Response:
    """Compares a captured topic with its table."""
    overview = overview_of(request)
    known = await _existing(overview, request.path_params["capture"])
    table = str(request.state.form.get("table", ""))
    _check_table(known, table)
    topic = next(each["topic"] for each in known.as_json()["tables"] if each["table"] == table)
    return await jobs.start(
        request, "verify", f"Verify {topic}", ["verify", "--", topic], about=address_of(known.name)
    )


def _check_table(known: CaptureState, table: str) -> None:
    if table not in known.stored.tables:
        raise UsageError(f"capture {known.name} does not follow a table {table}")


async def _existing(overview: Overview, name: str) -> CaptureState:
    state = await overview.project()
    known = state.capture(name)
    if known is None:
        raise no_such("capture", name, [capture.name for capture in state.captures])
    return known


def _told(known: CaptureState) -> dict[str, Any]:
    data = known.as_json()
    data["failed_tables"] = len(known.failed)
    if known.failed and known.state == FOLLOWING:
        data["health"] = "bad"
    else:
        data["health"] = {FOLLOWING: "good", NEW: "idle"}.get(known.state, "bad")
    for each in data["tables"]:
        state = known.stored.tables[each["table"]]
        each["columns"] = [
            {"name": one.name, "type": one.type, "optional": one.optional}
            for one in state.table.columns
        ]
        each["key"] = list(state.table.key)
    return data


def address_of(name: str) -> str:
    return f"/captures/{quote(name, safe='')}/"


ROUTES: Final = [
    *both("/captures", _captures),
    *both("/captures/{capture}/", _capture),
    Route("/captures/{capture}/snapshot", _snapshot, methods=["POST"]),
    Route("/captures/{capture}/verify", _verify, methods=["POST"]),
]
