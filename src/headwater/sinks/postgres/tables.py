"""The table of positions, and the tables of versions: made, found, and with new columns."""

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
from headwater.sinks.rows.schema_evolution import Evolved
from headwater.sinks.sql_positions import POSITIONS, Stored, names, quoted

NAME_BYTES: Final = 63  # PostgreSQL cuts longer names off, without an error
_LOCK_WAIT_MS: Final = 200  # who waits for a lock on a table keeps its readers waiting, too
_LOCK_PATIENCE_S: Final = 60.0
_STORED: Final = "version, is_live, epoch, query, batch, offsets, fields"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a target's tables are."""

    schema: str
    target: Target  # its name is without the schema

    @property
    def positions(self) -> str:
        return f"{quoted(self.schema)}.{POSITIONS}"

    @property
    def where(self) -> str:
        return f"owner = {literal(self.target.owner)} AND target = {literal(self.target.name)}"

    def table(self, stored: Stored) -> str:
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


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def hidden_name(name: str, version: int) -> str:
    """What an index is called whose table is not the live one."""
    return f"{name}__v{version}"


def lock_changes(session: Session, place: Place) -> None:
    """Until the transaction ends: versions are made, promoted and dropped by one at a time."""
    session.run(f"SELECT pg_advisory_xact_lock(hashtextextended({literal(place.positions)}, 4857))")


def has_positions(session: Session, place: Place) -> bool:
    return exists(session, place, POSITIONS)


def exists(session: Session, place: Place, name: str) -> bool:
    found = session.run(
        "SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid ="
        f" c.relnamespace WHERE n.nspname = {literal(place.schema)} AND relname = {literal(name)}"
    )
    return bool(found)


def make_positions(session: Session, place: Place) -> None:
    if not has_positions(session, place):
        session.run(
            f"CREATE TABLE {place.positions} (owner text, target text, version integer,"
            " is_live boolean NOT NULL, epoch bigint NOT NULL, query text, batch bigint,"
            " offsets jsonb, fields text NOT NULL, writer_pid integer, writer_since timestamptz,"
            " updated_at timestamptz NOT NULL DEFAULT now(),"
            " PRIMARY KEY (owner, target, version)) WITH (fillfactor = 50)"
        )


def stored_versions(session: Session, place: Place, lock: str = "") -> dict[int, Stored]:
    """By number. `lock`: FOR UPDATE, in the order of the numbers."""
    rows = session.run(
        f"SELECT {_STORED} FROM {place.positions} WHERE {place.where} ORDER BY version {lock}"
    )
    return {row[0]: _stored(row) for row in rows}


def locked(place: Place, version: int) -> str:
    """The statement that begins everything a writer does."""
    return (
        f"SELECT {_STORED} FROM {place.positions} WHERE {place.where} AND version = {version}"
        " FOR UPDATE"
    )


def stored_from(rows: list[Any]) -> Stored | None:
    return _stored(rows[0]) if rows else None


def _stored(row: Any) -> Stored:
    version, is_live, epoch, query, batch, offsets, fields = row
    position = None if query is None else Position(query, batch, offsets_from(offsets))
    return Stored(version, is_live, epoch, position, fields_from_text(fields))


def position_update(place: Place, version: int, position: Position) -> str:
    offsets = orjson.dumps(position.offsets, option=orjson.OPT_NON_STR_KEYS).decode()
    return (
        f"UPDATE {place.positions} SET query = {literal(position.query)}, batch = {position.batch},"
        f" offsets = {literal(offsets)}, updated_at = clock_timestamp()"
        f" WHERE {place.where} AND version = {version}"
    )


def fields_update(place: Place, version: int, fields: pa.Schema) -> str:
    return (
        f"UPDATE {place.positions} SET fields = '{fields_to_text(fields)}'"
        f" WHERE {place.where} AND version = {version}"
    )


def create_table(session: Session, place: Place, stored: Stored) -> None:
    name = stored.table(place.target)
    if exists(session, place, name):
        raise sql_positions.not_ours(name, place.target)
    key = place.target.key
    columns = [f"{quoted(field.name)} {column_type(field)}" for field in stored.fields]
    if key:
        constraint = f"{place.target.name}_pkey"
        if not stored.is_live:
            constraint = hidden_name(constraint, stored.version)
        columns.append(f"CONSTRAINT {quoted(constraint)} PRIMARY KEY ({names(key)})")
    session.run(f"CREATE TABLE {place.table(stored)} ({', '.join(columns)})")
    session.run(
        f"INSERT INTO {place.positions} (owner, target, version, is_live, epoch, fields)"
        f" VALUES ({literal(place.target.owner)}, {literal(place.target.name)}, {stored.version},"
        f" {stored.is_live}, {sql_positions.first_epoch()}, '{fields_to_text(stored.fields)}')"
    )


def check_table(session: Session, place: Place, stored: Stored) -> None:
    """It is still there, and has the key that the target has."""
    if not exists(session, place, stored.table(place.target)):
        raise sql_positions.gone(stored.table(place.target))
    found = session.run(
        "SELECT a.attname FROM pg_catalog.pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(n, o)"
        " JOIN pg_catalog.pg_attribute a ON a.attnum = k.n"
        f" WHERE i.indrelid = {literal(place.table(stored))}::regclass AND i.indisprimary"
        " AND a.attrelid = i.indrelid ORDER BY k.o"
    )
    sql_positions.check_key(stored.table(place.target), [name for (name,) in found], place.target)


def change_columns(session: Session, place: Place, stored: Stored, changed: Evolved) -> None:
    """Inside of a transaction: the table has the columns, and the position says so."""
    actions = [f"ADD COLUMN {quoted(each.name)} {column_type(each)}" for each in changed.added]
    actions += [
        f"ALTER COLUMN {quoted(each.name)} TYPE {column_type(each)}" for each in changed.widened
    ]
    if actions:
        table = place.table(stored)
        with_table_lock(session, lambda: session.run(f"ALTER TABLE {table} {', '.join(actions)}"))
        session.run(fields_update(place, stored.version, changed.fields))


def with_table_lock(session: Session, change: Callable[[], Any]) -> None:
    """Inside of a transaction: tries again and again to have the lock that `change` needs, waiting
    for a moment only each time, as everybody who comes later waits behind us.
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
