"""/pipelines: all pipelines; /pipelines/NAME/: rates, batches, state, plan, rebuild and promote."""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.flow.flow import BEHIND_S
from headwater.console.flow.layout import HEIGHT, WIDTH, Layout, layout
from headwater.console.flow.view_plan import labels_of, plan_graph, step_of
from headwater.console.history.plots import Plot
from headwater.console.pages import jobs
from headwater.console.pages.flow import cut, thickness
from headwater.console.project.overview import Overview, no_such, overview_of
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.rendering import Question, ask, both, confirmed, shown
from headwater.errors import UsageError
from headwater.inspect.pipelines import NEW, RUNNING, STOPPED, PipelineState, WriteState
from headwater.pipelines.running import status

NAVIGATION_ENTRY: Final = NavigationEntry("Pipelines", "/pipelines")

_PLANS_AGE_S: Final = 10.0
_MOST_LINES: Final = 5  # of a plot


async def _pipelines(request: Request) -> Response:
    overview = overview_of(request)
    state = await overview.project()
    # Of the write that lags most, of each.
    lines = await overview.small_lines(
        {
            pipeline.name: f"write.lag/{pipeline.name}/{most.name}"
            for pipeline in state.pipelines
            if (most := max(pipeline.writes, key=lambda write: write.lag or 0, default=None))
        }
    )
    return shown(
        request,
        "pipelines.html",
        {"pipelines": [pipeline_json(overview, pipeline) for pipeline in state.pipelines]},
        missing=state.missing,
        lines=lines,
    )


async def _pipeline(request: Request) -> Response:
    overview = overview_of(request)
    pipeline = await existing(overview, request.path_params["pipeline"])
    data = pipeline_json(overview, pipeline)
    plans = await overview.access.read(
        ("plans", pipeline.name),
        lambda: status.read_plans(overview.config.state_dir(), pipeline.name),
        max_age_s=_PLANS_AGE_S,
    )
    view = await overview.access.read(
        ("view", pipeline.name),
        lambda: step_of(status.read_view(overview.config.state_dir(), pipeline.name)),
        max_age_s=_PLANS_AGE_S,
    )
    plots = await overview.plots(
        request,
        *(
            plot
            for write in data["writes"]
            for plot in plots_of_write(
                f"{pipeline.name}/{write['write']}", list(write["operators"])
            )
        ),
    )
    pictures: dict[str, tuple[Layout, dict[str, tuple[str, str]]]] = {}
    for write in data["writes"]:
        name = f"{pipeline.name}/{write['write']}"
        write["plan"] = plans.get(write["write"])
        if view is not None:
            steps = view.with_state(write["operators"])
            steps = steps.with_rates(*overview.writes.operator_rows(name))
            write["view"] = steps.as_json()
            store = _store_address(pipeline.name, write["sink"], write["table"])
            pictures[write["write"]] = layout(plan_graph(steps, store)), labels_of(steps)
        write["events"] = overview.writes.events(name)
        write["plots"] = [plot for plot in plots if plot["of"] == name]
    address = address_of(pipeline.name)
    recent = await jobs.about(request, address)
    return shown(
        request,
        "pipeline.html",
        data,
        address=address,
        recent=recent[:5],
        pictures=pictures,
        box=(WIDTH, HEIGHT),
        cut=cut,
        cut_end=_cut_end,
        thickness=thickness,
        numbered=_numbered,
    )


def plots_of_write(name: str, operators: Sequence[str] = ()) -> list[Plot]:
    """`name`: <pipeline>/<sink>/<table>."""
    plots = [
        Plot("Lag in records", "", [("records behind", f"write.lag/{name}")]),
        Plot(
            "Input and processing rate",
            "/s",
            [
                ("input", f"write.input_rows_per_s/{name}"),
                ("processed", f"write.rows_per_s/{name}"),
            ],
        ),
        Plot(
            "Batch time, and the part of it in the store",
            "ms",
            [("batch", f"write.batch_ms/{name}"), ("in the store", f"write.store_ms/{name}")],
        ),
        Plot("Watermark behind now", "s", [("gap", f"write.gap/{name}")]),
        Plot("Late rows since the start", "", [("late rows", f"write.late/{name}")]),
        Plot(
            "State size",
            "B",
            [("state", f"write.state/{name}")]
            if len(operators) < 2
            else [
                (operator, f"operator.state/{name}/{operator}")
                for operator in operators[:_MOST_LINES]
            ],
        ),
    ]
    return [plot._replace(of=name) for plot in plots]


async def _rebuild(request: Request) -> Response:
    pipeline = await existing(overview_of(request), request.path_params["pipeline"])
    form = request.state.form
    write, is_promoted = _write(pipeline, form), bool(form.get("promote"))
    address = address_of(pipeline.name)
    which = write or "all that it writes"
    if not confirmed(request):
        then = (
            "made live as soon as it is complete"
            if is_promoted
            else "not live until you promote it"
        )
        return ask(
            request,
            Question(
                f"Rebuild {pipeline.name}?",
                "Rebuild it",
                f"A new version of {which} is derived from the start of the log, beside the one in"
                f" use, which continues. It is {then}. It runs in its own Spark application, on"
                " this machine or the cluster that [spark] names.",
                back=address,
            ),
        )
    arguments = ["pipeline", "rebuild", *_only(write)]
    arguments += ["--promote"] if is_promoted else []
    arguments += ["--resume"] if form.get("resume") else []
    return await jobs.start(
        request,
        "rebuild",
        f"Rebuild {pipeline.name}",
        [*arguments, "--", pipeline.name],
        about=address,
    )


async def _promote(request: Request) -> Response:
    pipeline = await existing(overview_of(request), request.path_params["pipeline"])
    form = request.state.form
    write, version = _write(pipeline, form), str(form.get("version", ""))
    if version and not (version.isascii() and version.isdigit()):
        raise UsageError(f"not a version: {version}")
    address = address_of(pipeline.name)
    if not confirmed(request):
        what = f"Version {version}" if version else "The newest version"
        return ask(
            request,
            Question(
                f"Promote {pipeline.name}?",
                "Make it live",
                f"{what} of {write or 'each table'} replaces the live one, at once for"
                " every reader. The one that was live stays, and can be promoted again.",
                back=address,
                is_dangerous=True,
            ),
        )
    arguments = ["pipeline", "promote", *_only(write)]
    arguments += [f"--version={version}"] if version else []
    return await jobs.start(
        request,
        "promote",
        f"Promote {pipeline.name}",
        [*arguments, "--", pipeline.name],
        about=address,
    )


def _only(write: str) -> list[str]:
    return [f"--write={write}"] if write else []


def _write(pipeline: PipelineState, form: Any) -> str:
    write = str(form.get("write", ""))
    if write and write not in [existing.name for existing in pipeline.writes]:
        raise UsageError(f"pipeline {pipeline.name} does not write {write}")
    return write


async def existing(overview: Overview, name: str) -> PipelineState:
    """Raises NoSuchThing."""
    state = await overview.project()
    pipeline = state.pipeline(name)
    if pipeline is None:
        raise no_such("pipeline", name, [existing.name for existing in state.pipelines])
    return pipeline


def pipeline_json(overview: Overview, pipeline: PipelineState) -> dict[str, Any]:
    """As `headwater pipeline status --json` prints it, and its rates and lag."""
    data = pipeline.as_json()
    rates = overview.writes.read_per_s()
    lags = [write.lag for write in pipeline.writes]
    data |= {
        "hint": pipeline.hint,
        "health": health_of(pipeline),
        "lag": None if not lags or None in lags else sum(lag or 0 for lag in lags),
        "records_per_s": max(
            (
                rates[n]
                for write in pipeline.writes
                if (n := f"{pipeline.name}/{write.name}") in rates
            ),
            default=None,
        ),
    }
    for shown_write, write in zip(data["writes"], pipeline.writes, strict=True):
        shown_write["lag_seconds"] = overview.writes.lag_s(f"{pipeline.name}/{write.name}")
        of_state = {"failed": "bad", STOPPED: "bad", status.STARTING: "busy", "waiting": "warn"}
        shown_write["health"] = of_state.get(shown_write["state"]) or (
            "warn"
            if shown_write.get("error")
            else write_health(pipeline, write, shown_write["lag_seconds"])
        )
        shown_write["waits_for"] = _waits_for(pipeline, write)
    return data


def health_of(pipeline: PipelineState) -> str:
    if pipeline.state == RUNNING:
        return "good" if pipeline.is_well else "warn"
    return {NEW: "idle", status.STARTING: "busy", "waiting": "warn"}.get(pipeline.state, "bad")


def write_health(pipeline: PipelineState, write: WriteState, lag_s: float | None) -> str:
    if write.error is not None:
        return "bad"
    if write.lag is None:
        return "idle"
    if not write.lag:
        return "good"
    is_behind = not pipeline.is_running or (lag_s or 0) >= BEHIND_S
    return "warn" if is_behind else "busy"


def _waits_for(pipeline: PipelineState, write: WriteState) -> str | None:
    """What the write waits for, in a few words."""
    if not pipeline.is_running:
        return "a process that runs it"
    if pipeline.is_starting or write.reported.get("state") == status.STARTING:
        return "Spark, which is starting"
    if write.reported.get("state") == "waiting":
        return f"its store: {write.reported.get('error')}"
    if write.reported.get("state") == "failed":
        return "the next attempt"
    return None if write.lag else "new records"


def _cut_end(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _numbered(step: Mapping[str, Any], depth: int = 0) -> list[tuple[int, Mapping[str, Any]]]:
    """The steps of a plan in pre-order, with their depth."""
    below = [one for inner in step["inputs"] for one in _numbered(inner, depth + 1)]
    return [(depth, step), *below]


def _store_address(pipeline: str, sink: str, table: str) -> str:
    return "/stores/" + "".join(f"{quote(part, safe='')}/" for part in (pipeline, sink, table))


def address_of(name: str) -> str:
    return f"/pipelines/{quote(name, safe='')}/"


ROUTES: Final = [
    *both("/pipelines", _pipelines),
    *both("/pipelines/{pipeline}/", _pipeline),
    Route("/pipelines/{pipeline}/rebuild", _rebuild, methods=["POST"]),
    Route("/pipelines/{pipeline}/promote", _promote, methods=["POST"]),
]
