"""SQLite, by the contract of derived stores."""

import sqlite3
from contextlib import closing
from typing import ClassVar

import pyarrow as pa
import pytest
from support.sinks.selection_contract import SelectionContract
from support.sinks.sink_contract import ID_N, Backend, SinkContract, Unfit

from headwater.settings import Secret
from headwater.sinks.settings import SinkSettings


class Sqlite(Backend):
    lacks_values: ClassVar = {"nan": frozenset({"nan"}), "nan32": frozenset({"nan"})}
    odd_columns = tuple(name for name in Backend.odd_columns if name != "ID")  # the same as id

    def __init__(self, path):
        self.path = path

    @property
    def settings(self):
        return SinkSettings("cache", kind="sqlite", url=Secret(f"sqlite:///{self.path}"))

    def ask(self, statement, *values):
        with closing(sqlite3.connect(self.path)) as connection:
            cursor = connection.execute(statement, values)
            names = [column[0] for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
            connection.commit()
            return rows

    def live_rows(self, name):
        quoted = name.replace('"', '""')
        return self.ask(f'SELECT * FROM "{quoted}"')

    def put_foreign(self, name):
        self.ask(f'CREATE TABLE "{name}" AS SELECT 1 AS mine')

    def foreign(self, name):
        return self.ask(f'SELECT * FROM "{name}"'), self.ask("SELECT * FROM sqlite_master")

    def unfit(self):
        wide = pa.schema([*ID_N, pa.field("u", pa.uint64())])
        good = {"v": "a", "n": 1}
        unique = 'CREATE UNIQUE INDEX "once {0}" ON "{0}" (v) WHERE v <> \'a\''

        def other_key(name):
            self.ask(unique.format(name))
            self.ask(f"UPDATE \"{name}\" SET v = 'taken'")

        def trigger(name):
            self.ask(
                f'CREATE TRIGGER "no {name}" BEFORE INSERT ON "{name}" WHEN NEW.n = 13'
                " BEGIN SELECT RAISE(ABORT, 'thirteen'); END"
            )

        return [
            Unfit(ID_N, {"v": "taken", "n": 1}, good, "v", other_key),
            Unfit(ID_N, {"v": "a", "n": 13}, good, "", trigger),
            Unfit(wide, {**good, "u": 2**63}, {**good, "u": 2**63 - 1}, "u"),
        ]


class TestSqliteContract(SelectionContract, SinkContract):
    has_all_of_it = True

    @pytest.fixture
    def backend(self, tmp_path):
        return Sqlite(tmp_path / "cache.db")
