"""The versions of a target in PostgreSQL."""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Final

import pyarrow as pa

from headwater.errors import ConfigError, StoreRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import Contents, Log, Target, Version, Writer
from headwater.sinks.postgres import promoting
from headwater.sinks.postgres.connection import Session, TableLocked
from headwater.sinks.postgres.reading import reading
from headwater.sinks.postgres.staging import drop_staged
from headwater.sinks.postgres.tables import Tables, literal, stored_from, with_table_lock
from headwater.sinks.postgres.values import column_type
from headwater.sinks.postgres.writer import PostgresWriter
from headwater.sinks.rows.schema_evolution import evolved, plain
from headwater.sinks.selection import SelectableStore, Selection
from headwater.sinks.settings import SinkSettings, with_password
from headwater.sinks.sql_positions import StoredVersion

OPTIONS: Final = ("schema",)  # of tables whose name has none; public
TARGET_OPTIONS: Final = ()

_TAKE_OVER_MS: Final = 1_000  # for the earlier writer to end its batch; then it is ended
_TAKE_OVERS: Final = 5


class PostgresStore(SelectableStore):
    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        if settings.url is None:
            raise ConfigError(
                f"sink {settings.name} has no url", hint="postgresql://user@host:5432/database"
            )
        self._url = with_password(settings).url or settings.url
        schema, dot, name = target.name.partition(".")
        if not dot:
            schema, name = settings.options.get("schema", "public"), target.name
        self._tables = Tables(schema, replace(target, name=name))
        self._application = f"headwater {target.owner}"[:63]

    def check(self) -> None:
        tables = self._tables
        tables.check_names()
        with self._session() as session:
            self._check_schema(session)
            found = self._stored(session)
            if not found and tables.exists(session, tables.target.name):
                raise sql_positions.not_ours(tables.target.name, tables.target)
            for stored in found.values():
                tables.check_table(session, stored)

    def _check_schema(self, session: Session) -> None:
        schema = literal(self._tables.schema)
        [(is_there, can_use, can_create)] = session.run(
            f"SELECT to_regnamespace(quote_ident({schema})) IS NOT NULL,"
            f" coalesce(has_schema_privilege(to_regnamespace(quote_ident({schema}))::oid, 'USAGE'),"
            f" false), coalesce(has_schema_privilege(to_regnamespace(quote_ident({schema}))::oid,"
            " 'CREATE'), false)"
        )
        name = sql_positions.quoted(self._tables.schema)
        if not is_there:
            raise StoreRefused(
                f"there is no schema {self._tables.schema}", hint=f"CREATE SCHEMA {name};"
            )
        if not (can_use and can_create):
            raise StoreRefused(
                f"the role of the sink may not create tables in schema {self._tables.schema}",
                hint=f"GRANT USAGE, CREATE ON SCHEMA {name} TO the role in `url`;",
            )

    def versions(self) -> list[Version]:
        with self._session() as session:
            return [stored.described() for stored in self._stored(session).values()]

    def writer(self, version: int, fields: pa.Schema) -> Writer:
        fields = plain(fields)
        self._tables.check_names(fields, version)
        for field in fields:
            column_type(field)
        session = self._session()
        try:
            self._check_schema(session)
            stored = self._take_over(session, version, fields)
            return PostgresWriter(
                session, self._tables, stored, self._url, self._application_here()
            )
        except BaseException:
            session.close()
            raise

    def _take_over(self, session: Session, version: int, fields: pa.Schema) -> StoredVersion:
        for attempt in range(_TAKE_OVERS):
            try:
                with session.transaction():
                    return self._begin(session, version, fields)
            except TableLocked:
                if attempt == _TAKE_OVERS - 1:
                    raise
                self._end_writer(session, version)
        raise AssertionError

    def _begin(self, session: Session, version: int, fields: pa.Schema) -> StoredVersion:
        tables = self._tables
        session.run(f"SET LOCAL lock_timeout = {_TAKE_OVER_MS}")
        if not tables.has_positions(session):
            tables.lock_changes(session)
            tables.make_positions(session)
        stored = stored_from(session.run(tables.locked(version)))
        if stored is None:
            tables.lock_changes(session)
            others = tables.stored_versions(session)
            is_live = version == 1 and not any(other.is_live for other in others.values())
            stored = others.get(version) or StoredVersion(version, is_live, 0, None, fields)
            if version not in others:
                tables.create_table(session, stored)
        tables.check_table(session, stored)
        changed = evolved(stored.fields, fields)
        tables.change_columns(session, stored, changed)
        session.run(
            f"UPDATE {tables.positions} SET epoch = epoch + 1, writer_pid = pg_backend_pid(),"
            " writer_since = (SELECT backend_start FROM pg_stat_activity"
            " WHERE pid = pg_backend_pid())"
            f" WHERE {tables.where} AND version = {version}"
        )
        # Read from the row, as another writer may have created it in between.
        again = stored_from(session.run(tables.locked(version)))
        assert again is not None
        drop_staged(session, tables, version)
        return again

    def _end_writer(self, session: Session, version: int) -> None:
        """A writer that was stopped within a batch, or whose machine failed, holds the lock of the
        position's row indefinitely. It has our role, so we may terminate its session.
        """
        session.run(
            f"SELECT pg_terminate_backend(a.pid) FROM {self._tables.positions} p"
            " JOIN pg_stat_activity a ON a.pid = writer_pid AND backend_start = writer_since"
            f" WHERE {self._tables.where} AND version = {version} AND a.pid <> pg_backend_pid()"
        )

    def promote(self, version: int) -> None:
        with self._session() as session:
            if version not in self._stored(session):
                raise sql_positions.unknown_version(self._tables.target, version)
            promoting.promote(session, self._tables, version)

    def drop(self, version: int) -> None:
        tables = self._tables
        with self._session() as session:
            if version not in self._stored(session):
                raise sql_positions.unknown_version(tables.target, version)
            with session.transaction():
                tables.lock_changes(session)
                stored = stored_from(session.run(tables.locked(version)))
                if stored is None:
                    raise sql_positions.unknown_version(tables.target, version)
                if stored.is_live:
                    raise sql_positions.still_live(tables.target, version)
                with_table_lock(
                    session, lambda: session.run(f"DROP TABLE IF EXISTS {tables.table(stored)}")
                )
                drop_staged(session, tables, version)
                session.run(
                    f"DELETE FROM {tables.positions} WHERE {tables.where} AND version = {version}"
                )

    def read(self, version: int) -> AbstractContextManager[Contents]:
        return reading(self._session, self._tables, version)

    def select(self, version: int, selection: Selection) -> AbstractContextManager[Contents]:
        return reading(self._session, self._tables, version, selection)

    def _stored(self, session: Session) -> dict[int, StoredVersion]:
        if not self._tables.has_positions(session):
            return {}
        return self._tables.stored_versions(session)

    def _session(self) -> Session:
        return Session(self._url, self._application_here())

    def _application_here(self) -> str:
        return f"{self._application} {os.getpid()}"[:63]
