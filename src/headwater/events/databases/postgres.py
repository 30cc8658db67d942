"""Event stores in PostgreSQL.

The append lock is an advisory lock of the transaction. PostgreSQL releases it after the commit has
become visible, so the next append sees this one, and no reader sees a later one without it. (A
sequence would leave gaps at rollbacks, and show position 2 before 1. EXCLUSIVE mode of the table
would keep autovacuum out.) Statements that need no answer are sent with the next one that does:
an append is two round trips.
"""

import itertools
import re
import select
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg2
import psycopg2.extensions

from headwater.errors import (
    ConfigError,
    EventStoreError,
    EventStoreRefused,
    EventStoreUnreachable,
)
from headwater.events.databases.schema import IMMUTABLE, PARTS, REFUSAL, SCHEMA_VERSION, TABLES
from headwater.events.databases.session import (
    EVENT_COLUMNS,
    INSERT_COMMAND,
    PageStatement,
    Row,
)

_CHANNEL: Final = "headwater_events"
_CONNECT_TIMEOUT_S: Final = 10
_SESSION: Final = (
    "SET client_min_messages = error; SET standard_conforming_strings = on;"
    # An append that was acknowledged survives a crash.
    " SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
_TYPES: Final = ("bigint", "text", "text", "text", "bigint", "text", "int", "text", "text", "text",
                 "text", "bigint")  # fmt: skip
_INSERT: Final = (
    f"INSERT INTO headwater_events ({', '.join(EVENT_COLUMNS)}) SELECT * FROM unnest("
    + ", ".join(f"?::{kind}[]" for kind in _TYPES)
    + ")"
)
_INSERT_ONE: Final = (
    f"INSERT INTO headwater_events ({', '.join(EVENT_COLUMNS)})"
    f" VALUES ({', '.join('?' * len(EVENT_COLUMNS))})"
)
_INSERT_TAGS: Final = (
    "INSERT INTO headwater_event_tags SELECT * FROM unnest(?::text[], ?::bigint[])"
)
_TRIGGERS: Final = [
    (
        "CREATE OR REPLACE FUNCTION headwater_refuse_change() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN RAISE EXCEPTION '{REFUSAL}' USING ERRCODE = 'HWEV1'; END $$"
    ),
    *(
        f"DO $$ BEGIN IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgname = '{table}_immutable'"
        f" AND tgrelid = '{table}'::regclass) THEN CREATE TRIGGER {table}_immutable"
        f" BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} FOR EACH STATEMENT"
        " EXECUTE FUNCTION headwater_refuse_change();"
        # Fires for replication roles, too.
        f" ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_immutable; END IF; END $$"
        for table in IMMUTABLE
    ),
]
# A prepared statement that is not there, or is there already: another session of the server's got
# our statements.
_OTHER_SESSION: Final = ("26000", "42P05")
_TRANSIENT: Final = ("08", "25", "40", "53", "57", "58", "XX")


class PostgresDatabase:
    unlocking = ("ALTER TABLE headwater_events DISABLE TRIGGER headwater_events_immutable",)
    locking = ("ALTER TABLE headwater_events ENABLE ALWAYS TRIGGER headwater_events_immutable",)

    def __init__(self, url: str) -> None:
        try:
            self._parts = dict(psycopg2.extensions.parse_dsn(url))
        except psycopg2.ProgrammingError:  # its text has the address, password and all
            raise ConfigError(
                "the event store's address is no address of PostgreSQL",
                hint="postgresql://user@host:5432/database",
            ) from None
        self._parts.setdefault("connect_timeout", str(_CONNECT_TIMEOUT_S))
        self._parts.setdefault("keepalives_idle", "10")
        self._parts.setdefault("keepalives_interval", "5")
        self._parts.setdefault("keepalives_count", "4")
        self._parts.setdefault("application_name", "headwater events")
        self._parts["client_encoding"] = "UTF8"
        self.prepares = True
        self.shown = re.sub(r"^([a-z+]+://[^:@/]*):.*@", r"\1@", url).partition("?")[0]

    def rewrite(self) -> None:
        session = self.connect()
        try:
            for table in ("headwater_events", "headwater_snapshots"):
                session.run(f"VACUUM FULL {table}")
        finally:
            session.close()

    def connect(self) -> "PostgresSession":
        return PostgresSession(self, self._parts)

    def connect_waiting(self) -> "PostgresSession":
        session = self.connect()
        session.listen()
        return session

    def exists(self) -> bool:
        session = self.connect()
        try:
            return _has_store(session)
        finally:
            session.close()

    def create(self) -> None:
        session = self.connect()
        try:
            if not _has_store(session):
                _create_parts(session)
            elif not _is_complete(session):
                # Older stores lack an index, without which lists are slow. A user who does not own
                # the tables cannot add it, and does not need to.
                try:
                    _create_parts(session)
                except EventStoreRefused:
                    session.roll_back()
            ((version,),) = session.run(
                "SELECT value FROM headwater_event_store WHERE name = 'schema'"
            )
        finally:
            session.close()
        if int(version) > SCHEMA_VERSION:
            raise EventStoreRefused(
                "the event store was made by a newer version of Headwater",
                detail=f"schema {version}, this version has {SCHEMA_VERSION}",
            )


def _array(values: Iterable[Any]) -> str:
    """As the text of a constant, which the server parses several times as fast as ARRAY[…]."""
    return f"{{{','.join(map(_array_element, values))}}}"


def _array_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    return str(value)


def _has_store(session: "PostgresSession") -> bool:
    ((found,),) = session.run("SELECT to_regclass('headwater_event_store') IS NOT NULL")
    return bool(found)


def _is_complete(session: "PostgresSession") -> bool:
    conditions = " AND ".join(["to_regclass(?) IS NOT NULL"] * len(PARTS))
    ((found,),) = session.run(f"SELECT {conditions}", PARTS)
    return bool(found)


def _create_parts(session: "PostgresSession") -> None:
    session.begin_write()  # CREATE IF NOT EXISTS alone races with itself
    tables = TABLES.format(bigint="BIGINT", without_rowid="")
    for statement in (*tables.split(";"), *_TRIGGERS):
        session.run(statement)
    session.run(
        "INSERT INTO headwater_event_store VALUES ('schema', ?) ON CONFLICT DO NOTHING",
        (str(SCHEMA_VERSION),),
    )
    session.commit()


class PostgresSession:
    now_sql = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"

    def __init__(self, database: PostgresDatabase, parts: dict[str, str]) -> None:
        self.is_usable = True
        self._is_preparing = False
        self._database = database
        self._password = parts.get("password", "")
        self._prepared: dict[str, str] = {}  # names of statements
        self._pending: list[bytes] = []
        with self._translated():
            self._connection = psycopg2.connect(**parts)
        self._connection.autocommit = True
        with self._translated():
            self._cursor = self._connection.cursor()
            self._cursor.execute(_SESSION)
            # Of the schema that has the table: users whose search paths begin elsewhere share it.
            self._cursor.execute(
                "SELECT hashtextextended('headwater_events:' || coalesce((SELECT nspname FROM"
                " pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE c.oid = to_regclass('headwater_events')), current_schema()), 0)"
            )
            self._lock = self._cursor.fetchone()[0]

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self.run_users(statement.replace("?", "%s"), values)

    def run_often(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._translated():
            self._send(self._call(statement, values))
            rows: list[Row] = self._cursor.fetchall()
            return rows

    def run_page(self, page: PageStatement, max_bytes: int) -> tuple[list[Row], bool]:
        """The server adds up sizes, which it has without reading the payloads: what is too much
        is not sent.
        """
        rows = self.run(
            f"SELECT * FROM (SELECT p.*, sum(octet_length(p.payload)) OVER (ORDER BY p.{page.order}"
            f" ROWS UNBOUNDED PRECEDING) AS bytes FROM ({page.text}) p) q"
            f" WHERE q.bytes - octet_length(q.payload) < ? ORDER BY q.{page.order}",
            [*page.values, max_bytes],
        )
        return rows, bool(rows) and rows[-1][-1] >= max_bytes

    def run_users(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._translated():
            self._send(self._cursor.mogrify(statement, tuple(values) or None))
            rows: list[Row] = self._cursor.fetchall() if self._cursor.description else []
            return rows

    def begin_write(self) -> None:
        """Sent with the first statement. Each statement of a READ COMMITTED transaction sees what
        was committed before it, so those behind the lock see all earlier appends.
        """
        self._pending.append(
            b"BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock(%d)" % self._lock
        )

    def insert_events(self, rows: Sequence[Row], tags: Sequence[tuple[str, int]]) -> None:
        """Sent with the next statement, or with the commit."""
        with self._translated():
            if len(rows) == 1:
                self._pending.append(self._call(_INSERT_ONE, rows[0]))
            else:
                columns = [_array(column) for column in zip(*rows, strict=True)]
                self._pending.append(self._call(_INSERT, columns))
            if tags:
                columns = [_array(column) for column in zip(*tags, strict=True)]
                self._pending.append(self._call(_INSERT_TAGS, columns))
        notify = b"NOTIFY " + _CHANNEL.encode()
        if notify not in self._pending:
            self._pending.append(notify)

    def insert_command(self, row: Row) -> None:
        """As `insert_events`."""
        with self._translated():
            self._pending.append(self._call(INSERT_COMMAND, row))

    def commit(self) -> None:
        with self._translated():
            self._send(b"COMMIT")

    def roll_back(self) -> None:
        self._pending.clear()
        with suppress(psycopg2.Error):
            if not self._connection.closed:
                self._cursor.execute("ROLLBACK")
        self.is_usable = self.is_usable and not self._connection.closed

    def listen(self) -> None:
        with self._translated():
            self._cursor.execute(f"LISTEN {_CHANNEL}")

    def wait(self, timeout_s: float) -> None:
        with self._translated():
            if not self._connection.notifies:
                # Not `select`, which takes no descriptor above 1023.
                readable = select.poll()
                readable.register(self._connection, select.POLLIN)
                readable.poll(timeout_s * 1000)
                self._connection.poll()
            self._connection.notifies.clear()

    def close(self) -> None:
        self.is_usable = False
        self._connection.close()

    def _call(self, statement: str, values: Sequence[Any]) -> bytes:
        """The statement with its values. It is parsed and planned once: that takes the server
        longer than a small append itself.
        """
        if not self._database.prepares:
            text: bytes = self._cursor.mogrify(statement.replace("?", "%s"), (*values,))
            return text
        name = self._prepared.get(statement)
        if name is None:
            name = f"headwater_{len(self._prepared)}"
            numbers = itertools.count(1)
            numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
            self._pending.append(f"PREPARE {name} AS {numbered}".encode())
            self._prepared[statement] = name
            self._is_preparing = True
        marks = f"({', '.join(['%s'] * len(values))})" if values else ""
        call: bytes = self._cursor.mogrify(f"EXECUTE {name}{marks}", (*values,) or None)
        return call

    def _send(self, statement: bytes) -> None:
        pending = self._pending
        if pending:
            statement = b"; ".join((*pending, statement))
            pending.clear()
        self._cursor.execute(statement)
        self._is_preparing = False

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.Error as error:
            self._pending.clear()
            raise self._explained(error) from error
        except (ValueError, UnicodeEncodeError) as error:  # a NUL character
            raise EventStoreRefused("PostgreSQL does not take a value", detail=str(error)) from None

    def _explained(self, error: psycopg2.Error) -> EventStoreError:
        text = str(getattr(error.diag, "message_primary", None) or error).strip()
        text = re.sub(r"\s*\n\s*", " ", text) or "the connection was closed"
        if self._password:
            text = text.replace(self._password, "***")
        state: str = error.pgcode or ""
        if state in _OTHER_SESSION:  # a pooler gives us another one for each transaction
            self._database.prepares = self.is_usable = False
        connection = getattr(self, "_connection", None)
        if connection is not None and connection.closed:
            self.is_usable = False
        if re.search("authentication|no pg_hba.conf entry|does not exist", text) and not state:
            return EventStoreRefused("PostgreSQL does not let us in", detail=text)
        is_lost = not state or not self.is_usable or state.startswith(_TRANSIENT)
        if self._is_preparing:  # whether the server has done that is unknown
            self.is_usable = False
        if is_lost:
            return EventStoreUnreachable("PostgreSQL does not answer", detail=text)
        return EventStoreRefused(
            "PostgreSQL refuses a statement",
            detail=text,
            hint=getattr(error.diag, "message_hint", None) or "",
        )
