"""A database in memory, for what a real one does not do on demand: limbo, failures, odd moments."""

import threading
import time
from typing import Any

from headwater.capture.contract import (
    IDLE_S,
    Begin,
    Change,
    Chunk,
    Column,
    Commit,
    Lag,
    PositionAdvanced,
    Source,
    SourcePosition,
    Table,
)

ACCOUNTS = Table("public", "accounts", (Column("id", "int"), Column("balance", "int")), ("id",))
NOTES = Table("public", "notes", (Column("text", "text"),), ())
OUTBOX = Table(
    "public",
    "outbox",
    tuple(
        Column(item, "text") for item in ("id", "aggregatetype", "aggregateid", "type", "payload")
    ),
    ("id",),
)


class MemoryDatabase:
    """Tables, and the log of what was committed. A transaction in limbo is in the log, and not yet
    in the tables as others see them.
    """

    def __init__(self, *tables: Table) -> None:
        self.tables: dict[str, Table] = {table.id: table for table in tables or (ACCOUNTS,)}
        self.rows: dict[str, dict[Any, dict[str, Any]]] = {table: {} for table in self.tables}
        self.log: list[list[Any]] = []  # one list of events per transaction
        self.limbo: list[int] = []  # positions
        self.changed = threading.Condition()
        self.before_chunk = lambda: None  # called by who reads one
        self.acknowledged = 0
        self.failure: Exception | None = None
        self.chunks_read = 0
        self.opened = 0

    def transact(self, *changes: tuple[Any, ...], limbo: bool = False) -> None:
        """Each change is (table id, op, row before, row after), or a contract event."""
        with self.changed:
            events: list[Any] = []
            ordinal = 0
            for change in changes:
                if not isinstance(change, tuple):
                    events.append(change)
                    continue
                table_id, op, before, after = change
                table = self.tables[table_id]
                events.append(Change(table, op, before, after, ordinal, {"lsn": ordinal}))
                ordinal += 1
            self.log.append(events)
            if limbo:
                self.limbo.append(len(self.log))
            else:
                self._apply(events)
            self.changed.notify_all()

    def end_limbo(self) -> None:
        with self.changed:
            for log_position in self.limbo:
                self._apply(self.log[log_position - 1])
            self.limbo.clear()

    def _apply(self, events: list[Any]) -> None:
        for event in events:
            if not isinstance(event, Change):
                continue
            rows = self.rows[event.table.id]
            if event.op == "t":
                rows.clear()
            if event.before is not None:
                rows.pop(_key(event.table, event.before), None)
            if event.after is not None:
                rows[_key(event.table, event.after)] = event.after


def _key(table: Table, row: dict[str, Any]) -> Any:
    return tuple(row[name] for name in table.key) or tuple(row.values())


class _MemoryChunk(Chunk):
    def __init__(self, table: Table, rows: list[Any], after: Any, end: int, limbo: set[int]):
        self.table, self.rows, self.after = table, rows, after
        self._end, self._limbo = end, limbo

    def contains(self, transaction: Begin) -> bool:
        return transaction.at["n"] <= self._end and transaction.at["n"] not in self._limbo

    def is_passed(self, log_position) -> bool:
        return log_position["n"] >= self._end

    def bounds(self):
        return {"end": self._end, "limbo": sorted(self._limbo)}


class MemorySource(Source):
    connector, database = "postgresql", "memory"

    def __init__(self, db: MemoryDatabase) -> None:
        self._db = db

    def check(self):
        return []

    def open(self, after, stored):
        log_position = after.at if after is not None else {"n": len(self._db.log)}
        self._db.opened += 1
        return log_position

    def tables(self):
        return list(self._db.tables.values())

    def changes(self, after: SourcePosition):
        number = after.at["n"] if after.changes is None else after.at["n"] - 1
        skip = after.changes or 0
        while True:
            with self._db.changed:
                if len(self._db.log) <= number:
                    self._db.changed.wait(0.002 if self.is_awaited else IDLE_S)
                if self._db.failure is not None:
                    failure, self._db.failure = self._db.failure, None
                    raise failure
                events = self._db.log[number] if number < len(self._db.log) else None
            if events is None:
                yield PositionAdvanced({"n": number})
                continue
            number += 1
            at = {"n": number}
            yield Begin(at, str(number), time.time_ns() // 1_000_000, {"txId": number})
            for event in events[skip:]:
                if isinstance(event, Exception):  # happens once, between two changes
                    events.remove(event)
                    raise event
                yield event
            skip = 0
            yield Commit(len(events))

    def acknowledge(self, log_position):
        self._db.acknowledged = log_position["n"]

    def read_chunk(self, table, after, limit_rows):
        self._db.before_chunk()
        with self._db.changed:
            self._db.chunks_read += 1
            is_whole = not table.key
            table = self._db.tables[table.id]
            rows = sorted(self._db.rows[table.id].items())
            end, limbo = len(self._db.log), set(self._db.limbo)
        if is_whole:
            return _MemoryChunk(table, [row for _, row in rows], None, end, limbo)
        rows = [(key, row) for key, row in rows if after is None or key > tuple(after)]
        is_last = len(rows) <= limit_rows
        rows = rows[:limit_rows]
        last = None if is_last else list(rows[-1][0])
        return _MemoryChunk(table, [row for _, row in rows], last, end, limbo)

    def bounded(self, table, bounds):
        return _MemoryChunk(table, [], None, bounds["end"], set(bounds["limbo"]))

    def estimate_rows(self, table):
        return len(self._db.rows[table.id])

    def lag(self, acknowledged):
        return Lag(len(self._db.log) - acknowledged["n"], 0)

    def close(self):
        pass

    def remove(self):
        pass
