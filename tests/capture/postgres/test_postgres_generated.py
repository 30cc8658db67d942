"""Generated columns with PostgreSQL 18, which can publish them: in stream and copies, or not."""

import pytest
from support.capture.postgres_capture import Capture, capturing
from support.capture.postgres_server import PostgresServer

from headwater.capture.contract import TableFailed


@pytest.fixture(scope="module")
def server():
    server = PostgresServer("18")
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def database(server):
    with server.database() as database:
        yield database


@pytest.mark.parametrize("published", ["none", "stored"])
def test_generated_columns_are_in_both_or_in_neither(database, published):
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, s int GENERATED ALWAYS AS (a * 2) STORED,"
        " v int GENERATED ALWAYS AS (a * 3) VIRTUAL)"
    )
    database.run(
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root = true,"
        f" publish_generated_columns = {published})"
    )
    with capturing(database, options={"publication": "p"}) as capture:
        database.run("INSERT INTO t VALUES (1, 5)")
        (change,) = capture.changes(1)
        assert change.after == {"id": 1, "a": 5} | ({"s": 10} if published == "stored" else {})
        assert [change.after] == capture.rows("t")
        assert change.table is capture.table("t")


def test_a_table_whose_updates_would_be_refused_is_left_out(database):
    """Of a full identity all columns have to be published."""
    database.run(
        "CREATE TABLE t (a int, s int GENERATED ALWAYS AS (a * 2) STORED);"
        "ALTER TABLE t REPLICA IDENTITY FULL; INSERT INTO t VALUES (1)"
    )
    capture = Capture(database)
    capture.open()
    try:
        failed = capture.until_loose(TableFailed)
        database.run("UPDATE t SET a = 2")  # must not fail
        database.run(failed.error.hint.partition(" (virtual")[0])
        assert [table.id for table in capture.source.tables()] == ["public.t"]
        database.run("UPDATE t SET a = 3")
        (change,) = capture.changes(1)
        assert (change.before, change.after) == ({"a": 2, "s": 4}, {"a": 3, "s": 6})
    finally:
        capture.source.close()
