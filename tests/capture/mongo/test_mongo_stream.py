"""From events to transactions: with events of forms that no server here sends by itself."""

import json

import bson
import pytest
from bson import Binary, Int64, Timestamp
from bson.datetime_ms import DatetimeMS

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    PositionAdvanced,
    SourcePosition,
    Table,
)
from headwater.capture.mongo.stream import (
    SKIPPED_EVENTS,
    Transactions,
    bson_token,
    json_token,
    time_of_token,
)
from headwater.errors import PositionLost

START = SourcePosition({"token": {"_data": "820000000100000001"}, "ts": [1, 1]})
LSID = {"id": Binary(b"\1" * 16, 4), "uid": Binary(b"\2" * 32, 0)}
ORDERS = Table("shop", "orders", (), ("_id",), documents=True)


def token(ordinal, index=0):
    return {"_data": f"82{10:08X}{ordinal:08X}2B022C{index:08X}04"}


def insert(ordinal, index=0, *, txn=None, coll="orders"):
    event = {
        "_id": token(ordinal, index),
        "operationType": "insert",
        "clusterTime": Timestamp(10, ordinal),
        "wallTime": DatetimeMS(10_123),
        "ns": {"db": "shop", "coll": coll},
        "documentKey": {"_id": index},
        "fullDocument": {"_id": index},
    }
    return event | ({} if txn is None else {"lsid": LSID, "txnNumber": Int64(txn)})


def transactions(after=START, **options):
    def table_of(database, collection):
        return ORDERS if (database, collection) == ("shop", "orders") else None

    return Transactions(table_of, None, after, **options)


def taken(stream, *events):
    return [found for event in events for found in stream.take(event)]


def kinds(events):
    return [type(event) for event in events]


def test_a_transaction_ends_with_an_event_of_another():
    stream = transactions()
    events = taken(stream, insert(1, 0, txn=7), insert(1, 1, txn=7), insert(2, 0, txn=8))
    assert kinds(events) == [Begin, Change, Change, Commit, Begin, Change]
    assert events[0].id == events[0].source["lsid"] + ":7"
    assert events[3].changes == 2
    assert stream.position == events[4].at


def test_a_transaction_ends_with_a_token_of_a_later_time_or_with_two_signs_of_nothing():
    stream = transactions()
    taken(stream, insert(1, 0, txn=7))
    assert list(stream.idle(token(1, 0))) == [None]
    assert kinds(taken(stream, insert(1, 1, txn=7))) == [Change]  # it went on after all
    assert list(stream.idle(token(1, 1))) == [None]
    assert kinds(stream.idle(token(1, 1))) == [Commit, PositionAdvanced]
    taken(stream, insert(2, 0, txn=8))
    later = {"_data": f"82{10:08X}{3:08X}2B0229296E04"}
    ended = list(stream.idle(later))
    assert ended == [Commit(1), PositionAdvanced({"token": later, "ts": [10, 3]})]
    assert list(stream.idle(later)) == [None]


def test_behind_mongos_a_transaction_ends_with_a_later_time_only():
    """It answers with nothing also while one of its shards has not answered."""
    stream = transactions(is_sharded=True)
    taken(stream, insert(1, 0, txn=7))
    for _ in range(5):
        assert list(stream.idle(token(1, 0))) == [None]
    assert kinds(taken(stream, insert(1, 1, txn=7))) == [Change]
    assert kinds(stream.idle({"_data": f"82{10:08X}{2:08X}2B0229296E04"})) == [
        Commit,
        PositionAdvanced,
    ]


def test_a_change_that_the_oplog_no_longer_has_is_not_waited_for():
    stream = transactions(SourcePosition({"token": token(1, 5), "ts": [10, 1]}, 0))
    assert taken(stream, insert(1, 4)) == []
    with pytest.raises(PositionLost):
        taken(stream, insert(2))


def test_what_the_capture_does_not_name_has_no_ordinal():
    stream = transactions()
    events = taken(
        stream,
        insert(1, 0, txn=7, coll="secret"),
        insert(1, 1, txn=7),
        insert(1, 2, txn=7, coll="secret"),
        insert(1, 3, txn=7),
        insert(2, 0, coll="secret"),
    )
    assert kinds(events) == [Begin, Change, Change, Commit]
    assert [event.ordinal for event in events[1:3]] == [0, 1]
    assert events[0].at["token"] == token(1, 1)


def test_a_busy_stream_of_other_collections_reports_its_position():
    stream = transactions()
    events = taken(*[stream], *[insert(n, coll="secret") for n in range(1, SKIPPED_EVENTS + 2)])
    assert events == [
        PositionAdvanced({"token": token(SKIPPED_EVENTS), "ts": [10, SKIPPED_EVENTS]})
    ]


def test_one_entry_of_the_log_with_several_changes_is_reported_one_by_one():
    """As for a delete of many documents, which MongoDB may log together."""
    stream = transactions()
    events = taken(stream, insert(1, 0), insert(1, 1))
    assert kinds(events) == [Begin, Change, Commit] * 2
    assert [event.at["token"] for event in events if isinstance(event, Begin)] == [
        token(1, 0),
        token(1, 1),
    ]
    behind = transactions(SourcePosition(events[0].at))
    assert kinds(taken(behind, insert(1, 1))) == [Begin, Change, Commit]


def test_an_event_in_fragments_is_put_together():
    whole = insert(1) | {
        "fullDocumentBeforeChange": {"_id": 0, "old": 1},
        "operationType": "replace",
    }
    first = {key: whole[key] for key in ("operationType", "clusterTime", "ns", "documentKey")}
    second = {key: whole[key] for key in ("fullDocument", "fullDocumentBeforeChange", "wallTime")}
    stream = transactions()
    events = taken(
        stream,
        first | {"_id": token(1, 0), "splitEvent": {"fragment": 1, "of": 2}},
        second | {"_id": token(1, 1), "splitEvent": {"fragment": 2, "of": 2}},
        insert(2),
    )
    assert kinds(events) == [Begin, Change, Commit] * 2
    assert events[0].at["token"] == token(1, 1)
    assert (events[1].before, events[1].after) == ({"_id": 0, "old": 1}, {"_id": 0})


def test_servers_before_six_report_the_second_only():
    event = insert(1)
    del event["wallTime"]
    begin = taken(transactions(), event)[0]
    assert (begin.ts_ms, begin.source) == (10_000, {"ord": 1})


def test_tokens_pass_through_json():
    old = {"_data": Binary(b"\x82\0\1", 0), "_typeBits": Binary(b"@", 0)}
    assert bson.encode(bson_token(json_token(old))) == bson.encode(old)
    json.dumps(json_token(old))
    assert bson_token(json_token(token(1))) == token(1)
    assert time_of_token(token(5)) == (10, 5)
    assert time_of_token(old) is None
    assert time_of_token(None) is None
    assert time_of_token({"_data": "82notatoken"}) is None
