"""GET /tables/T and GET /tables/T/KEY."""

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headwater.client.topics import topic_configs
from headwater.client.writing.batches import partition_of
from headwater.gateway.access import Access, Topic
from headwater.gateway.answers import Refusal, json_answer
from headwater.gateway.app import Gateway, gateway_of
from headwater.gateway.callers import READ, Caller, caller_of, is_topic_name
from headwater.gateway.parameters import check_names, seconds, whole_number
from headwater.gateway.reading.backlog import readers_of
from headwater.gateway.reading.schemas import schemas_of
from headwater.gateway.tables import derived, history, keys, latest, queries, waiting
from headwater.gateway.tables.derived import DerivedTable
from headwater.gateway.tables.table_topics import COMPACT, policies_of, require_complete
from headwater.spelling import nearest

if TYPE_CHECKING:
    from headwater.gateway.tables.latest import LatestTopic

_COMMON: Final = ("sink", "wait_s", "columns")
_PARAMETERS: Final = (*_COMMON, "where", "order", "limit")
_OF_HISTORY: Final = ("as_of", "partition")
_WAIT_S: Final = 10.0
_MAX_WAIT_S: Final = 60.0
TOPIC: Final = "topic"  # as a sink: a topic that is a table


async def _rows(request: Request) -> Response:
    """Rows of a table: where=total>=100, order=-total, limit, columns."""
    check_names(request.query_params, _PARAMETERS)
    query = queries.parse(request.query_params)
    return await _answered(request, query, None)


async def _row(request: Request) -> Response:
    """One row of a table, by its key; as it was, with as_of."""
    check_names(request.query_params, (*_COMMON, *_OF_HISTORY))
    query = queries.parse(request.query_params)
    return await _answered(request, query, _key_parts(request))


def _key_parts(request: Request) -> list[str]:
    """The segments behind the table's name; one may have an encoded slash in it."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    parts = raw.partition(b"?")[0].split(b"/")[3:]
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise Refusal(400, "the key is not UTF-8") from None


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request wants of a table."""

    query: queries.Query
    key: list[str] | None  # of one row
    token: str | None  # a position that the answer has to contain
    wait_s: float
    as_of: history.AsOf | None = None
    partition: int | None = None  # of the key, if it is not where Kafka's clients put it


async def _answered(request: Request, query: queries.Query, key: list[str] | None) -> Response:
    name = request.path_params["table"]
    gateway = gateway_of(request)
    caller = caller_of(request)
    access = gateway.access(request)
    sink = request.query_params.get("sink")
    asked = _Asked(
        query,
        key,
        request.headers.get("headwater-position"),
        seconds(request.query_params, "wait_s", _WAIT_S, _MAX_WAIT_S),
        history.parse(request.query_params["as_of"]) if "as_of" in request.query_params else None,
        whole_number(request.query_params, "partition", 0, 2**31 - 1),
    )
    access.in_use += 1
    try:
        table = None
        if sink != TOPIC:
            table = await access.call(derived.find, gateway.config, name, sink)
        if table is not None:
            await _check_rights(access, caller, table)
            if asked.as_of is not None:
                raise Refusal(
                    409,
                    f"table {table.name} has only the present",
                    hint="as_of is for topics: sink=topic, or one that the table is derived from: "
                    + ", ".join(table.topics),
                )
            async with gateway.store_turns:
                return await _of_store(access, table, asked)
        if sink not in (None, TOPIC):
            raise Refusal(404, f"there is no table {name[:300]} in sink {sink[:100]}")
        return await _of_topic(gateway, access, caller, name, asked)
    finally:
        access.in_use -= 1


async def _check_rights(access: Access, caller: Caller, table: DerivedTable) -> None:
    """Who may read all topics that a table is derived from may read the table. The answer for
    others is that of a topic of its name, whether there is such a table or not.
    """
    try:
        for topic in table.topics:
            caller.require(READ, topic)
            await access.topic(topic, READ)
    except Refusal as refusal:
        if refusal.status != 403:
            raise
        caller.require(READ, table.name)
        await access.topic(table.name, READ)
        raise


async def _of_store(access: Access, table: DerivedTable, asked: _Asked) -> Response:
    if asked.token is not None:

        async def position() -> Any:
            found = await access.call(derived.position_of, table)
            return {} if found is None else found.offsets

        await waiting.reached(waiting.parse(asked.token, table.topics), position, asked.wait_s)
    query = asked.query
    if asked.key is not None:
        by_key = derived.by_key(table, asked.key)
        query = queries.Query(by_key.conditions, (), 1, query.columns)
    found = await access.call(derived.select, table, query)
    offsets = {} if found.position is None else found.position.offsets
    return _json(table.name, found.rows, waiting.token_of(offsets), asked.key)


async def _of_topic(
    gateway: Gateway, access: Access, caller: Caller, name: str, asked: _Asked
) -> Response:
    if not is_topic_name(name):
        raise Refusal(404, f"there is no table {name[:300]}")
    caller.require(READ, name)
    topic = await access.topic(name, READ)
    # A login that may read the topic may lack the right to read its settings.
    configs = await access.ask(topic_configs, name)
    is_compacted = not configs or COMPACT in policies_of(configs)
    if asked.as_of is not None:
        return await _as_it_was(gateway, access, topic, asked, is_compacted=is_compacted)
    if not is_compacted:
        require_complete(name, configs)
    columns = asked.query.columns
    _check_columns(columns)
    schemas = schemas_of(gateway.config, access, name)
    found: LatestTopic | None = None

    async def position() -> Any:
        nonlocal found
        found = await gateway.latest.current(
            access, name, topic.partitions, schemas, is_compacted=is_compacted
        )
        return {name: found.ends}

    wanted = {} if asked.token is None else waiting.parse(asked.token, (name,))
    await waiting.reached(wanted, position, asked.wait_s)
    assert found is not None
    if asked.key is None:
        rows = await asyncio.to_thread(found.select, asked.query)
    else:
        row = found.row(asked.key)
        rows = [] if row is None else [{column: row[column] for column in columns or row}]
    return _json(name, rows, waiting.token_of({name: found.ends}), asked.key)


async def _as_it_was(
    gateway: Gateway, access: Access, topic: Topic, asked: _Asked, *, is_compacted: bool
) -> Response:
    name, as_of = topic.name, asked.as_of
    assert as_of is not None
    assert asked.key is not None
    columns, parts = asked.query.columns, asked.key
    _check_columns(columns)
    readers = readers_of(access)
    key = await readers.use(lambda fetcher: keys.of_topic(fetcher, name, topic.partitions, parts))
    if key is None:
        raise Refusal(400, f"the keys of topic {name} have no {len(parts)} columns")
    partition = partition_of(key, topic.partitions) if asked.partition is None else asked.partition
    if partition >= topic.partitions:
        raise Refusal(400, f"topic {name} has no partition {partition}")
    found = await readers.use(
        lambda fetcher: history.last_before(
            fetcher, name, partition, key, as_of, is_compacted=is_compacted
        )
    )
    rows: list[Any] = []
    if found.record is not None and found.record.value is not None:
        schemas = schemas_of(gateway.config, access, name)
        row = await asyncio.to_thread(latest.row_of_record, partition, found.record, schemas)
        rows = [{column: row[column] for column in columns or row}]
    return _json(name, rows, waiting.token_of({name: {partition: found.end}}), asked.key)


def _check_columns(columns: tuple[str, ...]) -> None:
    """Of a row of a topic. Raises Refusal."""
    for column in columns:
        if column not in latest.COLUMNS:
            meant = nearest(column, latest.COLUMNS)
            raise Refusal(
                400,
                f"there is no column {column[:100]}",
                hint=f"did you mean {meant}?" if meant else f"{', '.join(latest.COLUMNS)}",
            )


def _json(name: str, rows: list[Any], token: str, key: list[str] | None) -> Response:
    headers = {"Headwater-Position": token} if token else {}
    if key is None:
        return json_answer({"table": name, "rows": rows}, headers=headers)
    if not rows:
        raise Refusal(404, "there is no such row", detail="/".join(key)[:300], headers=headers)
    return json_answer(rows[0], headers=headers)


ROUTES: Final = [
    Route("/tables/{table}", _rows, methods=["GET"]),
    Route("/tables/{table}/{key:path}", _row, methods=["GET"]),
]
