"""/stores: every derived store; /stores/PIPELINE/SINK/TABLE/: position, verification, lineage."""

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.pages import jobs, pipelines
from headwater.console.project.operators import require_operator
from headwater.console.project.overview import Overview, overview_of
from headwater.console.project.store_rows import MOST_ROWS, read_rows
from headwater.console.web.navigation import NavigationEntry
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.paging import whole
from headwater.console.web.rendering import both, shown
from headwater.errors import UsageError
from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.sinks.settings import SinkSettings

NAVIGATION_ENTRY: Final = NavigationEntry("Stores", "/stores")

_ROWS_AGE_S: Final = 5.0
_MOST_PARTITIONS: Final = 500  # on a page; all are in the JSON


async def _stores(request: Request) -> Response:
    overview = overview_of(request)
    state = await overview.project()
    stores = [
        _store_json(overview, pipeline, write)
        for pipeline in state.pipelines
        for write in pipeline.writes
    ]
    recent = await jobs.about(request, NAVIGATION_ENTRY.path)
    lines = await overview.small_lines(
        {store["store"]: f"write.lag/{store['store']}" for store in stores}
    )
    return shown(
        request,
        "stores.html",
        {"stores": stores},
        recent=recent[:3],
        missing=state.missing,
        lines=lines,
    )


async def _verify_all(request: Request) -> Response:
    """One after another, in one Spark."""
    return await jobs.start(
        request, "verify", "Verify all stores", ["verify"], about=NAVIGATION_ENTRY.path
    )


async def _store(request: Request) -> Response:
    overview = overview_of(request)
    pipeline, write = await _existing(overview, request)
    data = _store_json(overview, pipeline, write)
    name = f"{pipeline.name}/{write.name}"
    data |= {
        "positions": _positions(write),
        "plots": await overview.plots(request, *pipelines.plots_of_write(name)),
    }
    address = address_of(pipeline, write)
    about = await jobs.about(request, address)
    return shown(
        request,
        "store.html",
        data,
        address=address,
        shown_positions=data["positions"][:_MOST_PARTITIONS],
        verified=next((job for job in about if job.kind == "verify"), None),
        traced=next((job for job in about if job.kind == "why"), None),
    )


async def _rows(request: Request) -> Response:
    """For operators: rows of stores are read with the stores' logins, which no broker guards."""
    overview = overview_of(request)
    await require_operator(overview.access, to_look=True)
    pipeline, write = await _existing(overview, request)
    address = address_of(pipeline, write)
    live = write.live.number if write.live else 1
    version = whole(request.query_params.get("version"), live)
    is_topic = overview.is_topic(write.reported["sink"])
    found: dict[str, Any] = {
        "shown_version": version, "batch": None, "columns": [], "rows": [], "has_more": False,
    }  # fmt: skip
    if not is_topic:
        found = await overview.access.read(
            ("rows", address, version),
            read_rows,
            overview.config,
            pipeline.name,
            write.reported,
            version,
            MOST_ROWS,
            max_age_s=_ROWS_AGE_S,
        )
    data = {
        **found,
        "store": f"{pipeline.name}/{write.name}",
        "sink": write.reported["sink"],
        "table": write.reported["table"],
        "key": write.reported["key"],
        "versions": write.as_json()["versions"],
    }
    return shown(request, "store_rows.html", data, address=address, is_topic=is_topic)


async def _verify(request: Request) -> Response:
    pipeline, write = await _existing(overview_of(request), request)
    name = f"{pipeline.name}/{write.name}"
    return await jobs.start(
        request,
        "verify",
        f"Verify {name}",
        ["verify", "--", name],
        about=address_of(pipeline, write),
    )


async def _why(request: Request) -> Response:
    pipeline, write = await _existing(overview_of(request), request)
    key = {
        column: str(request.state.form.get(f"key.{column}", "")) for column in write.reported["key"]
    }
    missing = [column for column, value in key.items() if not value]
    if missing or not key:
        raise UsageError("a row has a key", detail=f"no value for {', '.join(missing) or 'it'}")
    name = f"{pipeline.name}/{write.name}"
    shown_key = ", ".join(f"{column}={value}" for column, value in key.items())
    return await jobs.start(
        request,
        "why",
        f"Why {write.name} has {shown_key}",
        ["why", *(f"--key={column}={value}" for column, value in key.items()), "--", name],
        about=address_of(pipeline, write),
    )


async def _existing(overview: Overview, request: Request) -> tuple[PipelineState, WriteState]:
    pipeline = await pipelines.existing(overview, request.path_params["pipeline"])
    name = f"{request.path_params['sink']}/{request.path_params['table']}"
    write = next((write for write in pipeline.writes if write.name == name), None)
    if write is None:
        written = ", ".join(write.name for write in pipeline.writes)
        raise NoSuchThing(
            f"pipeline {pipeline.name} does not write {name}",
            hint=f"it writes {written}" if written else "it has reported no write yet",
        )
    return pipeline, write


def _store_json(overview: Overview, pipeline: PipelineState, write: WriteState) -> dict[str, Any]:
    settings = overview.config.sinks.get(write.reported["sink"])
    lag_s = overview.writes.lag_s(f"{pipeline.name}/{write.name}")
    data = write.as_json()
    return {
        "store": f"{pipeline.name}/{write.name}",
        "pipeline": pipeline.name,
        "pipeline_state": pipeline.state,
        "sink": write.reported["sink"],
        "kind": settings.kind if isinstance(settings, SinkSettings) else "topic",
        "table": write.reported["table"],
        "key": write.reported["key"],
        "topics": write.reported.get("topics", []),
        "health": pipelines.write_health(pipeline, write, lag_s),
        "is_in_step": write.lag == 0 if write.error is None else None,
        "lag": write.lag,
        "lag_seconds": lag_s,
        "batch": write.position.batch if write.position else None,
        "address": address_of(pipeline, write),
        **{
            name: data[name] for name in ("live_version", "versions", "store_error", "refused_rows")
        },
    }


def _positions(write: WriteState) -> list[dict[str, Any]]:
    """Of the live version in each partition, beside the log's end."""
    read = write.position.offsets if write.position else {}
    return [
        {
            "topic": topic,
            "partition": partition,
            "position": read.get(topic, {}).get(partition, 0),
            "end_offset": end,
            "lag": max(0, end - read.get(topic, {}).get(partition, 0)),
        }
        for topic, partitions in sorted(write.ends.items())
        for partition, end in sorted(partitions.items())
    ]


def address_of(pipeline: PipelineState, write: WriteState) -> str:
    parts = (pipeline.name, write.reported["sink"], write.reported["table"])
    return "/stores/" + "/".join(quote(part, safe="") for part in parts) + "/"


_PATH: Final = "/stores/{pipeline}/{sink}/{table:path}/"
ROUTES: Final = [
    *both("/stores", _stores),
    Route("/stores/verify", _verify_all, methods=["POST"]),
    Route(f"{_PATH}verify", _verify, methods=["POST"]),
    Route(f"{_PATH}why", _why, methods=["POST"]),
    *both(f"{_PATH}rows", _rows),
    *both(_PATH, _store),
]
