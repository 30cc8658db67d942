"""Tables that change: with names of columns in the log, and without."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.capture.mariadb_server import MariaDbServer
from support.capture.mysql_capture import ShopCapture
from support.capture.mysql_server import MARIADB_ONLY

from headwater.capture.contract import SourcePosition
from headwater.errors import CaptureError, TableRefused

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, a INT, b INT)"


@pytest.fixture
def nameless(server: MariaDbServer, shop: str) -> Iterator[ShopCapture]:
    """A server as MariaDB comes: no names in the log."""
    with server.globals(binlog_row_metadata="DEFAULT"):
        capture = ShopCapture(server, shop)
        yield capture
        capture.close()


def test_names_of_columns_come_from_the_catalog(nameless: ShopCapture) -> None:
    nameless.execute(TABLE, "CREATE TABLE u (id INT UNSIGNED PRIMARY KEY, e ENUM('x', 'y'))")
    nameless.begin()
    nameless.execute("INSERT INTO t VALUES (1, 2, 3)", "INSERT INTO u VALUES (4294967295, 'y')")
    assert nameless.rows(2) == [{"id": 1, "a": 2, "b": 3}, {"id": 4294967295, "e": "y"}]


def test_ddl_is_followed_one_by_one(nameless: ShopCapture) -> None:
    nameless.execute(TABLE)
    reader = nameless.begin()
    for number, (statement, row) in enumerate(
        [
            ("ALTER TABLE t RENAME COLUMN a TO c", {"id": 0, "c": 7, "b": 7}),
            ("ALTER TABLE t ADD COLUMN d INT FIRST", {"d": 7, "id": 1, "c": 7, "b": 7}),
            ("ALTER TABLE t DROP COLUMN b", {"d": 7, "id": 2, "c": 7}),
            ("ALTER TABLE t MODIFY c VARCHAR(9)", {"d": 7, "id": 3, "c": "7"}),
            ("ALTER TABLE t CHANGE c b BIGINT UNSIGNED", {"d": 7, "id": 4, "b": 7}),
        ]
    ):
        nameless.execute(statement)
        changes = reader.schema_changes
        reader.until(lambda _, seen=number, changes=changes: len(changes) > seen)
        assert [column.name for column in changes[-1].table.columns] == list(row)
        assert changes[-1].ddl == statement
        others = [7] * (len(row) - 1)
        columns = ", ".join(name for name in row if name != "id")
        marks = ", ".join(map(str, [number, *others]))
        nameless.execute(f"INSERT INTO t (id, {columns}) VALUES ({marks})")
        assert nameless.rows(1) == [row]
    assert reader.failed == []


def test_a_table_altered_twice_while_the_capture_was_behind(nameless: ShopCapture) -> None:
    """Rows between the two cannot be named: the table fails, the other goes on."""
    nameless.execute(TABLE, "CREATE TABLE u (id INT PRIMARY KEY)")
    reader = nameless.begin()
    nameless.execute(
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t RENAME COLUMN a TO c",
        "INSERT INTO t VALUES (2, 2, 2)",
        "ALTER TABLE t RENAME COLUMN c TO d",
        "INSERT INTO t VALUES (3, 3, 3)",
        "INSERT INTO u VALUES (1)",
    )
    rows = nameless.rows(3)
    assert rows == [{"id": 1, "a": 1, "b": 1}, {"id": 3, "d": 3, "b": 3}, {"id": 1}]
    [failed] = reader.failed
    assert failed.table_id == nameless.table("t").id
    assert "SET GLOBAL binlog_row_metadata = FULL" in failed.error.hint
    names = [
        [c.name for c in change.table.columns] for change in reader.schema_changes if change.table
    ]
    assert names == [["id", "a", "b"], ["id", "d", "b"]]  # the first as it was last certain


def test_what_is_not_certain_is_stored_with_the_position(nameless: ShopCapture) -> None:
    """Who resumes between two statements has the table as it was before both."""
    nameless.execute(TABLE, "CREATE TABLE u (id INT PRIMARY KEY)")
    reader = nameless.begin()
    nameless.execute(
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t RENAME COLUMN a TO c",
        "INSERT INTO u VALUES (2)",
        "INSERT INTO t VALUES (3, 3, 3)",
        "ALTER TABLE t RENAME COLUMN c TO d",
        "INSERT INTO t VALUES (4, 4, 4)",
    )
    transactions = reader.until(lambda found: len(found) == 5)
    table = transactions[0].changes[0].table
    stored = {table.id: table}
    for transaction in transactions[1:3]:
        assert transaction.begin.at["uncertain"] == [table.id]
        again = nameless.begin(SourcePosition(transaction.begin.at), stored)
        rows = nameless.rows(1 if transaction is transactions[2] else 2)
        assert rows[-1] == {"id": 4, "d": 4, "b": 4}
        assert [failed.table_id for failed in again.failed] == [table.id]
    assert "uncertain" not in transactions[4].begin.at


def test_ddl_of_other_tables_does_no_harm(nameless: ShopCapture) -> None:
    nameless.execute(TABLE, "CREATE TABLE u (id INT PRIMARY KEY)")
    reader = nameless.begin()
    nameless.execute(
        "ALTER TABLE t RENAME COLUMN a TO c",
        "INSERT INTO t VALUES (2, 2, 2)",
        "ALTER TABLE u ADD COLUMN x INT",
        "INSERT INTO u VALUES (1, 1)",
    )
    assert nameless.rows(2) == [{"id": 2, "c": 2, "b": 2}, {"id": 1, "x": 1}]
    assert reader.failed == []


def test_a_capture_that_resumes_knows_the_tables_as_they_were(nameless: ShopCapture) -> None:
    nameless.execute(TABLE)
    reader = nameless.begin()
    nameless.execute("INSERT INTO t VALUES (1, 1, 1)")
    [transaction] = reader.changes(1)
    stored = {transaction.changes[0].table.id: transaction.changes[0].table}
    nameless.execute("INSERT INTO t VALUES (2, 2, 2)", "ALTER TABLE t RENAME COLUMN a TO c")
    nameless.execute("INSERT INTO t VALUES (3, 3, 3)")
    reader = nameless.begin(SourcePosition(transaction.begin.at), stored)
    assert nameless.rows(2) == [{"id": 2, "a": 2, "b": 2}, {"id": 3, "c": 3, "b": 3}]
    # One that knows nothing must not guess: the catalog is ahead of the log.
    reader = nameless.begin(SourcePosition(transaction.begin.at), {})
    assert nameless.rows(1) == [{"id": 3, "c": 3, "b": 3}]
    assert [failed.table_id for failed in reader.failed] == list(stored)


def test_with_names_in_the_log_nothing_is_lost(capture: ShopCapture) -> None:
    kind, value = "CHAR(36)", "00112233-4455-1677-8899-aabbccddee00"
    if (
        capture.server.is_mariadb
    ):  # dropped when it is read: the log does not say that it was a uuid
        kind, value = "UUID", "ABEiM0RVFneImaq7zN3uAA=="
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        "INSERT INTO t VALUES (1, 1, 1)",
        "ALTER TABLE t RENAME COLUMN a TO c",
        "INSERT INTO t VALUES (2, 2, 2)",
        f"ALTER TABLE t RENAME COLUMN c TO d, DROP COLUMN b, ADD COLUMN e {kind}",
        "INSERT INTO t VALUES (3, 3, '00112233-4455-1677-8899-aabbccddee00')",
        "DROP TABLE t",
    )
    assert capture.rows(3) == [
        {"id": 1, "a": 1, "b": 1},
        {"id": 2, "c": 2, "b": 2},
        {"id": 3, "d": 3, "e": value},
    ]
    reader.until(lambda _: len(reader.schema_changes) == 3)
    assert reader.schema_changes[-1].table is None
    assert reader.failed == []


def test_tables_are_renamed_created_and_dropped(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        "RENAME TABLE t TO `odd name`",
        "INSERT INTO `odd name` VALUES (1, 1, 1)",
        "CREATE TABLE copy AS SELECT * FROM `odd name`",
        "CREATE TABLE same LIKE `odd name`",
        "INSERT INTO same VALUES (5, 5, 5)",
        "CREATE TEMPORARY TABLE passing (id INT)",
        "INSERT INTO passing VALUES (1)",
        "TRUNCATE same",
        "DROP TABLE copy, same",
    )
    changes = capture.changes(4)
    assert [(change.table.name, change.op) for change in changes] == [
        ("odd name", "c"),
        ("copy", "c"),
        ("same", "c"),
        ("same", "t"),
    ]
    reader.until(lambda _: len(reader.schema_changes) == 4)
    name = capture.database
    assert [(change.table_id, change.table is None) for change in reader.schema_changes] == [
        (f"{name}.t", True),
        (f"{name}.odd name", False),
        (f"{name}.copy", True),
        (f"{name}.same", True),
    ]


def test_a_dropped_database_drops_its_tables(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.server.execute(f"DROP DATABASE {capture.database}")
    reader.until(lambda _: len(reader.schema_changes) == 1)
    assert reader.schema_changes[0].table_id == f"{capture.database}.t"
    assert reader.schema_changes[0].table is None


def test_statements_instead_of_rows_fail_their_table(capture: ShopCapture) -> None:
    capture.execute(TABLE, "CREATE TABLE u (id INT PRIMARY KEY)")
    reader = capture.begin()
    capture.execute("SET binlog_format = STATEMENT", "INSERT INTO t VALUES (1, 1, 1)")
    capture.execute("INSERT INTO u VALUES (1)")
    assert capture.rows(1) == [{"id": 1}]
    [failed] = reader.failed
    assert failed.table_id == f"{capture.database}.t"
    assert "SET GLOBAL binlog_format = ROW" in failed.error.hint
    assert "headwater capture snapshot shop --table" in failed.error.hint


@MARIADB_ONLY
def test_system_versioned_tables_are_refused(capture: ShopCapture) -> None:
    capture.execute("CREATE TABLE t (id INT PRIMARY KEY) WITH SYSTEM VERSIONING")
    capture.execute("CREATE TABLE u (id INT PRIMARY KEY)")
    [problem] = capture.source.check()
    assert isinstance(problem, TableRefused)
    reader = capture.begin()
    assert [table.name for table in capture.source.tables()] == ["u"]
    capture.execute("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    assert [change.table.name for change in capture.changes(1)] == ["u"]
    assert [failed.table_id for failed in reader.failed] == [f"{capture.database}.t"]


def test_xa_transactions_fail_their_tables(capture: ShopCapture) -> None:
    capture.execute(TABLE, "CREATE TABLE u (id INT PRIMARY KEY)")
    reader = capture.begin()
    capture.execute(
        "XA START 'x'",
        "INSERT INTO t VALUES (1, 1, 1)",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA ROLLBACK 'x'",
    )
    capture.execute("INSERT INTO u VALUES (1)", "INSERT INTO t VALUES (2, 2, 2)")
    assert {"id": 1} in capture.rows(2)
    [failed] = reader.failed
    assert failed.table_id == f"{capture.database}.t"
    assert isinstance(failed.error, CaptureError)
    assert "XA" in failed.error.what


def test_savepoints_leave_nothing_of_what_was_taken_back(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        "BEGIN",
        "INSERT INTO t VALUES (1, 1, 1)",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (2, 2, 2)",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (3, 3, 3)",
        "COMMIT",
    )
    assert [row["id"] for row in capture.rows(2) if row] == [1, 3]
    assert reader.failed == []


@MARIADB_ONLY
@pytest.mark.parametrize(
    "statement",
    [
        "SET STATEMENT lock_wait_timeout = (5) FOR ALTER TABLE online RENAME COLUMN a TO c",
        "/*!50000 ALTER */ /* x */ TABLE /*M!100000 `online` */ RENAME COLUMN a TO c",
        "-- ALTER TABLE x\n#\nALTER ONLINE IGNORE TABLE IF EXISTS online WAIT 5 CHANGE a c INT",
        "BEGIN NOT ATOMIC ALTER TABLE online RENAME COLUMN a TO c; END",
    ],
)
def test_statements_in_odd_clothes_are_understood(nameless: ShopCapture, statement: str) -> None:
    nameless.execute("CREATE TABLE online (id INT PRIMARY KEY, a INT, b INT)")
    nameless.begin()
    nameless.execute(
        "INSERT INTO online VALUES (1, 1, 1)", statement, "INSERT INTO online VALUES (2, 2, 2)"
    )
    assert nameless.rows(2) == [{"id": 1, "a": 1, "b": 1}, {"id": 2, "c": 2, "b": 2}]


@pytest.mark.parametrize(("charset", "name"), [("gbk", "中文"), ("cp1251", "таб")])
def test_statements_are_read_in_their_clients_character_set(
    nameless: ShopCapture, charset: str, name: str
) -> None:
    nameless.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, a INT)")
    nameless.begin()
    with closing(nameless.server.connect(nameless.database)) as connection:
        connection.set_character_set(charset)
        connection.query(f"INSERT INTO {name} VALUES (1, 1)")
        connection.query(f"ALTER TABLE {name} RENAME COLUMN a TO c")
        connection.query(f"INSERT INTO {name} VALUES (2, 2)")
    assert nameless.rows(2) == [{"id": 1, "a": 1}, {"id": 2, "c": 2}]


def test_names_that_the_server_does_not_distinguish(tmp_path: Path) -> None:
    settings = {"lower_case_table_names": "1", "binlog_row_metadata": "NO_LOG"}
    server = MariaDbServer(tmp_path / "mariadb", settings)
    try:
        server.start()
        server.execute("CREATE DATABASE Shop", "CREATE TABLE SHOP.T (id INT PRIMARY KEY, a INT)")
        capture = ShopCapture(server, "shop")
        capture.begin()
        server.execute(
            "INSERT INTO Shop.T VALUES (1, 1)",
            "ALTER TABLE SHOP.T RENAME COLUMN a TO c",
            "INSERT INTO shop.t VALUES (2, 2)",
            "TRUNCATE shop.T",
        )
        assert capture.rows(3) == [{"id": 1, "a": 1}, {"id": 2, "c": 2}, None]
        capture.close()
    finally:
        server.close()


@MARIADB_ONLY
@pytest.mark.parametrize("metadata", ["FULL", "DEFAULT"])
def test_sequences_are_no_tables(capture: ShopCapture, metadata: str) -> None:
    with capture.server.globals(binlog_row_metadata=metadata):
        reader = capture.begin()
        capture.execute(
            TABLE, "CREATE SEQUENCE s", "DO NEXTVAL(s)", "INSERT INTO t VALUES (NEXTVAL(s), 2, 3)"
        )
        assert [change.table.name for change in capture.changes(1)] == ["t"]
        assert reader.failed == []


@MARIADB_ONLY
def test_a_table_that_replaces_another_is_a_new_one(nameless: ShopCapture) -> None:
    nameless.execute(TABLE, "CREATE TABLE u (id INT PRIMARY KEY, x INT, y INT)")
    reader = nameless.begin()
    nameless.execute(
        "RENAME TABLE t TO v, u TO t, v TO u",
        "INSERT INTO t VALUES (1, 1, 1)",
        "INSERT INTO u VALUES (2, 2, 2)",
        "CREATE OR REPLACE TABLE u LIKE t",
        "CREATE OR REPLACE TABLE w LIKE t",
    )
    assert nameless.rows(1) == [{"id": 1, "x": 1, "y": 1}]  # that of u can no longer be named
    reader.until(lambda _: len(reader.schema_changes) == 8)
    changes = [
        (change.table_id.partition(".")[2], change.table and change.table.columns[1].name)
        for change in reader.schema_changes
    ]
    assert changes == [
        ("t", None), ("u", None), ("v", None), ("t", "x"),
        ("u", None), ("u", "x"), ("w", None), ("w", "x"),
    ]  # fmt: skip
