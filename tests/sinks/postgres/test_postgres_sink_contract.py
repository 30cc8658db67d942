"""PostgreSQL, by the contract of derived stores, on a real server."""

import signal
from itertools import count
from typing import ClassVar

import psycopg2
import psycopg2.extras
import pyarrow as pa
import pytest
from support.capture.postgres_server import Database
from support.sinks.selection_contract import SelectionContract
from support.sinks.sink_contract import Backend, SinkContract, Unfit
from support.sinks.sink_rows import NUL

from bench.peers.ports import free_port
from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings

ID_S = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int64())])


SCHEMAS = count()


def quoted(name):
    return '"' + name.replace('"', '""') + '"'


class Postgres(Backend):
    lacks_values: ClassVar = {"string": frozenset({repr(NUL)})}
    can_restart = True

    def __init__(self, database: Database, schema: str) -> None:
        self.database = database
        self.schema = schema
        database.run(f"CREATE SCHEMA {schema}")

    def table(self, name):
        return f"{self.schema}.{quoted(name)}"

    @property
    def settings(self) -> SinkSettings:
        return self._settings(self.database.url)

    def _settings(self, url: str) -> SinkSettings:
        return SinkSettings("warehouse", "postgres", Secret(url), options={"schema": self.schema})

    @property
    def address(self):
        return "127.0.0.1", self.database.server.port

    def live_rows(self, name):
        connection = psycopg2.connect(
            self.database.url, cursor_factory=psycopg2.extras.RealDictCursor
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {self.table(name)} ORDER BY id")
                return [dict(row) for row in cursor.fetchall()]
        finally:
            connection.close()

    def put_foreign(self, name):
        self.database.run(f"CREATE TABLE {self.table(name)} (id bigint, v text)")
        self.database.run(f"INSERT INTO {self.table(name)} VALUES (7, 'theirs')")

    def foreign(self, name):
        return self.database.run(f"SELECT * FROM {self.table(name)}")

    def unfit(self):
        def alter(change):
            return lambda name: self.database.run(f"ALTER TABLE {self.table(name)} {change}")

        fitting = {"v": "a", "n": 1}
        return [
            Unfit(ID_S, {"v": NUL, "n": 1}, fitting, "v"),
            Unfit(ID_S, {"v": "too long", "n": 1}, fitting, "v", alter("ALTER v TYPE varchar(3)")),
            Unfit(ID_S, {"v": "a", "n": 99999}, fitting, "n", alter("ALTER n TYPE smallint")),
            Unfit(ID_S, {"v": None, "n": 1}, fitting, "v", alter("ALTER v SET NOT NULL")),
            Unfit(ID_S, {"v": "a", "n": -1}, fitting, "n", alter("ADD CHECK (n >= 0)")),
        ]

    def stranger(self):
        return self._settings(self.database.server.url(self.database.name, password="wrong-secret"))

    def nowhere(self):
        host, port = self.address
        return self._settings(self.database.url.replace(f"{host}:{port}", f"{host}:{free_port()}"))

    def restart(self):
        self.database.close()
        self.database.server.stop(signal.SIGQUIT)
        self.database.server.start()


@pytest.fixture(scope="module")
def warehouse(postgres_server):
    with postgres_server.database() as database:
        yield database


class TestPostgresContract(SelectionContract, SinkContract):
    has_all_of_it = True

    @pytest.fixture
    def backend(self, warehouse):
        return Postgres(warehouse, f"s{next(SCHEMAS)}")
