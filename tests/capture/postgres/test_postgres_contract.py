"""The contract of sources on PostgreSQL."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from support.capture.postgres_server import Database as PostgresDatabase
from support.capture.source_contract import Database, Session, SourceContract

from headwater.capture.contract import LogPosition, Row, Source
from headwater.capture.postgres import PostgresSource
from headwater.capture.settings import CaptureSettings
from headwater.settings import Secret


class PostgresSession(Session):
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
        self._cursor.execute(f"TRUNCATE {table}")


class ContractDatabase(Database):
    has_truncate = True

    def __init__(self, database: PostgresDatabase) -> None:
        self.database = database
        self.sources: list[PostgresSource] = []

    def source(self, **options: Any) -> Source:
        settings = CaptureSettings(self.database.name, Secret(self.database.url), **options)
        self.sources.append(PostgresSource(settings))
        return self.sources[-1]

    def table_id(self, name: str) -> str:
        return f"public.{name}"

    def create_table(self, name: str, *, has_key: bool = True) -> None:
        key = "PRIMARY KEY" if has_key else ""
        self.database.run(f"CREATE TABLE {name} (id bigint {key}, name text, amount bigint)")
        if not has_key:  # else PostgreSQL would not log what was updated and deleted
            self.database.run(f"ALTER TABLE {name} REPLICA IDENTITY FULL")

    @contextmanager
    def session(self) -> Iterator[Session]:
        with (
            closing(self.database.connect()) as connection,
            connection,  # commits, or rolls back
            connection.cursor() as cursor,
        ):
            yield PostgresSession(cursor)

    def rows(self, table: str) -> list[Row]:
        rows = self.database.run(f"SELECT id, name, amount FROM {table}")
        return [dict(zip(("id", "name", "amount"), row, strict=True)) for row in rows]

    def add_column(self, table: str, column: str) -> None:
        self.database.run(f"ALTER TABLE {table} ADD COLUMN {column} integer")

    def leftovers(self) -> object:
        return (
            self.database.run(
                "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
            ),
            self.database.run("SELECT pubname FROM pg_publication"),
            self.database.run(
                "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
                " WHERE nspname NOT LIKE 'pg_%' AND nspname <> 'information_schema'"
            ),
        )

    def has_forgotten(self, source: Source, log_position: LogPosition) -> bool | None:
        [(distance,)] = self.database.run(
            "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots"
            " WHERE database = current_database()"
        )
        return bool(distance >= log_position["lsn"])

    def write_values(self, table: str) -> None:
        self.database.run(
            f"CREATE TABLE IF NOT EXISTS {table} (id bigserial PRIMARY KEY, b boolean,"
            " i2 smallint, f real, d double precision, n numeric, m numeric(10, 2),"
            " t text, c char(5), y bytea, day date, at time, z timetz, stamp timestamp,"
            " tz timestamptz, span interval, j json, jb jsonb, u uuid, ip inet, a integer[],"
            " texts text[], r int4range, bits bit varying(9))"
        )
        self.database.run(
            f"INSERT INTO {table} (b, i2, f, d, n, m, t, c, y, day, at, z, stamp, tz, span, j, jb,"
            " u, ip, a, texts, r, bits) VALUES"
            " (true, 1, 1.5, 0.1, 12345678901234567890.123456789, 1.5, 'ünï 🦆', 'ab', '\\x00ff',"
            " '2024-02-29', '12:34:56.789', '12:34:56+02', '2024-02-29 12:34:56.789012',"
            " '2024-02-29 12:34:56.789012+02', '1 year 2 days', '{\"a\": 1}', '{\"b\": [1, null]}',"
            " '00000000-0000-0000-0000-000000000001', '10.0.0.1', '{1,NULL,3}', '{a,\"b,c\"}',"
            " '[1,5)', B'101'),"
            " (false, -32768, 'NaN', 'Infinity', 'NaN', -0.01, '', '', '', 'infinity', '24:00',"
            " '00:00-12', '-infinity', 'infinity', '-1 month', 'null', '\"x\"', NULL, '::1', '{}',"
            " '{}', 'empty', B''),"
            " (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '0044-03-15 BC', NULL, NULL,"
            " '0044-03-15 BC', '0044-03-15 BC', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,"
            " NULL)"
        )


class TestPostgresContract(SourceContract):
    @pytest.fixture
    def database(self, postgres: PostgresDatabase) -> Iterator[ContractDatabase]:
        database = ContractDatabase(postgres)
        yield database
        for source in database.sources:
            source.close()
