"""Rows that change without being logged: rewrites, and partitions that come and go."""

import pytest
from support.capture.capture_harness import read, running
from support.capture.postgres_capture import Capture, capturing
from tiers import long

from headwater.capture import runner
from headwater.capture.contract import SourcePosition, StorageChange
from headwater.capture.postgres import source as source_module
from headwater.capture.postgres import storage
from headwater.testing import InProcessBroker


@pytest.fixture
def bootstrap(tmp_path):
    with InProcessBroker.serving(str(tmp_path)) as broker:
        yield broker.bootstrap


@pytest.fixture
def quick(monkeypatch):
    """Tables are looked at all the time."""
    monkeypatch.setattr(source_module, "SYNC_S", 0.05)
    monkeypatch.setattr(runner, "TABLES_S", 0.05)


PLAIN = """
    CREATE TABLE {t} (id int PRIMARY KEY, a text);
    INSERT INTO {t} SELECT i, 'a' || i FROM generate_series(1, 3) i;
"""
PARTITIONED = """
    CREATE TABLE {t} (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
    CREATE TABLE {t}_0 PARTITION OF {t} FOR VALUES FROM (0) TO (10);
    CREATE TABLE {t}_1 PARTITION OF {t} FOR VALUES FROM (10) TO (20);
    INSERT INTO {t} SELECT i, 'a' || i FROM generate_series(5, 15) i;
    CREATE TABLE loose_{t} (id int PRIMARY KEY, a text);
    INSERT INTO loose_{t} VALUES (25, 'x');
"""
ATTACH = "ALTER TABLE {t} ATTACH PARTITION loose_{t} FOR VALUES FROM (20) TO (30)"
NEW = "CREATE TABLE {t}_2 PARTITION OF {t} FOR VALUES FROM (20) TO (30)"
LOAD = """
    BEGIN; CREATE TABLE {t}_2 (LIKE {t} INCLUDING ALL); INSERT INTO {t}_2 VALUES (21);
    ALTER TABLE {t} ATTACH PARTITION {t}_2 FOR VALUES FROM (20) TO (30); COMMIT
"""
SAME, REWRITTEN, REDUCED = (False, False), (True, False), (True, True)
CASES = [
    (PLAIN, ["ALTER TABLE {t} ALTER a TYPE text USING upper(a)"], REWRITTEN),
    (PLAIN, ["ALTER TABLE {t} ALTER a TYPE varchar(9)"], REWRITTEN),
    (PLAIN, ["ALTER TABLE {t} ADD b int DEFAULT 5"], REWRITTEN),  # the file stays
    (PLAIN, ["ALTER TABLE {t} ADD b float DEFAULT random()"], REWRITTEN),
    (PLAIN, ["ALTER TABLE {t} ALTER id TYPE text"], REDUCED),  # the rows go by other keys
    (PLAIN, ["ALTER TABLE {t} ADD b int"], SAME),
    (PLAIN, ["VACUUM FULL {t}"], SAME),
    (PLAIN, ["TRUNCATE {t}"], SAME),  # which is logged
    (PARTITIONED, ["TRUNCATE {t}_0"], REDUCED),
    (PARTITIONED, ["ALTER TABLE {t} DETACH PARTITION {t}_0"], REDUCED),
    (PARTITIONED, ["DROP TABLE {t}_0"], REDUCED),
    (PARTITIONED, [ATTACH], REWRITTEN),
    (PARTITIONED, ["TRUNCATE loose_{t}", ATTACH], SAME),
    (PARTITIONED, [NEW], SAME),
    (PARTITIONED, [NEW, "INSERT INTO {t} VALUES (21)"], SAME),
    (PARTITIONED, [NEW, "INSERT INTO {t} VALUES (21)", "DELETE FROM {t} WHERE id = 21"], SAME),
    (PARTITIONED, [LOAD], REWRITTEN),
    (PARTITIONED, ["ALTER TABLE {t} ALTER a TYPE text USING upper(a)"], REWRITTEN),
    (PARTITIONED, ["ALTER TABLE {t} ADD b int DEFAULT 5"], REWRITTEN),
]


@pytest.mark.parametrize("is_running", [True, False])
def test_what_the_log_does_not_contain_is_noticed(postgres, quick, is_running):
    """Also if no capture ran while it was done; and not before the stream has come so far."""
    names = [f"t{number}" for number in range(len(CASES))]
    for name, (tables, _, _) in zip(names, CASES, strict=True):
        postgres.run(tables.format(t=name))
    only = {"tables": tuple(f"public.{name}" for name in names)}
    capture = Capture(postgres, **only)
    at = capture.open()
    tables = {table.id: table for table in capture.source.tables()}
    stored = capture.source.storages
    if not is_running:
        capture.source.close()
    postgres.run("INSERT INTO t0 VALUES (100, 'before')")
    for name, (_, statements, _) in zip(names, CASES, strict=True):
        for statement in statements:
            postgres.run(statement.format(t=name))
    if not is_running:
        capture = Capture(postgres, **only)
        capture.source.storages = stored
        capture.open(SourcePosition(at), tables)
    try:
        seen = capture.until(lambda _: len(_changes(capture)) == len(CASES))
    finally:
        capture.source.close()
    assert seen[0].changes[0].after == {"id": 100, "a": "before"}
    found = {e.table_id: (e.is_rewritten, e.is_reduced) for e in _changes(capture)}
    assert found == {
        f"public.{name}": expected for name, (_, _, expected) in zip(names, CASES, strict=True)
    }


def _changes(capture):
    """A change may be noticed in two steps; what matters is what it comes to."""
    last = {}
    for event in capture.loose:
        if isinstance(event, StorageChange):
            before = last.get(event.table_id)
            last[event.table_id] = event
            if before is not None:
                event.is_rewritten |= before.is_rewritten
                event.is_reduced |= before.is_reduced
    return list(last.values())


def test_a_large_new_partition_is_not_read_to_its_end(postgres, monkeypatch):
    """It was filled while no capture ran: only its first pages show who made its first rows."""
    monkeypatch.setattr(storage, "_FIRST_PAGES", 2)
    postgres.run(PARTITIONED.format(t="p"))
    oid = postgres.run("SELECT 'p'::regclass::oid::int8")[0][0]
    with postgres.connect() as connection, connection.cursor() as cursor:
        before = storage.read_storages(cursor, [oid])[oid]
        cursor.execute(NEW.format(t="p") + "; ALTER TABLE p_2 ALTER a SET STORAGE PLAIN; COMMIT")
        a_page = "repeat('a', 7000)"
        cursor.execute(f"INSERT INTO p SELECT i, {a_page} FROM generate_series(20, 29) i")
        assert storage.compare(cursor, before, storage.read_storages(cursor, [oid])[oid]) == "same"
        cursor.execute(b"EXPLAIN " + cursor.query)
        plan = str(cursor.fetchall())
    assert "Tid Range Scan" in plan
    assert "Seq Scan" not in plan


def test_a_partition_that_is_locked_stops_nothing(postgres, quick):
    """Another session works on it for hours (VACUUM FULL, a transaction that truncated it)."""
    postgres.run(PLAIN.format(t="t") + PARTITIONED.format(t="p"))
    with capturing(postgres) as capture:
        locking = postgres.connect()
        with locking, locking.cursor() as cursor:
            cursor.execute("LOCK TABLE p_0 IN ACCESS EXCLUSIVE MODE")
            for number in (100, 101):
                looked_at = capture.source._sync_due
                capture.until(lambda _, before=looked_at: capture.source._sync_due != before)
                postgres.run("INSERT INTO t VALUES (%s, 'a')", number)
                (change,) = capture.changes(1)
                assert change.after["id"] == number
        locking.close()


@long
def test_the_copy_follows_the_partitions(postgres, bootstrap, quick):
    """The topic has the same rows as the table, whatever happens to its partitions."""
    postgres.run(PLAIN.format(t="t") + PARTITIONED.format(t="p"))
    with running(bootstrap, postgres.url, tables=("public.t", "public.p")) as capture:
        capture.wait_for_copies("public.t", "public.p")
        for statement in (
            "TRUNCATE p_0",
            ATTACH.format(t="p"),
            "ALTER TABLE p DETACH PARTITION p_1",
            "ALTER TABLE t ALTER a TYPE text USING upper(a)",
            "ALTER TABLE t ADD b int DEFAULT 5",
        ):
            postgres.run(statement)
            for table in ("t", "p"):
                capture.wait_until(lambda t=table: _held(bootstrap, t) == _rows(postgres, t))
    postgres.run("ALTER TABLE p DETACH PARTITION loose_p; UPDATE t SET a = 'new' WHERE id = 1")
    with running(bootstrap, postgres.url, tables=("public.t", "public.p")) as capture:
        for table in ("t", "p"):
            capture.wait_until(lambda t=table: _held(bootstrap, t) == _rows(postgres, t))


def _rows(postgres, table):
    columns = [name for (name,) in postgres.run(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0", table
    )]  # fmt: skip
    rows = postgres.run(f"SELECT * FROM {table}")
    return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def _held(bootstrap, table):
    """What a consumer has who applies the topic's records."""
    rows = {}
    for record in read(bootstrap, f"shop.public.{table}"):
        if record.op == "t":
            rows.clear()
        elif record.op == "d":
            rows.pop(record.key["id"])
        elif record.op is not None:
            rows[record.key["id"]] = record.value["after"]
    return rows
