"""/pipelines: what is derived from the log; /pipelines/NAME/: one, its rates, batches, watermarks,
state and plan; rebuilding and promoting it.
"""

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.flow.flow import BEHIND_S
from headwater.console.pages import jobs
from headwater.console.project.overview import Overview, no_such, overview_of
from headwater.console.web.navigation import Place
from headwater.console.web.rendering import Question, ask, both, confirmed, shown
from headwater.errors import UsageError
from headwater.inspect.pipelines import NEW, RUNNING, STOPPED, Known, KnownWrite
from headwater.pipelines.running import status
from headwater.pipelines.running.store_lookup import state_dir_of

PLACE: Final = Place("Pipelines", "/pipelines")

_PLANS_AGE_S: Final = 10.0


async def _pipelines(request: Request) -> Response:
    overview = overview_of(request)
    state = await overview.project()
    return shown(
        request, "pipelines.html", {"pipelines": [told(overview, each) for each in state.pipelines]}
    )


async def _pipeline(request: Request) -> Response:
    overview = overview_of(request)
    known = await existing(overview, request.path_params["pipeline"])
    data = told(overview, known)
    plans = await overview.access.read(
        ("plans", known.name),
        lambda: status.read_plans(state_dir_of(overview.config), known.name),
        max_age_s=_PLANS_AGE_S,
    )
    for each in data["writes"]:
        name = f"{known.name}/{each['write']}"
        each["plan"] = plans.get(each["write"])
        each["over_time"] = {
            "batch": overview.writes.chart(
                name, ("batch, ms", "batch_ms"), ("in the store, ms", "store_ms")
            ),
            "lag": overview.writes.chart(name, ("records behind", "lag")),
            "rate": overview.writes.chart(name, ("records/s while it works", "rows_per_s")),
            "gap": overview.writes.chart(name, ("watermark behind now, s", "gap_s")),
        }
    address = address_of(known.name)
    recent = await jobs.about(request, address)
    return shown(request, "pipeline.html", data, address=address, recent=recent[:5])


async def _rebuild(request: Request) -> Response:
    known = await existing(overview_of(request), request.path_params["pipeline"])
    form = request.state.form
    write, is_promoted = _write(known, form), bool(form.get("promote"))
    address = address_of(known.name)
    which = write or "all that it writes"
    if not confirmed(request):
        then = (
            "made live as soon as it is whole" if is_promoted else "not live until you promote it"
        )
        return ask(
            request,
            Question(
                f"Rebuild {known.name}?",
                "Rebuild it",
                f"A new version of {which} is derived from the start of the log, beside the one in"
                f" use, which goes on. It is {then}. A Spark of its own does it, on this machine or"
                " the cluster that [spark] names.",
                back=address,
            ),
        )
    arguments = ["pipeline", "rebuild", *_only(write)]
    arguments += ["--promote"] if is_promoted else []
    arguments += ["--resume"] if form.get("resume") else []
    return await jobs.start(
        request, "rebuild", f"Rebuild {known.name}", [*arguments, "--", known.name], about=address
    )


async def _promote(request: Request) -> Response:
    known = await existing(overview_of(request), request.path_params["pipeline"])
    form = request.state.form
    write, version = _write(known, form), str(form.get("version", ""))
    if version and not (version.isascii() and version.isdigit()):
        raise UsageError(f"not a version: {version}")
    address = address_of(known.name)
    if not confirmed(request):
        what = f"Version {version}" if version else "The newest version"
        return ask(
            request,
            Question(
                f"Promote {known.name}?",
                "Make it live",
                f"{what} of {write or 'each table'} takes the place of the live one, at once for"
                " every reader. The one that was live stays, and can be promoted again.",
                back=address,
                is_dangerous=True,
            ),
        )
    arguments = ["pipeline", "promote", *_only(write)]
    arguments += [f"--version={version}"] if version else []
    return await jobs.start(
        request, "promote", f"Promote {known.name}", [*arguments, "--", known.name], about=address
    )


def _only(write: str) -> list[str]:
    return [f"--write={write}"] if write else []


def _write(known: Known, form: Any) -> str:
    write = str(form.get("write", ""))
    if write and write not in [each.name for each in known.writes]:
        raise UsageError(f"pipeline {known.name} does not write {write}")
    return write


async def existing(overview: Overview, name: str) -> Known:
    """Raises NoSuchThing."""
    state = await overview.project()
    known = state.pipeline(name)
    if known is None:
        raise no_such("pipeline", name, [each.name for each in state.pipelines])
    return known


def told(overview: Overview, known: Known) -> dict[str, Any]:
    """As `headwater pipeline status --json` tells it, and how it goes over time."""
    data = known.as_json()
    rates = overview.writes.read_per_s()
    lags = [each.lag for each in known.writes]
    data |= {
        "hint": known.hint,
        "health": health_of(known),
        "lag": None if not lags or None in lags else sum(each or 0 for each in lags),
        "records_per_s": max(
            (rates[n] for each in known.writes if (n := f"{known.name}/{each.name}") in rates),
            default=None,
        ),
    }
    for each, write in zip(data["writes"], known.writes, strict=True):
        each["lag_seconds"] = overview.writes.lag_s(f"{known.name}/{write.name}")
        of_state = {"failed": "bad", STOPPED: "bad", status.STARTING: "busy", "waiting": "warn"}
        each["health"] = of_state.get(each["state"]) or (
            "warn" if each.get("error") else write_health(known, write, each["lag_seconds"])
        )
        each["waits_for"] = _waits_for(known, write)
    return data


def health_of(known: Known) -> str:
    if known.state == RUNNING:
        return "good" if known.is_well else "warn"
    return {NEW: "idle", status.STARTING: "busy", "waiting": "warn"}.get(known.state, "bad")


def write_health(known: Known, write: KnownWrite, lag_s: float | None) -> str:
    if write.error is not None:
        return "bad"
    if write.lag is None:
        return "idle"
    if not write.lag:
        return "good"
    is_behind = not known.is_running or (lag_s or 0) >= BEHIND_S
    return "warn" if is_behind else "busy"


def _waits_for(known: Known, write: KnownWrite) -> str | None:
    """What keeps it from going on, in a few words."""
    if not known.is_running:
        return "a process that runs it"
    if known.is_starting or write.told.get("state") == status.STARTING:
        return "Spark, which is starting"
    if write.told.get("state") == "waiting":
        return f"its store: {write.told.get('error')}"
    if write.told.get("state") == "failed":
        return "the next attempt"
    return None if write.lag else "new records"


def address_of(name: str) -> str:
    return f"/pipelines/{quote(name, safe='')}/"


ROUTES: Final = [
    *both("/pipelines", _pipelines),
    *both("/pipelines/{pipeline}/", _pipeline),
    Route("/pipelines/{pipeline}/rebuild", _rebuild, methods=["POST"]),
    Route("/pipelines/{pipeline}/promote", _promote, methods=["POST"]),
]
