"""What goes wrong with one table stays with it; what goes wrong with a run ends all of it."""

import contextlib
import dataclasses
import threading
import time

import pytest
from confluent_kafka.admin import AdminClient
from support.capture.capture_harness import read, replayed
from support.capture.memory_source import ACCOUNTS, MemoryDatabase, MemorySource
from support.wire import wait_until
from test_runner import (
    TOPIC,
    ask_for_copy,
    bootstrap,
    broker,
    captured,
    created,
    db,
    table_of,
)

from headwater.capture import runner
from headwater.capture.contract import Column, PositionAdvanced, SchemaChange, SourcePosition, Table
from headwater.capture.positions import TOPIC as POSITIONS
from headwater.capture.positions import CapturePosition, TableState, decode, encode_capture
from headwater.capture.tables import snapshots
from headwater.errors import CaptureError, PositionLost, SourceUnreachable

__all__ = ["bootstrap", "broker", "db"]  # fixtures

ORDERS = Table("public", "orders", (Column("id", "int"), Column("text", "text")), ("id",))


@pytest.fixture
def two(monkeypatch):
    """A database with two tables."""
    db = MemoryDatabase(ACCOUNTS, ORDERS)
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(db))
    return db


def order(number: int, text: str = "") -> tuple:
    return ("public.orders", "c", None, {"id": number, "text": text})


def failure_of(capture, table_id: str = "public.orders"):
    return capture.stored().tables[table_id].failed


@pytest.fixture(autouse=True)
def _no_threads_are_left():
    """Neither of a run that was stopped nor of one that failed."""
    names = ("lag", "writer", "signals", "snapshot-0", "snapshot-1")
    yield
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name in names], 3)


def test_a_record_that_its_topic_does_not_take_fails_its_table_only(bootstrap, two):
    config = {"max.message.bytes": "20000"}
    with captured(bootstrap, snapshot="never", topic_config=config) as capture:
        capture.wait_until(lambda: two.opened == 1)
        two.transact(created(1), order(1))
        capture.wait_until(lambda: two.acknowledged == 1)
        noise = "".join(chr(0x4E00 + n * 7919 % 20_000) for n in range(20_000))
        two.transact(order(2, noise), created(2))
        two.transact(created(3), order(3))
        capture.wait_until(lambda: two.acknowledged == 3)
        failed = failure_of(capture)
        assert "bytes in one batch" in failed.what
        assert "max.message.bytes" in failed.hint
        assert "capture snapshot shop --table public.orders" in failed.hint
        assert set(capture.state.failed_tables) == {"public.orders"}
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == [1, 2, 3]
    assert [record.key["id"] for record in read(bootstrap, "shop.public.orders")] == [1]


def test_a_topic_that_another_client_deleted_has_all_rows_again(bootstrap, db):
    db.transact(created(1), created(2))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([TOPIC])[TOPIC].result(60)
    db.transact(created(3))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
        capture.wait_until(lambda: db.acknowledged == 2)
    assert replayed(read(bootstrap, TOPIC)) == table_of(db)


def test_many_records_for_a_topic_that_takes_small_batches(bootstrap, two):
    two.transact(*(order(n, "".join(map(chr, range(200 + n, 260 + n)))) for n in range(2000)))
    with captured(bootstrap, topic_config={"max.message.bytes": "5000"}) as capture:
        capture.wait_for_copies("public.orders")
    assert failure_of(capture) is None
    assert replayed(read(bootstrap, "shop.public.orders")) == table_of(two, "public.orders")


def test_a_topic_that_cannot_be_created_fails_its_table_only(bootstrap, two, monkeypatch):
    from headwater.capture.publishing import topics
    from headwater.errors import RequestRefused

    ensure = topics.ensure_topics

    def refuse(bootstrap, login, wanted):
        if any(topic.name == "shop.public.orders" for topic in wanted):
            raise RequestRefused("topic shop.public.orders cannot be created", hint="ask")
        ensure(bootstrap, login, wanted)

    monkeypatch.setattr(topics, "ensure_topics", refuse)
    two.transact(created(1), order(1))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
        assert failure_of(capture).what == "topic shop.public.orders cannot be created"
        ask_for_copy(bootstrap, "public.orders")  # too early
        two.transact(created(2), order(2))
        capture.wait_until(lambda: two.acknowledged == 2)
        assert failure_of(capture) is not None
        monkeypatch.setattr(topics, "ensure_topics", ensure)
        ask_for_copy(bootstrap, "public.orders")
        capture.wait_until(lambda: "public.orders" in capture.state.snapshots)
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == [1, 2]
    assert replayed(read(bootstrap, "shop.public.orders")) == table_of(two, "public.orders")


def test_a_table_that_cannot_be_shaped_can_be_asked_for_without_harm(bootstrap, two):
    """Its plan cannot be made: it is no outbox. Asking for it again must not end every run."""
    two.transact(created(1), order(1))
    with captured(bootstrap, outbox="public.orders") as capture:
        capture.wait_for_copies("public.accounts")
        capture.wait_until(lambda: "public.orders" in capture.state.failed_tables)
        signals = capture.stored().capture.signals
        ask_for_copy(bootstrap, "public.orders")
        capture.wait_until(lambda: capture.stored().capture.signals > signals)
        two.transact(created(2))
        capture.wait_until(lambda: two.acknowledged == 2)
        assert "is no outbox" in failure_of(capture).what


def test_a_table_that_is_dropped_while_a_chunk_of_it_is_read(bootstrap, db):
    reading, may_fail = threading.Event(), threading.Event()

    def gone() -> None:
        reading.set()
        assert may_fail.wait(60)
        raise CaptureError("no such table")

    db.before_chunk = gone
    with captured(bootstrap, heartbeat_s=0.1) as capture:
        capture.wait_until(reading.is_set)
        del db.tables["public.accounts"]
        db.transact(SchemaChange("public.accounts", None, "drop table accounts"))
        capture.wait_until(lambda: db.acknowledged == 1)
        may_fail.set()
        capture.wait_until(lambda: capture.stored().capture.position.at == {"n": 1})
        db.transact()
        capture.wait_until(lambda: db.acknowledged == 2)
    assert capture.stored().tables == {}


def test_a_row_that_json_cannot_hold_among_several_chunks(bootstrap, two, monkeypatch):
    monkeypatch.setattr(snapshots, "FIRST_CHUNK_ROWS", 2)
    two.transact(created(1), *(order(n, "\udc80" if n == 1 else "") for n in range(10)))
    with captured(bootstrap, chunk_rows=2) as capture:
        capture.wait_for_copies("public.accounts")
        capture.wait_until(lambda: "public.orders" in capture.state.failed_tables)
        two.transact(created(2))
        capture.wait_until(lambda: two.acknowledged == 2)
    assert "cannot be written as JSON" in failure_of(capture).what


def test_a_row_whose_key_json_cannot_hold_while_its_table_is_copied(bootstrap, monkeypatch):
    named = Table("public", "orders", ORDERS.columns, ("text",))
    two = MemoryDatabase(ACCOUNTS, named)
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(two))
    may_read = threading.Event()
    two.before_chunk = lambda: may_read.wait(60)
    with captured(bootstrap) as capture:
        capture.wait_until(lambda: len(capture.stored().tables) == 2)
        two.transact(order(1, "\udc80"), created(1))
        capture.wait_until(lambda: "public.orders" in capture.state.failed_tables)
        may_read.set()
        capture.wait_for_copies("public.accounts")
        capture.wait_until(lambda: two.acknowledged == 1)
    assert replayed(read(bootstrap, TOPIC)) == table_of(two)


def test_an_unexpected_error_of_the_source_ends_the_run(bootstrap, db):
    db.before_chunk = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError), captured(bootstrap) as capture:
        capture._thread.join(60)
    db.before_chunk = lambda: None
    db.failure = ZeroDivisionError("in the stream")
    with pytest.raises(ZeroDivisionError), captured(bootstrap) as capture:
        capture._thread.join(60)


def test_the_key_changes_while_the_table_is_copied(bootstrap, db, monkeypatch):
    """Where the copy was, by the old key, is no position by the new one."""
    monkeypatch.setattr(snapshots, "FIRST_CHUNK_ROWS", 10)
    db.transact(*(created(n, 100 - n) for n in range(100)))

    class Interrupted(MemorySource):
        def acknowledge(self, log_position):
            state = capture.stored().tables["public.accounts"]
            if state.snapshot.after is not None and db.opened == 1:
                raise SourceUnreachable("gone")

    monkeypatch.setattr(runner, "source_of", lambda *_: Interrupted(db))
    db.before_chunk = lambda: time.sleep(0.1)  # so that some are committed before the others
    with pytest.raises(SourceUnreachable), captured(bootstrap, chunk_rows=10) as capture:
        capture._thread.join(60)
    db.before_chunk = lambda: None
    assert capture.stored().tables["public.accounts"].snapshot.after is not None
    db.tables["public.accounts"] = dataclasses.replace(ACCOUNTS, key=("balance",))
    rows = list(db.rows["public.accounts"].values())
    db.rows["public.accounts"] = {(row["balance"],): row for row in rows}
    with captured(bootstrap, chunk_rows=10) as capture:
        capture.wait_for_copies("public.accounts")
    table = replayed(read(bootstrap, TOPIC))
    assert sorted(row["id"] for row in table.values()) == list(range(100))


def test_progress_in_front_of_a_transaction_that_is_half_done(bootstrap, db, monkeypatch):
    """What is half done is not forgotten, however often the position is stored meanwhile."""
    monkeypatch.setattr(runner, "SPLIT_BYTES", 5_000)
    monkeypatch.setattr(runner, "SPLIT_LOOK", 10)
    monkeypatch.setattr("headwater.capture.publishing.writer.PART_BYTES", 2_000)

    class Hesitant(MemorySource):
        def changes(self, after: SourcePosition):
            if after.changes is not None:
                for _ in range(10):
                    time.sleep(0.02)  # several heartbeats
                    yield PositionAdvanced({"n": after.at["n"] - 1})
                    yield None
                if db.opened < 4:
                    raise SourceUnreachable("again")
            yield from super().changes(after)

    monkeypatch.setattr(runner, "source_of", lambda *_: Hesitant(db))
    settings = {"snapshot": "never", "heartbeat_s": 0.02}
    with pytest.raises(SourceUnreachable), captured(bootstrap, **settings) as capture:
        capture.wait_until(lambda: db.opened == 1)
        first, rest = ([created(n) for n in numbers] for numbers in (range(150), range(150, 200)))
        db.transact(*first, SourceUnreachable("gone"), *rest)
        capture._thread.join(60)
    for _ in range(2):
        with pytest.raises(SourceUnreachable), captured(bootstrap, **settings) as capture:
            capture._thread.join(60)
    with captured(bootstrap, **settings) as capture:
        capture.wait_until(lambda: db.acknowledged == 1)
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == list(range(200))


def test_a_stop_while_the_broker_is_away(tmp_path, db, monkeypatch):
    from headwater.testing import InProcessBroker

    monkeypatch.setattr(runner, "END_S", 0.5)
    monkeypatch.setattr("headwater.capture.publishing.writer.STOP_S", 0.5)
    monkeypatch.setattr("headwater.capture.publishing.writer.CLOSE_S", 0.5)
    monkeypatch.setattr("headwater.capture.publishing.writer.GROUP_BYTES", 1_000)
    with InProcessBroker.serving(str(tmp_path)) as broker:
        running = captured(broker.bootstrap, snapshot="never")
        capture = running.__enter__()
        capture.wait_until(lambda: db.opened == 1)
        db.transact(created(1))
        capture.wait_until(lambda: db.acknowledged == 1)
    for number in range(2, 100):
        db.transact(created(number), created(1000 + number))
    time.sleep(0.3)  # it may be anywhere in what it does then
    began_s = time.monotonic()
    running.__exit__(None, None, None)
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_the_end_in_the_midst_of_a_transaction_leaves_none_open(bootstrap, db, monkeypatch, how):
    monkeypatch.setattr("headwater.capture.publishing.writer.PART_BYTES", 2_000)
    ending = threading.Event()

    class Interrupted(MemorySource):
        def changes(self, after: SourcePosition):
            for event in super().changes(after):
                yield event
                if getattr(event, "ordinal", 0) == 99 and not ending.is_set():
                    ending.set()
                    if how == "failed":
                        raise SourceUnreachable("gone")
                    capture._stop.set()

    monkeypatch.setattr(runner, "source_of", lambda *_: Interrupted(db))
    with contextlib.suppress(SourceUnreachable), captured(bootstrap, snapshot="never") as capture:
        capture.wait_until(lambda: db.opened == 1)
        db.transact(*(created(n) for n in range(200)))
        capture._thread.join(60)
    assert ending.is_set()
    uncommitted = read(bootstrap, TOPIC, "read_uncommitted")
    assert 0 < len(uncommitted) < 200
    assert read(bootstrap, TOPIC) == []
    assert open_transactions(bootstrap) == []
    with captured(bootstrap, snapshot="never") as capture:
        capture.wait_until(lambda: db.acknowledged == 1)
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == list(range(200))


def open_transactions(bootstrap: str) -> list[str]:
    from headwater.client.cluster import Cluster
    from headwater.protocol.messages.list_transactions import (
        ListTransactionsRequest,
        ListTransactionsResponse,
    )
    from headwater.settings import ClientSettings

    cluster = Cluster(bootstrap, ClientSettings())
    try:
        request = ListTransactionsRequest(state_filters=["Ongoing"])
        answer = cluster.ask_any(
            request, ListTransactionsResponse, cluster.patience(""), first=0, last=0
        )
        return [transaction.transactional_id for transaction in answer.transaction_states]
    finally:
        cluster.close()


def test_positions_of_other_versions():
    at = CapturePosition(SourcePosition({"n": 1}), 7, signals=3)
    import orjson

    stored = orjson.loads(encode_capture(at))
    del stored["owner"], stored["counts"]
    stored |= {"later": 1, "lag": {"size_bytes": 5, "unknown": 6}}
    table = dataclasses.asdict(TableState(dataclasses.replace(ORDERS, documents=True)))
    table["table"]["colour"] = "red"
    table["table"]["columns"][0]["width"] = 4
    table["snapshot"] = {"kind": "true", "speed": 9}
    records = {b"shop": orjson.dumps(stored), b"shop/public.orders": orjson.dumps(table)}
    found = decode("shop", records)
    assert (found.capture.position, found.capture.signals) == (SourcePosition({"n": 1}), 3)
    assert found.capture.lag.size_bytes == 5
    assert found.tables["public.orders"].table == dataclasses.replace(ORDERS, documents=True)
    for damaged in (b"", b"[]", b"{}", b"null", b"\xff", b'{"at": 1}'):
        with pytest.raises(PositionLost, match=POSITIONS):
            decode("shop", {b"shop": damaged})
        with pytest.raises(PositionLost, match=POSITIONS):
            decode("shop", {b"shop/public.orders": damaged})
