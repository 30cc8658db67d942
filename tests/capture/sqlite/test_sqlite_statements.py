"""Whatever SQL changes a table, the log has it exactly: replayed, every `before` is the row that
was there, and what remains is the table.
"""

import sqlite3
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.capture.source_contract import Reader, flat
from tiers import examples

from headwater.capture.contract import Change, Row, SourcePosition
from headwater.capture.settings import CaptureSettings
from headwater.capture.sqlite import SqliteSource
from headwater.settings import Secret

TABLES = {
    "rowid key": "CREATE TABLE t (a INTEGER PRIMARY KEY, b INT UNIQUE, c TEXT)",
    "text key": "CREATE TABLE t (a TEXT PRIMARY KEY COLLATE NOCASE, b INT, c TEXT, UNIQUE (b, c))",
    "two keys": "CREATE TABLE t (a INT, b TEXT COLLATE NOCASE, c UNIQUE, PRIMARY KEY (b, a))",
    "without rowid": "CREATE TABLE t (a TEXT COLLATE NOCASE, b UNIQUE ON CONFLICT REPLACE, c,"
    " PRIMARY KEY (a)) WITHOUT ROWID",
    "no key": "CREATE TABLE t (a INT, b INT UNIQUE, c TEXT)",
    "strict": "CREATE TABLE t (a INTEGER PRIMARY KEY, b INT NOT NULL, c ANY,"
    " d INT AS (b * 2) UNIQUE) STRICT",
    "rowid taken": 'CREATE TABLE t (a INTEGER PRIMARY KEY, b INT UNIQUE, "rowid" TEXT, c TEXT)',
}
VALUE = st.integers(-1, 3)
STATEMENTS = st.one_of(
    st.tuples(
        st.sampled_from(
            [
                "INSERT INTO t (a, b, c) VALUES (?, ?, ?)",
                "INSERT OR REPLACE INTO t (a, b, c) VALUES (?, ?, ?)",
                "INSERT OR IGNORE INTO t (a, b, c) VALUES (?, ?, ?)",
                "INSERT OR FAIL INTO t (a, b, c) VALUES (?, ?, ?), (3, 3, 'A')",
                "INSERT OR REPLACE INTO t (a, b, c) VALUES (?, ?, ?), (1, 1, 'a'), (2, 1, 'b')",
                "INSERT INTO t (a, b, c) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                "INSERT INTO t (a, b, c) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET b = b + 1",
                "INSERT INTO t (a, b, c) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET c = 'x'",
                "REPLACE INTO t (b, c) VALUES (?, ? || ?)",
                "UPDATE t SET c = c || ? WHERE b IN (?, ?)",
                "UPDATE OR REPLACE t SET a = ? WHERE b IN (?, ?)",
                "UPDATE OR REPLACE t SET b = ?, c = 'q' WHERE a IN (?, ?)",
                "UPDATE OR IGNORE t SET b = ?, a = ? WHERE a >= ?",
                "UPDATE OR REPLACE t SET a = a + 1, b = ? WHERE a IN (?, ?)",
                "DELETE FROM t WHERE a = ? OR b = ? OR c = ?",
                "DELETE FROM t WHERE a IN (?, ?, ?) OR 1",
            ]
        ),
        st.tuples(VALUE, VALUE, VALUE),
    ),
)


@pytest.fixture(params=TABLES)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(TABLES[request.param])
    return path


@pytest.mark.parametrize("recursive_triggers", [False, True])
def test_any_statement_is_captured_exactly(database: Path, recursive_triggers: bool):
    source = SqliteSource(CaptureSettings("shop", Secret(f"sqlite:///{database}")))
    reader = Reader(source, SourcePosition(source.open(None, {})))
    replayed = Replayed(source.tables()[0].key)
    numbers = count()
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(f"PRAGMA recursive_triggers = {recursive_triggers}")
        connection.execute("PRAGMA synchronous = OFF")

        @settings(
            max_examples=examples(40),
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(STATEMENTS, min_size=1, max_size=12))
        def check(statements: list[tuple[str, tuple[int, ...]]]) -> None:
            connection.execute("DELETE FROM t")
            for sql, values in statements:
                with suppress(sqlite3.IntegrityError):
                    connection.execute(sql, values)
            # Something that is always logged, so that there is an end to wait for.
            mark = f"end {next(numbers)}"
            connection.execute("INSERT OR REPLACE INTO t (a, b, c) VALUES (7, 7, ?)", (mark,))
            for transaction in reader.until(lambda found: _has(flat(found), mark)):
                for change in transaction.changes:
                    replayed.apply(change)
            cursor = connection.execute("SELECT * FROM t")
            names = [column for column, *_ in cursor.description]
            assert replayed.rows() == sorted(
                (dict(zip(names, row, strict=True)) for row in cursor), key=repr
            )

        check()
    reader.close()


def _has(changes: list[Change], mark: str) -> bool:
    return any(change.after and change.after["c"] == mark for change in changes)


class Replayed:
    """A table that checks the changes that it gets."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self._key = key
        self._rows: dict[object, Row] = {}
        self._keyless = count()

    def apply(self, change: Change) -> None:
        if change.before is not None:
            key = self._find(change.before)
            assert self._rows[key] == change.before, change
            del self._rows[key]
        if change.after is not None:
            key = self._key_of(change.after) or next(self._keyless)
            assert key not in self._rows, change
            self._rows[key] = change.after

    def _find(self, row: Row) -> object:
        return self._key_of(row) or next(key for key, stored in self._rows.items() if stored == row)

    def _key_of(self, row: Row) -> tuple[object, ...]:
        """SQLite lets several rows of a table have NULL for a key: that is none."""
        key = tuple(row[name] for name in self._key)
        return () if None in key else key

    def rows(self) -> list[Row]:
        return sorted(self._rows.values(), key=repr)


def test_cascades_and_triggers_of_the_user_are_captured(tmp_path: Path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            """
            PRAGMA journal_mode = WAL;
            PRAGMA foreign_keys = ON;
            CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT);
            CREATE TABLE child (id INTEGER PRIMARY KEY,
              parent REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
            CREATE TABLE audit (what TEXT);
            CREATE TRIGGER upper_name AFTER INSERT ON parent
              BEGIN UPDATE parent SET name = upper(name) WHERE id = NEW.id; END;
            CREATE TRIGGER watch BEFORE DELETE ON parent
              BEGIN INSERT INTO audit VALUES ('deleted ' || OLD.name); END;
            """
        )
        source = SqliteSource(CaptureSettings("shop", Secret(f"sqlite:///{path}")))
        reader = Reader(source, SourcePosition(source.open(None, {})))
        connection.execute("INSERT INTO parent VALUES (1, 'a')")
        connection.execute("INSERT INTO child VALUES (10, 1), (11, 1)")
        connection.execute("UPDATE parent SET id = 2")
        connection.execute("REPLACE INTO parent VALUES (2, 'b')")
        connection.execute("DELETE FROM parent")
        found = [_short(change) for change in flat(reader.changes(14))]
        reader.close()
    # The trigger upper_name is older than ours: by SQLite's order ours reports the insert first.
    assert found == [
        "c parent None {'id': 1, 'name': 'a'}",
        "u parent {'id': 1, 'name': 'a'} {'id': 1, 'name': 'A'}",
        "c child None {'id': 10, 'parent': 1}",
        "c child None {'id': 11, 'parent': 1}",
        "u child {'id': 10, 'parent': 1} {'id': 10, 'parent': 2}",
        "u child {'id': 11, 'parent': 1} {'id': 11, 'parent': 2}",
        "u parent {'id': 1, 'name': 'A'} {'id': 2, 'name': 'A'}",
        "d child {'id': 10, 'parent': 2} None",
        "d child {'id': 11, 'parent': 2} None",
        "d parent {'id': 2, 'name': 'A'} None",
        "c parent None {'id': 2, 'name': 'b'}",
        "u parent {'id': 2, 'name': 'b'} {'id': 2, 'name': 'B'}",
        "c audit None {'what': 'deleted B'}",
        "d parent {'id': 2, 'name': 'B'} None",
    ]


@pytest.mark.parametrize("without_rowid", ["", "WITHOUT ROWID"])
def test_an_update_whose_row_goes_with_the_one_in_its_way(tmp_path: Path, without_rowid: str):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(
            "CREATE TABLE t (id INT PRIMARY KEY NOT NULL, up INT REFERENCES t ON DELETE CASCADE) "
            + without_rowid
        )
        source = SqliteSource(CaptureSettings("shop", Secret(f"sqlite:///{path}")))
        reader = Reader(source, SourcePosition(source.open(None, {})))
        connection.execute("INSERT INTO t VALUES (1, NULL), (2, 1)")
        connection.execute("UPDATE OR REPLACE t SET id = 1 WHERE id = 2")
        assert connection.execute("SELECT * FROM t").fetchall() == []
        found = [_short(change) for change in flat(reader.changes(4))]
        reader.close()
    assert sorted(found[2:]) == [
        "d t {'id': 1, 'up': None} None",
        "d t {'id': 2, 'up': 1} None",
    ]


def test_a_row_that_refers_to_itself_gets_another_key(tmp_path: Path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(
            "CREATE TABLE t (id INTEGER PRIMARY KEY, up REFERENCES t ON UPDATE CASCADE)"
        )
        source = SqliteSource(CaptureSettings("shop", Secret(f"sqlite:///{path}")))
        reader = Reader(source, SourcePosition(source.open(None, {})))
        connection.execute("INSERT INTO t VALUES (1, 1)")
        connection.execute("UPDATE t SET id = 2")
        found = [_short(change) for change in flat(reader.changes(4))]
        reader.close()
    assert found[2:] == [
        "u t {'id': 1, 'up': 1} {'id': 2, 'up': 1}",
        "u t {'id': 2, 'up': 1} {'id': 2, 'up': 2}",
    ]


def _short(change: Change) -> str:
    return f"{change.op} {change.table.name} {change.before} {change.after}"
