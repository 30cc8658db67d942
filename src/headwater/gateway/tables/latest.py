"""A topic as a table: the row of each key, as its last record or change event has it.

The records are read once and followed from then on, for all callers of a login; each answer
contains all that was committed when it was asked for. Rows are held in memory, so a topic that is
larger than that is refused.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import DataLost, SchemaRefused
from headwater.gateway.access import Access
from headwater.gateway.answers import Refusal
from headwater.gateway.reading.backlog import readers_of
from headwater.gateway.reading.filters import Where, parse_where, value_at
from headwater.gateway.reading.schemas import Schemas, schema_id
from headwater.gateway.tables import keys
from headwater.gateway.tables.queries import Condition, Query
from headwater.gateway.tables.table_topics import incomplete, unordered_truncate
from headwater.gateway.turns import in_turn
from headwater.inspect.decoding.forms import decoded
from headwater.inspect.record_json import text
from headwater.inspect.table_rows import Kind, Row, completed, step_of
from headwater.protocol.records import Record

if TYPE_CHECKING:
    from headwater.settings import ClientSettings

MAX_BYTES: Final = 64 << 20  # of one topic in memory
_MOST_TOPICS: Final = 8


class LatestTopic:
    """The rows of one topic. `read` blocks; one at a time."""

    def __init__(self, topic: str, partitions: int, *, is_compacted: bool) -> None:
        self._topic = topic
        self.is_compacted = is_compacted
        self._at = dict.fromkeys(range(partitions), 0)
        self._size_bytes = 0
        self._rows: dict[bytes, tuple[Row, int]] = {}  # and the time of its record
        self.turn = asyncio.Lock()

    @property
    def partitions(self) -> int:
        return len(self._at)

    @property
    def ends(self) -> dict[int, int]:
        return dict(self._at)

    def read(self, fetcher: Fetcher, schemas: Schemas) -> None:
        """Up to the end as it is now. Raises Refusal if it does not fit or is no table,
        HeadwaterError if a schema cannot be looked up now.
        """
        everything = [(self._topic, number) for number in self._at]
        ends = fetcher.offsets(everything, LATEST)
        starts = fetcher.offsets(everything, EARLIEST)
        if any(ends[self._topic, number] < at for number, at in self._at.items()):
            self._restart()  # the topic was deleted and created again
        if not self.is_compacted and any(starts.values()):
            raise incomplete(self._topic)
        for at in everything:
            self._at[at[1]] = max(self._at[at[1]], starts[at])
            self._follow(fetcher, at[1], ends[at], schemas)

    def _follow(self, fetcher: Fetcher, partition: int, end: int, schemas: Schemas) -> None:
        while (start := self._at[partition]) < end:
            try:
                for record in fetcher.records(self._topic, partition, start, end):
                    self._take(partition, record, schemas)
                    self._at[partition] = record.offset + 1
                self._at[partition] = end
            except DataLost as lost:
                if lost.first <= start:
                    raise
                self._at[partition] = lost.first

    def _take(self, partition: int, record: Record, schemas: Schemas) -> None:
        if (wanted := schema_id(record.value)) is not None:
            with suppress(SchemaRefused):  # it is shown as it is; but a registry may come back
                schemas.lookup.parsed(wanted)
        step = step_of(partition, record, *schemas)
        if step.kind is Kind.NO_ROW:
            return
        if step.kind is Kind.CLEAR:
            if len(self._at) > 1:
                raise unordered_truncate(self._topic)
            self._rows, self._size_bytes = {}, 0
            return
        before, _ = self._rows.pop(step.key, (None, 0))
        self._size_bytes -= 0 if before is None else before.size_bytes
        if step.kind is Kind.REMOVE:
            return
        row = Row(step.key, completed(step.json, before), partition, step.offset)
        self._size_bytes += row.size_bytes
        self._rows[step.key] = (row, record.timestamp_ms)
        if self._size_bytes > MAX_BYTES:
            self._restart()
            raise Refusal(
                413,
                f"topic {self._topic} is too large to be read as a table",
                detail=f"its rows have more than {MAX_BYTES >> 20} MiB",
                hint="a pipeline or view that writes it to a database serves any size",
            )

    def _restart(self) -> None:
        self._rows, self._size_bytes = {}, 0
        self._at = dict.fromkeys(self._at, 0)

    # Rows

    def row(self, parts: Sequence[str]) -> dict[str, Any] | None:
        """Of a key: as it is, or the values of its columns if keys are JSON objects."""
        found = self._rows.get(parts[0].encode()) if len(parts) == 1 else None
        if found is None and self._rows:
            key = keys.of_columns(parts, next(iter(self._rows)))
            found = None if key is None else self._rows.get(key)
        if found is None:
            return None
        row, timestamp_ms = found
        return row_of(row.document(), row.key, row.partition, row.offset, timestamp_ms)

    def select(self, query: Query) -> list[dict[str, Any]]:
        """For a thread. Raises Refusal."""
        wheres = [where_of(one) for one in query.conditions]
        found = [
            (document, row, timestamp_ms)
            for row, timestamp_ms in list(self._rows.values())
            if (document := row.document()) is not None
            and all(where.passes(document) for where in wheres)
        ]
        if query.order:
            for column, is_descending in reversed(query.order):
                path = parse_where(_path(column)).path
                missing = (-1, 0) if is_descending else (2, 0)
                found.sort(key=_sort_key(path, missing), reverse=is_descending)
        else:
            found.sort(key=lambda one: one[1].key)
        rows = (
            row_of(document, row.key, row.partition, row.offset, timestamp_ms)
            for document, row, timestamp_ms in found[: query.limit]
        )
        return [
            {name: row[name] for name in query.columns} if query.columns else row for row in rows
        ]


def row_of_record(partition: int, record: Record, schemas: Schemas) -> dict[str, Any]:
    """Of the record as it is: a change event is not taken apart."""
    document = decoded(record.value, *schemas)[0]
    return row_of(document, record.key, partition, record.offset, record.timestamp_ms)


def row_of(
    document: Any, key: bytes | None, partition: int, offset: int, timestamp_ms: int
) -> dict[str, Any]:
    return {
        "key": text(key),
        "value": document,
        "partition": partition,
        "offset": offset,
        "timestamp": timestamp_ms if timestamp_ms >= 0 else None,
    }


COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp")


class LatestTopics:
    """Those of all logins: as many as there is room for, the last used the longest."""

    def __init__(self) -> None:
        self._topics: OrderedDict[tuple[ClientSettings, str], LatestTopic] = OrderedDict()

    async def current(
        self, access: Access, topic: str, partitions: int, schemas: Schemas, *, is_compacted: bool
    ) -> LatestTopic:
        """With all that is committed now. Raises HeadwaterError."""
        key = (access.login, topic)
        found = self._topics.get(key)
        if found is None or (found.partitions, found.is_compacted) != (partitions, is_compacted):
            found = self._topics[key] = LatestTopic(topic, partitions, is_compacted=is_compacted)
            while len(self._topics) > _MOST_TOPICS:
                self._topics.popitem(last=False)
        self._topics.move_to_end(key)
        table = found
        await in_turn(
            table.turn,
            lambda: readers_of(access).use(lambda fetcher: table.read(fetcher, schemas)),
        )
        return table


def where_of(condition: Condition) -> Where:
    """On the document. Without quotes a value is JSON if it can be."""
    value = "null" if condition.value is None else condition.value
    operand = orjson.dumps(value).decode() if condition.is_quoted else value
    return parse_where(f"{_path(condition.column)}{condition.operator}{operand}")


def _path(column: str) -> str:
    """`total` is the same as `$.total`."""
    if column.startswith("$"):
        return column
    escaped = column.replace("\\", "\\\\").replace("'", "\\'")
    return f"$['{escaped}']"


def _sort_key(
    path: Sequence[str | int], missing: tuple[int, Any]
) -> Callable[[tuple[Any, Row, int]], tuple[int, Any]]:
    """Numbers, then texts; what is neither is last, whatever the direction."""

    def key(row: tuple[Any, Row, int]) -> tuple[int, Any]:
        value = value_at(row[0], path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 0, value
        return (1, value) if isinstance(value, str) else missing

    return key
