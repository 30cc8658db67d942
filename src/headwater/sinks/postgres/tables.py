"""The tables of a target in PostgreSQL: its versions, and the table of positions."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson
import pyarrow as pa

from headwater.errors import ConfigError, StoreRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import (
    Position,
    Target,
    fields_from_text,
    fields_to_text,
    offsets_from,
)
from headwater.sinks.postgres.connection import Session, TableLocked
from headwater.sinks.postgres.values import column_type
from headwater.sinks.rows.schema_evolution import EvolvedSchema
from headwater.sinks.sql_positions import POSITIONS, StoredVersion, names, quoted

NAME_BYTES: Final = 63  # PostgreSQL cuts longer names off, without an error
_LOCK_WAIT_MS: Final = 200  # a session that waits for an exclusive lock blocks readers behind it
_LOCK_PATIENCE_S: Final = 60.0
_STORED: Final = "version, is_live, epoch, query, batch, offsets, fields"


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one target, and the statements that find, create and change them."""

    schema: str
    target: Target  # its name is without the schema

    @property
    def positions(self) -> str:
        return f"{quoted(self.schema)}.{POSITIONS}"

    @property
    def where(self) -> str:
        return f"owner = {literal(self.target.owner)} AND target = {literal(self.target.name)}"

    def table(self, stored: StoredVersion) -> str:
        return self.named(stored.table(self.target))

    def named(self, name: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}"

    def check_names(self, fields: pa.Schema | None = None, version: int = 999) -> None:
        longest = hidden_name(f"{self.target.name}_pkey", version)
        if len(longest.encode()) > NAME_BYTES:
            raise ConfigError(
                f"{self.target.name} is too long for a table of PostgreSQL",
                detail=f"names have {NAME_BYTES} bytes, and versions need some of them",
            )
        for name in fields.names if fields is not None else ():
            if len(name.encode()) > NAME_BYTES:
                raise StoreRefused(
                    f"column {name} has a name that is too long for PostgreSQL",
                    detail=f"names have {NAME_BYTES} bytes",
                    hint="rename it in the pipeline",
                )

    def lock_changes(self, session: Session) -> None:
        """Until the transaction ends: one session at a time creates, promotes, drops versions."""
        lock = f"hashtextextended({literal(self.positions)}, 4857)"
        session.run(f"SELECT pg_advisory_xact_lock({lock})")

    def has_positions(self, session: Session) -> bool:
        return self.exists(session, POSITIONS)

    def exists(self, session: Session, name: str) -> bool:
        found = session.run(
            "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid ="
            f" c.relnamespace WHERE n.nspname = {literal(self.schema)}"
            f" AND relname = {literal(name)}"
        )
        return bool(found)

    def make_positions(self, session: Session) -> None:
        if not self.has_positions(session):
            session.run(
                f"CREATE TABLE {self.positions} (owner text, target text, version integer,"
                " is_live boolean NOT NULL, epoch bigint NOT NULL, query text, batch bigint,"
                " offsets jsonb, fields text NOT NULL, writer_pid integer,"
                " writer_since timestamptz, updated_at timestamptz NOT NULL DEFAULT now(),"
                " PRIMARY KEY (owner, target, version)) WITH (fillfactor = 50)"
            )

    def stored_versions(self, session: Session, lock: str = "") -> dict[int, StoredVersion]:
        """By number. `lock`: FOR UPDATE, in the order of the numbers."""
        rows = session.run(
            f"SELECT {_STORED} FROM {self.positions} WHERE {self.where} ORDER BY version {lock}"
        )
        return {row[0]: _stored(row) for row in rows}

    def found(self, version: int) -> str:
        return f"SELECT {_STORED} FROM {self.positions} WHERE {self.where} AND version = {version}"

    def locked(self, version: int) -> str:
        """The first statement of every transaction of a writer."""
        return f"{self.found(version)} FOR UPDATE"

    def position_update(self, version: int, position: Position) -> str:
        offsets = orjson.dumps(position.offsets, option=orjson.OPT_NON_STR_KEYS).decode()
        return (
            f"UPDATE {self.positions} SET query = {literal(position.query)},"
            f" batch = {position.batch}, offsets = {literal(offsets)},"
            f" updated_at = clock_timestamp() WHERE {self.where} AND version = {version}"
        )

    def fields_update(self, version: int, fields: pa.Schema) -> str:
        return (
            f"UPDATE {self.positions} SET fields = '{fields_to_text(fields)}'"
            f" WHERE {self.where} AND version = {version}"
        )

    def create_table(self, session: Session, stored: StoredVersion) -> None:
        name = stored.table(self.target)
        if self.exists(session, name):
            raise sql_positions.not_ours(name, self.target)
        key = self.target.key
        columns = [f"{quoted(field.name)} {column_type(field)}" for field in stored.fields]
        if key:
            constraint = f"{self.target.name}_pkey"
            if not stored.is_live:
                constraint = hidden_name(constraint, stored.version)
            columns.append(f"CONSTRAINT {quoted(constraint)} PRIMARY KEY ({names(key)})")
        session.run(f"CREATE TABLE {self.table(stored)} ({', '.join(columns)})")
        session.run(
            f"INSERT INTO {self.positions} (owner, target, version, is_live, epoch, fields)"
            f" VALUES ({literal(self.target.owner)}, {literal(self.target.name)}, {stored.version},"
            f" {stored.is_live}, {sql_positions.first_epoch()}, '{fields_to_text(stored.fields)}')"
        )

    def check_table(self, session: Session, stored: StoredVersion) -> None:
        """Raises StoreRefused if it is missing, or has another key than the target."""
        if not self.exists(session, stored.table(self.target)):
            raise sql_positions.table_missing(stored.table(self.target))
        found = session.run(
            "SELECT a.attname FROM pg_catalog.pg_index i,"
            " unnest(i.indkey) WITH ORDINALITY AS k(n, o)"
            " JOIN pg_catalog.pg_attribute a ON a.attnum = k.n"
            f" WHERE i.indrelid = {literal(self.table(stored))}::regclass AND i.indisprimary"
            " AND a.attrelid = i.indrelid ORDER BY k.o"
        )
        sql_positions.check_key(stored.table(self.target), [name for (name,) in found], self.target)

    def change_columns(
        self, session: Session, stored: StoredVersion, changed: EvolvedSchema
    ) -> None:
        """Within a transaction: of the table, and in its position."""
        actions = [
            f"ADD COLUMN {quoted(field.name)} {column_type(field)}" for field in changed.added
        ]
        actions += [
            f"ALTER COLUMN {quoted(field.name)} TYPE {column_type(field)}"
            for field in changed.widened
        ]
        if actions:
            alter = f"ALTER TABLE {self.table(stored)} {', '.join(actions)}"
            with_table_lock(session, lambda: session.run(alter))
            session.run(self.fields_update(stored.version, changed.fields))


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def hidden_name(name: str, version: int) -> str:
    """The name of an index whose table is not live."""
    return f"{name}__v{version}"


def stored_from(rows: list[Any]) -> StoredVersion | None:
    return _stored(rows[0]) if rows else None


def _stored(row: Any) -> StoredVersion:
    version, is_live, epoch, query, batch, offsets, fields = row
    position = None if query is None else Position(query, batch, offsets_from(offsets))
    return StoredVersion(version, is_live, epoch, position, fields_from_text(fields))


def with_table_lock(session: Session, change: Callable[[], Any]) -> None:
    """Within a transaction: retries to get the lock that `change` needs, with a short timeout each
    time, as all later sessions queue behind one that waits for it.
    """
    deadline_s = time.monotonic() + _LOCK_PATIENCE_S
    session.run(f"SET LOCAL lock_timeout = {_LOCK_WAIT_MS}")
    while True:
        session.run("SAVEPOINT lock")
        try:
            change()
        except TableLocked:
            if time.monotonic() > deadline_s:
                raise
            session.run("ROLLBACK TO SAVEPOINT lock; RELEASE SAVEPOINT lock")
            time.sleep(_LOCK_WAIT_MS / 1000)
        else:
            session.run("RELEASE SAVEPOINT lock; SET LOCAL lock_timeout = 0")
            return
