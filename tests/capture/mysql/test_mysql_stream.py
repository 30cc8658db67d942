"""What the binlog of a real MariaDB becomes, with all of its settings for rows."""

import json
import time
from contextlib import closing
from itertools import islice

import pytest
from support.capture.mariadb_server import numbers
from support.capture.mysql_capture import ShopCapture
from support.capture.mysql_server import MARIADB_ONLY
from support.capture.source_contract import Reader

from headwater.capture.contract import UNAVAILABLE, SourcePosition
from headwater.capture.mysql import MySqlSource
from headwater.capture.mysql.connection import query
from headwater.capture.settings import CaptureSettings
from headwater.databases.mysql import Address, connect
from headwater.errors import PositionLost, SourceUnreachable
from headwater.settings import Secret

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(50), note TEXT)"


@MARIADB_ONLY
def test_rows_and_statements_may_be_compressed(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    capture.begin()
    long = "x" * 500
    with capture.server.globals(log_bin_compress="1", log_bin_compress_min_len="10"):
        capture.execute(
            f"INSERT INTO t VALUES (1, 'one', '{long}'), (2, 'two', '{long}')",
            f"UPDATE t SET note = REPEAT('y', 600) WHERE id = 1 /* {long} */",
            "DELETE FROM t WHERE id = 2",
            f"ALTER TABLE t ADD COLUMN extra INT COMMENT '{long}'",
            "INSERT INTO t VALUES (3, 'three', REPEAT('z', 500), 3)",
        )
    changes = capture.changes(5)
    assert [change.op for change in changes] == ["c", "c", "u", "d", "c"]
    assert changes[0].after == {"id": 1, "name": "one", "note": long}
    assert changes[2].after == {"id": 1, "name": "one", "note": "y" * 600}
    assert changes[2].before == changes[0].after
    assert changes[4].after == {"id": 3, "name": "three", "note": "z" * 500, "extra": 3}
    assert capture.reader is not None
    assert [change.ddl[:25] for change in capture.reader.schema_changes] == [
        "ALTER TABLE t ADD COLUMN "
    ]


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_images_of_rows_may_be_partial(capture: ShopCapture, image: str) -> None:
    capture.execute(TABLE)
    capture.begin()
    with capture.server.globals(binlog_row_image=image):
        capture.execute(
            "INSERT INTO t VALUES (1, 'one', 'note')",
            "UPDATE t SET name = 'uno' WHERE id = 1",
            "UPDATE t SET id = 2 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
        )
    created, renamed, moved, deleted = capture.changes(4)
    assert created.after == {"id": 1, "name": "one", "note": "note"}
    assert renamed.before is not None
    assert renamed.before["id"] == 1
    assert renamed.after == {"id": 1, "name": "uno", "note": UNAVAILABLE}
    assert moved.before is not None
    assert moved.before["id"] == 1
    name = UNAVAILABLE if image == "MINIMAL" else "uno"
    assert moved.after == {"id": 2, "name": name, "note": UNAVAILABLE}
    expected = {"id": 2} if image == "MINIMAL" else {"id": 2, "name": "uno"}
    assert deleted.before == expected


def test_positions_in_files_do_without_gtids(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        "INSERT INTO t VALUES (1, 'a', ''), (2, 'b', '')", "INSERT INTO t VALUES (3, 'c', '')"
    )
    first, second = reader.changes(3)

    def without(position: SourcePosition) -> SourcePosition:
        log_position = {key: value for key, value in position.at.items() if key != "gtids"}
        return SourcePosition(log_position, position.changes)

    capture.begin(without(SourcePosition(first.begin.at, 1)))
    assert [row["id"] for row in capture.rows(2) if row] == [2, 3]
    capture.begin(without(SourcePosition(first.begin.at)))
    assert [row["id"] for row in capture.rows(1) if row] == [3]
    end = {key: value for key, value in reader.position.items() if key != "gtids"}
    capture.begin(SourcePosition(end))
    capture.execute("INSERT INTO t VALUES (4, 'd', '')")
    assert capture.rows(1) == [{"id": 4, "name": "d", "note": ""}]
    assert second.begin.at["begins"] > first.begin.at["begins"]


def test_the_log_goes_on_in_the_next_file(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        "INSERT INTO t VALUES (1, 'a', '')",
        "FLUSH BINARY LOGS",
        "INSERT INTO t VALUES (2, 'b', '')",
        "FLUSH BINARY LOGS",
    )
    first, second = reader.changes(2)
    assert first.begin.at["file"] < second.begin.at["file"]
    capture.begin(SourcePosition(first.begin.at))
    assert [row["id"] for row in capture.rows(1) if row] == [2]
    chunk = capture.source.read_chunk(capture.table("t"), None, 10)
    assert chunk.contains(second.begin)
    assert not chunk.is_passed(second.begin.at)


@MARIADB_ONLY
def test_ids_of_several_domains(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute(
        "INSERT INTO t VALUES (1, 'a', '')",
        "SET gtid_domain_id = 7",
        "INSERT INTO t VALUES (2, 'b', '')",
        "SET gtid_domain_id = 0",
        "INSERT INTO t VALUES (3, 'c', '')",
    )
    transactions = reader.changes(3)
    assert [transaction.begin.id.split("-")[0] for transaction in transactions] == ["0", "7", "0"]
    for number, transaction in enumerate(transactions[:2]):
        capture.begin(SourcePosition(transaction.begin.at))
        assert [row["id"] for row in capture.rows(2 - number) if row] == [2, 3][number:]


def test_another_server_goes_on_by_id(capture: ShopCapture) -> None:
    """After a failover, files and positions of the old server mean nothing."""
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute("INSERT INTO t VALUES (1, 'a', ''), (2, 'b', '')", "DELETE FROM t WHERE id = 1")
    first, second = reader.changes(3)
    elsewhere = {**first.begin.at, "server": 12, "file": "old.000777", "begins": 5}
    reader = capture.begin(SourcePosition(elsewhere, 1))
    assert [change.ordinal for change in capture.changes(2)] == [1, 0]
    assert reader.position == second.begin.at
    capture.begin(
        SourcePosition({"server": 12, "file": "old.000777", "pos": 9, "gtids": first.begin.id})
    )
    assert [change.op for change in capture.changes(1)] == ["d"]
    lost = SourcePosition({"server": 12, "file": "old.000777", "pos": 9})
    with pytest.raises(PositionLost, match="another"):
        capture.read_on(lost)


def test_a_purged_log_is_reported_with_the_command_that_repairs(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute("INSERT INTO t VALUES (1, 'a', '')")
    [transaction] = reader.changes(1)
    capture.execute("INSERT INTO t VALUES (2, 'b', '')", "FLUSH BINARY LOGS")
    assert capture.source.check_position(SourcePosition(transaction.begin.at)) is True
    file = capture.execute("SHOW BINARY LOGS")[-1][0]
    capture.close()
    deadline_s = time.monotonic() + 20
    # The server retains a file until it notices, at a heartbeat, that its reader has left.
    while capture.execute(f"PURGE BINARY LOGS TO '{file}'", "SHOW BINARY LOGS")[0][0] != file:
        assert time.monotonic() < deadline_s
    lost = SourcePosition(transaction.begin.at)
    for position in (lost, SourcePosition({k: v for k, v in lost.at.items() if k != "gtids"})):
        capture.source.open(position, {})
        with pytest.raises(PositionLost) as caught:
            capture.read_on(position)
        assert "headwater capture reset shop" in caught.value.hint
        with pytest.raises(PositionLost):
            capture.source.check_position(position)
    uuid = lost.at["gtids"].partition(":")[0]
    ahead = "0-11-999999999" if capture.server.is_mariadb else f"{uuid}:1-999999999"
    unknown = SourcePosition({**lost.at, "gtids": ahead}, 0)
    capture.source.open(unknown, {})
    with pytest.raises(PositionLost):
        capture.read_on(unknown)


def test_a_log_that_was_reset_is_not_taken_for_the_old_one(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    capture.execute("INSERT INTO t VALUES (1, 'a', '')")
    [transaction] = reader.changes(1)
    log_position = {**transaction.begin.at, "begins": transaction.begin.at["begins"] + 1}
    position = SourcePosition(log_position, 0)
    capture.source.open(position, {})
    with pytest.raises(PositionLost, match="another one"):
        capture.read_on(position)


def test_the_server_may_restart(capture: ShopCapture) -> None:
    capture.execute(TABLE, "INSERT INTO t VALUES (0, 'z', '')")
    reader = capture.begin()
    capture.execute("INSERT INTO t VALUES (1, 'a', '')")
    [transaction] = reader.changes(1)
    capture.server.stop()
    with pytest.raises(SourceUnreachable) as caught:
        for _ in range(100):
            reader.next()
    assert caught.value.hint
    with pytest.raises(SourceUnreachable):
        capture.source.open(SourcePosition(transaction.begin.at), {})
    with pytest.raises(SourceUnreachable):
        capture.source.lag(transaction.begin.at)
    [problem] = capture.source.check()
    assert isinstance(problem, SourceUnreachable)
    capture.server.start()
    capture.reader = None
    capture.begin(SourcePosition(transaction.begin.at))
    capture.execute("INSERT INTO t VALUES (2, 'b', '')")
    assert [row["id"] for row in capture.rows(1) if row] == [2]


def test_statements_are_reported_if_asked_for(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    capture.begin()
    capture.execute("INSERT INTO t VALUES (1, 'a', '')")
    assert "query" not in capture.changes(1)[0].source
    asked = ShopCapture(capture.server, capture.database, options={"include_query": "true"})
    asked.begin()
    if not capture.server.is_mariadb:
        asked.execute("SET GLOBAL binlog_rows_query_log_events = ON")
    asked.execute("INSERT INTO t VALUES (2, 'ü', '')", "DELETE FROM t WHERE id = 1")
    assert [change.source["query"] for change in asked.changes(2)] == [
        "INSERT INTO t VALUES (2, 'ü', '')",
        "DELETE FROM t WHERE id = 1",
    ]
    asked.close()


def test_source_reports_where_a_change_stands(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    capture.begin()
    capture.execute("INSERT INTO t VALUES (1, 'a', ''), (2, 'b', '')")
    [transaction] = capture.transactions(1)
    source = transaction.begin.source
    assert source["server_id"] == 11
    assert source["gtid"] == transaction.begin.id
    assert source["file"] == transaction.begin.at["file"]
    positions = [change.source for change in transaction.changes]
    assert [position["row"] for position in positions] == [0, 1]
    assert positions[0]["pos"] == positions[1]["pos"] > transaction.begin.at["begins"]
    json.dumps([source, positions, transaction.begin.at])


def test_changes_of_other_tables_count_as_ordinals(capture: ShopCapture) -> None:
    """So that a position stays true when the settings name other tables."""
    capture.execute(TABLE, "CREATE TABLE other (id INT PRIMARY KEY, a VARCHAR(300), b BIT(3))")
    some = ShopCapture(capture.server, capture.database, tables=("*.t",))
    some.begin()
    some.execute(
        "BEGIN",
        "INSERT INTO other VALUES (1, REPEAT('x', 300), 1), (2, NULL, NULL)",
        "INSERT INTO t VALUES (1, 'a', '')",
        "UPDATE other SET a = 'y'",
        "INSERT INTO t VALUES (2, 'a', '')",
        "COMMIT",
    )
    assert some.reader is not None
    events = list(islice(some.source.changes(some.reader.after), 5))
    ordinals = [event.ordinal for event in events if hasattr(event, "ordinal")]
    assert ordinals == [2, 5]
    some.close()


def test_bytes_of_the_log_behind_a_position(capture: ShopCapture) -> None:
    capture.execute(TABLE)
    reader = capture.begin()
    assert capture.source.lag(reader.position).size_bytes == 0
    capture.execute("INSERT INTO t VALUES (1, 'a', REPEAT('x', 1000))", "FLUSH BINARY LOGS")
    behind = capture.source.lag(reader.position).size_bytes
    assert behind is not None
    assert 1000 < behind < 10_000


def test_idle_sources_keep_their_connection(capture: ShopCapture) -> None:
    """The server's heartbeats come through, and are no news."""
    capture.execute(TABLE)
    reader = capture.begin()
    for _ in range(13):  # more than a second: a heartbeat
        assert reader.next() is None or reader.position
    capture.execute("INSERT INTO t VALUES (1, 'a', '')")
    assert [row["id"] for row in capture.rows(1) if row] == [1]


def test_everything_goes_through_tls(capture: ShopCapture) -> None:
    """A stream over TLS is read without waiting, too: there is nothing to see on its socket."""
    capture.execute(TABLE)
    url = f"{capture.server.url(capture.database)}?ssl_ca={capture.server.ca.ca}"
    url += "&ssl_verify_identity=true"
    address = Address.parse(url)
    with closing(connect(address)) as connection:
        assert query(connection, "SHOW STATUS LIKE 'Ssl_cipher'")[0][1]
    settings = CaptureSettings("secret", Secret(url))
    source = MySqlSource(settings)
    reader = Reader(source, SourcePosition(source.open(None, {})))
    for _ in range(3):
        reader.next()
    capture.execute(f"INSERT INTO t SELECT seq, 'x', REPEAT('y', 100) FROM {numbers(20_000)}")
    [transaction] = reader.changes(20000)
    chunk = source.read_chunk(transaction.changes[0].table, None, 30000)
    assert [change.after for change in transaction.changes] == chunk.rows
    reader.close()
    wrong = Secret(f"{capture.server.url()}?ssl_ca=/nowhere.pem")
    [problem] = MySqlSource(CaptureSettings("secret", wrong)).check()
    assert isinstance(problem, SourceUnreachable)
