"""What MySQL's own server has and MariaDB does not: its logins, its GTIDs, its forms of rows."""

import json
import struct
from base64 import b64decode
from contextlib import closing
from uuid import uuid4

import pymysql
import pytest
from support.capture.mariadb_server import MariaDbServer, numbers
from support.capture.mysql_capture import ShopCapture
from support.capture.mysql_server import MYSQL_ONLY

from bench.peers.ports import free_port
from headwater.capture.contract import SourcePosition
from headwater.capture.mysql import MySqlSource
from headwater.capture.mysql.server import lacking_gtids
from headwater.capture.settings import CaptureSettings
from headwater.errors import PositionLost, SourceUnreachable
from headwater.settings import Secret

pytestmark = MYSQL_ONLY

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, note TEXT)"


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_login_by_caching_sha2_password(server: MariaDbServer, shop: str, is_tls: bool) -> None:
    """Without TLS the password is encrypted by the server's key; a second login is a cached one."""
    user = f"reader_{shop}"
    server.execute(
        f"CREATE USER {user} IDENTIFIED WITH caching_sha2_password BY 'sécret'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}",
        f"CREATE TABLE {shop}.t (id INT PRIMARY KEY)",
    )
    url = server.url(shop, user, "s%C3%A9cret")
    settings = CaptureSettings("shop", Secret(f"{url}?ssl_ca={server.ca.ca}" if is_tls else url))
    source = MySqlSource(settings)
    try:
        for number in range(2):
            assert source.check() == []
            log_position = source.open(None, {})
            server.execute(f"INSERT INTO {shop}.t VALUES ({number})")
            events = source.changes(SourcePosition(log_position))
            assert next(event for event in events if event is not None)
            events.close()
    finally:
        source.close()
        server.execute(f"DROP USER {user}")


def test_a_table_without_a_key_is_copied_also_without_the_right_to_lock_it(
    server: MariaDbServer, shop: str, caplog: pytest.LogCaptureFixture
) -> None:
    user = f"reader_{shop}"
    server.execute(
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}",
        f"CREATE TABLE {shop}.t (n INT)",
        f"INSERT INTO {shop}.t VALUES (1)",
    )
    source = MySqlSource(CaptureSettings("shop", Secret(server.url(shop, user, "secret"))))
    try:
        source.open(None, {})
        (table,) = source.tables()
        assert list(source.read_chunk(table, None, 10).rows) == [{"n": 1}]
        assert "may come twice" in caplog.text
        server.execute(f"GRANT LOCK TABLES ON {shop}.* TO {user}")
        caplog.clear()
        assert list(source.read_chunk(table, None, 10).rows) == [{"n": 1}]
        assert not caplog.text
    finally:
        source.close()
        server.execute(f"DROP USER {user}")


def test_rights_by_a_role(server: MariaDbServer, shop: str) -> None:
    user, role = f"user_{shop}", f"role_{shop}"
    server.execute(
        f"CREATE ROLE {role}",
        f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {role}",
        f"CREATE USER {user} IDENTIFIED BY 'secret' DEFAULT ROLE {role}",
    )
    try:
        source = MySqlSource(CaptureSettings("shop", Secret(server.url(shop, user, "secret"))))
        assert source.check() == []
    finally:
        server.execute(f"DROP USER {user}", f"DROP ROLE {role}")


def test_transactions_may_be_compressed(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    compressed = "SET binlog_transaction_compression = ON"
    many = f"INSERT INTO t SELECT seq + 10, REPEAT('x', 100) FROM {numbers(5000)}"
    capture.execute(
        compressed,
        "INSERT INTO t VALUES (1, REPEAT('x', 500)), (2, 'two')",
        many,
        "BEGIN",
        "UPDATE t SET note = REPEAT('y', 600) WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "COMMIT",
        "ALTER TABLE t ADD COLUMN extra INT",
        "INSERT INTO t VALUES (3, REPEAT('z', 500), 3)",
    )
    transactions = reader.changes(5005)
    assert [len(transaction.changes) for transaction in transactions if transaction.changes] == [
        2,
        5000,
        2,
        1,
    ]
    updated, deleted = transactions[2].changes
    assert (updated.op, updated.after) == ("u", {"id": 1, "note": "y" * 600})
    assert (deleted.op, deleted.before) == ("d", {"id": 2, "note": "two"})
    assert transactions[-1].changes[0].after == {"id": 3, "note": "z" * 500, "extra": 3}
    for changes in (1, 4999):  # in the middle of one, too
        capture.begin(SourcePosition(transactions[1].begin.at, changes))
        assert len(capture.changes(5003 - changes)) == 5003 - changes


def _tagged(capture: ShopCapture) -> None:
    try:
        capture.execute("SET gtid_next = 'AUTOMATIC:probe'")
    except pymysql.err.Error:
        pytest.skip("tags came with 8.3")


def test_tagged_ids_are_followed(capture: ShopCapture) -> None:
    """A log_position behind them is one from which the stream goes on, without gaps and
    repetitions.
    """
    _tagged(capture)
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        "INSERT INTO t VALUES (1, '')",
        "SET gtid_next = 'AUTOMATIC:blue'",
        "INSERT INTO t VALUES (2, ''), (3, '')",
        "SET gtid_next = 'AUTOMATIC:other_1'",
        "INSERT INTO t VALUES (4, '')",
        "SET gtid_next = 'AUTOMATIC'",
        "INSERT INTO t VALUES (5, '')",
        "SET gtid_next = 'AUTOMATIC:blue'",
        "INSERT INTO t VALUES (6, '')",
    )
    transactions = reader.changes(6)
    tags = [transaction.begin.id.split(":")[1:-1] for transaction in transactions]
    assert tags == [[], ["blue"], ["other_1"], [], ["blue"]]
    assert all(
        abs(transaction.begin.ts_ms - transactions[0].begin.ts_ms) < 60_000
        for transaction in transactions
    )
    ((executed,),) = capture.execute("SELECT @@global.gtid_executed")
    for number, transaction in enumerate(transactions[:-1]):
        expected = [[2, 3, 4, 5, 6], [4, 5, 6], [5, 6], [6]][number]
        position = SourcePosition(transaction.begin.at)
        assert capture.source.check_position(position)
        capture.begin(position)
        assert [row["id"] for row in capture.rows(len(expected)) if row] == expected
    capture.begin(SourcePosition(transactions[1].begin.at, 1))  # in the middle of a tagged one
    assert [row["id"] for row in capture.rows(4) if row] == [3, 4, 5, 6]
    log_position = capture.source.open(None, {})  # of a server whose history has tags
    assert log_position["gtids"] == executed.replace("\n", "")
    chunk = capture.source.read_chunk(capture.table("t"), None, 10)
    assert all(chunk.contains(transaction.begin) for transaction in transactions)
    capture.begin(SourcePosition(log_position))
    capture.execute("INSERT INTO t VALUES (7, '')")
    assert [row["id"] for row in capture.rows(1) if row] == [7]


def test_a_server_without_our_last_transactions_is_another_history(capture: ShopCapture) -> None:
    """As after a failover to a replica that lacked them: MySQL would send what came since."""
    capture.execute(TABLE)
    reader = capture.begin()
    old = str(uuid4())
    for number in (1, 2):
        capture.execute(
            f"SET gtid_next = '{old}:{number}'",
            f"INSERT INTO t VALUES ({number}, '')",
            "SET gtid_next = 'AUTOMATIC'",
        )
    first, second = reader.changes(2)
    assert capture.source.check_position(SourcePosition(second.begin.at))
    read_more = {**second.begin.at, "gtid": f"{old}:3"}  # of the old primary, and never came here
    capture.execute("INSERT INTO t VALUES (3, '')")
    for position in (
        SourcePosition(read_more),
        SourcePosition({**first.begin.at, "server": 12, "gtids": f"{old}:1-3"}),
    ):
        capture.source.open(position, {})
        with pytest.raises(PositionLost) as caught:
            capture.read_on(position)
        assert f"{old}:3" in caught.value.detail
        assert "headwater capture reset shop" in caught.value.hint
        with pytest.raises(PositionLost):
            capture.source.check_position(position)


def test_a_replica_that_is_behind_is_waited_for(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute("INSERT INTO t VALUES (1, '')")
    [transaction] = reader.changes(1)
    ahead = SourcePosition({**transaction.begin.at, "gtid": f"{uuid4()}:1"})
    capture.execute(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_USER = 'root',"
        f" SOURCE_PORT = {free_port()}",
        "START REPLICA SQL_THREAD",
    )
    try:
        capture.source.open(ahead, {})
        with pytest.raises(SourceUnreachable, match="behind"):
            capture.read_on(ahead)
    finally:
        capture.execute("STOP REPLICA", "RESET REPLICA ALL")
    with pytest.raises(PositionLost):
        capture.read_on(ahead)


def test_what_is_about_to_commit_is_not_lacking(capture: ShopCapture) -> None:
    """The log sends a transaction before its id is in gtid_executed."""
    old = str(uuid4())
    with closing(capture.server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute(f"SET gtid_next = '{old}:7'")  # now owned by this session
        with closing(capture.server.connect()) as other:
            assert lacking_gtids(other, f"{old}:7") == ""
            assert lacking_gtids(other, f"{old}:6-8") == f"{old}:6:8"
        cursor.execute("COMMIT")


def test_a_generated_invisible_primary_key(capture: ShopCapture) -> None:
    """It is in the log and in the table, so it is a key like another."""
    capture.begin()
    capture.execute(
        "SET sql_generate_invisible_primary_key = ON",
        "CREATE TABLE g (a INT, hidden INT INVISIBLE DEFAULT 5)",
        "INSERT INTO g (a) VALUES (7), (8)",
        "UPDATE g SET a = 9 WHERE a = 7",
    )
    expected = [
        {"my_row_id": 1, "a": 7, "hidden": 5},
        {"my_row_id": 2, "a": 8, "hidden": 5},
        {"my_row_id": 1, "a": 9, "hidden": 5},
    ]
    changes = capture.changes(3)
    assert [change.after for change in changes] == expected
    assert changes[0].table.key == ("my_row_id",)
    chunk = capture.source.read_chunk(capture.table("g"), None, 1)
    assert list(chunk.rows) == [expected[2]]
    assert list(capture.source.read_chunk(capture.table("g"), chunk.after, 9).rows) == [expected[1]]


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_instant_changes_of_columns(capture: ShopCapture, metadata: str) -> None:
    with capture.server.globals(binlog_row_metadata=metadata):
        capture.execute(TABLE, "INSERT INTO t VALUES (1, 'a')")
        reader = capture.begin()
        expected = []
        for number, (change, row) in enumerate(
            [
                ("ADD COLUMN n INT NOT NULL DEFAULT 7 FIRST", {"n": 7, "id": 1, "note": "0"}),
                ("DROP COLUMN note", {"n": 1, "id": 1}),
                ("ADD COLUMN s VARCHAR(9) DEFAULT 'ü'", {"n": 2, "id": 1, "s": "ü"}),
                ("RENAME COLUMN s TO z", {"n": 3, "id": 1, "z": "ü"}),
            ]
        ):
            column = "note" if "note" in row else "n"
            capture.execute(
                f"ALTER TABLE t {change}, ALGORITHM = INSTANT", f"UPDATE t SET {column} = {number}"
            )
            assert capture.rows(1) == [row]
            expected.append(row)
        assert reader.failed == []
    assert list(capture.source.read_chunk(capture.table("t"), None, 9).rows) == expected[-1:]


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_vectors(capture: ShopCapture, metadata: str) -> None:
    try:
        capture.execute("CREATE TABLE v (id INT PRIMARY KEY, e VECTOR(3))")
    except pymysql.err.Error:
        pytest.skip("VECTOR came with 9.0")
    with capture.server.globals(binlog_row_metadata=metadata):
        capture.begin()
        capture.execute("INSERT INTO v VALUES (1, STRING_TO_VECTOR('[1, -2.5, 3e10]')), (2, NULL)")
        rows = capture.rows(2)
    assert rows == list(capture.source.read_chunk(capture.table("v"), None, 9).rows)
    assert rows[1] == {"id": 2, "e": None}
    assert rows[0] is not None
    assert b64decode(rows[0]["e"]) == struct.pack("<3f", 1, -2.5, 3e10)


def test_the_status_of_the_log_under_either_name(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    log_position = capture.source.open(None, {})
    assert capture.source.lag(log_position).size_bytes == 0
    capture.execute("INSERT INTO t VALUES (1, '')")
    assert capture.source.lag(log_position).size_bytes


def test_ids_of_a_server_without_gtids(capture: ShopCapture) -> None:
    """Positions in files, anonymous transactions, and a lock for the moment of a snapshot."""
    steps = ["ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF"]
    capture.execute(TABLE)
    capture.execute(*(f"SET GLOBAL gtid_mode = {step}" for step in steps))
    try:
        reader = capture.begin()
        assert "gtids" not in reader.position
        capture.execute("INSERT INTO t VALUES (1, ''), (2, '')", "INSERT INTO t VALUES (3, '')")
        first, second = reader.changes(3)
        assert first.begin.id.startswith("file=")
        capture.begin(SourcePosition(first.begin.at, 1))
        assert [row["id"] for row in capture.rows(2) if row] == [2, 3]
        capture.begin(SourcePosition(second.begin.at))
        chunk = capture.source.read_chunk(capture.table("t"), None, 10)
        assert [row["id"] for row in chunk.rows] == [1, 2, 3]
        assert chunk.contains(second.begin)
        capture.execute("INSERT INTO t VALUES (4, '')")
        [after] = capture.transactions(1)
        assert not chunk.contains(after.begin)
        assert chunk.is_passed(after.begin.at)
    finally:
        capture.execute(*(f"SET GLOBAL gtid_mode = {step}" for step in [*steps[1::-1], "ON"]))


def test_differences_of_json_values_fail_their_table(capture: ShopCapture) -> None:
    capture.execute("CREATE TABLE j (id INT PRIMARY KEY, n INT, doc JSON)", TABLE)
    with capture.server.globals(binlog_row_value_options="PARTIAL_JSON"):
        [problem] = capture.source.check()
    assert "SET GLOBAL binlog_row_value_options = ''" in problem.hint
    reader = capture.begin()
    capture.execute(
        "INSERT INTO j VALUES (1, 0, JSON_OBJECT('a', 1, 'b', REPEAT('x', 1000)))",
        "SET binlog_row_value_options = PARTIAL_JSON",
        "UPDATE j SET doc = JSON_SET(doc, '$.a', 2), n = 1",
        "INSERT INTO t VALUES (1, '')",
    )
    assert [change.table.name for change in capture.changes(2)] == ["j", "t"]
    [failed] = reader.failed
    assert failed.table_id == f"{capture.database}.j"
    assert "binlog_row_value_options" in failed.error.hint


def test_statements_of_the_server_itself(capture: ShopCapture) -> None:
    """Events about other things than rows and tables are passed over."""
    user = f"u_{capture.database}"
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        f"CREATE USER {user} IDENTIFIED BY 'x'",
        f"GRANT SELECT ON *.* TO {user}",
        f"DROP USER {user}",
        "ANALYZE TABLE t",
        "CREATE VIEW seen AS SELECT id FROM t",
        "CREATE TABLE made AS SELECT 1 AS id",
        "OPTIMIZE TABLE t",
        "INSERT INTO t VALUES (1, '')",
    )
    changes = capture.changes(2)
    assert [change.table.name for change in changes] == ["made", "t"]
    assert reader.failed == []
    json.dumps(reader.position)
