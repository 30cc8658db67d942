"""Snapshots of PostgreSQL: chunks are complete, and know exactly which transactions they saw."""

# ruff: noqa: E501 - a table reads better wide

import random
import threading
import time

import pytest
from support.capture.postgres_capture import Capture, capturing

from headwater.capture.contract import Begin
from headwater.capture.postgres import chunks
from headwater.capture.postgres.chunks import Snapshot
from headwater.errors import CaptureError, SourceRefused
from headwater.settings import Secret


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("a int", "SELECT generate_series(-20, 30)"),
        ('a text COLLATE "C"', "SELECT chr(33 + g) || '\\' || chr(9) FROM generate_series(1, 50) g"),
        ("a text", "SELECT unnest('{a,B,c,D,ä,Z,z,ß,é,''q''}'::text[])"),
        ("a uuid", "SELECT md5(g::text)::uuid FROM generate_series(1, 50) g"),
        ("a numeric", "SELECT unnest('{-Infinity,-1.5,0,0.001,1e20,Infinity,NaN}'::numeric[])"),
        ("a double precision", "SELECT unnest('{-Infinity,0.1,0.30000000000000004,NaN}'::float8[])"),
        ("a timestamptz", "SELECT unnest('{-infinity,1970-01-01,2024-01-01,infinity}'::timestamptz[])"),
        ("a bytea", "SELECT decode(lpad(to_hex(g), 2, '0'), 'hex') FROM generate_series(0, 60) g"),
        ("a bool", "SELECT unnest('{t,f}'::bool[])"),
        ("a char(4)", "SELECT g::text FROM generate_series(1, 30) g"),
        ("a inet", "SELECT ('10.0.0.' || g)::inet FROM generate_series(1, 30) g"),
        ("a int[]", "SELECT ARRAY[g % 3, g] FROM generate_series(1, 30) g"),
        ("a mood", "SELECT unnest('{sad,ok,happy}'::mood[])"),
        ("a int, b text, c date", "SELECT g % 3, 'x', '2024-01-01'::date + g FROM generate_series(1, 40) g"),
    ],
)  # fmt: skip
def test_chunks_are_the_whole_table_in_order_of_its_key(postgres, key, values):
    postgres.run("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
    names = ", ".join(column.split()[0] for column in key.split(", "))
    postgres.run(f"CREATE TABLE t ({key}, PRIMARY KEY ({names}))")
    postgres.run(f"INSERT INTO t {values}")
    capture = Capture(postgres)
    rows = capture.rows("t", limit_rows=3)
    everything = capture.rows("t")
    capture.source.close()
    (count,) = postgres.run("SELECT count(*) FROM t")[0]
    assert rows == everything
    assert len(rows) == count


def test_quoted_names(postgres):
    postgres.run(
        'CREATE SCHEMA "o dd"; CREATE TABLE "o dd"."T \'"" x" ("k ""1" int PRIMARY KEY, "%s" text)'
    )
    with capturing(postgres) as capture:
        postgres.run('INSERT INTO "o dd"."T \'"" x" VALUES (1, \'a\'), (2, \'b\')')
        streamed = [change.after for change in capture.changes(2)]
        assert capture.rows("T '\" x", limit_rows=1) == streamed == [
            {'k "1': 1, "%s": "a"}, {'k "1': 2, "%s": "b"},
        ]  # fmt: skip


def test_a_table_without_key_is_read_in_one(postgres):
    postgres.run("CREATE TABLE t (a int, b text); ALTER TABLE t REPLICA IDENTITY FULL")
    postgres.run("INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 30000) g")
    with capturing(postgres) as capture:
        chunk = capture.source.read_chunk(capture.table("t"), None, 10)
        postgres.run("DROP TABLE t")  # no lock outlives the call
        assert chunk.after is None
        assert [row["a"] for row in chunk.rows] == list(range(1, 30001))


def test_large_rows_make_small_chunks(postgres, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 100_000)
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, b text)")
    postgres.run("INSERT INTO t SELECT g, repeat('x', 10000) FROM generate_series(1, 50) g")
    with capturing(postgres) as capture:
        sizes, after = [], None
        while True:
            chunk = capture.source.read_chunk(capture.table("t"), after, 1000)
            sizes.append(len(chunk.rows))
            after = chunk.after
            if after is None:
                break
    assert sum(sizes) == 50
    assert max(sizes) <= 11


def test_parallel_readers(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    postgres.run("INSERT INTO t SELECT generate_series(1, 5000)")
    with capturing(postgres) as capture:
        table = capture.table("t")
        found = {}

        def read(first: int) -> None:
            found[first] = capture.source.read_chunk(table, [str(first)], 500).rows

        threads = [threading.Thread(target=read, args=(first,)) for first in range(0, 5000, 500)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [row["id"] for first in sorted(found) for row in found[first]] == list(range(1, 5001))


def test_generated_columns_are_in_neither(postgres):
    postgres.run(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b int GENERATED ALWAYS AS (a * 2) STORED)"
    )
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1, 5)")
        (change,) = capture.changes(1)
        assert change.after == {"id": 1, "a": 5}
        assert capture.rows("t") == [change.after]
        assert change.table == capture.table("t")


def test_a_chunk_knows_which_transactions_it_saw(postgres):
    """Many transactions, open and committed in any order, also with savepoints and prepared ones:
    for each that the stream sends, the chunk has its row exactly if it says so.
    """
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    luck = random.Random(5)
    with capturing(postgres) as capture:
        table = capture.table("t")
        open_ones, taken, number, commits = [], [], 0, 0
        for step in range(120):
            if len(open_ones) < 4 or (len(open_ones) < 8 and luck.random() < 0.5):
                connection = postgres.connect()
                with connection.cursor() as cursor:
                    cursor.execute("SAVEPOINT a")
                    cursor.execute("INSERT INTO t VALUES (%s)", (number,))
                    cursor.execute("RELEASE a")
                open_ones.append((connection, number))
                number += 1
            else:
                connection, own = open_ones.pop(luck.randrange(len(open_ones)))
                if luck.random() < 0.2:
                    connection.rollback()
                elif luck.random() < 0.3:
                    with connection.cursor() as cursor:
                        cursor.execute(f"PREPARE TRANSACTION '{postgres.name}{own}'")
                    connection.commit()
                    taken.append(capture.source.read_chunk(table, None, 10000))
                    postgres.run(f"COMMIT PREPARED '{postgres.name}{own}'")
                    commits += 1
                else:
                    connection.commit()
                    commits += 1
                connection.close()
            if step % 5 == 0:
                taken.append(capture.source.read_chunk(table, None, 10000))
        transactions = capture.transactions(commits)
        for connection, _ in open_ones:
            connection.close()
    assert len(taken) > 20
    for chunk in taken:
        seen = {row["id"] for row in chunk.rows}
        for transaction in transactions:
            assert chunk.contains(transaction.begin) == (transaction.changes[0].after["id"] in seen)


def test_a_chunk_is_passed_when_all_it_contains_was_sent(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        taken = []
        for number in range(20):
            postgres.run("INSERT INTO t VALUES (%s)", number)
            taken.append(capture.source.read_chunk(capture.table("t"), None, 1000))
        transactions = capture.transactions(20)
        for number, chunk in enumerate(taken):
            assert not any(chunk.is_passed(t.begin.at) for t in transactions[:number])
        # Without any further write the stream passes the last one too, by PositionAdvanced; also if
        # reading has itself written log (after an UPDATE it prunes the page).
        capture.until(lambda _: taken[-1].is_passed(capture.position))
        postgres.run("UPDATE t SET id = id + 100")
        capture.transactions(1)
        for _ in range(3):
            chunk = capture.source.read_chunk(capture.table("t"), None, 1000)
            started = time.monotonic()
            capture.until(lambda _: chunk.is_passed(capture.position))  # noqa: B023
            assert time.monotonic() - started < 5


def test_transaction_ids_beyond_32_bits():
    snapshot = Snapshot(f"{2**32 + 10}:{2**32 + 20}:{2**32 + 10},{2**32 + 15}")
    visible = {12: True, 10: False, 15: False, 20: False, 9: True, 2**32 - 1: True, 30: False}
    assert {xid: snapshot.sees(xid) for xid in visible} == visible
    begin = Begin({"lsn": 1}, "x", 0, {"txId": None})
    assert chunks.PostgresChunk(None, [], None, snapshot, 5).contains(begin)


def test_rows_written_before_their_table_was_published(postgres):
    """Such rows are not in the stream, so the first chunk waits for their transaction."""
    with capturing(postgres, tables=("public.t*",)) as capture:
        postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
        writer = postgres.connect()
        with writer.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1)")
        table = capture.table("t")  # now it is published
        with writer.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (2)")
        result = []
        reader = threading.Thread(
            target=lambda: result.append(capture.source.read_chunk(table, None, 100))
        )
        reader.start()
        reader.join(0.5)
        assert not result
        writer.commit()
        writer.close()
        reader.join(60)
        assert [row["id"] for row in result[0].rows] == [1, 2]


def test_rows_hidden_by_a_policy_are_an_error(postgres):
    role = f"r_{postgres.name}"
    postgres.run("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    postgres.run(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT SELECT ON t TO {role}")
    try:
        capture = Capture(postgres)
        table = capture.table("t")
        capture.source.close()
        poor = Capture(postgres, source=Secret(postgres.server.url(postgres.name, role, "x")))
        with pytest.raises(SourceRefused, match="row-level security"):
            poor.source.read_chunk(table, None, 10)
        poor.source.close()
    finally:
        postgres.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_table_that_was_dropped(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        table = capture.table("t")
        postgres.run("DROP TABLE t")
        with pytest.raises(CaptureError, match=r"the table was dropped: public\.t"):
            capture.source.read_chunk(table, None, 10)


def test_estimate(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    postgres.run("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10000)")
    postgres.run("INSERT INTO t SELECT generate_series(1, 5000)")
    with capturing(postgres) as capture:
        assert capture.source.estimate_rows(capture.table("t")) is None
        postgres.run("ANALYZE t")
        assert capture.source.estimate_rows(capture.table("t")) == 5000
