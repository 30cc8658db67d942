"""Snapshots' chunks of tables with all kinds of keys, and what a chunk contains."""

import random
import threading
from contextlib import closing
from typing import Any

import pytest
from support.capture.mariadb_server import numbers
from support.capture.mysql_capture import ShopCapture
from support.capture.source_contract import Transaction

from headwater.capture.contract import Table
from headwater.capture.mysql.chunks import TableReader
from headwater.capture.mysql.server import inspect
from headwater.databases.mysql import Address, connect
from headwater.errors import CaptureError, SourceUnreachable, TableRefused


def _all(capture: ShopCapture, table: Table, limit_rows: int) -> list[Any]:
    rows: list[Any] = []
    after = None
    for _ in range(1000):
        chunk = capture.source.read_chunk(table, after, limit_rows)
        rows += chunk.rows
        after = chunk.after
        if after is None:
            return rows
    raise AssertionError("the chunks have no end")


KEYS = {
    "two": (
        "a INT, b VARCHAR(20), PRIMARY KEY (a, b)",
        ["(1,'x')", "(1,'y')", "(2,'X')", "(2,'ü')"],
    ),
    "three": (
        "a DATE, b DECIMAL(6,2), c TIME(3), PRIMARY KEY (a, b, c)",
        ["('2020-01-01',-1.5,'-01:00:00.5')", "('2020-01-01',-1.5,'10:00')",
         "('2020-01-01',2,'0:0')", "('0000-00-00',0,'0:0')"],
    ),
    "text": (
        "k VARCHAR(50) COLLATE utf8mb4_unicode_ci PRIMARY KEY",
        ["('a')", "('B')", "('c''x')", "('Äh')", "('zß')", "('🦆')", "('a\\\\b')", "('')"],
    ),
    "latin": (
        "k CHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci PRIMARY KEY",
        ["('a')", "('ß')", "('é')", "('€')", "('z')"],
    ),
    "enum": ("k ENUM('z','a','m') PRIMARY KEY", ["('a')", "('m')", "('z')"]),
    "set": ("k SET('z','a','m') PRIMARY KEY", ["('a')", "('m,a')", "('z')", "('')"]),
    "bit": ("k BIT(20) PRIMARY KEY", ["(5)", "(1000000)", "(0)"]),
    "binary": ("k VARBINARY(9) PRIMARY KEY", ["(x'00')", "(x'')", "(x'ff00')", "(x'27')"]),
    "fixed": ("k BINARY(3) PRIMARY KEY", ["(x'000000')", "(x'610000')", "(x'ff0000')"]),
    "float": ("k FLOAT PRIMARY KEY", ["(0.1)", "(-1e20)", "(16777216)", "(3)"]),
    "double": ("k DOUBLE PRIMARY KEY", ["(0.1)", "(-1e200)", "(1e-300)", "(3)"]),
    "uuid": ("k UUID PRIMARY KEY", ["(UUID())", "(UUID())", "(UUID())"]),
    "inet": ("k INET6 PRIMARY KEY", ["('::1')", "('::')", "('ff::')", "('::ffff:1.2.3.4')"]),
    "stamp": ("k TIMESTAMP(6) PRIMARY KEY", ["('2020-01-01 00:00:00.000001')", "('2020-01-01')"]),
    "big": (
        "k BIGINT UNSIGNED PRIMARY KEY",
        ["(18446744073709551615)", "(0)", "(9223372036854775808)"],
    ),
    "prefix": ("k TEXT, PRIMARY KEY (k(10))", ["('abc')", "('abd')", "('b')"]),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_chunks_by_every_kind_of_key(capture: ShopCapture, name: str) -> None:
    columns, values = KEYS[name]
    if name in ("uuid", "inet") and not capture.server.is_mariadb:
        pytest.skip("a type that only MariaDB has")
    capture.execute(
        "SET sql_mode = ''",  # a zero date among them
        f"CREATE TABLE t ({columns})",
        f"INSERT INTO t VALUES {', '.join(values)}",
    )
    table = capture.table("t")
    whole = list(capture.source.read_chunk(table, None, 1000).rows)
    assert len(whole) == len(values)
    assert _all(capture, table, 1) == whole
    assert _all(capture, table, 2) == whole


def test_large_rows_end_a_chunk_early(capture: ShopCapture) -> None:
    """Memory is bounded by bytes; also of rows that need several packets."""
    with capture.server.globals(max_allowed_packet="67108864"):
        capture.execute(
            "CREATE TABLE t (id INT PRIMARY KEY, b LONGTEXT)",
            "INSERT INTO t VALUES (1, REPEAT('x', 17000000)), (2, REPEAT('y', 17000000)),"
            " (3, REPEAT('z', 17000000)), (4, 'small')",
        )
        table = capture.table("t")
        first = capture.source.read_chunk(table, None, 100)
        sizes = [len(row["b"]) for row in first.rows]
        assert 0 < len(sizes) < 4
        rest = _all(capture, table, 100)
        assert [(row["id"], len(row["b"])) for row in rest] == [
            (1, 17000000), (2, 17000000), (3, 17000000), (4, 5),
        ]  # fmt: skip
        reader = capture.begin()
        capture.execute("UPDATE t SET b = CONCAT(b, '!') WHERE id = 1")
        [change] = [change for transaction in reader.changes(1) for change in transaction.changes]
        assert change.after is not None
        assert len(change.after["b"]) == 17000001


def test_a_table_without_transactions_is_refused(capture: ShopCapture) -> None:
    capture.execute("CREATE TABLE t (id INT PRIMARY KEY) ENGINE=MyISAM")
    with pytest.raises(TableRefused) as caught:
        capture.source.read_chunk(capture.table("t"), None, 10)
    assert f"ALTER TABLE `{capture.database}`.`t` ENGINE=InnoDB" in caught.value.hint
    [problem] = capture.source.check()
    assert isinstance(problem, TableRefused)


def test_a_table_that_was_dropped(capture: ShopCapture) -> None:
    capture.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    table = capture.table("t")
    capture.execute("DROP TABLE t")
    with pytest.raises(CaptureError, match="was dropped"):
        capture.source.read_chunk(table, None, 10)


def test_rows_of_a_keyless_table_hold_nothing_in_the_database(capture: ShopCapture) -> None:
    """They are taken as slowly as the topics need: no ALTER waits for that, and no timeout ends."""
    capture.execute("CREATE TABLE t (a INT)", f"INSERT INTO t SELECT seq FROM {numbers(50_000)}")
    chunk = capture.source.read_chunk(capture.table("t"), None, 10)
    rows = iter(chunk.rows)
    first = next(rows)
    capture.execute("SET SESSION lock_wait_timeout = 2", "ALTER TABLE t ADD b INT, FORCE")
    capture.execute("UPDATE t SET a = 0")  # later than the chunk's snapshot
    assert first["a"] + sum(row["a"] for row in rows) == 50000 * 50001 // 2


def test_without_room_for_its_rows_only_that_table_fails(
    capture: ShopCapture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    capture.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    monkeypatch.setattr("headwater.capture.mysql.chunks.pickle.dump", full)
    with pytest.raises(CaptureError, match="temporary file") as caught:
        capture.source.read_chunk(capture.table("t"), None, 10)
    assert not isinstance(caught.value, SourceUnreachable)


@pytest.mark.parametrize(("key", "is_locked"), [("PRIMARY KEY", 0), ("PRIMARY KEY", 1), ("", 0)])
def test_what_a_chunk_contains_is_exact_under_load(
    capture: ShopCapture, key: str, is_locked: bool
) -> None:
    """A counter that only grows: a chunk's value must be that of the last transaction it contains.
    With the lock as on MySQL without GTIDs. MySQL's GTIDs give two bounds, and it is between them;
    not if the table has no key, by which a row that comes twice could be recognised.
    """
    is_exact = is_locked or capture.server.is_mariadb or not key
    capture.execute(f"CREATE TABLE t (id INT {key}, n INT)", "INSERT INTO t VALUES (1, 0)")
    reader = capture.begin()
    table = capture.table("t")
    is_over = threading.Event()

    def count_up() -> None:
        with closing(capture.server.connect(capture.database)) as connection:
            cursor = connection.cursor()
            while not is_over.is_set():
                cursor.execute("UPDATE t SET n = n + 1")
                is_over.wait(0.001)

    writers = [threading.Thread(target=count_up) for _ in range(2)]
    for writer in writers:
        writer.start()
    address = Address.parse(capture.server.url(capture.database))
    connection = connect(address)
    tables = TableReader(
        address, inspect(connection), capture.settings, connection, lambda: connect(address)
    )
    tables.lock_tables = is_locked
    chunks = []
    rng = random.Random(3)
    try:
        for _ in range(15):
            chunks.append(tables.chunk(table, None, 10)[0])
            is_over.wait(rng.random() / 100)
    finally:
        is_over.set()
        for writer in writers:
            writer.join()
        connection.close()
    ((last,),) = capture.execute("SELECT n FROM t")
    transactions: list[Transaction] = []
    while len(transactions) < last:
        event = reader.next()
        transactions += [event] if isinstance(event, Transaction) else []
    for chunk in chunks:
        contained = [
            transaction for transaction in transactions if chunk.contains(transaction.begin)
        ]
        assert contained == transactions[: len(contained)]
        behind = [
            transaction for transaction in transactions if chunk.is_passed(transaction.begin.at)
        ]
        assert behind == transactions[len(transactions) - len(behind) :]
        [number] = [row["n"] for row in chunk.rows]
        assert len(contained) <= number <= len(transactions) - len(behind)
        if is_exact:
            assert len(contained) == number
        if is_exact and chunk.gtids is None:
            assert number == len(transactions) - len(behind)
    assert len({chunk.passed for chunk in chunks}) > 5  # there were writers between them
