"""One run of a capture after the other: nothing lost, nothing twice, whatever happens between."""

import dataclasses
import json
import threading

import pytest
from support.capture.capture_harness import read, replayed, running
from support.capture.memory_source import ACCOUNTS, NOTES, MemoryDatabase, MemorySource
from support.wire import wait_until

from headwater.capture import positions, runner
from headwater.capture.contract import Column, SchemaChange, StorageChange, Table, TableFailed
from headwater.capture.positions import SIGNALS_TOPIC
from headwater.capture.signals import encode
from headwater.capture.tables import snapshots
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import CaptureError, ConfigError, Fenced, SourceUnreachable
from headwater.settings import ClientSettings
from headwater.testing import InProcessBroker

TOPIC = "shop.public.accounts"


def row(number: int, balance: int = 0) -> dict:
    return {"id": number, "balance": balance}


def created(number: int, balance: int = 0) -> tuple:
    return ("public.accounts", "c", None, row(number, balance))


def updated(number: int, balance: int) -> tuple:
    return ("public.accounts", "u", None, row(number, balance))


def deleted(number: int) -> tuple:
    return ("public.accounts", "d", {"id": number}, None)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        yield broker


@pytest.fixture
def bootstrap(broker):
    """An address, with no topic of the test before."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topics = [topic for topic in admin.list_topics(timeout=60).topics if "shop" in topic]
    for future in (
        admin.delete_topics([*topics, "__headwater_positions", "__headwater_signals"]).values()
        if topics
        else ()
    ):
        future.result(60)
    return broker.bootstrap


@pytest.fixture
def db(monkeypatch):
    db = MemoryDatabase()
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(db))
    return db


def captured(bootstrap, **settings):
    return running(bootstrap, "sqlite:///unused", **settings)


def table_of(db, name: str = "public.accounts") -> dict:
    return {f'{{"id": {row["id"]}}}': row for row in db.rows[name].values()}


def test_copy_then_changes(bootstrap, db):
    db.transact(*(created(n, n) for n in range(10)))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
        db.transact(created(100), updated(3, 33))
        db.transact(deleted(4))
        capture.wait_until(lambda: db.acknowledged == 3)
    records = read(bootstrap, TOPIC)
    assert [record.op for record in records] == ["r"] * 10 + ["c", "u", "d", None]
    assert replayed(records) == table_of(db)
    assert capture.stored().capture.position.at == {"n": 3}


def test_a_restart_goes_on_where_it_was(bootstrap, db):
    for number in range(5):
        with captured(bootstrap) as capture:
            db.transact(created(number), updated(number, 1))
            capture.wait_until(lambda: capture.stored().capture is not None)
            capture.wait_until(lambda: db.acknowledged == len(db.log))
    records = read(bootstrap, TOPIC)
    assert replayed(records) == table_of(db)
    changes = [record for record in records if record.op in ("c", "u")]
    assert len(changes) + len([record for record in records if record.op == "r"]) <= 11
    assert len(
        {(change.value["source"]["txId"], change.value["source"]["lsn"]) for change in changes}
    ) == len(changes)


def test_a_failing_source_is_followed_from_where_it_was(bootstrap, db):
    with pytest.raises(SourceUnreachable), captured(bootstrap, snapshot="never") as capture:
        capture.wait_until(lambda: db.opened == 1)
        db.transact(created(1))
        capture.wait_until(lambda: db.acknowledged == 1)
        db.failure = SourceUnreachable("gone")
        db.transact(created(2))
        capture._thread.join(60)
    with captured(bootstrap, snapshot="never") as capture:
        capture.wait_until(lambda: db.acknowledged == 2)
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == [1, 2]


def test_a_new_run_fences_the_old_one(bootstrap, db):
    with pytest.raises(Fenced), captured(bootstrap, snapshot="never") as old:
        old.wait_until(lambda: db.opened == 1)
        db.transact(created(1))
        old.wait_until(lambda: db.acknowledged == 1)
        with captured(bootstrap, snapshot="never") as new:
            new.wait_until(lambda: db.opened == 2)
            db.transact(created(2))
            new.wait_until(lambda: len(read(bootstrap, TOPIC)) == 2)
            old._thread.join(60)
            db.transact(created(3))
            new.wait_until(lambda: db.acknowledged == 3)
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == [1, 2, 3]


def test_a_chunk_lacks_what_the_stream_has_newer(bootstrap, db, monkeypatch):
    """Every read of a chunk is followed by changes to its rows, before it is published."""
    monkeypatch.setattr(snapshots, "FIRST_CHUNK_ROWS", 10)
    db.transact(*(created(n) for n in range(100)))
    rounds = []

    def change_some() -> None:
        rounds.append(None)
        number = len(rounds)
        db.transact(updated(number, number), deleted(number + 20), created(1000 + number))

    db.before_chunk = change_some
    with captured(bootstrap, chunk_rows=10) as capture:
        capture.wait_for_copies("public.accounts")
        db.before_chunk = lambda: None
        capture.wait_until(lambda: db.acknowledged == len(db.log))
    assert replayed(read(bootstrap, TOPIC)) == table_of(db)


def test_a_transaction_in_limbo_is_not_undone_by_a_chunk(bootstrap, db):
    db.transact(created(1, 1), created(2, 1))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
        db.transact(updated(1, 2), limbo=True)
        capture.wait_until(lambda: db.acknowledged == 2)
        ask_for_copy(bootstrap, "public.accounts")
        capture.wait_until(lambda: db.chunks_read > 3)
        db.end_limbo()
        capture.wait_until(lambda: len(read(bootstrap, TOPIC)) == 5)
    records = read(bootstrap, TOPIC)
    assert replayed(records) == table_of(db)
    assert [record.value["after"]["balance"] for record in records if record.key == {"id": 1}] == [
        1,
        2,
        2,
    ]


def test_a_transaction_in_limbo_is_not_undone_by_a_chunk_of_another_run(bootstrap, db):
    db.transact(created(1, 1), created(2, 1))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
        db.transact(updated(1, 2), limbo=True)
        capture.wait_until(lambda: db.acknowledged == 2)
    before = db.chunks_read
    with captured(bootstrap) as capture:
        ask_for_copy(bootstrap, "public.accounts")
        capture.wait_until(lambda: db.chunks_read > before + 2)
        assert len(read(bootstrap, TOPIC)) == 3
        db.end_limbo()
        capture.wait_until(lambda: len(read(bootstrap, TOPIC)) == 5)
    assert replayed(read(bootstrap, TOPIC)) == table_of(db)


def test_what_a_copy_without_keys_contains_is_stored_for_the_next_run(bootstrap, monkeypatch):
    """It fails when all of the table is in the topic, and the stream has not come that far."""
    db = MemoryDatabase(NOTES)

    class Slow(MemorySource):
        def changes(self, after):
            if db.opened == 1:
                while not is_copied():
                    yield None
                raise SourceUnreachable("gone")
            yield from super().changes(after)

        def read_chunk(self, table, after, limit_rows):
            db.transact(("public.notes", "c", None, {"text": f"note {db.chunks_read}"}))
            return super().read_chunk(table, after, limit_rows)

    def is_copied() -> bool:
        records = read_committed_latest(bootstrap, ClientSettings(), positions.TOPIC)
        notes = positions.decode("shop", records).tables.get("public.notes")
        return notes is not None and notes.snapshot.is_done

    monkeypatch.setattr(runner, "source_of", lambda *_: Slow(db))
    with pytest.raises(SourceUnreachable), captured(bootstrap) as capture:
        capture._thread.join(60)
    assert capture.stored().tables["public.notes"].snapshot.passing is not None
    with captured(bootstrap, heartbeat_s=0.05) as capture:
        capture.wait_until(lambda: capture.stored().capture.position.at == {"n": 1})
        db.transact(("public.notes", "c", None, {"text": "new"}))
        capture.wait_until(lambda: db.acknowledged == 2)
    records = read(bootstrap, "shop.public.notes")
    assert [(record.op, record.value["after"]["text"]) for record in records] == [
        ("r", "note 0"),
        ("c", "new"),
    ]
    assert capture.stored().tables["public.notes"].snapshot.passing is None


def test_a_large_copy_without_keys_becomes_several_transactions(bootstrap, monkeypatch):
    """And restarts if it fails between two of them."""
    monkeypatch.setattr("headwater.capture.tables.copies.PIECE_ROWS", 10)
    db = MemoryDatabase(NOTES)

    class Failing(MemorySource):
        def read_chunk(self, table, after, limit_rows):
            chunk = super().read_chunk(table, after, limit_rows)
            if db.opened == 1:
                chunk.rows = failing(chunk.rows)
            return chunk

    def failing(rows):
        yield from rows[:60]
        wait_until(lambda: read(bootstrap, "shop.public.notes"), 60, "the first piece")
        raise SourceUnreachable("gone")

    monkeypatch.setattr(runner, "source_of", lambda *_: Failing(db))
    db.transact(*(("public.notes", "c", None, {"text": f"note {n:03}"}) for n in range(100)))
    with pytest.raises(SourceUnreachable), captured(bootstrap) as capture:
        capture._thread.join(60)
    first = read(bootstrap, "shop.public.notes")
    assert 0 < len(first) <= 60
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.notes")
    records = read(bootstrap, "shop.public.notes")[len(first) :]
    assert [record.op for record in records] == ["t", *["r"] * 100]
    assert [record.value["after"]["text"] for record in records[1:]] == [
        f"note {n:03}" for n in range(100)
    ]


def test_a_transaction_in_limbo_is_not_undone_by_a_copy_without_keys(bootstrap, monkeypatch):
    monkeypatch.setattr("headwater.capture.tables.copies.AGAIN_S", 0.02)
    db = MemoryDatabase(NOTES)
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(db))
    db.transact(("public.notes", "c", None, {"text": "old"}))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.notes")
        db.transact(("public.notes", "c", None, {"text": "in limbo"}), limbo=True)
        capture.wait_until(lambda: db.acknowledged == 2)
        before = db.chunks_read
        ask_for_copy(bootstrap, "public.notes")
        capture.wait_until(lambda: db.chunks_read > before + 2)
        assert len(read(bootstrap, "shop.public.notes")) == 2
        db.end_limbo()
        capture.wait_until(lambda: len(read(bootstrap, "shop.public.notes")) == 5)
    records = read(bootstrap, "shop.public.notes")
    assert [record.op for record in records] == ["r", "c", "t", "r", "r"]


def ask_for_copy(bootstrap: str, *table_ids: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(SIGNALS_TOPIC, encode("1", list(table_ids)), "shop")
    producer.flush(60)


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({"type": "BLOCKING"}, "BLOCKING"),
        (
            {"additional-conditions": [{"data-collection": "public.accounts", "filter": "id > 1"}]},
            "additional-conditions",
        ),
        ({"type": "incremental", "surrogate-key": "balance"}, "surrogate-key"),
    ],
)
def test_a_signal_that_wants_something_else_is_refused(bootstrap, db, caplog, wish, named):
    from confluent_kafka import Producer

    db.transact(created(1))
    with captured(bootstrap, heartbeat_s=0.2) as capture:
        capture.wait_for_copies("public.accounts")
        data = {"data-collections": ["public.accounts"], **wish}
        producer = Producer({"bootstrap.servers": bootstrap})
        producer.produce(
            SIGNALS_TOPIC, json.dumps({"id": "1", "type": "execute-snapshot", "data": data}), "shop"
        )
        producer.flush(60)
        capture.wait_until(lambda: "a signal is refused" in caplog.text)
        ask_for_copy(bootstrap, "public.accounts")  # a valid request afterwards is served
        capture.wait_until(lambda: len(read(bootstrap, TOPIC)) == 2)
    assert named in caplog.text
    assert len(read(bootstrap, TOPIC)) == 2


def test_a_copy_goes_on_in_the_middle_after_a_crash(bootstrap, db, monkeypatch):
    monkeypatch.setattr(snapshots, "FIRST_CHUNK_ROWS", 10)
    db.transact(*(created(n) for n in range(1000)))

    def rows_copied() -> int:
        found = capture.stored().tables.get("public.accounts")
        return found.snapshot.rows if found is not None and found.snapshot is not None else 0

    def fail_later() -> None:
        if db.chunks_read == 30:
            capture.wait_until(rows_copied)  # another thread commits them
            db.failure = SourceUnreachable("gone")

    db.before_chunk = fail_later
    with pytest.raises(SourceUnreachable), captured(bootstrap, chunk_rows=10) as capture:
        capture._thread.join(60)
    db.before_chunk = lambda: None
    assert 0 < rows_copied() < 1000
    with captured(bootstrap, chunk_rows=10) as capture:
        capture.wait_for_copies("public.accounts")
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == list(range(1000))
    assert capture.stored().tables["public.accounts"].snapshot.rows == 1000


def test_a_table_without_a_key(bootstrap, monkeypatch):
    db = MemoryDatabase(NOTES)
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(db))
    for n in range(5):
        db.transact(("public.notes", "c", None, {"text": f"old {n}"}))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.notes")
        db.transact(("public.notes", "c", None, {"text": "new"}))
        capture.wait_until(lambda: db.acknowledged == 6)
    records = read(bootstrap, "shop.public.notes")
    assert [record.value["after"]["text"] for record in records] == [
        *(f"old {n}" for n in range(5)),
        "new",
    ]
    assert all(record.key is None for record in records)


def test_a_full_disk_stops_only_the_table_that_needs_it(bootstrap, monkeypatch):
    db = MemoryDatabase(NOTES, ACCOUNTS)
    may_read = threading.Event()

    class Slow(MemorySource):
        def read_chunk(self, table, after, limit_rows):
            assert table.key or may_read.wait(60)
            return super().read_chunk(table, after, limit_rows)

    def full(*_) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "source_of", lambda *_: Slow(db))
    monkeypatch.setattr("headwater.capture.tables.whole_copy.ChangeBuffer.add", full)
    try:
        with captured(bootstrap) as capture:
            capture.wait_for_copies("public.accounts")
            db.transact(("public.notes", "c", None, {"text": "x"}), created(1))
            capture.wait_until(lambda: "public.notes" in capture.state.failed_tables)
            capture.wait_until(lambda: len(read(bootstrap, TOPIC)) == 1)
            failed = capture.stored().tables["public.notes"].failed
            assert "No space left" in failed.detail
            assert "TMPDIR" in failed.hint
    finally:
        may_read.set()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_copy_without_keys_does_not_stop_the_stream(bootstrap, monkeypatch, is_first):
    """Neither while it is read nor while its rows are published; no change of it is lost, twice, or
    in front of the rows that it speaks of.
    """
    monkeypatch.setattr("headwater.capture.tables.copies.PIECE_ROWS", 1)
    db = MemoryDatabase(NOTES, ACCOUNTS)
    begun, go_on, published, rest = (threading.Event() for _ in range(4))

    class Slow(MemorySource):
        def read_chunk(self, table, after, limit_rows):
            if table.key or not (is_first or begun.is_set() or wants_slow.is_set()):
                return super().read_chunk(table, after, limit_rows)
            begun.set()
            note("contained")
            chunk = super().read_chunk(table, after, limit_rows)
            chunk.rows = slowly(chunk.rows)
            assert go_on.wait(60)
            return chunk

    def slowly(rows):
        yield rows[0]
        published.set()
        assert rest.wait(60)
        yield from rows[1:]

    def note(text: str, op: str = "c") -> None:
        row = {"text": text}
        db.transact(("public.notes", op, *((None, row) if op == "c" else (row, None))))

    def follows(number: int) -> None:
        """The other table does."""
        db.transact(created(number))
        capture.wait_until(
            lambda: {"id": number} in [record.key for record in read(bootstrap, TOPIC)]
        )

    wants_slow = threading.Event()
    monkeypatch.setattr(runner, "source_of", lambda *_: Slow(db))
    note("old 0")
    note("old 1")
    with captured(bootstrap, heartbeat_s=0.2) as capture:
        if not is_first:
            capture.wait_for_copies("public.notes")
            wants_slow.set()
            ask_for_copy(bootstrap, "public.notes")
        capture.wait_until(begun.is_set)
        capture.wait_until(lambda: len(db.rows["public.notes"]) == 3)
        follows(1)
        note("while it is read")
        note("old 0", "d")
        follows(2)
        go_on.set()
        capture.wait_until(published.is_set)
        note("while it is published")
        rest.set()
        follows(3)
        capture.wait_for_copies("public.notes")
        note("after")
        follows(4)
    held: list[str] = []
    records = read(bootstrap, "shop.public.notes")
    for record in records:
        if record.op == "t":
            held.clear()
        elif record.op == "d":
            held.remove(record.value["before"]["text"])
        else:
            held.append(record.value["after"]["text"])
    assert sorted(held) == sorted(row["text"] for row in db.rows["public.notes"].values())
    copied = [record.value["after"]["text"] for record in records if record.op == "r"]
    assert copied[-3:] == ["contained", "old 0", "old 1"]
    assert capture.stored().tables["public.notes"].snapshot.is_done


def test_many_tables_that_were_rewritten_are_looked_at_once(bootstrap, monkeypatch):
    """A migration rewrites all of them, and a look at all takes a while."""
    tables = [dataclasses.replace(ACCOUNTS, name=f"t{number}") for number in range(20)]
    ids = [table.id for table in tables]
    db = MemoryDatabase(*tables)
    looks = 0

    class Rewritten(MemorySource):
        def tables(self):
            nonlocal looks
            looks += 1
            return super().tables()

        def changes(self, after):
            nonlocal looks
            for event in super().changes(after):
                if migrated.is_set():
                    migrated.clear()
                    looks = 0
                    yield from (
                        StorageChange(table_id, {"file": 2}, is_rewritten=True) for table_id in ids
                    )
                yield event

    migrated = threading.Event()
    monkeypatch.setattr(runner, "source_of", lambda *_: Rewritten(db))
    with captured(bootstrap, heartbeat_s=0.2) as capture:
        capture.wait_for_copies(*ids)
        migrated.set()
        capture.wait_until(
            lambda: all(
                table.storage == {"file": 2} and table.snapshot.is_done
                for table in capture.stored().tables.values()
            )
        )
        copied = {table.snapshot.kind for table in capture.stored().tables.values()}
        assert looks < len(tables)
    assert copied == {positions.INCREMENTAL}


def test_a_huge_transaction_is_split_and_exact(bootstrap, db, monkeypatch):
    monkeypatch.setattr(runner, "SPLIT_BYTES", 10_000)
    monkeypatch.setattr(runner, "SPLIT_LOOK", 10)
    monkeypatch.setattr("headwater.capture.publishing.writer.PART_BYTES", 5_000)
    settings = {"snapshot": "never", "transactions": True}
    with pytest.raises(SourceUnreachable), captured(bootstrap, **settings) as capture:
        capture.wait_until(lambda: db.opened == 1)
        first, rest = ([created(n) for n in numbers] for numbers in (range(300), range(300, 500)))
        db.transact(*first, SourceUnreachable("gone"), *rest)
        capture._thread.join(60)
    assert 0 < capture.stored().capture.position.changes <= 300
    with captured(bootstrap, **settings) as capture:
        capture.wait_until(lambda: db.acknowledged == 1)
    assert [record.key["id"] for record in read(bootstrap, TOPIC)] == list(range(500))
    (begin, end) = [record.value for record in read(bootstrap, "shop.transaction")]
    assert (begin["status"], end["event_count"]) == ("BEGIN", 500)


def test_a_changed_table_is_followed_and_reported_in_the_schema_topic(bootstrap, db):
    wider = dataclasses.replace(ACCOUNTS, columns=(*ACCOUNTS.columns, Column("name", "text")))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
        db.transact(created(1))
        db.tables["public.accounts"] = wider
        db.transact(("public.accounts", "c", None, {**row(2), "name": "x"}))
        capture.wait_until(lambda: db.acknowledged == 2)
        db.transact(SchemaChange("public.accounts", None, "drop table accounts"))
        capture.wait_until(lambda: db.acknowledged == 3)
    with captured(bootstrap):
        pass  # says nothing again
    kinds = [record.value["tableChanges"][0]["type"] for record in read(bootstrap, "shop.schema")]
    assert kinds[:3] == ["CREATE", "ALTER", "DROP"]


def test_a_failed_table_does_not_stop_the_others_and_can_be_repaired(bootstrap, monkeypatch):
    other = Table("public", "orders", (Column("id", "int"),), ("id",))
    db = MemoryDatabase(ACCOUNTS, other)
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(db))
    db.transact(created(1), created(2))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts", "public.orders")
        db.transact(TableFailed("public.accounts", CaptureError("cannot be", hint="repair it")))
        db.transact(created(3), deleted(1), ("public.orders", "c", None, {"id": 1}))
        capture.wait_until(lambda: db.acknowledged == 3)
        assert [record.op for record in read(bootstrap, TOPIC)] == ["r", "r"]
        failed = capture.stored().tables["public.accounts"].failed
        assert failed.what == "cannot be"
        assert "capture snapshot shop --table public.accounts" in failed.hint
        assert "public.accounts" in capture.state.failed_tables
    with captured(bootstrap, heartbeat_s=0.2) as capture:
        db.transact(updated(3, 9))
        capture.wait_until(lambda: db.acknowledged == 4)
        assert len(read(bootstrap, TOPIC)) == 2
        ask_for_copy(bootstrap, "public.accounts")
        capture.wait_until(lambda: len(read(bootstrap, TOPIC)) == 5)
        db.transact(updated(2, 7))
        capture.wait_until(lambda: db.acknowledged == 5)
    records = read(bootstrap, TOPIC)
    assert replayed(records) == table_of(db)
    assert [record.op for record in records] == ["r", "r", "t", "r", "r", "u"]
    assert len(read(bootstrap, "shop.public.orders")) == 1


def test_after_a_reset_the_topic_is_truncated_and_copied(bootstrap, db):
    db.transact(created(1), created(2))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
    with TransactionalProducer(
        bootstrap, runner.transactional_id("shop"), login=ClientSettings()
    ) as producer:
        from headwater.client.writing.batches import BatchBuilder

        producer.fence()
        tombstones = BatchBuilder()
        for key in (positions.key_of("shop"), positions.key_of("shop", "public.accounts")):
            tombstones.append(key, None, (), 0)
        producer.send({(positions.TOPIC, 0): [tombstones]})
        producer.commit()
    db.transact(deleted(1))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
    assert replayed(read(bootstrap, TOPIC)) == table_of(db)


def test_a_new_table_is_found_and_copied(bootstrap, db, monkeypatch):
    monkeypatch.setattr(runner, "TABLES_S", 0.1)
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
        other = Table("public", "orders", (Column("id", "int"),), ("id",))
        db.rows["public.orders"] = {(1,): {"id": 1}}
        db.tables["public.orders"] = other
        capture.wait_for_copies("public.orders")
    assert [record.op for record in read(bootstrap, "shop.public.orders")] == ["r"]


def test_a_rule_for_nothing_is_refused_at_first_and_reported_later(bootstrap, db, caplog):
    misspelt = {"public.accounts.balanse": "drop"}
    with (
        pytest.raises(ConfigError, match="balanse"),
        captured(bootstrap, columns=misspelt) as capture,
    ):
        capture._thread.join(60)
    assert capture.stored().capture is None
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
    with captured(bootstrap, columns=misspelt) as capture:
        db.transact(created(1))
        capture.wait_until(lambda: db.acknowledged == 1)
    assert "balanse" in caplog.text


def test_a_masked_column_that_was_renamed_is_not_published(bootstrap, db, monkeypatch):
    """The capture is not notified: neither the stream nor a copy shows what the rule hid."""
    masked = {"public.accounts.balance": "mask"}
    columns = (ACCOUNTS.columns[0], Column("saldo", "int"))
    renamed = dataclasses.replace(ACCOUNTS, columns=columns)
    with captured(bootstrap, columns=masked, heartbeat_s=0.2) as capture:
        db.transact(created(1, 4711))
        capture.wait_for_copies("public.accounts")
        db.tables["public.accounts"] = renamed
        db.rows["public.accounts"] = {(1,): {"id": 1, "saldo": 4711}}
        ask_for_copy(bootstrap, "public.accounts")  # the stream has not shown the new name yet
        capture.wait_until(lambda: "public.accounts" in capture.state.failed_tables)
        db.transact(("public.accounts", "c", None, {"id": 2, "saldo": 4711}))
        capture.wait_until(lambda: db.acknowledged == 2)
        failed = capture.stored().tables["public.accounts"].failed
        assert "no column balance any more" in failed.what
        assert "saldo" in failed.detail
    assert not any("4711" in str(record.value) for record in read(bootstrap, TOPIC))
    both = masked | {"*.saldo": "mask"}
    with captured(bootstrap, columns=both, heartbeat_s=0.2) as capture:
        ask_for_copy(bootstrap, "public.accounts")
        capture.wait_until(lambda: not capture.stored().tables["public.accounts"].failed)
        capture.wait_for_copies("public.accounts")
    records = read(bootstrap, TOPIC)
    assert [record.value["after"] for record in records if record.op == "r"][-2:] == [
        {"id": 1, "saldo": "****"},
        {"id": 2, "saldo": "****"},
    ]
    assert not any("4711" in str(record.value) for record in records)


@pytest.mark.parametrize("is_stream_first", [True, False])
def test_a_renamed_column_is_found_by_the_stream_and_by_a_copy(bootstrap, db, is_stream_first):
    renamed = dataclasses.replace(ACCOUNTS, columns=(ACCOUNTS.columns[0], Column("saldo", "int")))
    db.transact(created(1, 4711))

    def rename():
        db.tables["public.accounts"] = renamed
        db.rows["public.accounts"] = {(1,): {"id": 1, "saldo": 4711}}

    if not is_stream_first:
        db.before_chunk = rename  # between the look at the tables and the read
    with captured(bootstrap, columns={"*.balance": "null"}) as capture:
        if is_stream_first:
            capture.wait_for_copies("public.accounts")
            rename()
            db.transact(("public.accounts", "u", None, {"id": 1, "saldo": 4711}))
        capture.wait_until(lambda: "public.accounts" in capture.state.failed_tables)
    assert not any("4711" in str(record.value) for record in read(bootstrap, TOPIC))


def test_what_rules_hide_is_in_no_topic_and_no_log(bootstrap, monkeypatch, caplog):
    from confluent_kafka.admin import AdminClient

    caplog.set_level("DEBUG")
    names = ("id", "dropped", "nulled", "masked", "hashed", "cut", "bad")
    table = Table("public", "accounts", tuple(Column(name, "text") for name in names), ("id",))
    rules = {
        f"*.{name}": rule
        for name, rule in zip(
            names, ("hash:a", "drop", "null", "mask", "hash:b", "truncate:2", "mask"), strict=True
        )
    }
    rows = {"public.accounts": "coalesce(bad, 'x') <> 'y'"}

    def secret(number: int) -> dict:
        return {name: f"{name[0]}-secret-{number}" for name in names}

    db = MemoryDatabase(table)
    monkeypatch.setattr(runner, "source_of", lambda *_: MemorySource(db))

    def change(op, before, after):
        return ("public.accounts", op, before, after)

    db.transact(*(change("c", None, secret(n)) for n in range(3)))
    with captured(
        bootstrap, columns=rules, rows=rows, schemas=True, transactions=True, heartbeat_s=0.2
    ) as capture:
        capture.wait_for_copies("public.accounts")
        db.transact(
            change("u", secret(0), secret(0) | {"masked": "other-secret"}),
            change("u", {"id": secret(1)["id"]}, secret(4)),
            change("u", secret(2), secret(2) | {"id": "moved-secret"}),
            change("u", secret(2) | {"id": "moved-secret"}, secret(2) | {"bad": "y"}),
            change("d", {"id": secret(0)["id"]}, None),
            change("t", None, None),
            SchemaChange("public.accounts", table, "alter table accounts"),
        )
        ask_for_copy(bootstrap, "public.accounts")
        capture.wait_until(lambda: db.acknowledged == 2)
        capture.wait_for_copies("public.accounts")
        db.transact(change("u", None, secret(5) | {"cut": ["a-secret"]}))  # cannot be cut
        capture.wait_until(lambda: "public.accounts" in capture.state.failed_tables)
    topics = {
        topic
        for topic in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60).topics
        if topic not in ("__transaction_state", "__consumer_offsets")
    }
    seen = [record for topic in topics for record in read(bootstrap, topic)]
    assert len(seen) > 15
    assert {"__headwater_positions", TOPIC, "shop.schema", "shop.transaction"} <= topics
    assert not [record for record in seen if "secret" in str(record)]
    assert "is not followed" in caplog.text
    assert "secret" not in caplog.text


def test_a_new_table_lacks_what_a_rule_names(bootstrap, db, monkeypatch):
    monkeypatch.setattr(runner, "TABLES_S", 0.1)
    orders = Table("public", "orders", (Column("id", "int"), Column("cards", "int")), ("id",))
    with captured(bootstrap) as capture:
        capture.wait_for_copies("public.accounts")
    with captured(bootstrap, columns={"public.orders.card": "drop"}) as capture:
        db.rows["public.orders"] = {(1,): {"id": 1, "cards": 4711}}
        db.tables["public.orders"] = orders
        capture.wait_until(lambda: "public.orders" in capture.state.failed_tables)
    assert capture.stored().tables["public.orders"].failed.what == (
        "the rule for public.orders.card applies to no column of public.orders"
    )


def test_an_idle_capture_moves_its_position(bootstrap, db):
    with captured(bootstrap, heartbeat_s=0.2) as capture:
        capture.wait_for_copies("public.accounts")
        db.transact()  # of other tables
        capture.wait_until(lambda: db.acknowledged == 1)
        assert capture.stored().capture.position.at == {"n": 1}


def test_transactions_are_seen_whole(bootstrap, db):
    with captured(bootstrap, snapshot="never", transactions=True) as capture:
        capture.wait_until(lambda: db.opened == 1)
        for number in range(20):
            db.transact(created(number), updated(number, 1))
        capture.wait_until(lambda: db.acknowledged == 20)
    ends = [record.value for record in read(bootstrap, "shop.transaction")]
    assert [end["status"] for end in ends] == ["BEGIN", "END"] * 20
    assert all(end["event_count"] == 2 for end in ends if end["status"] == "END")
    assert len(read(bootstrap, TOPIC)) == 40


def test_a_table_that_is_truncated_while_a_chunk_of_it_waits(bootstrap, db, monkeypatch):
    """The stream has come beyond the truncate when the chunk, which is older, is published."""
    db.transact(created(1), created(2))

    class Truncated(MemorySource):
        def read_chunk(self, table, after, limit_rows):
            chunk = super().read_chunk(table, after, limit_rows)
            if len(db.log) == 1:
                db.transact(("public.accounts", "t", None, None), created(3))
            wait_until(lambda: db.acknowledged == 2)
            return chunk

    monkeypatch.setattr(runner, "source_of", lambda *_: Truncated(db))
    with captured(bootstrap, heartbeat_s=0.05) as capture:
        capture.wait_for_copies("public.accounts")
    records = read(bootstrap, TOPIC)
    assert [record.op for record in records] == ["t", "c"]
    assert replayed(records) == table_of(db)
