"""Rows of a batch that tasks write into tables of their own, and one transaction moves.

    task      CREATE UNLOGGED TABLE __headwater_<target>_<epoch>_<batch>_<attempt>; COPY
    driver    INSERT … SELECT from the accepted ones, position, DROP TABLE of all: one transaction

A table is one attempt's: of two attempts of a task the driver moves one, and drops both. A task
that wakes up later finds another batch or epoch in the table of positions and stops, or it leaves a
table that the next commit or writer drops. An unlogged table is empty after a crash of PostgreSQL:
the driver looks before it moves.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

import orjson
import pyarrow as pa

from headwater.errors import Fenced, NotStaged, StoreUnreachable
from headwater.settings import Secret
from headwater.sinks import sql_positions
from headwater.sinks.contract import Staging
from headwater.sinks.postgres.connection import Session
from headwater.sinks.postgres.statements import (
    delete_rows_in,
    insert_rows_of,
    is_above,
    lowest_key,
    upsert_rows_of,
)
from headwater.sinks.postgres.tables import Tables, literal, stored_from
from headwater.sinks.postgres.values import checked, column_type, to_csv
from headwater.sinks.rows.last_by_key import reduce
from headwater.sinks.rows.schema_evolution import fitted
from headwater.sinks.sql_positions import names, quoted

_PREFIX: Final = "__headwater_"
_DIGEST_BYTES: Final = 5  # names have 63 bytes


@dataclass(frozen=True, slots=True)
class StagedTables:
    """The token of an attempt: tables with rows, by name, in the schema of the target."""

    upserts: str | None = None
    columns: tuple[str, ...] = ()
    lowest: str | None = None  # of the upserts' keys, see `lowest_key`
    deletes: str | None = None

    def to_bytes(self) -> bytes:
        return orjson.dumps(asdict(self))

    @classmethod
    def from_bytes(cls, token: bytes) -> "StagedTables":
        read = orjson.loads(token)
        return cls(**{**read, "columns": tuple(read["columns"])})


@dataclass(frozen=True, slots=True)
class PostgresStaging(Staging):
    url: Secret
    application: str
    tables: Tables
    version: int
    epoch: int
    batch: int
    fields: pa.Schema  # of the version, with the columns that are new in the batch
    is_local: bool = False

    def stage(self, rows: Iterator[pa.Table], attempt: str) -> bytes:
        name = f"{_prefix(self.tables, self.version)}{self.epoch}_{self.batch}_{attempt}"
        staged = StagedTables()
        with Session(self.url, self.application) as session, session.transaction():
            self._check_is_current(session)
            for some in rows:
                staged = self._add(session, staged, some, name)
        return staged.to_bytes()

    def _check_is_current(self, session: Session) -> None:
        """Otherwise this is a task of a batch that was committed, or of a fenced writer."""
        stored = stored_from(session.run(self.tables.found(self.version)))
        if stored is None or stored.epoch != self.epoch:
            raise sql_positions.fenced(self.tables.target, self.version)
        if stored.position is not None and stored.position.batch >= self.batch:
            raise Fenced("the batch of this task is committed", detail=f"batch {self.batch}")

    def _add(
        self, session: Session, staged: StagedTables, rows: pa.Table, name: str
    ) -> StagedTables:
        key = self.tables.target.key
        reduced = reduce(rows, key)
        if reduced.clears:
            raise NotStaged("a truncate concerns the rows of all tasks")
        upserts = checked(fitted(reduced.upserts, self.fields), None)
        deletes = fitted(reduced.deletes, pa.schema([self.fields.field(column) for column in key]))
        deletes = checked(deletes, [])  # the table cannot have such keys
        into, lowest, gone = staged.upserts, None, staged.deletes
        if len(upserts):
            into = self._copy(session, upserts, f"{name}u", is_new=into is None)
            lowest = lowest_key(upserts, key) if key else None
        if len(deletes):
            gone = self._copy(session, deletes, f"{name}d", is_new=gone is None)
        return StagedTables(into, tuple(self.fields.names), lowest, gone)

    def _copy(self, session: Session, rows: pa.Table, name: str, *, is_new: bool) -> str:
        table = self.tables.named(name)
        if is_new:
            columns = ", ".join(
                f"{quoted(field.name)} {column_type(field)}" for field in rows.schema
            )
            session.run(f"CREATE UNLOGGED TABLE {table} ({columns})")
        into = f"{table} ({names(rows.column_names)})"
        # FREEZE: whoever reads the rows need not look up and note down that they are committed.
        session.copy_in(f"COPY {into} FROM STDIN (FORMAT csv, FREEZE)", to_csv(rows))
        return name


class StagedRows:
    """The rows of the accepted attempts, within the transaction that moves them."""

    def __init__(self, session: Session, tables: Tables, staged: Sequence[StagedTables]) -> None:
        self._session = session
        self._tables = tables
        self._staged = staged

    def move(self, table: str, *, is_empty: bool) -> None:
        """Deletes and upserts, in this order: no key is in both, nor in two attempts."""
        self._check_are_there()
        session, key = self._session, self._tables.target.key
        for staged in self._staged:
            if staged.deletes is not None and not is_empty:
                session.run(delete_rows_in(self._tables.named(staged.deletes), table, key))
        upserts = [staged for staged in self._staged if staged.upserts is not None]
        are_new = is_empty or not key or self._are_above(table, upserts)
        for staged in upserts:
            rows = self._tables.named(staged.upserts or "")
            session.run(
                insert_rows_of(rows, table, staged.columns)
                if are_new
                else upsert_rows_of(rows, table, staged.columns, key)
            )

    def _check_are_there(self) -> None:
        names_ = [name for one in self._staged for name in (one.upserts, one.deletes) if name]
        if not names_:
            return
        there = " AND ".join(f"EXISTS (SELECT FROM {self._tables.named(name)})" for name in names_)
        [(are_there,)] = self._session.run(f"SELECT {there}")
        if not are_there:
            raise StoreUnreachable(
                "the rows that tasks have staged are gone",
                detail="PostgreSQL empties unlogged tables when it restarts after a crash",
            )

    def _are_above(self, table: str, upserts: Sequence[StagedTables]) -> bool:
        """Whether the table certainly has none of the keys."""
        lowest = [staged.lowest for staged in upserts]
        literals = [one for one in lowest if one is not None]
        if not literals or len(literals) < len(lowest):
            return False
        return all(is_above(self._session, table, self._tables.target.key, one) for one in literals)


def drop_staged(session: Session, tables: Tables, version: int) -> None:
    """All tables that tasks have staged for the version, within a transaction that holds the lock
    of its position: no later writer can have begun.
    """
    found = session.run(
        "SELECT relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n"
        f" ON n.oid = c.relnamespace WHERE n.nspname = {literal(tables.schema)}"
        f" AND relkind = 'r' AND starts_with(relname, {literal(_prefix(tables, version))})"
    )
    if found:
        listed = ", ".join(tables.named(name) for (name,) in found)
        session.run(f"DROP TABLE IF EXISTS {listed}")


def _prefix(tables: Tables, version: int) -> str:
    of = orjson.dumps([tables.target.owner, tables.target.name, version])
    return f"{_PREFIX}{hashlib.blake2b(of, digest_size=_DIGEST_BYTES).hexdigest()}_"
