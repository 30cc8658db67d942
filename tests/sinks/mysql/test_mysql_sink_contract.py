"""MariaDB and MySQL, by the contract of derived stores."""

import dataclasses
from typing import ClassVar
from urllib.parse import quote

import pymysql
import pytest
from support.capture.mariadb_server import MariaDbServer
from support.sinks.selection_contract import SelectionContract
from support.sinks.sink_contract import ID_N, Backend, SinkContract, Unfit

from bench.peers.ports import free_port
from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings


class MariaDb(Backend):
    password = "se:cr/et@%"
    lacks_values: ClassVar = {
        "nan": frozenset({"nan", "inf", "-inf"}),
        "nan32": frozenset({"nan", "inf", "-inf"}),
    }
    odd_columns = tuple(name for name in Backend.odd_columns if name != "ID")  # the same as id

    def __init__(self, server: MariaDbServer, database: str) -> None:
        self.server = server
        self.database = database

    def allow(self):
        self.server.execute(
            "DROP USER IF EXISTS writer@'%'",
            f"CREATE USER writer@'%' IDENTIFIED BY '{self.password}'",
            f"GRANT ALL ON {self.database}.* TO writer@'%'",
        )

    @property
    def settings(self):
        login = f"writer:{quote(self.password, safe='')}"
        url = f"mysql://{login}@127.0.0.1:{self.server.port}/{self.database}"
        return SinkSettings("shop", kind="mysql", url=Secret(url))

    def ask(self, statement):
        connection = self.server.connect(self.database)
        with connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def live_rows(self, name):
        return self.ask(f"SELECT * FROM {_quoted(name)}")

    def put_foreign(self, name):
        self.ask(f"CREATE TABLE {_quoted(name)} AS SELECT 1 AS mine")

    def foreign(self, name):
        return self.live_rows(name), self.ask(f"SHOW CREATE TABLE {_quoted(name)}")

    @property
    def address(self):
        return "127.0.0.1", self.server.port

    def stranger(self):
        url = self.settings.url.reveal().replace(quote(self.password, safe=""), "wrong-secret")
        return dataclasses.replace(self.settings, url=Secret(url))

    def nowhere(self):
        return self.through(free_port())

    def unfit(self):
        good = {"v": "a", "n": 1}

        def other_key(name):
            self.ask(f"ALTER TABLE {name} ADD u varchar(20) AS (NULLIF(v, 'a')), ADD UNIQUE (u)")
            self.ask(f"UPDATE {name} SET v = 'taken'")

        def not_null(name):
            self.ask(f"ALTER TABLE {name} MODIFY n bigint NOT NULL")

        def narrow(name):
            self.ask(f"ALTER TABLE {name} MODIFY v varchar(5), MODIFY n tinyint")

        def above(name):
            self.ask(f"ALTER TABLE {name} ADD CHECK (n < 10)")

        return [
            Unfit(ID_N, {"v": "taken", "n": 1}, good, "u", other_key),
            Unfit(ID_N, {"v": "a", "n": None}, good, "n", not_null),
            Unfit(ID_N, {"v": "longer", "n": 1}, good, "v", narrow),
            Unfit(ID_N, {"v": "a", "n": 128}, good, "n", narrow),
            Unfit(ID_N, {"v": "a", "n": 10}, good, "", above),
            Unfit(ID_N, {"v": "x" * 17_000_000, "n": 1}, good, ""),
        ]


def _quoted(name):
    return "`" + name.replace("`", "``") + "`"


class TestMariaDbContract(SelectionContract, SinkContract):
    @pytest.fixture
    def backend(self, server, shop):
        backend = MariaDb(server, shop)
        backend.allow()
        return backend
