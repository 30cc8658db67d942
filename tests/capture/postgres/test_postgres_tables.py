"""Tables that come, go and change while PostgreSQL is followed."""

import pytest
from support.capture.postgres_capture import Capture, capturing

from headwater.capture.contract import UNAVAILABLE, SchemaChange, SourcePosition, TableFailed
from headwater.capture.postgres import source as source_module
from headwater.capture.postgres.replication.toast_cache import ToastCache

LARGE = "SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 300)"


@pytest.fixture
def quick(monkeypatch):
    """New tables are looked for all the time."""
    monkeypatch.setattr(source_module, "SYNC_S", 0.05)


def test_only_tables_that_match_are_captured(postgres):
    for table in ("orders", "orders_old", "customers", "other"):
        postgres.run(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    postgres.run("CREATE UNLOGGED TABLE orders_unlogged (id int PRIMARY KEY)")
    with capturing(
        postgres, tables=("public.orders*", "public.customers"), exclude=("*_old",)
    ) as capture:
        assert [table.id for table in capture.source.tables()] == [
            "public.customers", "public.orders",
        ]  # fmt: skip
        postgres.transaction(
            "INSERT INTO other VALUES (1)",
            "INSERT INTO orders_old VALUES (1)",
            "INSERT INTO orders VALUES (1)",
        )
        (transaction,) = capture.transactions(1)
    assert [change.table.name for change in transaction.changes] == ["orders"]


def test_new_tables_are_followed_without_a_stop(postgres, quick):
    with capturing(postgres, tables=("public.new*",)) as capture:
        postgres.run("CREATE TABLE new1 (id int PRIMARY KEY, a text)")
        event = capture.until_loose(SchemaChange)
        assert event == SchemaChange("public.new1", capture.table("new1"))
        postgres.run("INSERT INTO new1 VALUES (1, 'x')")
        (change,) = capture.changes(1)
        assert change.after == {"id": 1, "a": "x"}
        assert change.table is event.table


def test_dropped_tables_are_reported(postgres, quick):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        stored = {table.id: table for table in capture.source.tables()}
        postgres.run("INSERT INTO t VALUES (1)")
        postgres.run("DROP TABLE t")
        assert len(capture.changes(1)) == 1
        assert capture.until_loose(SchemaChange) == SchemaChange("public.t", None)
        at = capture.position
    again = Capture(postgres)  # dropped while no capture ran
    again.open(SourcePosition(at), stored)
    assert again.until_loose(SchemaChange) == SchemaChange("public.t", None)
    again.source.close()


def test_columns_change_between_rows(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a int, b text)")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1, 1, 'x')")
        postgres.run("ALTER TABLE t ADD c date DEFAULT '2024-02-29'")
        postgres.run("INSERT INTO t VALUES (2, 2, 'y')")
        postgres.run("ALTER TABLE t DROP b")
        postgres.run("ALTER TABLE t RENAME a TO amount")
        postgres.run("ALTER TABLE t ALTER amount TYPE text")
        postgres.run("INSERT INTO t VALUES (3, 'z')")
        postgres.run("ALTER TABLE t RENAME TO u")
        postgres.run("INSERT INTO u VALUES (4)")
        changes = capture.changes(4)
        assert [change.after for change in changes] == [
            {"id": 1, "a": 1, "b": "x"},
            {"id": 2, "a": 2, "b": "y", "c": 19782},
            {"id": 3, "amount": "z", "c": 19782},
            {"id": 4, "amount": None, "c": 19782},
        ]
        assert [change.table.id for change in changes] == ["public.t"] * 3 + ["public.u"]
        assert [c.type for c in changes[2].table.columns] == ["integer", "text", "date"]
        assert changes[3].table is capture.table("u")
        assert capture.rows("u")[3] == changes[3].after


def test_a_dropped_table_is_read_from_the_log(postgres):
    """The catalog no longer knows it; the stream does."""
    postgres.run("CREATE TYPE mood AS ENUM ('ok')")
    postgres.run("CREATE TABLE t (b int, a int, m mood, PRIMARY KEY (a, b))")
    capture = Capture(postgres)
    capture.open()
    postgres.run("INSERT INTO t VALUES (1, 2, 'ok')")
    postgres.run("DROP TABLE t; DROP TYPE mood")
    (change,) = capture.changes(1)
    assert change.after == {"b": 1, "a": 2, "m": "ok"}
    assert set(change.table.key) == {"a", "b"}
    capture.source.close()


def test_key_in_its_own_order(postgres):
    postgres.run("CREATE TABLE t (a int, b int, c int, PRIMARY KEY (c, a))")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1, 2, 3)")
        (change,) = capture.changes(1)
        assert change.table.key == ("c", "a")
        assert change.table is capture.table("t")


def test_partitions_go_by_the_name_of_their_table(postgres, quick):
    postgres.run("CREATE TABLE p (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)")
    postgres.run("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
    with capturing(postgres) as capture:
        assert [table.id for table in capture.source.tables()] == ["public.p"]
        postgres.run("CREATE TABLE p2 (a text, id int NOT NULL PRIMARY KEY)")
        postgres.run("INSERT INTO p2 VALUES ('attached', 15)")
        postgres.run("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20)")
        postgres.run("INSERT INTO p VALUES (1, 'x'), (11, 'y')")
        postgres.run("UPDATE p SET id = 12 WHERE id = 1")  # moves to the other partition
        changes = capture.changes(4)
        assert [(c.table.id, c.op, c.after) for c in changes] == [
            ("public.p", "c", {"id": 1, "a": "x"}),
            ("public.p", "c", {"id": 11, "a": "y"}),
            ("public.p", "d", None),
            ("public.p", "c", {"id": 12, "a": "x"}),
        ]
        assert [row["id"] for row in capture.rows("p", limit_rows=2)] == [11, 12, 15]


def test_a_table_without_identity_is_left_out_and_its_application_goes_on(postgres, quick):
    postgres.run("CREATE TABLE bare (a int); CREATE TABLE good (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        assert [table.id for table in capture.source.tables()] == ["public.good"]
        failed = capture.until_loose(TableFailed)
        assert failed.table_id == "public.bare"
        assert 'ALTER TABLE "public"."bare" REPLICA IDENTITY FULL' in failed.error.hint
        postgres.run("INSERT INTO bare VALUES (1)")
        postgres.run("UPDATE bare SET a = 2")  # must not fail
        postgres.run("ALTER TABLE bare REPLICA IDENTITY FULL")
        event = capture.until_loose(SchemaChange)
        assert event.table_id == "public.bare"
        postgres.run("UPDATE bare SET a = 3")
        (change,) = capture.changes(1)
        assert (change.before, change.after, change.table.key) == ({"a": 2}, {"a": 3}, ())


def test_a_table_that_loses_its_key_is_let_go(postgres, quick):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a int); INSERT INTO t VALUES (1, 1)")
    with capturing(postgres) as capture:
        postgres.run("ALTER TABLE t DROP CONSTRAINT t_pkey")
        assert capture.until_loose(TableFailed).table_id == "public.t"
        postgres.run("UPDATE t SET a = 2")
        assert not [event for event in capture.loose if isinstance(event, SchemaChange)]


def test_an_index_as_identity_is_the_key(postgres):
    postgres.run("CREATE TABLE t (a int NOT NULL, b text); CREATE UNIQUE INDEX i ON t (a)")
    postgres.run("ALTER TABLE t REPLICA IDENTITY USING INDEX i")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1, 'x'); DELETE FROM t")
        created, deleted = capture.changes(2)
        assert created.table.key == ("a",)
        assert deleted.before == {"a": 1}
        assert created.table is capture.table("t")


def test_large_values_that_are_not_logged_are_remembered(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text)")
    postgres.run(f"INSERT INTO t VALUES (0, 0, ({LARGE}))")
    with capturing(postgres) as capture:
        postgres.run(f"INSERT INTO t VALUES (1, 0, ({LARGE}))")
        postgres.run("UPDATE t SET small = 1 WHERE id = 1")
        postgres.run("UPDATE t SET id = 2 WHERE id = 1")
        postgres.run("UPDATE t SET small = 3 WHERE id = 2")
        postgres.run("UPDATE t SET small = 1 WHERE id = 0")  # never seen: read again
        created, *updated, unseen = capture.changes(5)
        [(never_seen,)] = postgres.run("SELECT large FROM t WHERE id = 0")
    large = created.after["large"]
    assert len(large) > 9000
    assert [change.after for change in updated] == [
        {"id": 1, "small": 1, "large": large},
        {"id": 2, "small": 1, "large": large},
        {"id": 2, "small": 3, "large": large},
    ]
    assert unseen.after == {"id": 0, "small": 1, "large": never_seen}


def test_large_values_are_forgotten_with_their_rows(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text)")
    with capturing(postgres) as capture:
        postgres.run(f"INSERT INTO t VALUES (1, 0, ({LARGE}))")
        postgres.run("UPDATE t SET large = NULL")
        postgres.run("UPDATE t SET small = 1")
        postgres.run("DELETE FROM t")
        postgres.run("INSERT INTO t VALUES (1, 0, 'x')")
        postgres.run("UPDATE t SET small = 2")
        rows = [change.after for change in capture.changes(6)]
    assert [row and row["large"] for row in rows[1:]] == [None, None, None, "x", "x"]


def test_full_identity_brings_large_values(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, small int, large text)")
    postgres.run("ALTER TABLE t REPLICA IDENTITY FULL")
    postgres.run(f"INSERT INTO t VALUES (1, 0, ({LARGE}))")
    with capturing(postgres) as capture:
        postgres.run("UPDATE t SET small = 1")
        (change,) = capture.changes(1)
        (large,) = postgres.run("SELECT large FROM t")[0]
    assert change.after == {"id": 1, "small": 1, "large": large}
    assert change.before == {"id": 1, "small": 0, "large": large}


def test_what_is_remembered_is_bounded():
    cache = ToastCache(limit_bytes=100_000)
    for number in range(100):
        cache.remember(b"t", ["id"], {"id": number, "a": str(number) * 5000})
    row = {"id": 99, "a": UNAVAILABLE}
    cache.fill(b"t", ["id"], None, row)
    assert row["a"] == "99" * 5000
    row = {"id": 1, "a": UNAVAILABLE}
    cache.fill(b"t", ["id"], None, row)
    assert row["a"] == UNAVAILABLE
    cache.forget_table(b"t")
    assert not cache


def test_a_table_that_was_taken_out_of_the_publication(postgres, quick):
    """Changes of it are missing now: it is reported as dropped, then as new, to be copied again."""
    postgres.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        stored = {table.id: table for table in capture.source.tables()}
        at = capture.position
    postgres.run(f"ALTER PUBLICATION headwater_{postgres.name} DROP TABLE t")
    postgres.run("INSERT INTO t VALUES (1)")
    for _ in range(2):  # as long as nothing is acknowledged it is reported again
        again = Capture(postgres)
        again.open(SourcePosition(at), stored)
        assert again.until_loose(SchemaChange) == SchemaChange("public.t", None)
        assert [table.id for table in again.source.tables()] == ["public.u"]
        again.source.close()
    again = Capture(postgres)
    again.open(SourcePosition(at), stored)
    assert _schema_changes(again) == [
        SchemaChange("public.t", None),
        SchemaChange("public.t", stored["public.t"]),
    ]
    assert [table.id for table in again.source.tables()] == ["public.t", "public.u"]
    again.source.close()


def test_a_table_created_again_is_reported_as_dropped_and_new(postgres, quick):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        table = capture.table("t")
        postgres.run("BEGIN; DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY); COMMIT")
        assert _schema_changes(capture) == [
            SchemaChange("public.t", None),
            SchemaChange("public.t", table),
        ]
        postgres.run("INSERT INTO t VALUES (1)")
        assert capture.changes(1)[0].after == {"id": 1}


def _schema_changes(capture):
    """The two schema changes of a table, while everything is acknowledged that can be."""

    def enough(_) -> bool:
        if any(isinstance(event, SchemaChange) for event in capture.loose):
            capture.source.acknowledge(capture.position)
        return len([event for event in capture.loose if isinstance(event, SchemaChange)]) == 2

    capture.until(enough)
    return [event for event in capture.loose if isinstance(event, SchemaChange)]
