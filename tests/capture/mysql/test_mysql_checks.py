"""What is wrong with a server, in words and with the SQL that fixes it; and what was not asked."""

import socket
from collections.abc import Iterator

import pytest
from support.capture.mariadb_server import MariaDbServer
from support.capture.mysql_capture import ShopCapture

from headwater.capture.contract import SourcePosition
from headwater.capture.mysql import MySqlSource
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, SourceRefused, SourceUnreachable, TableRefused
from headwater.settings import Secret


@pytest.fixture
def account(server: MariaDbServer, shop: str) -> Iterator[str]:
    """A user without any right."""
    name = f"user_{shop}"
    server.execute(f"CREATE USER {name} IDENTIFIED BY 'sécret'")
    yield name
    server.execute(f"DROP USER {name}")


def _source(url: str, **settings: object) -> MySqlSource:
    return MySqlSource(CaptureSettings("shop", Secret(url), **settings))


@pytest.mark.parametrize(
    ("name", "value", "kind", "hint"),
    [
        ("binlog_format", "MIXED", SourceRefused, "SET GLOBAL binlog_format = ROW"),
        ("binlog_row_image", "MINIMAL", TableRefused, "SET GLOBAL binlog_row_image = FULL"),
        ("binlog_row_metadata", "DEFAULT", TableRefused, "SET GLOBAL binlog_row_metadata = FULL"),
        ("binlog_expire_logs_seconds", "3600", TableRefused, "binlog_expire_logs_seconds = 604800"),
    ],
)
def test_settings_are_reported_with_the_sql(
    capture: ShopCapture, name: str, value: str, kind: type, hint: str
) -> None:
    with capture.server.globals(**{name: value}):
        [problem] = capture.source.check()
    assert type(problem) is kind
    assert hint in problem.hint


def test_rows_that_foreign_keys_change(capture: ShopCapture) -> None:
    """Followed where the log has them; otherwise the check says which table they are missing in."""
    capture.execute(
        "CREATE TABLE parent (id INT PRIMARY KEY)",
        "CREATE TABLE child (id INT PRIMARY KEY, p INT,"
        " FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        "CREATE TABLE strict (p INT PRIMARY KEY, FOREIGN KEY (p) REFERENCES parent (id))",
        "INSERT INTO parent VALUES (1)",
        "INSERT INTO child VALUES (10, 1)",
    )
    capture.begin()
    capture.execute("DELETE FROM parent", "INSERT INTO parent VALUES (2)")
    problems = capture.source.check()
    logged = capture.execute("SHOW VARIABLES LIKE 'innodb_native_foreign_keys'")
    if logged:
        assert problems == []
        changes = capture.changes(3)
        assert [(change.table.name, change.op) for change in changes] == [
            ("child", "d"), ("parent", "d"), ("parent", "c"),
        ]  # fmt: skip
    else:
        [problem] = problems
        assert type(problem) is TableRefused
        assert f"{capture.database}.child " in problem.what
        assert [(change.table.name, change.op) for change in capture.changes(2)] == [
            ("parent", "d"), ("parent", "c"),
        ]  # fmt: skip


def test_rights_are_reported_with_the_grant_that_gives_them(
    server: MariaDbServer, shop: str, account: str
) -> None:
    server.execute(f"CREATE TABLE {shop}.t (id INT PRIMARY KEY)")
    source = _source(server.url(shop, account, "s%C3%A9cret"))
    for _ in range(5):
        problems = source.check()
        if not problems:
            break
        assert isinstance(problems[0], SourceRefused)
        assert problems[0].hint.startswith("GRANT ")
        server.execute(problems[0].hint)
    assert problems == []
    log_position = source.open(None, {})
    server.execute(f"INSERT INTO {shop}.t VALUES (1)")
    events = source.changes(SourcePosition(log_position))
    for event in events:
        if event is not None:
            break
    assert [row["id"] for row in source.read_chunk(source.tables()[0], None, 10).rows] == [1]
    assert source.lag(log_position).size_bytes
    events.close()
    source.close()


def test_a_missing_right_stops_the_stream_with_its_grant(
    server: MariaDbServer, shop: str, account: str
) -> None:
    server.execute(
        f"CREATE TABLE {shop}.t (id INT PRIMARY KEY)",
        f"GRANT SELECT, REPLICATION CLIENT ON *.* TO {account}",
    )
    source = _source(server.url(shop, account, "s%C3%A9cret"))
    log_position = source.open(None, {})
    with pytest.raises(SourceRefused) as caught:
        next(source.changes(SourcePosition(log_position)))
    assert "REPLICATION SLAVE" in caught.value.hint
    source.close()


def test_a_wrong_password(server: MariaDbServer, account: str) -> None:
    [problem] = _source(server.url("", account, "wrong")).check()
    assert isinstance(problem, SourceRefused)
    assert account in problem.what
    assert "wrong" not in str(problem) + problem.hint


def test_an_address_without_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    source = _source(f"mysql://root@127.0.0.1:{port}/")
    [problem] = source.check()
    assert isinstance(problem, SourceUnreachable)
    assert f"127.0.0.1:{port}" in problem.what
    with pytest.raises(SourceUnreachable):
        source.open(None, {})


def test_another_program_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        source = _source(f"mysql://root@127.0.0.1:{port}/")

        import threading

        def answer() -> None:
            connection, _ = listener.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        [problem] = source.check()
        thread.join()
    assert isinstance(problem, SourceUnreachable)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("mysql://localhost/?sll_ca=x", {}),
        ("mysql://localhost:port/", {}),
        ("mysql://localhost/", {"server_id": "0"}),
        ("mysql://localhost/", {"server_id": "many"}),
    ],
)
def test_wrong_settings_are_refused(url: str, options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        _source(url, options=options)


def test_two_captures_register_under_ids_of_their_own(capture: ShopCapture) -> None:
    """The server ends the reader whose id another one takes: that is reported, with the fix."""
    capture.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    capture.begin()
    other = ShopCapture(capture.server, capture.database)
    assert capture.reader is not None
    capture.reader.next()
    other.begin()
    assert other.reader is not None
    other.reader.next()
    with pytest.raises((SourceRefused, SourceUnreachable)):
        for _ in range(100):
            capture.reader.next()
    third = ShopCapture(capture.server, capture.database, options={"server_id": "4711"})
    third.begin()
    third.execute("INSERT INTO t VALUES (1)")
    assert third.rows(1) == other.rows(1) == [{"id": 1}]
    third.close()
    other.close()


def test_patterns_choose_tables(server: MariaDbServer, shop: str) -> None:
    server.execute(
        f"CREATE TABLE {shop}.orders (id INT PRIMARY KEY)",
        f"CREATE TABLE {shop}.users (id INT PRIMARY KEY)",
        f"CREATE VIEW {shop}.seen AS SELECT * FROM {shop}.users",
    )
    everything = _source(server.url(shop))
    assert [table.name for table in everything.tables()] == ["orders", "users"]
    some = _source(server.url(), tables=(f"{shop}.*",), exclude=("*.users",))
    assert [table.id for table in some.tables()] == [f"{shop}.orders"]
    system = _source(server.url(), tables=("mysql.*",))
    assert system.tables() == []
