"""Large values that PostgreSQL's log leaves out: rows are whole all the same."""

import threading
import time

import pytest
from support.capture.postgres_capture import Capture, capturing
from support.capture.postgres_server import Database

from headwater.capture.contract import UNAVAILABLE, Begin, Commit, SourcePosition
from headwater.capture.postgres.replication import row_completion, toast_cache
from headwater.capture.postgres.replication.stream import ChangeStream

LARGE = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300)"


def test_rows_that_were_never_streamed_are_whole(postgres):
    """After a snapshot, or a restart: nothing is remembered. Of several tables, in one transaction
    and in many, in the order of the log.
    """
    for table, key in (("t", "int"), ("u", "numeric(9, 2)")):
        postgres.run(f"CREATE TABLE {table} (id {key}, n text, small int, large text, j jsonb, "
                     "PRIMARY KEY (id, n))")  # fmt: skip
        postgres.run(
            f"INSERT INTO {table} SELECT i, E'a''\\\\\\t' || i, 0, ({LARGE}), "
            f"jsonb_build_object('a', ({LARGE})) FROM generate_series(1, 100) i"
        )
    with capturing(postgres) as capture:
        postgres.run("UPDATE t SET small = 1")
        for number in range(1, 11):
            postgres.run("UPDATE u SET small = 2 WHERE id = %s", number)
            postgres.run("UPDATE t SET small = 2 WHERE id = %s", number)
        changes = capture.changes(120)
        rows = {name: {row["id"]: row for row in capture.rows(name)} for name in ("t", "u")}
    assert [change.ordinal for change in changes[:100]] == list(range(100))
    assert [change.table.name for change in changes[100:]] == ["u", "t"] * 10
    for change in changes:
        row = rows[change.table.name][change.after["id"]]
        assert change.after == {**row, "small": change.after["small"]}
        assert len(row["large"]) > 9000


def test_a_value_that_is_newer_than_its_change_comes_again(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text)")
    postgres.run(f"INSERT INTO t SELECT i, 0, ({LARGE}) FROM generate_series(1, 4) i")
    capture = Capture(postgres)
    at = capture.open()
    capture.source.close()
    postgres.run("UPDATE t SET small = 1")
    postgres.run("UPDATE t SET large = 'short' WHERE id = 1")
    postgres.run("UPDATE t SET large = NULL WHERE id = 2")
    postgres.run("DELETE FROM t WHERE id = 3")
    postgres.run("UPDATE t SET id = 5 WHERE id = 4")
    postgres.run("UPDATE t SET small = 3")
    capture = Capture(postgres)
    capture.open(SourcePosition(at))
    changes = capture.changes(11)
    capture.source.close()
    assert [(c.op, c.after and c.after["large"]) for c in changes[:7]] == [
        ("u", "short"),  # early
        ("u", None),
        ("u", UNAVAILABLE),  # no longer stored: the delete is to come
        ("u", UNAVAILABLE),
        ("u", "short"),
        ("u", None),
        ("d", None),
    ]
    last = {}
    for change in changes:
        if change.before is not None:
            last.pop(change.before["id"])
        if change.after is not None:
            last[change.after["id"]] = change.after
    assert list(last.values()) == [
        dict(zip(("id", "small", "large"), row, strict=True))
        for row in postgres.run("SELECT * FROM t ORDER BY id")
    ]


def test_a_row_that_is_read_again_does_not_bring_back_older_values(postgres, monkeypatch):
    """The update that is completed has a large value of its own, which is replaced before the row
    is read: what is remembered for later updates is the newer one.
    """
    monkeypatch.setattr(ChangeStream, "events", _whole_transactions(ChangeStream.events))
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, a text, b text)")
    postgres.run(f"INSERT INTO t VALUES (1, 0, ({LARGE}), ({LARGE}))")
    with capturing(postgres) as capture:
        postgres.transaction(
            f"UPDATE t SET b = ({LARGE})", f"UPDATE t SET a = ({LARGE}), b = ({LARGE})"
        )
        capture.changes(2)
        postgres.run("UPDATE t SET small = 1")
        (change,) = capture.changes(1)
        assert [change.after] == capture.rows("t")


def _whole_transactions(events):
    """As if the network were so fast that the stream never waits within a transaction."""

    def without_waiting(*arguments):
        is_within = False
        for event in events(*arguments):
            is_within = (is_within or isinstance(event, Begin)) and not isinstance(event, Commit)
            if event is not None or not is_within:
                yield event

    return without_waiting


def test_a_transaction_that_is_not_visible_yet_is_awaited(postgres, monkeypatch):
    """PostgreSQL sends a transaction while it still waits for a synchronous standby. Other sessions
    see its rows only afterwards.
    """
    monkeypatch.setattr(toast_cache, "_LARGE_VALUE_CHARACTERS", 1 << 30)  # nothing is remembered
    postgres.run(f"ALTER DATABASE {postgres.name} SET synchronous_commit = local")
    postgres.close()
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text)")

    def set_standby(name):
        with Database(postgres.server, "postgres") as admin:
            admin.run(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'")
            admin.run("SELECT pg_reload_conf()")

    def write():
        with Database(postgres.server, postgres.name) as database:
            database.run("SET synchronous_commit = on")
            database.transaction(
                f"INSERT INTO t VALUES (1, 0, ({LARGE}))", "UPDATE t SET small = 1"
            )

    set_standby("missing")
    writing = threading.Thread(target=write)
    capture = Capture(postgres)
    capture.source.stay_connected = lambda: set_standby("")  # called before it is read again
    try:
        capture.open()
        while postgres.run("SHOW synchronous_standby_names") != [("missing",)]:
            time.sleep(0.01)
        postgres.run("CHECKPOINT")  # the process that does it makes commits wait
        writing.start()
        changes = capture.changes(2)
    finally:
        set_standby("")
        if writing.ident is not None:
            writing.join()
        capture.source.close()
    assert changes[1].after == {**changes[0].after, "small": 1}


def test_many_large_rows_are_read_in_pieces(postgres, monkeypatch):
    monkeypatch.setattr(row_completion, "READ_BYTES", 30_000)
    monkeypatch.setattr(row_completion, "READ_ROWS", 20)
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text)")
    postgres.run(f"INSERT INTO t SELECT i, 0, ({LARGE}) FROM generate_series(1, 50) i")
    with capturing(postgres) as capture:
        postgres.run("UPDATE t SET small = id")
        changes = capture.changes(50)
        assert [change.after for change in changes] == capture.rows("t")


def test_a_table_that_cannot_be_read_is_followed_on(postgres, monkeypatch):
    monkeypatch.setattr(row_completion, "_LOCK_PATIENCE_S", 0.1)
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text, gone text)")
    postgres.run(f"INSERT INTO t VALUES (1, 0, ({LARGE}), ({LARGE}))")
    with capturing(postgres) as capture:
        postgres.run("UPDATE t SET small = 1")
        postgres.run("ALTER TABLE t RENAME large TO larger; ALTER TABLE t DROP gone")
        (change,) = capture.changes(1)
        assert change.after == {"id": 1, "small": 1, "large": UNAVAILABLE, "gone": UNAVAILABLE}
        postgres.run("UPDATE t SET small = 2")
        locking = postgres.connect()
        with locking, locking.cursor() as cursor:
            cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            (change,) = capture.changes(1)
        locking.close()
        assert change.after == {"id": 1, "small": 2, "larger": UNAVAILABLE}
        postgres.run("UPDATE t SET small = 3")
        postgres.run("ALTER TABLE t RENAME TO another")
        (change,) = capture.changes(1)
        assert len(change.after["larger"]) > 9000


@pytest.mark.parametrize("key", ["text", "citext"])
def test_a_large_key(postgres, key):
    if key == "citext" and not postgres.run(
        "SELECT 1 FROM pg_available_extensions WHERE name = 'citext'"
    ):
        pytest.skip("this PostgreSQL has no citext")
    postgres.run("CREATE EXTENSION citext" if key == "citext" else "SELECT 1")
    postgres.run(f"CREATE TABLE t (id {key} PRIMARY KEY, small int, large text)")
    postgres.run("ALTER TABLE t ALTER id SET STORAGE EXTERNAL")
    postgres.run(f"INSERT INTO t VALUES (repeat('k', 2500), 0, ({LARGE}))")
    with capturing(postgres) as capture:
        postgres.run("UPDATE t SET small = 1")
        (change,) = capture.changes(1)
        [row] = capture.rows("t")
    assert change.after["large"] == row["large"]


def test_a_table_that_is_rewritten_is_not_cached(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text)")
    with capturing(postgres) as capture:
        postgres.run(f"INSERT INTO t VALUES (1, 0, ({LARGE}))")
        capture.changes(1)
        postgres.run("ALTER TABLE t ALTER large TYPE text USING upper(large)")
        postgres.run("UPDATE t SET small = 1")
        (change,) = capture.changes(1)
        assert [change.after] == capture.rows("t")


def test_doctor_names_tables_with_large_values(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, large text)")
    postgres.run("CREATE TABLE p (id int PRIMARY KEY, large text) PARTITION BY RANGE (id)")
    postgres.run("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    capture = Capture(postgres)
    assert capture.source.advice() == []
    for table in ("t", "p"):
        postgres.run(f"INSERT INTO {table} SELECT 1, ({LARGE})")
        (advice,) = capture.source.advice()
        assert f"public.{table}" in advice.what
        postgres.run(advice.hint.partition(" logs")[0])
        if table == "p":  # the leaves' identity counts
            postgres.run("ALTER TABLE p1 REPLICA IDENTITY FULL")
        assert capture.source.advice() == []
    capture.source.close()
