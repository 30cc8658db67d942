"""Completion of rows: large values that the log left out are read by key.

PostgreSQL does not log a large value (TOAST) that an UPDATE did not touch. What the cache
(toast_cache.py) does not have is read from the table, for many rows at once.

**Order.** The value is read later than the change was made, so it may be newer than the change.
Then the change that made it comes later in the stream, and brings it again; if the row was deleted,
its DELETE (or the UPDATE of its key) comes later. So a topic's last record of a key is always
right, and no record is older than its change; a record in between may have one of these values
early.

A change may be sent before other sessions see it (limbo: tables/snapshots.py): a read that does not
contain the change's transaction is older than the change, and is repeated.

What cannot be read (the row, the column or the right to read is missing) stays UNAVAILABLE.

Events behind an incomplete change wait for it: at most HELD_EVENTS, of about HELD_BYTES, and not
while the stream has nothing more to send.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import psycopg2
import psycopg2.errors

from headwater.capture.contract import UNAVAILABLE, Change, Event, Row, without_values
from headwater.capture.postgres.chunks import Snapshot
from headwater.capture.postgres.connection import Pool, literal, quoted
from headwater.capture.postgres.copy_text import (
    NULL,
    Full,
    Lines,
    cells_of,
    find_operators,
    rows_maker,
)
from headwater.capture.postgres.replication.toast_cache import ToastCache
from headwater.capture.postgres.type_catalog import TypeCatalog

log = logging.getLogger(__name__)

HELD_EVENTS: Final = 1_000
HELD_BYTES: Final = 8 << 20
READ_ROWS: Final = 200
READ_BYTES: Final = 8 << 20
_LOCK_TIMEOUT_S: Final = 1
_LOCK_PATIENCE_S: Final = 30.0  # for who holds the table; the other tables wait too
_LIMBO_PAUSE_S: Final = 0.1
_COLUMNS: Final = """
SELECT n.nspname::text, c.relname::text, c.relkind::text, a.attname::text, a.atttypid::int8,
       a.atttypmod, format_type(a.atttypid, a.atttypmod), (SELECT pg_current_snapshot()::text)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""


@dataclass(slots=True)
class IncompleteChange(Change):
    """A change whose row lacks values."""

    relation: bytes = b""  # its oid, as the stream has it
    key_texts: tuple[str, ...] = ()  # the row's key, as PostgreSQL writes it
    types: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # of columns, with typmods
    xid: int = 0  # of its transaction, the lower 32 bits
    is_asked: bool = False


class _Found(NamedTuple):
    """A table as it is now."""

    name: str
    types: dict[str, tuple[int, int]]
    type_names: dict[str, str]


class _Unreadable(Exception):
    """The table, or what is wanted of it, cannot be read."""


class _NotYet(Exception):
    """Another session has locked the table, or a change's transaction is in limbo."""


class Completer:
    """For the thread that reads the stream."""

    def __init__(
        self, pool: Pool, types: TypeCatalog, toast: ToastCache, alive: Callable[[], None]
    ) -> None:
        self._pool = pool
        self._types = types
        self._toast = toast
        self._alive = alive
        self._held: deque[Event] = deque()
        self._incomplete: deque[IncompleteChange] = deque()
        self._held_bytes = 0
        self._reported: set[bytes] = set()  # tables that cannot be read

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def complete(self, events: Iterable[Event]) -> Iterator[Event]:
        """The same events in the same order, each after the rows of those before it are whole."""
        held = self._held
        for event in events:
            if not held and event.__class__ is not IncompleteChange:
                yield event
                continue
            if event is not None:
                held.append(event)
            if isinstance(event, IncompleteChange):
                self._incomplete.append(event)
            if isinstance(event, Change):
                self._held_bytes += _size(event.before) + _size(event.after)
            if (
                event is None
                or len(held) >= HELD_EVENTS
                or len(self._incomplete) >= READ_ROWS
                or self._held_bytes > HELD_BYTES
            ):
                yield from self._released()
                if event is None:
                    yield None

    def _released(self) -> Iterator[Event]:
        while self._incomplete:
            self._read(self._incomplete[0])
            while self._incomplete and self._incomplete[0].is_asked:
                self._incomplete.popleft()
            first = self._incomplete[0] if self._incomplete else None
            while self._held and self._held[0] is not first:
                yield self._held.popleft()
        self._held_bytes = 0

    def _read(self, first: IncompleteChange) -> None:
        """Asks for the rows of one table; for the first of them in any case."""
        wanted: dict[tuple[str, ...], list[IncompleteChange]] = {}
        missing: set[str] = set()
        for change in self._incomplete:
            if change.types is first.types:  # of the same table, and the table as it was then
                wanted.setdefault(change.key_texts, []).append(change)
                missing.update(n for n, v in (change.after or {}).items() if v == UNAVAILABLE)
        keys = list(wanted)
        try:
            xids = {change.xid for changes in wanted.values() for change in changes}
            found, asked = self._rows(first, keys, missing, xids)
        except _Unreadable as error:
            self._report(first, error)
            found, asked = {}, len(keys)
        for number, key in enumerate(keys[:asked]):
            for change in wanted[key]:
                change.is_asked = True
                if number in found and change.after is not None:
                    _fill(change.after, found[number])
                    self._toast.add(change.relation, change.table.key, change.after, found[number])

    def _rows(
        self,
        first: IncompleteChange,
        keys: list[tuple[str, ...]],
        missing: set[str],
        xids: set[int],
    ) -> tuple[dict[int, Row], int]:
        """By number of the key: the columns that could be read; and how many keys were asked for,
        at least one.
        """
        patience_until_s = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            try:
                with self._pool.connection() as connection:
                    return self._rows_by(connection, first, keys, missing, xids)
            except _NotYet as error:
                if time.monotonic() > patience_until_s:
                    raise _Unreadable(str(error)) from None
                self._alive()

    def _rows_by(
        self,
        connection: Any,
        first: IncompleteChange,
        keys: list[tuple[str, ...]],
        missing: set[str],
        xids: set[int],
    ) -> tuple[dict[int, Row], int]:
        with connection.cursor() as cursor:
            cursor.execute(
                f"BEGIN READ ONLY; SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'; {_COLUMNS}",
                (int.from_bytes(first.relation, "big"),),
            )
            described = cursor.fetchall()
            # What is read next sees at least as much as this snapshot.
            if described and not all(map(Snapshot(described[0][-1]).sees, xids)):
                time.sleep(_LIMBO_PAUSE_S)
                raise _NotYet("a transaction is still waiting for a standby")
            table = _found(described)
            key = first.table.key
            columns = [
                name
                for name, type_then in first.types.items()
                if name in missing and table.types.get(name) == type_then
            ]
            if not columns or any(name not in table.types for name in key):
                cursor.execute("COMMIT")
                return {}, len(keys)
            find_operators(cursor, [table.types[name][0] for name in key])
            lines = Lines(READ_BYTES)
            asked = len(keys)
            try:
                cursor.copy_expert(_query(table, key, keys, columns), lines)
                cursor.execute("COMMIT")
            except Full:
                connection.close()  # in the middle of a COPY: of no further use
                asked = int(lines[-1].split(b"\t", 1)[0]) + 1
            except psycopg2.errors.LockNotAvailable as error:
                raise _NotYet(str(error)) from None
            except (psycopg2.ProgrammingError, psycopg2.DataError) as error:
                raise _Unreadable(str(error)) from None
        make_rows = rows_maker(columns, [self._types.codec(*table.types[name]) for name in columns])
        cells, null = cells_of(b"".join(lines))
        try:
            return {int(number): make_rows([rest], null)[0] for number, *rest in cells}, asked
        except (ValueError, ArithmeticError, LookupError) as error:
            raise _Unreadable(without_values(error)) from None

    def _report(self, change: IncompleteChange, error: Exception) -> None:
        if change.relation not in self._reported:
            self._reported.add(change.relation)
            log.warning(
                "%s: large values that the log leaves out cannot be read (%s); until they change "
                "they are %s",
                change.table.id,
                str(error).strip().partition("\n")[0],
                UNAVAILABLE,
            )


def _found(rows: list[tuple[Any, ...]]) -> _Found:
    if not rows:
        return _Found("", {}, {})
    schema, name, kind = rows[0][:3]
    full_name = quoted(schema, name)
    return _Found(
        full_name if kind == "p" else f"ONLY {full_name}",
        {column: (oid, typmod) for _, _, _, column, oid, typmod, _, _ in rows},
        {column: type_name for _, _, _, column, _, _, type_name, _ in rows},
    )


def _query(
    table: _Found, key: tuple[str, ...], keys: list[tuple[str, ...]], columns: list[str]
) -> str:
    types = [table.type_names[name] for name in key]
    values = ", ".join(
        ", ".join([f"({number}", *map("{}::{}".format, map(literal, texts), types)]) + ")"
        for number, texts in enumerate(keys)
    )
    wanted = ", ".join(f"k{i}" for i in range(len(key)))
    match = " AND ".join(f"t.{quoted(name)} = w.k{i}" for i, name in enumerate(key))
    chosen = ", ".join(f"t.{quoted(name)}" for name in columns)
    return (
        f"COPY (SELECT w.i, {chosen} FROM (VALUES {values}) w(i, {wanted}) "  # noqa: S608
        f"JOIN {table.name} t ON {match} ORDER BY w.i) TO STDOUT (NULL '{NULL}')"
    )


def _fill(row: Row, found: Row) -> None:
    for name, value in found.items():
        if row.get(name) == UNAVAILABLE:
            row[name] = value


def _size(row: Row | None) -> int:
    return 0 if row is None else sum(len(v) for v in row.values() if isinstance(v, str | list))
