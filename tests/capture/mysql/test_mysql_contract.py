"""The contract of sources on MariaDB: with names of columns in the log and without."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from mariadb_server import MariaDbServer
from source_contract import Database, Session, SourceContract

from headwater.capture.contract import Row, Source
from headwater.capture.mysql import MySqlSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret


class MariaDbSession(Session):
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def insert(self, table: str, row: Row) -> None:
        marks = ", ".join(["%s"] * len(row))
        sql = f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"
        self._cursor.execute(sql, list(row.values()))

    def update(self, table: str, key: int, **values: object) -> None:
        assignments = ", ".join(f"{column} = %s" for column in values)
        self._cursor.execute(
            f"UPDATE {table} SET {assignments} WHERE id = %s", [*values.values(), key]
        )

    def delete(self, table: str, key: int) -> None:
        self._cursor.execute(f"DELETE FROM {table} WHERE id = %s", (key,))

    def truncate(self, table: str) -> None:
        self._cursor.execute(f"TRUNCATE TABLE {table}")


class MariaDbDatabase(Database):
    has_truncate = True

    def __init__(self, server: MariaDbServer, name: str) -> None:
        self.server = server
        self.name = name

    def source(self, **options: object) -> Source:
        settings = CaptureSettings("shop", Secret(self.server.url(self.name)), **options)
        return MySqlSource(settings)

    def table_id(self, name: str) -> str:
        return f"{self.name}.{name}"

    def execute(self, *statements: str) -> Any:
        return self.server.execute(*statements, database=self.name)

    def create_table(self, name: str, *, has_key: bool = True) -> None:
        key = "PRIMARY KEY" if has_key else "NOT NULL"
        self.execute(f"CREATE TABLE {name} (id INT {key}, name TEXT, amount BIGINT)")

    @contextmanager
    def session(self) -> Iterator[Session]:
        with closing(self.server.connect(self.name)) as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                yield MariaDbSession(cursor)
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def rows(self, table: str) -> list[Row]:
        with closing(self.server.connect(self.name)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")
            names = [column for column, *_ in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def add_column(self, table: str, column: str) -> None:
        self.execute(f"ALTER TABLE {table} ADD COLUMN {column} INT")

    def leftovers(self) -> object:
        return (
            self.execute("SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"),
            self.execute("SELECT User, Host FROM mysql.user"),
        )


class TestMariaDbContract(SourceContract):
    @pytest.fixture
    def database(self, mariadb_server: MariaDbServer, shop: str) -> MariaDbDatabase:
        return MariaDbDatabase(mariadb_server, shop)
