"""/topics/NAME/records: browsing by offset and time; one record; export of many."""

import shlex
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.client.reading.fetching import Fetcher
from headwater.console.pages.topics.overview import command_for, existing
from headwater.console.topics import records
from headwater.console.topics.records import Record, Screen
from headwater.console.topics.topic_list import Topic
from headwater.console.web.access import Access
from headwater.console.web.not_found import NoSuchThing
from headwater.console.web.paging import whole
from headwater.console.web.rendering import both, render, shown
from headwater.errors import UsageError
from headwater.inspect.decoding import forms as decoding
from headwater.inspect.decoding.forms import Shown
from headwater.inspect.positions import parse_position
from headwater.inspect.record_json import text as json_text
from headwater.protocol.erased_records import is_erased
from headwater.protocol.records import NO_TIMESTAMP
from headwater.protocol.records import Record as LogRecord
from headwater.schema_lookup.lookup import SchemaLookup
from headwater.schema_lookup.sources import schema_source
from headwater.web.live import Stream

STARTING_POINTS: Final = ("newest", "oldest", "offset", "time")
_ROWS: Final = (25, 50, 100, 200)
_DEFAULT_ROWS: Final = 50


async def _records(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    query = request.query_params
    partitions = chosen_partitions(topic, query.get("partition", ""))
    starting_point = query.get("at", "newest")
    starting_point = starting_point if starting_point in STARTING_POINTS else "newest"
    given = query.get("value", "").strip()
    rows = int(query["rows"]) if query.get("rows", "") in map(str, _ROWS) else _DEFAULT_ROWS
    time_ms = time_ms_of(given) if starting_point == "time" and given else None
    offset = _offset(given) if starting_point == "offset" else 0

    def read(fetcher: Fetcher) -> Screen:
        if query.get("before"):
            before = records.parse_positions(query["before"])
            return records.newest(fetcher, topic.name, partitions, rows, before)
        if query.get("from"):
            at = records.parse_positions(query["from"])
        elif starting_point == "newest":
            return records.newest(fetcher, topic.name, partitions, rows, {})
        elif time_ms is not None:
            at = dict(records.at_time(fetcher, topic.name, partitions, time_ms))
        else:
            at = dict.fromkeys(partitions, offset)
        return records.following(fetcher, topic.name, partitions, rows, at)

    screen: Screen = await access.call(records.with_fetcher, access, read)
    data = {
        "topic": topic.name,
        "records": [record_json(record) for record in screen.records],
        "older": records.positions_text(screen.before) if screen.has_older else None,
        "newer": records.positions_text(screen.behind) if screen.has_newer else None,
        "starts": screen.starts,
        "ends": screen.ends,
    }
    return shown(
        request,
        "records.html",
        data,
        rows_shown=await access.call(rows_of, request, topic.name, screen.records),
        tab="records",
        partitions=len(topic.partitions),
        most_together=records.MOST_PARTITIONS,
        starting_point=starting_point,
        value=given,
        partition=partitions[0] if len(partitions) == 1 else None,
        count_choices=_ROWS,
        wanted_rows=rows,
        is_newest_first=screen.is_newest_first,
        command=_command(request, topic, partitions, starting_point, given, rows),
    )


def chosen_partitions(topic: Topic, text: str) -> list[int]:
    """All, if they are not too many to be shown together; NoSuchThing."""
    numbers = [partition.number for partition in topic.partitions]
    if text:
        number = whole(text, -1)
        if number not in numbers:
            raise NoSuchThing(
                f"topic {topic.name} has no partition {text[:20]}", detail=f"it has {len(numbers)}"
            )
        return [number]
    return numbers if len(numbers) <= records.MOST_PARTITIONS else numbers[:1]


def time_ms_of(text: str) -> int:
    """Raises UsageError."""
    # A browser's own field for times has no seconds if they are 0, and no zone.
    position = parse_position(f"@{text}", time.time_ns() // 1_000_000)
    if position is None or position.kind != "time":
        raise UsageError(
            f"no time: {text}", hint="for example 2026-11-16T10:00:00Z, 2026-11-16 10:00 or -1h"
        )
    return position.number


def _offset(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"no offset: {text}", hint="a whole number from 0")
    return int(text or 0)


def _command(
    request: Request,
    topic: Topic,
    partitions: list[int],
    starting_point: str,
    given: str,
    rows: int,
) -> str:
    at = {"newest": f"-{rows}", "oldest": "start"}.get(starting_point)
    if at is None:
        at = f"@{given}" if starting_point == "time" else given or "0"
    words = [f"headwater consume {topic.name} -o {shlex.quote(at)} -e"]
    if starting_point != "newest":
        words.append(f"-n {rows}")
    if len(partitions) < len(topic.partitions):
        words.append(f"-p {','.join(map(str, partitions))}")
    return command_for(request, " ".join([*words, "--json"]))


def record_json(record: Record) -> dict[str, Any]:
    """As `headwater consume --json` writes it; with a mark where it was cut."""
    data: dict[str, Any] = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "key": json_text(record.key.data),
        "value": json_text(record.value.data),
        "headers": [[name, json_text(part.data)] for name, part in record.headers],
        "size_bytes": size_bytes(record),
    }
    if record.value.is_cut or record.key.is_cut:
        data["is_cut"] = True
    return data


def size_bytes(record: Record) -> int:
    headers = sum(len(name) + part.size_bytes for name, part in record.headers)
    return record.key.size_bytes + record.value.size_bytes + headers


def rows_of(request: Request, topic: str, found: Iterable[Record]) -> list[dict[str, Any]]:
    """The lines of a list. For a thread: untrusted bytes may take long to decode."""
    schema = request.app.state.console.config.console.avro_schemas.get(topic)
    lookup = _lookup(request)
    return [_row(topic, record, schema, lookup) for record in found]


def _lookup(request: Request) -> SchemaLookup:
    """Of schemas, with the login of the user."""
    console = request.app.state.console
    access: Access = console.access(request)
    return access.part(
        SchemaLookup,
        lambda: SchemaLookup(schema_source(console.config.schemas, access.bootstrap, access.login)),
    )


def _row(topic: str, record: Record, schema: str | None, lookup: SchemaLookup) -> dict[str, Any]:
    return {
        "url": f"/topics/{topic}/records/{record.partition}/{record.offset}/",
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": None if record.key.data is None else decoding.preview(record.key, None, lookup),
        "value": None
        if record.value.data is None
        else decoding.preview(record.value, schema, lookup),
        "is_erased": _is_erased(record),
        "headers": len(record.headers),
        "size_bytes": size_bytes(record),
    }


def _is_erased(record: Record) -> bool:
    headers = [(name, part.data) for name, part in record.headers]
    return is_erased(record.key.data, record.value.data, headers)


async def _record(request: Request) -> Response:
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    record = await _one(request, access, topic)
    form = request.query_params.get("as", "auto")
    form = form if form in decoding.FORMS else "auto"
    schema = request.app.state.console.config.console.avro_schemas.get(topic.name)
    lookup = _lookup(request)

    def decoded() -> tuple[Shown, Shown, list[tuple[str, Shown]]]:
        return (
            decoding.shown(record.value, form, avro_schema=schema, lookup=lookup),
            decoding.shown(record.key, lookup=lookup),
            [(name, decoding.shown(part)) for name, part in record.headers],
        )

    value, key, headers = await access.call(decoded)
    data = {
        "topic": topic.name,
        **record_json(record),
        "shown": {"key": key.as_json(), "value": value.as_json()},
    }
    more: dict[str, Any] = {
        "record": record,
        "value_shown": value,
        "key_shown": key,
        "headers_shown": headers,
        "is_erased": _is_erased(record),
        "form": form,
        "forms": decoding.FORMS,
        "bounds": topic.partitions[record.partition],
        "size": size_bytes(record),
        "tab": "records",
        "command": command_for(
            request,
            f"headwater consume {topic.name} -p {record.partition} -o {record.offset}:+1 -e --json",
        ),
        "is_part": bool(request.headers.get("hx-request")),
    }
    if more["is_part"]:
        return Response(render(request, "_record.html", {**data, **more}), media_type="text/html")
    return shown(request, "record.html", data, **more)


async def _value(request: Request) -> Response:
    """The bytes as a download; the browser never shows them."""
    access: Access = request.app.state.console.access(request)
    topic = await existing(access, request.path_params["topic"])
    record = await _one(request, access, topic)
    name = f"{topic.name}-{record.partition}-{record.offset}.bin"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(record.value.data or b"", 200, headers, "application/octet-stream")


async def _one(request: Request, access: Access, topic: Topic) -> Record:
    partition, offset = request.path_params["partition"], request.path_params["offset"]
    chosen_partitions(topic, str(partition))

    def read(fetcher: Fetcher) -> Record | None:
        return records.one(fetcher, topic.name, partition, offset)

    record: Record | None = await access.call(records.with_fetcher, access, read)
    if record is None:
        raise NoSuchThing(
            f"there is no record at offset {offset} of {topic.name}-{partition}",
            hint="retention or compaction may have removed it, or it is none that counts (a marker"
            " of a transaction, or aborted)",
        )
    return record


# Export

_CHUNK_BYTES: Final = 256 << 10
_CHUNK_ROWS: Final = 4096


async def _export(request: Request) -> Response:
    console = request.app.state.console
    access: Access = console.access(request)
    topic = await existing(access, request.path_params["topic"])
    query = request.query_params
    numbers = [partition.number for partition in topic.partitions]
    partitions = chosen_partitions(topic, query["partition"]) if query.get("partition") else numbers
    is_raw = query.get("format") == "raw"
    given = query.get("since", "").strip()
    since_ms = time_ms_of(given) if given else None
    console.exports.acquire(access.user)
    try:
        fetcher: Fetcher = await access.call(records.opened, access)
    except BaseException:
        console.exports.release(access.user)
        raise

    def ended() -> None:
        console.exports.release(access.user)
        fetcher.close()

    lines = _lines(fetcher, topic.name, partitions, since_ms, is_raw=is_raw)
    name = f"{topic.name}.{'bin' if is_raw else 'jsonl'}"
    return Stream(
        _in_threads(access, lines),
        ended,
        media_type="application/octet-stream" if is_raw else "application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


async def _in_threads(access: Access, chunks: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Each chunk is made when the last one has been sent: memory holds one."""
    while (chunk := await access.call(next, chunks, None)) is not None:
        yield chunk


def _lines(
    fetcher: Fetcher, topic: str, partitions: list[int], since_ms: int | None, *, is_raw: bool
) -> Iterator[bytes]:
    starts, ends = records.bounds(fetcher, topic, partitions)
    if since_ms is not None:
        starts = records.at_time(fetcher, topic, partitions, since_ms)
    for partition in partitions:
        chunk = bytearray()
        found = fetcher.records(topic, partition, starts[partition], ends[partition])
        for number, record in enumerate(found, 1):
            if is_raw:
                chunk += (record.value or b"") + b"\n"
            else:
                chunk += _line(topic, partition, record)
            if len(chunk) >= _CHUNK_BYTES or number % _CHUNK_ROWS == 0:
                yield bytes(chunk)
                chunk.clear()
        if chunk:
            yield bytes(chunk)


def _line(topic: str, partition: int, record: LogRecord) -> bytes:
    return orjson.dumps(
        {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": None if record.timestamp_ms == NO_TIMESTAMP else record.timestamp_ms,
            "key": json_text(record.key),
            "value": json_text(record.value),
            "headers": [[name, json_text(value)] for name, value in record.headers],
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


_ONE: Final = "/topics/{topic}/records/{partition:number}/{offset:number}/"

ROUTES: Final = [
    *both("/topics/{topic}/records", _records),
    *both(_ONE, _record),
    Route(f"{_ONE}value", _value, methods=["GET"]),
    Route("/topics/{topic}/export", _export, methods=["GET"]),
]
