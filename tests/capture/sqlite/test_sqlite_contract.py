"""The contract of sources on SQLite, in WAL mode and with a rollback journal."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.capture.source_contract import Database, Session, SourceContract

from headwater.capture.contract import LogPosition, Row, Source
from headwater.capture.settings import CaptureSettings
from headwater.capture.sqlite import SqliteSource
from headwater.settings import Secret


class SqliteSession(Session):
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def insert(self, table: str, row: Row) -> None:
        marks = ", ".join("?" * len(row))
        sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
        self._connection.execute(sql, list(row.values()))

    def update(self, table: str, key: int, **values: object) -> None:
        assignments = ", ".join(f"{column} = ?" for column in values)
        sql = f"UPDATE {table} SET {assignments} WHERE id = ?"
        self._connection.execute(sql, [*values.values(), key])

    def delete(self, table: str, key: int) -> None:
        self._connection.execute(f"DELETE FROM {table} WHERE id = ?", (key,))


class SqliteDatabase(Database):
    has_boundaries = False  # a trigger cannot see them
    logs_other_tables = False

    def __init__(self, path: Path, journal_mode: str) -> None:
        self.path = path
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA journal_mode = {journal_mode}")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, timeout=60)

    def source(self, **options: object) -> Source:
        return SqliteSource(CaptureSettings("shop", Secret(f"sqlite:///{self.path}"), **options))

    def table_id(self, name: str) -> str:
        return f"main.{name}"

    def execute(self, sql: str) -> None:
        with closing(self.connect()) as connection:
            connection.execute(sql)

    def create_table(self, name: str, *, has_key: bool = True) -> None:
        key = "PRIMARY KEY" if has_key else ""
        self.execute(f"CREATE TABLE {name} (id INTEGER {key}, name TEXT, amount INTEGER)")

    @contextmanager
    def session(self) -> Iterator[Session]:
        with closing(self.connect()) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteSession(connection)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def rows(self, table: str) -> list[Row]:
        with closing(self.connect()) as connection:
            cursor = connection.execute(f"SELECT * FROM {table}")
            names = [column for column, *_ in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def add_column(self, table: str, column: str) -> None:
        self.execute(f"ALTER TABLE {table} ADD COLUMN {column} INTEGER")

    def leftovers(self) -> object:
        return [row["sql"] for row in self.rows("sqlite_master")]

    def has_forgotten(self, source: Source, log_position: LogPosition) -> bool | None:
        with closing(self.connect()) as connection:
            sql = "SELECT count(*) FROM _headwater_shop_log WHERE id < ?"
            return connection.execute(sql, (log_position["id"],)).fetchone() == (0,)

    def write_values(self, table: str) -> None:
        values = [
            "0, 1.5, 'text', x'00ff', 1.25, '', NULL",
            "-9223372036854775808, 9e999, 'ünï 🦆', x'', 9223372036854775807, ' ', 1",
            "9007199254740993, -9e999, char(0) || 'a' || char(0), zeroblob(3), '12', x'61', 'x'",
            "NULL, 0.1, NULL, NULL, 'abc', 1e300, 0.30000000000000004",
            "'text', 'text', 5, 'blob', 1e-300, -0.0, x'00'",
        ]
        self.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY, i INTEGER, r REAL,"
            ' t TEXT, b BLOB, n NUMERIC(10, 2), any, "quo""te" VARCHAR(3),'
            " g TEXT AS (t || '!'), s AS (i + 1) STORED)"
        )
        for row in values:
            self.execute(f'INSERT INTO {table} (i, r, t, b, n, any, "quo""te") VALUES ({row})')


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
class TestSqliteContract(SourceContract):
    @pytest.fixture
    def database(self, tmp_path: Path, journal_mode: str) -> SqliteDatabase:
        return SqliteDatabase(tmp_path / "shop.db", journal_mode)
