"""The event store: appends, reads, subscriptions and transactions on one database.

    store = open_store("sqlite:///bank.db", types=types)
    store.append("account-1", [Opened(owner="eva")], expected=NO_STREAM)

A store may be used by several threads. Appends of threads that come at the same time share one
transaction of the database (group commit), each with its own checks and its own result.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from headwater.clock import Clock
from headwater.errors import (
    AppendConflict,
    ConfigError,
    EventRefused,
    EventStoreMissing,
    EventStoreRefused,
    EventStoreUnreachable,
)
from headwater.events import appending, listing, views
from headwater.events.append_request import check_request
from headwater.events.appending import Written
from headwater.events.contract import ANY, Appended, Condition, Query, Selection, StreamWrite
from headwater.events.databases.session import EventDatabase, PageStatement, Row, Session
from headwater.events.databases.sqlite import SCHEME, SqliteDatabase, path_of
from headwater.events.event_types import EventTypes
from headwater.events.group_commit import GroupCommit, Pending
from headwater.events.input_checks import Limits, check_stream, query_of
from headwater.events.listing import CategoryCounts
from headwater.events.personal_events import PersonalEventTypes, encrypted
from headwater.events.reads import Reads
from headwater.events.subscription import Subscription
from headwater.events.views import SessionStatements, View
from headwater.subjects.access import PersonalTopics

_T = TypeVar("_T")


def database_of(url: str) -> EventDatabase:
    """Raises ConfigError if it is no address of a database that can hold a store."""
    if url.startswith(SCHEME) and len(url) > len(SCHEME):
        return SqliteDatabase(path_of(url))
    if url.startswith(("postgresql://", "postgres://")):
        from headwater.extras import require

        require("an event store in PostgreSQL", "postgres")
        from headwater.events.databases.postgres import PostgresDatabase

        return PostgresDatabase(url)
    raise ConfigError(
        "this is no address of an event store",
        detail=url.partition("://")[0] + "://…" if "://" in url else url,
        hint="sqlite:///file.db, or postgresql://user@host/database",
    )


def open_store(
    url: str,
    *,
    types: EventTypes | None = None,
    views: Sequence[View] = (),
    limits: Limits | None = None,
    clock: Clock | None = None,
    create: bool = True,
    personal: PersonalTopics | None = None,
    decrypts: bool = True,
) -> "EventStore":
    """The store at this address, created if there is none (unless `create` is false: then
    EventStoreRefused is raised). With `types`, only registered types can
    be appended. `clock` replaces the clock of the database, for tests. `personal`: the fields that
    are encrypted (`headwater.personal_topics()` reads them from headwater.toml). Reads decrypt
    them, unless `decrypts` is false: for those who may append, but not see them.
    """
    database = database_of(url)
    if not create and not database.exists():
        raise EventStoreMissing(
            "there is no event store at this address",
            detail=database.shown,
            hint="the first `headwater events append`, or open_store in Python, creates it",
        )
    database.create()
    return EventStore(
        database, types, views, limits or Limits(), clock, personal, decrypts=decrypts
    )


class Transaction(Reads):
    """A write transaction: appends, reads and statements that are committed together."""

    def __init__(self, store: "EventStore", session: Session) -> None:
        self._store = store
        self._session = session
        self.types = store.types
        self.written = Written(store.read_types)
        self.execute = SessionStatements(session).execute

    def decoding(self, types: EventTypes | None) -> EventTypes | None:
        return self._store.decoding(types)

    def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        expected: int = ANY,
        condition: Condition | None = None,
        command_id: str | None = None,
    ) -> Appended:
        return self.append_all(
            [StreamWrite(stream, events, expected)], condition=condition, command_id=command_id
        )

    def append_all(
        self,
        writes: Sequence[StreamWrite],
        *,
        condition: Condition | None = None,
        command_id: str | None = None,
    ) -> Appended:
        store = self._store
        request = check_request(writes, condition, command_id, store.types, store.limits)
        request = encrypted(request, store.personal)
        return appending.append(self._session, request, store.now_ms(), self.written)

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._session.run(statement, values)

    def run_page(self, page: PageStatement, max_bytes: int) -> tuple[list[Row], bool]:
        return self._session.run_page(page, max_bytes)


class EventStore(Reads):
    def __init__(
        self,
        database: EventDatabase,
        types: EventTypes | None,
        views: Sequence[View],
        limits: Limits,
        clock: Clock | None,
        personal: PersonalTopics | None = None,
        *,
        decrypts: bool = True,
    ) -> None:
        self.database = database
        self.types = types
        self.personal = personal
        self._decrypts = decrypts
        self.views = (*views,)
        self.limits = limits
        self._clock = clock
        self._is_local = isinstance(database, SqliteDatabase)
        self._pid = os.getpid()
        self._idle: list[Session] = []
        self._idle_lock = threading.Lock()
        self._writer = threading.Lock()
        self._group = GroupCommit(self._append_together, self._writer)
        self._is_closed = False
        if self.views:
            with self.transaction():
                pass  # creates and fills them

    def append(
        self,
        stream: str,
        events: Sequence[Any],
        *,
        expected: int = ANY,
        condition: Condition | None = None,
        command_id: str | None = None,
    ) -> Appended:
        """Appends events (`Event`s, or objects of registered classes) to a stream, all or none,
        durably. Raises VersionConflict, ConditionFailed, EventRefused, EventStoreUnreachable.
        """
        return self.append_all(
            [StreamWrite(stream, events, expected)], condition=condition, command_id=command_id
        )

    def append_all(
        self,
        writes: Sequence[StreamWrite],
        *,
        condition: Condition | None = None,
        command_id: str | None = None,
    ) -> Appended:
        """As `append`, to several streams at once."""
        request = check_request(writes, condition, command_id, self.types, self.limits)
        return self._group.append(encrypted(request, self.personal))

    def decoding(self, types: EventTypes | None) -> EventTypes | None:
        if self.personal is None or not self._decrypts:
            return types
        return PersonalEventTypes(types, self.personal)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Everything in the block is committed together, or nothing. No other append happens
        meanwhile, so the block should be short; nothing in it can conflict.
        """
        with self._writer, self._session() as session:
            transaction = Transaction(self, session)
            session.begin_write()
            try:
                yield transaction
                views.update(session, self.views, transaction.written)
                session.commit()
            except BaseException:
                session.roll_back()
                raise

    def subscribe(
        self,
        *,
        after: int = 0,
        stream: str | None = None,
        category: str | None = None,
        types: Sequence[str] = (),
        tags: Sequence[str] = (),
        query: Query | None = None,
    ) -> Subscription:
        """All matching events behind position `after`, and from then on every new one as it is
        committed: in order, without a gap. Iterate over it; `close` ends it from any thread.
        """
        if stream is not None:
            check_stream(stream)
        query = query_of(query, types, tags)
        selection = Selection(stream, category, query)
        return Subscription(
            self.database, selection, after, self.run, self.run_page, self.read_types
        )

    def streams(
        self, *, category: str | None = None, after: str = "", limit: int = 100
    ) -> list[tuple[str, int]]:
        """Names of streams and their versions, by category and then by name."""
        return listing.streams(self.run, category, after, limit)

    def categories(self) -> list[str]:
        """Names, in order."""
        return listing.categories(self.run)

    def counts(self) -> list[CategoryCounts]:
        """How many streams and events each category has, by name."""
        return listing.counts(self.run)

    def waiting(self) -> dict[str, Any]:
        """The last position, those of views and sagas, and what waits."""
        return listing.waiting(self.run)

    def stats(self) -> dict[str, Any]:
        """How many events, by category and in all; positions of views and sagas; what waits."""
        return listing.stats(self.run)

    def query(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """A SELECT of the application's own, such as one of a synchronous view."""
        with self._session() as session:
            return session.run_users(statement, values)

    def now_ms(self) -> int | None:
        """The time that events get; None: the server's."""
        if self._clock is not None:
            return self._clock.now_ms()
        if self._is_local:
            return time.time_ns() // 1_000_000
        return None

    def time_ms(self) -> int:
        """The time that an event would get now."""
        now_ms = self.now_ms()
        if now_ms is not None:
            return now_ms
        return self._with_session(
            lambda session: int(session.run(f"SELECT {session.now_sql}")[0][0])
        )

    def close(self) -> None:
        self._is_closed = True
        with self._idle_lock:
            idle, self._idle = self._idle, []
        for session in idle:
            session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self._with_session(lambda session: session.run(statement, values))

    def run_page(self, page: PageStatement, max_bytes: int) -> tuple[list[Row], bool]:
        return self._with_session(lambda session: session.run_page(page, max_bytes))

    def _with_session(self, action: Callable[[Session], _T]) -> _T:
        """Once more on a new connection if the pooled one was lost, as after a restart of the
        server. `action` can be repeated: it reads, or appends events with ids.
        """
        used: Session | None = None
        try:
            with self._session() as used:
                return action(used)
        except EventStoreUnreachable:
            if used is None or used.is_usable:
                raise
        with self._idle_lock:
            lost, self._idle = self._idle, []
        for other in lost:
            other.close()
        with self._session() as session:
            return action(session)

    @contextmanager
    def _session(self) -> Iterator[Session]:
        if self._is_closed or os.getpid() != self._pid:
            raise EventStoreRefused(
                "the event store was closed"
                if self._is_closed
                else "the event store was opened in another process, before a fork",
                hint="open it again",
            )
        with self._idle_lock:
            session = self._idle.pop() if self._idle else None
        session = session or self.database.connect()
        try:
            yield session
        finally:
            if session.is_usable and not self._is_closed:
                with self._idle_lock:
                    self._idle.append(session)
            else:
                session.close()

    def _append_together(self, group: Sequence[Pending]) -> None:
        """In one transaction, each with its own result. Raises what is not about one of them.

        Ids are new as a rule, so the first attempt leaves it to the database's unique indexes to
        find out; what it refuses is repeated with ids looked up first. So is an attempt that may
        have been committed before the connection was lost.
        """
        attempts = 0

        def append(session: Session) -> None:
            nonlocal attempts
            attempts += 1
            written = Written(self.read_types)
            checks_ids = attempts > 1
            session.begin_write()
            try:
                if not self._appended_at_once(session, group, written, checks_ids=checks_ids):
                    for pending in group:
                        self._append_one(session, pending, written, checks_ids=checks_ids)
                if written.rows:
                    views.update(session, self.views, written)
                session.commit()
            except BaseException:
                session.roll_back()
                raise

        try:
            self._with_session(append)
        except EventStoreRefused:
            if attempts > 1:
                raise
            self._with_session(append)

    def _appended_at_once(
        self, session: Session, group: Sequence[Pending], written: Written, *, checks_ids: bool
    ) -> bool:
        if len(group) == 1:
            return False
        requests = [pending.request for pending in group]
        results = appending.append_together(
            session, requests, self.now_ms(), written, checks_ids=checks_ids
        )
        if results is None:
            return False
        for pending, result in zip(group, results, strict=True):
            if isinstance(result, Appended):
                pending.result, pending.error = result, None
            else:
                pending.result, pending.error = None, result
        return True

    def _append_one(
        self, session: Session, pending: Pending, written: Written, *, checks_ids: bool
    ) -> None:
        pending.error = None
        try:
            pending.result = appending.append(
                session, pending.request, self.now_ms(), written, checks_ids=checks_ids
            )
        except (AppendConflict, EventRefused) as error:
            pending.error = error
