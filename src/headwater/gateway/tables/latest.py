"""A compacted topic as a table: the latest record of each key.

The records are read once and followed from then on, for all callers of a login; each answer
contains all that was committed when it was asked for. They are held in memory, so a topic that is
larger than that is refused.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import DataLost
from headwater.gateway.access import Access
from headwater.gateway.answers import Refusal
from headwater.gateway.reading.backlog import readers_of
from headwater.gateway.reading.filters import Where, parse_where, value_at
from headwater.gateway.reading.schemas import Schemas
from headwater.gateway.tables.queries import Condition, Query
from headwater.gateway.turns import in_turn
from headwater.inspect.decoding.forms import decoded
from headwater.inspect.record_json import text
from headwater.protocol.records import Record

if TYPE_CHECKING:
    from headwater.settings import ClientSettings

MAX_BYTES: Final = 64 << 20  # of one topic in memory
_MOST_TOPICS: Final = 8
_OVERHEAD_BYTES: Final = 300


class LatestTopic:
    """The latest records of one topic. `read` blocks; one at a time."""

    def __init__(self, topic: str, partitions: int) -> None:
        self._topic = topic
        self._at = dict.fromkeys(range(partitions), 0)
        self._size_bytes = 0
        self.records: dict[bytes, tuple[int, Record]] = {}  # partition and record, by key
        self.turn = asyncio.Lock()

    @property
    def partitions(self) -> int:
        return len(self._at)

    @property
    def ends(self) -> dict[int, int]:
        return dict(self._at)

    def read(self, fetcher: Fetcher) -> None:
        """Up to the end as it is now. Raises Refusal if it does not fit."""
        everything = [(self._topic, number) for number in self._at]
        ends = fetcher.offsets(everything, LATEST)
        starts = fetcher.offsets(everything, EARLIEST)
        if any(ends[self._topic, number] < at for number, at in self._at.items()):
            self._restart()  # the topic was deleted and created again
        for at in everything:
            self._follow(fetcher, at[1], max(self._at[at[1]], starts[at]), ends[at])

    def _follow(self, fetcher: Fetcher, partition: int, start: int, end: int) -> None:
        while start < end:
            try:
                for record in fetcher.records(self._topic, partition, start, end):
                    self._take(partition, record)
                    start = record.offset + 1
                start = end
            except DataLost as lost:
                if lost.first <= start:
                    raise
                start = lost.first
        self._at[partition] = max(self._at[partition], end)

    def _take(self, partition: int, record: Record) -> None:
        if record.key is None:
            return
        old = self.records.pop(record.key, None)
        self._size_bytes -= 0 if old is None else _size_bytes(old[1])
        if record.value is None:
            return
        self._size_bytes += _size_bytes(record)
        self.records[record.key] = (partition, record)
        if self._size_bytes > MAX_BYTES:
            self._restart()
            raise Refusal(
                413,
                f"topic {self._topic} is too large to be read as a table",
                detail=f"the latest values of its keys have more than {MAX_BYTES >> 20} MiB",
                hint="a pipeline or view that writes it to a database serves any size",
            )

    def _restart(self) -> None:
        self.records, self._size_bytes = {}, 0
        self._at = dict.fromkeys(self._at, 0)

    # Rows

    def row(self, key: bytes, schemas: Schemas) -> dict[str, Any] | None:
        """For a thread: a schema may have to be looked up."""
        found = self.records.get(key)
        return None if found is None else row_of(*found, schemas)

    def select(self, query: Query, schemas: Schemas) -> list[dict[str, Any]]:
        """For a thread. Raises Refusal."""
        wheres = [where_of(one) for one in query.conditions]
        found = [
            (document, partition, record)
            for partition, record in self.records.values()
            if (document := decoded(record.value, *schemas)[0]) is not None
            and all(where.passes(document) for where in wheres)
        ]
        if query.order:
            for column, is_descending in reversed(query.order):
                path = parse_where(_path(column)).path
                missing = (-1, 0) if is_descending else (2, 0)
                found.sort(key=_sort_key(path, missing), reverse=is_descending)
        else:
            found.sort(key=lambda one: one[2].key or b"")
        rows = (row_of(partition, record, schemas) for _, partition, record in found[: query.limit])
        return [
            {name: row[name] for name in query.columns} if query.columns else row for row in rows
        ]


def row_of(partition: int, record: Record, schemas: Schemas) -> dict[str, Any]:
    return {
        "key": text(record.key),
        "value": decoded(record.value, *schemas)[0],
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms if record.timestamp_ms >= 0 else None,
    }


COLUMNS: Final = ("key", "value", "partition", "offset", "timestamp")


class LatestTopics:
    """Those of all logins: as many as there is room for, the last used the longest."""

    def __init__(self) -> None:
        self._topics: OrderedDict[tuple[ClientSettings, str], LatestTopic] = OrderedDict()

    async def current(self, access: Access, topic: str, partitions: int) -> LatestTopic:
        """With all that is committed now. Raises HeadwaterError."""
        key = (access.login, topic)
        found = self._topics.get(key)
        if found is None or found.partitions != partitions:
            found = self._topics[key] = LatestTopic(topic, partitions)
            while len(self._topics) > _MOST_TOPICS:
                self._topics.popitem(last=False)
        self._topics.move_to_end(key)
        table = found
        await in_turn(table.turn, lambda: readers_of(access).use(table.read))
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
) -> Callable[[tuple[Any, int, Record]], tuple[int, Any]]:
    """Numbers, then texts; what is neither is last, whatever the direction."""

    def key(row: tuple[Any, int, Record]) -> tuple[int, Any]:
        value = value_at(row[0], path)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return 0, value
        return (1, value) if isinstance(value, str) else missing

    return key


def _size_bytes(record: Record) -> int:
    return len(record.key or b"") + len(record.value or b"") + _OVERHEAD_BYTES
