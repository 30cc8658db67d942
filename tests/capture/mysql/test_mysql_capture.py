"""From MariaDB into topics: the whole way."""

import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import repeat
from typing import Any

import pytest
from confluent_kafka import Producer
from support.capture.capture_harness import read, replayed, running
from support.capture.mariadb_server import MariaDbServer, numbers

from headwater.capture import signals
from headwater.capture.mysql import MySqlSource
from headwater.capture.positions import SIGNALS_TOPIC, key_of
from headwater.capture.tables.snapshots import Snapshots
from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker.bootstrap


def _table(server: MariaDbServer, name: str) -> dict[str, Any]:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {name}")
        names = [column for column, *_ in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {f'{{"id": {row["id"]}}}': row for row in rows}


@pytest.mark.parametrize("metadata", ["FULL", "DEFAULT"])
def test_copy_changes_and_ddl_over_restarts(
    bootstrap: str, server: MariaDbServer, shop: str, metadata: str
) -> None:
    table, topic = f"{shop}.t", f"shop_{metadata}.{shop}.t"
    server.execute(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT)",
        f"INSERT INTO {table} SELECT seq, 0 FROM {numbers(3000)}",
        database=shop,
    )
    is_over = threading.Event()

    def write() -> None:
        number = 0
        with closing(server.connect()) as connection, connection.cursor() as cursor:
            while not is_over.wait(0.001):
                number += 1
                cursor.execute("BEGIN")
                key = number * 37 % 4000
                cursor.execute(f"REPLACE INTO {table} (id, a) VALUES ({key}, {number})")
                cursor.execute(f"DELETE FROM {table} WHERE id = {number * 11 % 4000}")
                cursor.execute("COMMIT")
                if number == 100:
                    cursor.execute(f"ALTER TABLE {table} ADD COLUMN b INT DEFAULT 7")

    with server.globals(binlog_row_metadata=metadata):
        writer = threading.Thread(target=write)
        writer.start()
        url = server.url(shop)
        settings = {"name": f"shop_{metadata}", "chunk_rows": 200}
        try:
            for _ in range(3):
                with running(bootstrap, url, **settings) as capture:
                    seen = len(read(bootstrap, topic))
                    capture.wait_until(
                        lambda seen=seen: len(read(bootstrap, topic)) > seen + 50, "some records"
                    )
        finally:
            is_over.set()
            writer.join()
        with running(bootstrap, url, **settings) as capture:
            capture.wait_until(lambda: capture.stored().tables[table].snapshot.is_done, "the copy")

            def is_equal() -> bool:
                rows = replayed(read(bootstrap, topic))
                # What was copied before the column came has it by no later change.
                whole = {key: {"b": 7, **row} for key, row in rows.items()}
                return whole == _table(server, table)

            capture.wait_until(is_equal, "the table")
    records = read(bootstrap, topic)
    change = next(record for record in records if record.op in ("c", "u"))
    assert change.value["source"]["connector"] == ("mariadb" if server.is_mariadb else "mysql")
    assert change.value["source"]["db"] == shop
    assert change.value["source"]["table"] == "t"
    assert change.value["source"]["file"].startswith("binlog.")
    assert "lsn" not in change.value["source"]


@pytest.fixture
def nameless(server: MariaDbServer) -> Iterator[None]:
    """As MariaDB comes: no names of columns in the log."""
    with server.globals(binlog_row_metadata="DEFAULT"):
        yield


@pytest.mark.usefixtures("nameless")
@pytest.mark.parametrize("is_captured_before", [False, True])
def test_a_look_that_was_ahead_of_the_stream_gives_no_names(
    server: MariaDbServer,
    shop: str,
    bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
    is_captured_before: bool,
) -> None:
    """A run found the table as it is now, with the rows from before still ahead of it, and was
    killed. The next one must not read them with the names of now: it fails a table that it never
    knew, and knows one that it followed before.
    """

    table, url = f"{shop}.t", server.url(shop)
    server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
        "CREATE TABLE u (id INT PRIMARY KEY)",
        database=shop,
    )
    with monkeypatch.context() as patched:
        patched.setattr(Snapshots, "start", lambda *_: None)  # the copy comes later
        first = (f"{shop}.*",) if is_captured_before else (f"{shop}.u",)
        with running(bootstrap, url, shop, tables=first):
            pass
        server.execute(
            "INSERT INTO t VALUES (1, 10)",
            "ALTER TABLE t RENAME COLUMN a TO b",
            "INSERT INTO t VALUES (2, 20)",
            database=shop,
        )
        patched.setattr(MySqlSource, "changes", lambda *_: repeat(None))  # it comes to nothing
        with running(bootstrap, url, shop) as capture:
            pass
    assert table in capture.stored().tables
    with running(bootstrap, url, shop) as capture:
        if is_captured_before:
            capture.wait_for_copies(table)
        else:
            capture.wait_until(lambda: capture.stored().tables[table].failed is not None)
    records = read(bootstrap, f"{shop}.{table}")
    rows = [record.value["after"] for record in records if record.op == "c"]
    assert rows == ([{"id": 1, "a": 10}, {"id": 2, "b": 20}] if is_captured_before else [])


@pytest.mark.parametrize(
    "statements",
    [
        ["RENAME TABLE t TO old, v TO t"],
        ["ALTER TABLE t RENAME old", "ALTER TABLE v RENAME t"],
        ["DROP TABLE t", "CREATE TABLE t LIKE v", "INSERT INTO t VALUES (7, 70)"],
        ["CREATE OR REPLACE TABLE t (id INT PRIMARY KEY, a INT)", "INSERT INTO t VALUES (7, 70)"],
    ],
)
def test_a_table_that_replaces_another(
    bootstrap: str, server: MariaDbServer, shop: str, statements: list[str]
) -> None:
    """The topic has the rows of the new one, and no others."""
    if "OR REPLACE" in statements[0] and not server.is_mariadb:
        pytest.skip("only MariaDB has CREATE OR REPLACE TABLE")
    server.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT)",
        "CREATE TABLE v LIKE t",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "INSERT INTO v VALUES (2, 20), (7, 70)",
        database=shop,
    )
    table = f"{shop}.t"
    with running(bootstrap, server.url(shop), shop, tables=(table,)) as capture:
        capture.wait_for_copies(table)
        server.execute(*statements, database=shop)
        capture.wait_until(
            lambda: replayed(read(bootstrap, f"{shop}.{table}")) == _table(server, table),
            "the new table",
        )


def test_a_table_that_still_cannot_be_followed_behind_its_copy_fails_again(
    bootstrap: str, server: MariaDbServer, shop: str
) -> None:
    server.execute("CREATE TABLE t (id INT PRIMARY KEY)", database=shop)
    table, topic = f"{shop}.t", f"{shop}.{shop}.t"
    statement = "SET binlog_format = STATEMENT"
    with running(bootstrap, server.url(shop), shop) as capture:
        capture.wait_for_copies(table)
        server.execute(statement, "INSERT INTO t VALUES (1)", database=shop)
        capture.wait_until(lambda: capture.stored().tables[table].failed is not None, "failure")
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(SIGNALS_TOPIC, signals.encode("1", [table]), key_of(shop))
        assert producer.flush(60) == 0
        capture.wait_until(lambda: '{"id": 1}' in replayed(read(bootstrap, topic)), "the copy")
        assert capture.stored().tables[table].failed is None
        server.execute(statement, "INSERT INTO t VALUES (2)", database=shop)
        capture.wait_until(lambda: capture.stored().tables[table].failed is not None, "failure")
