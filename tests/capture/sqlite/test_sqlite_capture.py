"""From a SQLite file into topics: the whole way."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.capture.capture_harness import Running, read, replayed, running

from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory) -> Iterator[str]:
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker.bootstrap


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        yield connection


def _address(writer: sqlite3.Connection) -> str:
    return f"sqlite:///{writer.execute('PRAGMA database_list').fetchone()[2]}"


def _table(writer: sqlite3.Connection, name: str) -> dict[str, object]:
    cursor = writer.execute(f"SELECT * FROM {name}")
    names = [column for column, *_ in cursor.description]
    return {f'{{"id": {row[0]}}}': dict(zip(names, row, strict=True)) for row in cursor}


def _wait_for(capture: Running, writer: sqlite3.Connection, topic: str, table: str) -> None:
    capture.wait_until(
        lambda: replayed(read(capture.bootstrap, topic)) == _table(writer, table), "the table"
    )


def test_copy_and_changes_over_restarts(bootstrap, writer):
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    writer.executemany("INSERT INTO t VALUES (?, ?)", [(i, 0) for i in range(5000)])
    is_over = threading.Event()
    path = _address(writer).removeprefix("sqlite:///")

    def write() -> None:
        with closing(sqlite3.connect(path, timeout=60)) as connection:
            number = 0
            while not is_over.wait(0.001):
                number += 1
                key = number * 37 % 6000
                connection.execute("REPLACE INTO t VALUES (?, ?)", (key, number))
                connection.execute("DELETE FROM t WHERE id = ?", (number * 11 % 6000,))
                connection.commit()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(3):
            with running(bootstrap, _address(writer), "restarts", chunk_rows=500) as capture:
                capture.wait_until(lambda: capture.state.snapshots or capture.stored().tables)
        with running(bootstrap, _address(writer), "restarts") as capture:
            capture.wait_until(
                lambda: capture.stored().tables["main.t"].snapshot.is_done, "the copy"
            )
    finally:
        is_over.set()
        thread.join()
    with running(bootstrap, _address(writer), "restarts") as capture:
        _wait_for(capture, writer, "restarts.main.t", "t")


def test_a_rebuilt_table_is_copied_again(bootstrap, writer):
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    writer.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    with running(bootstrap, _address(writer), "rebuilt") as capture:
        _wait_for(capture, writer, "rebuilt.main.t", "t")
        writer.executescript(
            """
            BEGIN;
            CREATE TABLE new_t (id INTEGER PRIMARY KEY, a TEXT NOT NULL, b DEFAULT 5);
            INSERT INTO new_t SELECT *, 7 FROM t WHERE id = 2;
            DROP TABLE t;
            ALTER TABLE new_t RENAME TO t;
            INSERT INTO t VALUES (3, 'c', 3);
            COMMIT;
            """
        )
        _wait_for(capture, writer, "rebuilt.main.t", "t")
        writer.execute("UPDATE t SET b = 8 WHERE id = 3")
        _wait_for(capture, writer, "rebuilt.main.t", "t")
    assert not capture.stored().tables["main.t"].failed


def test_a_column_and_a_table_are_added(bootstrap, writer):
    writer.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a)")
    with running(bootstrap, _address(writer), "added") as capture:
        capture.wait_for_copies("main.t")
        writer.execute("ALTER TABLE t ADD COLUMN b")
        writer.execute("INSERT INTO t VALUES (2, 2, 2)")
        _wait_for(capture, writer, "added.main.t", "t")
        writer.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")
        writer.execute("INSERT INTO later VALUES (1)")
        _wait_for(capture, writer, "added.main.later", "later")
    columns = capture.stored().tables["main.t"].table.columns
    assert [column.name for column in columns] == ["id", "a", "b"]
