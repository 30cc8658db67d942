"""One client of a live query: it gets the rows, and from then on every change of them, once.

    no mark, or one that is too old    reset, snapshot …, ready
    a mark whose changes are held      the changes since, ready
    a mark that is in the log          one event for each row that has changed since, ready
                                       then the changes, as they come

A client that is slower than the changes gets what it has missed in the same way, from the log:
there is no buffer for it here.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from headwater.client.reading.fetching import Fetcher
from headwater.errors import DataLost
from headwater.gateway.access import Access
from headwater.gateway.callers import READ
from headwater.gateway.live import events, marks
from headwater.gateway.live.marks import Mark
from headwater.gateway.live.queries import LiveQuery
from headwater.gateway.live.table import Table
from headwater.gateway.live.tables import Tables
from headwater.gateway.reading.backlog import readers_of
from headwater.gateway.reading.schemas import Schemas
from headwater.inspect.table_rows import Kind, Row, step_of

_HEARTBEAT_S: Final = 10.0
_MOST_MISSED: Final = 200_000  # records that are read to catch up; a snapshot is shorter then
_MERGED_ROWS: Final = 500  # that are sent at once
_AGAIN_S: Final = 0.1
_SLACK_S: Final = 60.0  # clocks, and what was under way


class Subscription:
    """To be closed."""

    def __init__(
        self, access: Access, tables: Tables, topic: str, query: LiveQuery, schemas: Schemas
    ) -> None:
        self._access = access
        self._tables = tables
        self._topic = topic
        self._query = query
        self._schemas = schemas
        self._table: Table | None = None
        self._number = 0
        self._positions = ""  # of the client
        self._ready_at: int | None = None  # number at which `ready` is to be sent
        self.sent = 0  # rows

    def close(self) -> None:
        if self._table is not None:
            self._tables.leave(self._table)
        self._table = None

    async def begin(self) -> None:
        """Raises what is to be answered instead of a stream."""
        topic = await self._access.topic(self._topic, READ)
        self.close()
        self._table = await self._tables.join(self._topic, topic.partitions, self._schemas)

    async def events(self, mark_text: str) -> AsyncIterator[bytes | None]:
        """`ready` is sent when the client has all that was committed when it came. None now and
        then: nothing was new for some time. Ends when the gateway stops. Raises
        HeadwaterError.
        """
        mark = marks.parse(mark_text)
        reason = "this is where it begins" if not mark_text else "the id is not one of a live query"
        while not self._tables.is_stopping:
            table = self._table
            if table is None or table.is_broken:
                if table is not None:
                    if table.error is not None:
                        raise table.error
                    # A topic that cannot be followed must not be loaded in a tight loop.
                    await asyncio.sleep(_AGAIN_S)
                await self.begin()
                continue
            await self._tables.bring_up_to_date(table)
            if table.is_broken:
                continue
            if mark is None:
                async for row in self._snapshot(table, reason):
                    yield row
                mark = marks.parse(table.mark(self._positions))
                assert mark is not None
            missed = await self._missed(table, mark)
            if table.is_broken:
                continue
            if isinstance(missed, str):
                mark, reason = None, missed
                continue
            for start in range(0, len(missed), _MERGED_ROWS):
                yield self._merged(missed[start : start + _MERGED_ROWS])
            async for part in self._changes(table):
                yield part
            mark = marks.parse(table.mark(self._positions)) if self._positions else None
            reason = "the rows could not be read in time"

    async def _snapshot(self, table: Table, reason: str) -> AsyncIterator[bytes]:
        snapshot = await table.snapshot()
        try:
            yield events.reset(reason)
            for number in range(snapshot.pieces):
                data, count = snapshot.piece(self._query, number)
                self.sent += count
                if data:
                    yield data
            self._positions = snapshot.positions
        finally:
            snapshot.release()

    async def _changes(self, table: Table) -> AsyncIterator[bytes | None]:
        """Until the table is broken, or has dropped what comes next."""
        while table.has(self._number) and not self._tables.is_stopping:
            if self._ready_at is not None and self._number >= self._ready_at:
                self._ready_at = None
                yield events.ready(table.without_key, table.mark(self._positions))
            if self._number < table.end:
                piece = table.take(self._number, self._query)
                self._number = piece.behind
                self._positions = piece.positions or self._positions
                self.sent += piece.count
                if piece.data:
                    yield piece.data
                continue
            await table.wait(_HEARTBEAT_S)
            if self._number == table.end and not self._tables.is_stopping:
                yield None
                topic = await self._access.topic(self._topic, READ)
                if topic.partitions != len(table.offsets):
                    table.break_off()
                elif not table.is_broken:
                    yield events.heartbeat(table.mark(self._positions))

    # Going on

    async def _missed(self, table: Table, mark: Mark) -> "list[tuple[bytes, Row | None]] | str":
        """The rows that the client has to get to be at `_number`; or why they are not known."""
        if mark.topic_id != table.topic_id:
            return "the topic was created again"
        number = table.number_at(mark.positions)
        if number is not None and table.has(number):
            self._number, self._positions, self._ready_at = number, mark.positions, table.end
            return []
        offsets = mark.offsets()
        if offsets.keys() != table.offsets.keys():
            return "the topic has other partitions"
        if any(offset > table.offsets[partition] for partition, offset in offsets.items()):
            return "the id is ahead of the log"
        age_s = time.time() - mark.given_s
        if table.is_compacted and not -_SLACK_S < age_s < table.tombstones_s - _SLACK_S:
            return "the id is so old that compaction may have removed what was deleted since"
        goal, number = dict(table.offsets), table.end
        if sum(goal[partition] - offset for partition, offset in offsets.items()) > _MOST_MISSED:
            return "more has changed since than a snapshot has"
        keys: set[bytes] = set()
        for partition, start in offsets.items():
            found = await readers_of(self._access).use(
                partial(self._keys_between, partition, start, goal[partition])
            )
            if found is None:
                return "not all that has changed since is in the log"
            keys |= found
        if not table.has(number):
            return "the changes came faster than they could be read"
        keys |= table.changed_since(number)
        self._number, self._positions, self._ready_at = table.end, table.positions, table.end
        return [(key, table.rows.get(key)) for key in sorted(keys)]

    def _keys_between(
        self, partition: int, start: int, end: int, fetcher: Fetcher
    ) -> set[bytes] | None:
        """Of rows that have changed; None if the log does not have all of it, or the table was
        truncated. Blocks.
        """
        keys: set[bytes] = set()
        try:
            for record in fetcher.records(self._topic, partition, start, end):
                step = step_of(partition, record, *self._schemas)
                if step.kind is Kind.CLEAR:
                    return None
                if step.kind is not Kind.NO_ROW:
                    keys.add(step.key)
        except DataLost:
            return None
        return keys

    def _merged(self, rows: "list[tuple[bytes, Row | None]]") -> bytes:
        """What the client had is not known: `changed` may be new to it, and `removed` unknown. They
        have no id: who is interrupted before `ready` gets them again.
        """
        parts = []
        for key, row in rows:
            if row is not None and self._query.passes(row):
                data = events.row_data(key, self._query.shaped(row), is_merged=True)
                parts.append(events.event("changed", data))
            else:
                parts.append(events.event("removed", events.row_data(key, None, is_merged=True)))
        self.sent += len(parts)
        return b"".join(parts)
