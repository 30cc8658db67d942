"""/stores: every derived store and whether it is in step; /stores/PIPELINE/SINK/TABLE/: one, its
position against the log, whether it is equal to what the log says, and why a row is as it is.
"""

from typing import Any, Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.console.pages import jobs, pipelines
from headwater.console.project.overview import Overview, overview_of
from headwater.console.web.navigation import Place
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.rendering import both, shown
from headwater.errors import UsageError
from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.sinks.settings import SinkSettings

PLACE: Final = Place("Stores", "/stores")

_MOST_PARTITIONS: Final = 500  # on a page; all are in the JSON


async def _stores(request: Request) -> Response:
    overview = overview_of(request)
    state = await overview.project()
    stores = [_told(overview, known, write) for known in state.pipelines for write in known.writes]
    recent = await jobs.about(request, PLACE.path)
    return shown(request, "stores.html", {"stores": stores}, recent=recent[:3])


async def _verify_all(request: Request) -> Response:
    """One after another, in one Spark."""
    return await jobs.start(request, "verify", "Verify all stores", ["verify"], about=PLACE.path)


async def _store(request: Request) -> Response:
    overview = overview_of(request)
    known, write = await _existing(overview, request)
    data = _told(overview, known, write)
    name = f"{known.name}/{write.name}"
    data |= {
        "positions": _positions(write),
        "over_time": overview.writes.chart(name, ("records behind", "lag")),
    }
    address = address_of(known, write)
    about = await jobs.about(request, address)
    return shown(
        request,
        "store.html",
        data,
        address=address,
        shown_positions=data["positions"][:_MOST_PARTITIONS],
        verified=next((each for each in about if each.kind == "verify"), None),
        traced=next((each for each in about if each.kind == "why"), None),
    )


async def _verify(request: Request) -> Response:
    known, write = await _existing(overview_of(request), request)
    name = f"{known.name}/{write.name}"
    return await jobs.start(
        request, "verify", f"Verify {name}", ["verify", "--", name], about=address_of(known, write)
    )


async def _why(request: Request) -> Response:
    known, write = await _existing(overview_of(request), request)
    key = {each: str(request.state.form.get(f"key.{each}", "")) for each in write.reported["key"]}
    missing = [each for each, value in key.items() if not value]
    if missing or not key:
        raise UsageError("a row has a key", detail=f"no value for {', '.join(missing) or 'it'}")
    name = f"{known.name}/{write.name}"
    shown_key = ", ".join(f"{each}={value}" for each, value in key.items())
    return await jobs.start(
        request,
        "why",
        f"Why {write.name} has {shown_key}",
        ["why", *(f"--key={each}={value}" for each, value in key.items()), "--", name],
        about=address_of(known, write),
    )


async def _existing(overview: Overview, request: Request) -> tuple[PipelineState, WriteState]:
    known = await pipelines.existing(overview, request.path_params["pipeline"])
    name = f"{request.path_params['sink']}/{request.path_params['table']}"
    write = next((each for each in known.writes if each.name == name), None)
    if write is None:
        written = ", ".join(each.name for each in known.writes)
        raise NoSuchThing(
            f"pipeline {known.name} does not write {name}",
            hint=f"it writes {written}" if written else "it has told of nothing yet",
        )
    return known, write


def _told(overview: Overview, known: PipelineState, write: WriteState) -> dict[str, Any]:
    settings = overview.config.sinks.get(write.reported["sink"])
    lag_s = overview.writes.lag_s(f"{known.name}/{write.name}")
    data = write.as_json()
    return {
        "store": f"{known.name}/{write.name}",
        "pipeline": known.name,
        "pipeline_state": known.state,
        "sink": write.reported["sink"],
        "kind": settings.kind if isinstance(settings, SinkSettings) else "topic",
        "table": write.reported["table"],
        "key": write.reported["key"],
        "topics": write.reported.get("topics", []),
        "health": pipelines.write_health(known, write, lag_s),
        "is_in_step": write.lag == 0 if write.error is None else None,
        "lag": write.lag,
        "lag_seconds": lag_s,
        "batch": write.position.batch if write.position else None,
        "address": address_of(known, write),
        **{
            each: data[each] for each in ("live_version", "versions", "store_error", "refused_rows")
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


def address_of(known: PipelineState, write: WriteState) -> str:
    parts = (known.name, write.reported["sink"], write.reported["table"])
    return "/stores/" + "/".join(quote(part, safe="") for part in parts) + "/"


_PATH: Final = "/stores/{pipeline}/{sink}/{table:path}/"
ROUTES: Final = [
    *both("/stores", _stores),
    Route("/stores/verify", _verify_all, methods=["POST"]),
    Route(f"{_PATH}verify", _verify, methods=["POST"]),
    Route(f"{_PATH}why", _why, methods=["POST"]),
    *both(_PATH, _store),
]
