"""The tables of a SQLite database as they are now: columns, keys and what makes rows unique."""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from headwater.capture.contract import Column, Table
from headwater.capture.sqlite.values import connect_type

SCHEMA = "main"


@dataclass(frozen=True, slots=True)
class Definition:
    """A table, and what its triggers have to know of it."""

    name: str
    columns: tuple[tuple[str, str, bool], ...]  # name, declared type, NOT NULL
    key: tuple[str, ...]
    # The name under which its rowid can be reached; None: WITHOUT ROWID (or all names are taken).
    rowid: str | None
    # Columns that make a row unique, each with its collation, one tuple per index.
    uniques: tuple[tuple[tuple[str, str], ...], ...]
    has_generated_unique: bool  # one of these columns is generated
    is_referring: bool  # it has foreign keys: its rows may be deleted together with others
    nullable_key: bool  # a PRIMARY KEY of a rowid table may hold NULL unless it is the rowid

    def as_table(self) -> Table:
        return Table(
            SCHEMA,
            self.name,
            tuple(
                Column(name, declared, connect_type(declared), not is_not_null)
                for name, declared, is_not_null in self.columns
            ),
            self.key,
        )


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def table_names(
    connection: sqlite3.Connection, include: Sequence[str], exclude: Sequence[str]
) -> list[str]:
    """Ordinary tables that the patterns name, without regard to case, as SQLite sees names. Views,
    virtual tables and the shadow tables behind these are none.
    """
    rows = connection.execute(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
        " AND substr(name, 1, 7) <> 'sqlite_' AND substr(name, 1, 11) <> '_headwater_'"
        " ORDER BY name"
    ).fetchall()

    def matches(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(f"{SCHEMA}.{name}".lower(), pattern.lower()) for pattern in patterns)

    return [name for (name,) in rows if matches(name, include) and not matches(name, exclude)]


def read_definition(connection: sqlite3.Connection, name: str) -> Definition | None:
    """None: there is no such table."""
    listed = connection.execute(
        "SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"
        " AND name = ? COLLATE NOCASE",
        (name,),
    ).fetchone()
    if listed is None:
        return None
    name, is_without_rowid = listed
    # hidden: 2 and 3 are generated columns, which are read as any other.
    columns = connection.execute(
        'SELECT name, type, "notnull", pk, hidden FROM pragma_table_xinfo(?) WHERE hidden <> 1'
        " ORDER BY cid",
        (name,),
    ).fetchall()
    key_columns = sorted((pk, column, not_null) for column, _, not_null, pk, _ in columns if pk)
    taken = {column.lower() for column, *_ in columns}
    rowid = next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)
    uniques = _uniques(connection, name)
    unique_columns = {column for unique in uniques for column, _ in unique}
    is_rowid_key = _is_rowid_key(connection, name, len(key_columns))
    return Definition(
        name,
        tuple(
            (column, declared, bool(not_null or pk))
            for column, declared, not_null, pk, _ in columns
        ),
        tuple(column for _, column, _ in key_columns),
        None if is_without_rowid else rowid,
        uniques,
        any(hidden and column in unique_columns for column, *_, hidden in columns),
        connection.execute("SELECT 1 FROM pragma_foreign_key_list(?)", (name,)).fetchone()
        is not None,
        not is_without_rowid
        and not is_rowid_key
        and any(not not_null for _, _, not_null in key_columns),
    )


def _is_rowid_key(connection: sqlite3.Connection, name: str, key_columns: int) -> bool:
    """INTEGER PRIMARY KEY is the rowid itself: it is the one key that has no index."""
    indexes = connection.execute(
        "SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", (name,)
    ).fetchone()
    return key_columns == 1 and indexes is None


def _uniques(connection: sqlite3.Connection, name: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Unique indexes on columns. One on an expression is not visible here, see docs."""
    found = []
    for (index,) in connection.execute(
        'SELECT name FROM pragma_index_list(?) WHERE "unique" ORDER BY name', (name,)
    ).fetchall():
        columns = connection.execute(
            "SELECT cid, name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", (index,)
        ).fetchall()
        if all(cid >= 0 for cid, _, _ in columns):
            found.append(tuple((column, collation) for _, column, collation in columns))
    return tuple(found)
