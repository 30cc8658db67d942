"""What the stream of PostgreSQL sends, and that it goes on exactly where it was."""

import json
from types import SimpleNamespace

import pytest
from support.capture.postgres_capture import Capture, capturing

from headwater.capture.contract import Begin, Change, Commit, PositionAdvanced, SourcePosition
from headwater.capture.postgres.replication import stream as stream_module
from headwater.capture.postgres.replication.pgoutput import BEGIN, INSERT


def test_changes_come_in_whole_transactions(postgres):
    postgres.run("CREATE TABLE account (id int PRIMARY KEY, balance numeric(10,2), note text)")
    with capturing(postgres) as capture:
        postgres.transaction(
            "INSERT INTO account VALUES (1, 10.5, 'a'), (2, 20, NULL)",
            "UPDATE account SET balance = 11 WHERE id = 1",
            "UPDATE account SET id = 3 WHERE id = 2",
            "DELETE FROM account WHERE id = 1",
        )
        (transaction,) = capture.transactions(1)
    assert [(c.op, c.before, c.after) for c in transaction.changes] == [
        ("c", None, {"id": 1, "balance": "10.50", "note": "a"}),
        ("c", None, {"id": 2, "balance": "20.00", "note": None}),
        ("u", None, {"id": 1, "balance": "11.00", "note": "a"}),
        ("u", {"id": 2}, {"id": 3, "balance": "20.00", "note": None}),
        ("d", {"id": 1}, None),
    ]
    assert [c.ordinal for c in transaction.changes] == [0, 1, 2, 3, 4]
    assert transaction.commit == Commit(5)
    assert transaction.changes[0].table.id == "public.account"
    assert transaction.changes[0].table.key == ("id",)
    xid = transaction.begin.source["txId"]
    assert transaction.begin.id == f"{xid}:{transaction.begin.at['lsn']}"


def test_source_fields_are_those_of_debezium(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1)")
        postgres.run("INSERT INTO t VALUES (2)")
        first, second = capture.transactions(2)
    assert first.begin.source == {"txId": first.begin.source["txId"], "xmin": None}
    source = second.changes[0].source
    assert json.loads(source["sequence"]) == [str(first.begin.at["lsn"]), str(source["lsn"])]
    (committed,) = postgres.run("SELECT extract(epoch FROM now()) * 1000")
    assert abs(second.begin.ts_ms - float(committed[0])) < 60_000


def test_full_identity_reports_the_row_before(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
    postgres.run("ALTER TABLE t REPLICA IDENTITY FULL")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1, 'x')")
        postgres.run("UPDATE t SET a = 'y'")
        postgres.run("DELETE FROM t")
        _, updated, deleted = capture.changes(3)
    assert updated.before == {"id": 1, "a": "x"}
    assert deleted.before == {"id": 1, "a": "y"}
    assert updated.table.key == ("id",)


def test_truncate_and_messages(postgres):
    postgres.run("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        postgres.run("TRUNCATE a, b")
        postgres.run("SELECT pg_logical_emit_message(true, 'app', 'inside')")
        postgres.run("SELECT pg_logical_emit_message(false, 'app', 'outside')")
        postgres.run("SELECT pg_logical_emit_message(false, 'headwater.heartbeat', '')")
        postgres.run("INSERT INTO a VALUES (1)")
        truncated, inside, outside, inserted = capture.transactions(4)
    assert sorted((c.op, c.table.name, c.ordinal) for c in truncated.changes) in (
        [("t", "a", 0), ("t", "b", 1)],
        [("t", "a", 1), ("t", "b", 0)],
    )
    assert truncated.commit == Commit(2)
    assert [(m.prefix, m.content) for m in inside.messages] == [("app", b"inside")]
    assert [(m.prefix, m.content) for m in outside.messages] == [("app", b"outside")]
    positions = [t.begin.at["lsn"] for t in (truncated, inside, outside, inserted)]
    assert positions == sorted(set(positions))


def test_resumes_behind_each_transaction(postgres):
    """From every position on, exactly the rest comes: also for rows of COPY, which share an LSN,
    and for messages next to commits.
    """
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    first = Capture(postgres)
    start = first.open()
    for i in range(5):
        postgres.run("INSERT INTO t SELECT %s * 10 + g FROM generate_series(0, 3) g", i)
        postgres.run("SELECT pg_logical_emit_message(false, 'app', 'between')")
        postgres.run("SELECT pg_logical_emit_message(true, 'app', 'alone')")
    everything = first.transactions(15)
    first.source.close()

    for done in range(15):
        at = everything[done - 1].begin.at if done else start
        again = Capture(postgres)
        again.open(SourcePosition(at))
        rest = again.transactions(15 - done) if done < 15 else []
        again.source.close()
        assert [_content(t) for t in rest] == [_content(t) for t in everything[done:]]


def test_resumes_inside_of_a_transaction(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t SELECT generate_series(1, 10)")
        (transaction,) = capture.transactions(1)
    for done in (0, 4, 10):
        again = Capture(postgres)
        again.open(SourcePosition(transaction.begin.at, done))
        (rest,) = again.transactions(1)
        again.source.close()
        assert rest.begin == transaction.begin
        assert rest.events == transaction.events[done:]
        assert rest.commit == Commit(10)


def test_acknowledged_log_is_let_go(postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(postgres) as capture:
        postgres.run("INSERT INTO t VALUES (1)")
        capture.transactions(1)
        assert capture.source.lag(capture.position).size_bytes >= 0
        capture.source.acknowledge(capture.position)
        confirmed = (
            "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots "
            "WHERE database = current_database()"
        )
        log_position = capture.position["lsn"]
        capture.until(lambda _: postgres.run(confirmed)[0][0] == log_position + 1)


def test_a_quiet_database_makes_progress(postgres, postgres_server):
    """Others write, in their databases: what they log must not be held for us."""
    with capturing(postgres) as capture, postgres_server.database() as other:
        other.run("CREATE TABLE noise AS SELECT generate_series(1, 1000)")
        (end,) = other.run("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        capture.until(
            lambda _: any(
                isinstance(e, PositionAdvanced) and e.at["lsn"] + 1 >= end[0] for e in capture.loose
            )
        )


def test_heartbeats_are_not_published(postgres):
    with capturing(postgres, heartbeat_s=0.05) as capture:
        start = capture.position["lsn"]
        seen = capture.until(lambda _: capture.position["lsn"] > start + 300)
    assert seen == []


def _content(transaction):
    return (
        transaction.begin.at,
        [
            (e.op, e.after, e.ordinal) if isinstance(e, Change) else (e.prefix, e.content)
            for e in transaction.events
        ],
        isinstance(transaction.begin, Begin),
    )


def test_small_transactions_of_other_tables_give_signs_of_life(monkeypatch):
    """Without them a capture that reads only such ones neither stops nor stores its position."""
    monkeypatch.setattr(stream_module, "IDLE_S", -1.0)
    payloads = [bytes([kind]) for _ in range(3) for kind in (BEGIN, INSERT)]

    class Decoder:
        ordinal = 0

        def row_change(self, kind, data, lsn):
            self.ordinal += 1

        def other(self, kind, data, lsn):
            self.ordinal = 0
            return ()

    class Cursor:
        def read_message(self):
            if not payloads:
                raise EndOfTest
            return SimpleNamespace(payload=payloads.pop(0), data_start=0)

    class EndOfTest(Exception):
        pass

    stream = object.__new__(stream_module.ChangeStream)
    stream._cursor, stream._decoder = Cursor(), Decoder()
    events = stream.events(list)
    assert [next(events) for _ in range(3)] == [None, None, None]
    with pytest.raises(EndOfTest):
        next(events)
