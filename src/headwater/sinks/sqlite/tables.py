"""The tables of a target in SQLite, and their positions."""

import sqlite3

import pyarrow as pa

from headwater.errors import StoreRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import Target, fields_to_text
from headwater.sinks.rows.nested import is_nested
from headwater.sinks.rows.schema_evolution import evolved
from headwater.sinks.sql_positions import POSITIONS, StoredVersion, names, quoted
from headwater.sinks.sqlite.values import column_type


class Tables:
    """The tables of one target: its versions, and their rows in the table of positions."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def make_positions(self, connection: sqlite3.Connection) -> None:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {POSITIONS} (owner TEXT NOT NULL, target TEXT NOT NULL,"
            " version INTEGER NOT NULL, is_live INTEGER NOT NULL, epoch INTEGER NOT NULL,"
            " position TEXT, fields TEXT NOT NULL, PRIMARY KEY (owner, target, version))"
            " STRICT, WITHOUT ROWID"
        )

    def save(self, connection: sqlite3.Connection, stored: StoredVersion) -> None:
        connection.execute(
            f"INSERT INTO {POSITIONS} VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET is_live = excluded.is_live, epoch = excluded.epoch,"
            " position = excluded.position, fields = excluded.fields",
            (
                self.target.owner,
                self.target.name,
                stored.version,
                stored.is_live,
                stored.epoch,
                stored.position and stored.position.to_json().decode(),
                fields_to_text(stored.fields),
            ),
        )

    def all_stored(self, connection: sqlite3.Connection) -> dict[int, StoredVersion]:
        if not exists(connection, POSITIONS):
            return {}
        rows = connection.execute(
            f"SELECT version, is_live, epoch, position, fields FROM {POSITIONS}"
            " WHERE owner = ? AND target = ? ORDER BY version",
            (self.target.owner, self.target.name),
        )
        return {row[0]: StoredVersion.from_row(*row) for row in rows}

    def create(self, connection: sqlite3.Connection, stored: StoredVersion) -> None:
        table, fields = stored.table(self.target), stored.fields
        if exists(connection, table):
            raise sql_positions.not_ours(table, self.target)
        columns = [f"{quoted(field.name)} {column_type(field)}" for field in fields]
        kind = "STRICT"
        if self.target.key:
            for column in self.target.key:
                if is_nested(fields.field(column).type):
                    raise StoreRefused(f"{column} is {fields.field(column).type}: no part of a key")
            columns.append(f"PRIMARY KEY ({names(self.target.key)})")
            types = [column_type(fields.field(column)) for column in self.target.key]
            if types != ["INTEGER"]:
                kind += ", WITHOUT ROWID"  # the rows lie in the key's own tree
        connection.execute(f"CREATE TABLE {quoted(table)} ({', '.join(columns)}) {kind}")

    def check(self, connection: sqlite3.Connection, stored: StoredVersion) -> None:
        """Raises StoreRefused if it is missing, or has another key than the target."""
        table = stored.table(self.target)
        if not exists(connection, table):
            raise sql_positions.table_missing(table)
        rows = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        key = [row[1] for row in sorted(rows, key=lambda row: row[5]) if row[5]]
        sql_positions.check_key(table, key, self.target)

    def evolve(
        self, connection: sqlite3.Connection, stored: StoredVersion, fields: pa.Schema
    ) -> pa.Schema:
        """All columns; new ones are added."""
        changed = evolved(stored.fields, fields)
        sql_positions.check_names(changed.fields)
        for field in changed.widened:
            # Integers of all sizes are one type here. With others a key would have two forms.
            if field.name in self.target.key and column_type(field) != "INTEGER":
                raise StoreRefused(
                    f"column {field.name} is part of the key and has become {field.type}",
                    hint="rebuild into a new version",
                )
        table = quoted(stored.table(self.target))
        for field in changed.added:
            connection.execute(
                f"ALTER TABLE {table} ADD COLUMN {quoted(field.name)} {column_type(field)}"
            )
        return changed.fields


def exists(connection: sqlite3.Connection, table: str) -> bool:
    # Also views; names differ by more than case.
    query = "SELECT 1 FROM sqlite_master WHERE name = ? COLLATE NOCASE"
    return connection.execute(query, (table,)).fetchone() is not None
