"""/captures: all captures; /captures/NAME/: tables, lag, schema changes, errors and their fixes."""

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.capture.records.schema_changes import read_changes
from headwater.console.history.plots import Plot
from headwater.console.pages import jobs
from headwater.console.project.overview import Overview, no_such, overview_of
from headwater.console.project.processes import read_processes
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.rendering import Question, ask, both, confirmed, shown
from headwater.errors import UsageError
from headwater.inspect.captures import FOLLOWING, NEW, CaptureState

NAVIGATION_ENTRY: Final = NavigationEntry("Captures", "/captures")

_CHANGES_AGE_S: Final = 10.0


async def _captures(request: Request) -> Response:
    overview = overview_of(request)
    state = await overview.project()
    captures = [_capture_json(capture) for capture in state.captures]
    lines = await overview.small_lines(
        {capture.name: f"capture.lag_bytes/{capture.name}" for capture in state.captures}
    )
    data = {"captures": captures}
    return shown(request, "captures.html", data, missing=state.missing, lines=lines)


async def _capture(request: Request) -> Response:
    overview = overview_of(request)
    capture = await _existing(overview, request.path_params["capture"])
    topics = (await overview.access.topics()).topics
    changes = await overview.access.read(
        ("schema", capture.name),
        read_changes,
        overview.access.bootstrap,
        overview.access.login,
        capture.name,
        max_age_s=_CHANGES_AGE_S,
    )
    data = _capture_json(capture)
    for table in data["tables"]:
        topic = topics.get(table["topic"])
        table["records"] = topic.records if topic else None
        table["records_per_s"] = topic.records_per_s if topic else None
    processes = await overview.access.call(read_processes, overview.config)
    supervised = f"capture {capture.name}"
    data |= {
        "schema_changes": changes,
        "plots": await overview.plots(
            request,
            Plot("Lag behind the database", "B", [("lag", f"capture.lag_bytes/{capture.name}")]),
            Plot("Lag in time", "s", [("lag", f"capture.lag_s/{capture.name}")]),
            Plot(
                "Log that the database retains for it",
                "B",
                [("retained", f"capture.retained/{capture.name}")],
            ),
        ),
        "process": next(
            (process for process in processes if process.get("name") == supervised), None
        ),
    }
    recent = await jobs.about(request, address_of(capture.name))
    return shown(request, "capture.html", data, address=address_of(capture.name), recent=recent[:5])


async def _snapshot(request: Request) -> Response:
    """Requests a new snapshot of a table; the capture's process takes it while it follows."""
    overview = overview_of(request)
    capture = await _existing(overview, request.path_params["capture"])
    table = str(request.state.form.get("table", ""))
    _check_table(capture, table)
    about = address_of(capture.name)
    if not confirmed(request):
        return ask(
            request,
            Question(
                f"Copy {table} again?",
                "Copy it",
                "Every row of the table is read and written to its topic again, while changes"
                " continue. Stores that follow the topic take the rows again, and end up the same.",
                back=about,
            ),
        )
    return await jobs.start(
        request,
        "snapshot",
        f"Copy {table} again",
        ["capture", "snapshot", "--wait", f"--table={table}", "--", capture.name],
        about=about,
    )


async def _verify(request: Request) -> Response:
    """Compares a captured topic with its table."""
    overview = overview_of(request)
    capture = await _existing(overview, request.path_params["capture"])
    table = str(request.state.form.get("table", ""))
    _check_table(capture, table)
    topic = next(row["topic"] for row in capture.as_json()["tables"] if row["table"] == table)
    return await jobs.start(
        request,
        "verify",
        f"Verify {topic}",
        ["verify", "--", topic],
        about=address_of(capture.name),
    )


def _check_table(capture: CaptureState, table: str) -> None:
    if table not in capture.stored.tables:
        raise UsageError(f"capture {capture.name} does not follow a table {table}")


async def _existing(overview: Overview, name: str) -> CaptureState:
    state = await overview.project()
    capture = state.capture(name)
    if capture is None:
        raise no_such("capture", name, [existing.name for existing in state.captures])
    return capture


def _capture_json(capture: CaptureState) -> dict[str, Any]:
    data = capture.as_json()
    data["failed_tables"] = len(capture.failed)
    if capture.failed and capture.state == FOLLOWING:
        data["health"] = "bad"
    else:
        data["health"] = {FOLLOWING: "good", NEW: "idle"}.get(capture.state, "bad")
    for table in data["tables"]:
        state = capture.stored.tables[table["table"]]
        table["columns"] = [
            {"name": column.name, "type": column.type, "optional": column.optional}
            for column in state.table.columns
        ]
        table["key"] = list(state.table.key)
    return data


def address_of(name: str) -> str:
    return f"/captures/{quote(name, safe='')}/"


ROUTES: Final = [
    *both("/captures", _captures),
    *both("/captures/{capture}/", _capture),
    Route("/captures/{capture}/snapshot", _snapshot, methods=["POST"]),
    Route("/captures/{capture}/verify", _verify, methods=["POST"]),
]
