"""Collections read in chunks, and which transactions a read shows."""

import threading

import pytest
from bson import Binary, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from support.capture.mongo_reader import begins_in, read_transactions, source_of
from support.capture.mongo_server import mongo_server

from headwater.capture.contract import SourcePosition
from headwater.capture.mongo.documents import extended_value

pytestmark = pytest.mark.java


@pytest.fixture
def source(mongo, db):
    with source_of(mongo, db.name) as opened:
        yield opened


def table_named(source, name):
    return next(table for table in source.tables() if table.name == name)


def read_all(source, table, limit_rows):
    rows, after, reads = [], None, 0
    while reads == 0 or after is not None:
        chunk = source.read_chunk(table, after, limit_rows)
        assert len(chunk.rows) <= limit_rows
        rows, after, reads = rows + chunk.rows, chunk.after, reads + 1
    return rows, reads


def test_chunks_are_in_the_order_of_the_key_and_hold_everything_once(source, db):
    db.orders.insert_many([{"_id": n, "v": -n} for n in reversed(range(25))])
    table = table_named(source, "orders")
    rows, reads = read_all(source, table, 10)
    assert rows == [{"_id": n, "v": -n} for n in range(25)]
    assert reads == 4  # the last finds nothing more
    assert source.estimate_rows(table) == 25


def test_an_empty_and_a_vanished_collection_have_no_rows(source, db):
    db.command({"create": "empty"})
    table = table_named(source, "empty")
    assert read_all(source, table, 10) == ([], 1)
    db.empty.drop()
    assert read_all(source, table, 10) == ([], 1)


# In the order in which MongoDB sorts them.
MIXED = [
    MinKey(), None, float("-inf"), -1.5, 0, Int64(3), Decimal128("3.5"), 4, float("inf"),
    "", "a", "b", {}, {"a": 1}, {"a": 1, "b": 2}, Binary(b"x", 0), Binary(b"yy", 0),
    ObjectId("0" * 24), ObjectId("f" * 24), False, True, DatetimeMS(-(2**62)), DatetimeMS(0),
    Timestamp(1, 1), Timestamp(2, 1), MaxKey(),
]  # fmt: skip


@pytest.mark.parametrize("limit_rows", [1, 2, 5])
def test_ids_of_all_types_in_one_collection_are_all_found(source, db, limit_rows):
    for value in reversed(MIXED):
        db.mixed.insert_one({"_id": value})
    rows, _ = read_all(source, table_named(source, "mixed"), limit_rows)
    assert [row["_id"] for row in rows] == [extended_value(value) for value in MIXED]


def test_a_chunk_contains_what_was_committed_before_its_read(source, db):
    start = SourcePosition(source.open(None, {}))
    db.orders.insert_one({"_id": 1})
    db.orders.insert_one({"_id": 2})
    table = table_named(source, "orders")
    chunk = source.read_chunk(table, None, 10)
    db.orders.update_one({"_id": 1}, {"$set": {"late": True}})
    first, second, late = begins_in(read_transactions(source, start, 3))
    assert chunk.rows == [{"_id": 1}, {"_id": 2}]
    assert [chunk.contains(begin) for begin in (first, second, late)] == [True, True, False]
    assert [chunk.is_passed(begin.at) for begin in (first, second, late)] == [False, True, True]


@pytest.mark.parametrize("version", ["7.0", "4.4"])
def test_chunk_and_stream_together_give_the_collection(tmp_path, version):
    """While others write: whatever a chunk contains is in its rows, and what it does not contain
    is determined when the stream has passed it.
    """
    with mongo_server(tmp_path, version) as server, source_of(server, "shop") as source:
        accounts = server.client.shop.accounts
        accounts.insert_many([{"_id": n, "n": 0} for n in range(20)])
        table = table_named(source, "accounts")
        start = SourcePosition(source.open(None, {}))
        is_over = threading.Event()
        written = [0]

        def write():
            while not is_over.is_set():
                for n in range(20):
                    accounts.update_one({"_id": n}, {"$inc": {"n": 1}})
                    written[0] += 1

        writer = threading.Thread(target=write)
        writer.start()
        chunks = []
        while len(chunks) < 20:
            chunks.append(source.read_chunk(table, None, 100))
        is_over.set()
        writer.join()
        events = read_transactions(source, start, written[0])
        begins = begins_in(events)
        changes = [event for event in events if hasattr(event, "after")]
        for chunk in chunks:
            state = dict.fromkeys(range(20), 0)
            touched = set()
            is_passed = chunk.is_passed(start.at)
            for begin, change in zip(begins, changes, strict=True):
                if chunk.contains(begin):
                    state[change.before["_id"]] += 1
                elif not is_passed:
                    touched.add(change.before["_id"])
                is_passed = chunk.is_passed(begin.at)
            assert len(touched) < 20
            seen = {row["_id"]: row["n"] for row in chunk.rows}
            assert all(seen[key] == state[key] for key in set(state) - touched)


def test_large_documents_end_a_chunk_before_its_limit(source, db):
    """An answer has at most 16 MB, so a short one is not the end."""
    db.blobs.insert_many([{"_id": n, "text": "x" * 7_000_000} for n in range(5)])
    rows, reads = read_all(source, table_named(source, "blobs"), 1000)
    assert [row["_id"] for row in rows] == [0, 1, 2, 3, 4]
    assert reads == 4
