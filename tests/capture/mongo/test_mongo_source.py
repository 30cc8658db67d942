"""MongoDB's changes, from a server that speaks its protocol."""

import pytest
from bson import Timestamp
from support.capture.mongo_reader import (
    begins_in,
    changes_in,
    read_transactions,
    read_until,
    source_of,
)
from support.capture.mongo_server import mongo_server

from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Lag,
    PositionAdvanced,
    SchemaChange,
    SourcePosition,
)
from headwater.capture.mongo.source import MongoSource
from headwater.capture.settings import CaptureSettings
from headwater.errors import (
    ConfigError,
    PositionLost,
    SourceRefused,
    SourceUnreachable,
    TableRefused,
)
from headwater.settings import Secret

pytestmark = pytest.mark.java


def create(db, name, *, images=True):
    db.command({"create": name, "changeStreamPreAndPostImages": {"enabled": images}})
    return db[name]


@pytest.fixture
def source(mongo, db):
    with source_of(mongo, db.name) as opened:
        yield opened


def opened(source) -> SourcePosition:
    return SourcePosition(source.open(None, {}))


def test_every_kind_of_change_comes_with_both_images(source, db):
    orders = create(db, "orders")
    start = opened(source)
    orders.insert_one({"_id": 1, "state": "new", "lines": {"a": 1, "b": 2}})
    orders.update_one(
        {"_id": 1}, {"$set": {"state": "paid", "lines.a": 5}, "$unset": {"lines.b": 1}}
    )
    orders.replace_one({"_id": 1}, {"state": "sent"})
    orders.delete_one({"_id": 1})

    changes = changes_in(read_transactions(source, start, 4))

    new = {"_id": 1, "state": "new", "lines": {"a": 1, "b": 2}}
    paid = {"_id": 1, "state": "paid", "lines": {"a": 5}}
    sent = {"_id": 1, "state": "sent"}
    assert [(change.op, change.before, change.after) for change in changes] == [
        ("c", None, new),
        ("u", new, paid),
        ("u", paid, sent),
        ("d", sent, None),
    ]
    assert changes[1].extra == {
        "updateDescription": {
            "updatedFields": {"state": "paid", "lines.a": 5},
            "removedFields": ["lines.b"],
            "truncatedArrays": [],
        }
    }
    assert [change.extra for change in (changes[0], *changes[2:])] == [None, None, None]
    table = changes[0].table
    assert (table.id, table.key, table.documents) == (f"{db.name}.orders", ("_id",), True)
    assert all(change.table is table for change in changes)


def test_a_post_image_is_of_its_change_and_not_of_when_it_is_read(source, db):
    orders = create(db, "orders")
    start = opened(source)
    orders.insert_one({"_id": 1, "n": 0})
    for n in range(1, 4):
        orders.update_one({"_id": 1}, {"$set": {"n": n}})
    changes = changes_in(read_transactions(source, start, 4))
    assert [change.after["n"] for change in changes] == [0, 1, 2, 3]


def test_without_images_an_update_has_the_present_document_or_none(source, db):
    orders = create(db, "orders", images=False)
    start = opened(source)
    orders.insert_many([{"_id": 1, "n": 0}, {"_id": 2, "n": 0}])
    orders.update_one({"_id": 1}, {"$set": {"n": 1}})
    orders.update_one({"_id": 1}, {"$set": {"n": 2}})
    orders.update_one({"_id": 2}, {"$set": {"n": 1}})
    orders.delete_one({"_id": 2})

    changes = changes_in(read_transactions(source, start, 6))[2:]

    assert [(change.op, change.before, change.after) for change in changes] == [
        ("u", {"_id": 1}, {"_id": 1, "n": 2}),
        ("u", {"_id": 1}, {"_id": 1, "n": 2}),
        ("u", {"_id": 2}, None),
        ("d", {"_id": 2}, None),
    ]
    assert changes[2].extra["updateDescription"]["updatedFields"] == {"n": 1}


def test_a_collection_without_images_beside_ones_with_them_is_looked_up(source, db):
    create(db, "orders")
    stream = source.changes(opened(source))
    assert isinstance(next(event for event in stream if event is not None), PositionAdvanced)
    db.later.insert_one({"_id": 1, "n": 0})  # has no images, and was not there at the start
    db.later.update_one({"_id": 1}, {"$set": {"n": 1}})
    changes = (event for event in stream if isinstance(event, Change))
    assert next(changes).op == "c"
    assert next(changes).after == {"_id": 1, "n": 1}
    stream.close()


def test_a_transaction_is_whole_and_other_changes_are_one_each(source, db, mongo):
    start = opened(source)
    db.accounts.insert_one({"_id": "a", "balance": 10})
    with mongo.client.start_session() as session, session.start_transaction():
        db.accounts.update_one({"_id": "a"}, {"$inc": {"balance": -4}}, session=session)
        db.accounts.insert_one({"_id": "b", "balance": 4}, session=session)
        db.log.insert_one({"_id": 1}, session=session)
    db.accounts.delete_one({"_id": "b"})

    events = read_transactions(source, start, 3)

    kinds = "".join(type(event).__name__[1] for event in events)
    assert kinds == "ehoehhhoeho"  # Begin, Change, Commit
    assert [event.ordinal for event in changes_in(events)] == [0, 0, 1, 2, 0]
    assert [event.changes for event in events if isinstance(event, Commit)] == [1, 3, 1]
    first, whole, last = begins_in(events)
    lsid = whole.source["lsid"]
    assert whole.id == f"{lsid}:{whole.source['txnNumber']}"
    assert lsid.startswith('{"id":{"$binary":"')
    assert whole.at["ts"] > first.at["ts"]
    assert last.id == "{}:{}".format(*last.at["ts"])
    assert last.source.keys() == {"ord", "wallTime"}
    assert last.ts_ms == last.source["wallTime"]


def test_a_stream_goes_on_behind_every_position(source, db, mongo):
    start = opened(source)
    for n in range(3):
        db.accounts.insert_one({"_id": n})
        with mongo.client.start_session() as session, session.start_transaction():
            db.accounts.insert_many([{"_id": f"{n}-{m}"} for m in range(3)], session=session)
    events = read_transactions(source, start, 6)
    for index, event in enumerate(events):
        if isinstance(event, Commit) and index + 1 < len(events):
            log_position = [event for event in events[:index] if isinstance(event, Begin)][-1].at
            count = sum(isinstance(event, Commit) for event in events[index + 1 :])
            assert (
                read_transactions(source, SourcePosition(log_position), count)
                == events[index + 1 :]
            )


@pytest.mark.parametrize("sent", [0, 1, 2, 3])
def test_a_half_sent_transaction_goes_on_in_the_middle(source, db, mongo, sent):
    start = opened(source)
    with mongo.client.start_session() as session, session.start_transaction():
        db.accounts.insert_many([{"_id": m} for m in range(3)], session=session)
    db.accounts.insert_one({"_id": "behind"})
    events = read_transactions(source, start, 2)
    begin, *changes, commit = events[:5]

    rest = read_transactions(source, SourcePosition(begin.at, sent), 2)

    assert (rest[0].at, rest[0].id) == (begin.at, begin.id)
    assert rest[1:-3] == [*changes[sent:], commit]
    assert rest[-3:] == events[-3:]


@pytest.mark.parametrize("sent", [0, 1])
def test_a_half_sent_single_change_is_ended(source, db, sent):
    start = opened(source)
    db.accounts.insert_many([{"_id": m} for m in range(3)])
    events = read_transactions(source, start, 3)
    log_position = events[3].at
    rest = read_transactions(source, SourcePosition(log_position, sent), 2)
    assert changes_in(rest) == changes_in(events)[1 + sent :]
    assert [event.changes for event in rest if isinstance(event, Commit)] == [1, 1]


def test_an_idle_stream_reports_how_far_it_is(source, db, mongo):
    start = opened(source)
    mongo.client[db.name + "other"].things.insert_one({})  # the log goes on, but not for us
    events = read_until(source, start, lambda events: events[-1].at["ts"] > start.at["ts"])
    assert all(isinstance(event, PositionAdvanced) for event in events)
    db.things.insert_one({"_id": 1})
    (change,) = changes_in(read_transactions(source, SourcePosition(events[-1].at), 1))
    assert change.after == {"_id": 1}


def test_a_sign_of_life_comes_within_the_promised_time(source):
    stream = source.changes(opened(source))
    seen = [next(stream) for _ in range(5)]
    assert seen[-1] is None
    stream.close()


@pytest.mark.parametrize(
    ("tables", "exclude", "expected"),
    [
        (("*.*",), (), ["items", "orders", "orders.old"]),
        (("{db}.orders",), (), ["orders"]),
        (("{db}.order*",), ("*.*.old",), ["orders"]),
        (("{db}.[io]*", "nobody.*"), (), ["items", "orders", "orders.old"]),
    ],
)
def test_only_the_named_collections_are_followed(mongo, db, tables, exclude, expected):
    tables = tuple(table.format(db=db.name) for table in tables)
    with source_of(mongo, db.name, tables=tables, exclude=exclude) as source:
        start = opened(source)
        for name in ("orders", "items", "orders.old", "orders"):
            db[name].insert_one({})
        count = 2 if expected == ["orders"] else 4
        changes = changes_in(read_transactions(source, start, count))
        assert sorted({change.table.name for change in changes}) == expected
        assert [table.name for table in source.tables()] == expected


def test_without_a_database_in_the_address_all_are_followed(mongo, db):
    other = mongo.client[db.name + "b"]
    with source_of(mongo, "", tables=(f"{db.name}*.*",)) as source:
        start = opened(source)
        db.orders.insert_one({"_id": 1})
        other.orders.insert_one({"_id": 2})
        changes = changes_in(read_transactions(source, start, 2))
        assert [change.table.id for change in changes] == [
            f"{db.name}.orders",
            f"{db.name}b.orders",
        ]
        assert [table.id for table in source.tables()] == [
            f"{db.name}.orders",
            f"{db.name}b.orders",
        ]
    mongo.client.drop_database(other)


def test_a_dropped_and_a_renamed_collection_are_reported_with_their_position(source, db):
    start = opened(source)
    db.orders.insert_one({"_id": 1})
    db.orders.rename("archive")
    db.archive.drop()
    events = read_transactions(source, start, 3)
    orders, archive = f"{db.name}.orders", f"{db.name}.archive"
    schema_changes = [event for event in events if isinstance(event, SchemaChange)]
    assert [
        (change.table_id, change.table and change.table.id, change.ddl) for change in schema_changes
    ] == [
        (orders, None, f"rename {orders} to {archive}"),
        (archive, None, f"rename {orders} to {archive}"),
        (archive, archive, f"rename {orders} to {archive}"),
        (archive, None, f"drop {archive}"),
    ]
    renamed = begins_in(events)[1]
    assert read_transactions(source, SourcePosition(renamed.at), 1) == events[-3:]


def test_the_stream_goes_on_behind_a_dropped_database(source, db, mongo):
    start = opened(source)
    db.orders.insert_one({"_id": 1})
    mongo.client.drop_database(db.name)
    db.orders.insert_one({"_id": 2})
    events = read_transactions(source, start, 3)
    assert [event.after for event in changes_in(events)] == [{"_id": 1}, {"_id": 2}]
    assert [event.table for event in events if isinstance(event, SchemaChange)] == [None]


def test_a_lost_connection_is_taken_up_again(source, db, mongo):
    start = opened(source)
    stream = source.changes(start)
    for n in range(3):
        db.orders.insert_one({"_id": n})
        mongo.fail("getMore")
        change = next(event for event in stream if isinstance(event, Change))
        assert change.after == {"_id": n}
    stream.close()


def test_a_server_that_stays_away_is_unreachable(mongo, db):
    url = f"mongodb://127.0.0.1:1/{db.name}?serverSelectionTimeoutMS=100"
    source = MongoSource(CaptureSettings(name="docs", source=Secret(url)))
    with pytest.raises(SourceUnreachable, match="does not answer") as raised:
        source.open(None, {})
    assert "127.0.0.1:1" in raised.value.hint
    assert [type(problem) for problem in source.check()] == [SourceUnreachable]
    source.close()


def test_an_oplog_that_went_on_without_us_is_explained(source, db, mongo):
    start = opened(source)
    db.orders.insert_one({"_id": 1})
    mongo.forget_history()
    with pytest.raises(PositionLost) as raised:
        next(source.changes(start))
    assert "headwater capture reset docs" in raised.value.hint


@pytest.mark.parametrize(
    ("command", "code", "kind", "hint"),
    [
        ("getMore", 286, PositionLost, "headwater capture reset docs"),
        ("aggregate", 13, SourceRefused, 'grantRolesToUser(…, [{role: "read"'),
        ("aggregate", 40573, SourceRefused, "rs.initiate()"),
        ("aggregate", 18, SourceRefused, "authSource"),
        ("getMore", 10334, SourceRefused, "7.0"),
        ("aggregate", 11600, SourceUnreachable, ""),
    ],
)
def test_what_the_server_refuses_is_explained(source, mongo, command, code, kind, hint):
    start = opened(source)
    mongo.fail(command, code=code, times=10)
    with pytest.raises(kind) as raised:
        for _ in source.changes(start):
            pass
    assert hint in raised.value.hint
    mongo.stop_failing()


def test_the_check_finds_what_is_wrong(source, db, mongo):
    create(db, "orders")
    assert source.check() == []
    create(db, "items", images=False)
    (found,) = source.check()
    assert isinstance(found, TableRefused)
    assert f'getSiblingDB("{db.name}")' in found.hint
    assert 'collMod: "items"' in found.hint
    mongo.fail("aggregate", code=13)
    assert ["may not read" in str(problem) for problem in source.check()] == [True]
    mongo.fail("find", code=13)
    unreadable = source.check()[0]
    assert isinstance(unreadable, TableRefused)
    assert f"{db.name}.items" in unreadable.detail
    assert "grantRolesToUser" in unreadable.hint


def test_a_single_server_that_is_no_replica_set_is_refused(tmp_path):
    with mongo_server(tmp_path, "7.0", "standalone") as single, source_of(single, "shop") as source:
        (found,) = source.check()
        assert isinstance(found, SourceRefused)
        assert "rs.initiate()" in found.hint
        with pytest.raises(SourceRefused, match="not a replica set"):
            source.open(None, {})


@pytest.mark.parametrize(
    "address", ["mongodb://u:se/cret@host/x", "mongodb://u:se%cret@h", "mongodb://"]
)
def test_an_address_that_is_none_is_a_wrong_setting_and_shows_no_password(address):
    with pytest.raises(ConfigError, match="no address of MongoDB") as raised:
        MongoSource(CaptureSettings(name="docs", source=Secret(address)))
    assert "cret" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_the_lag_is_the_part_of_the_oplog_behind_the_position(source, mongo):
    oplog = mongo.client.local["oplog.rs"]
    assert source.lag({"ts": [150, 1]}) == Lag()
    oplog.insert_many([{"ts": Timestamp(seconds, 1)} for seconds in (100, 160, 200)])
    whole = source.lag({"ts": [50, 1]}).size_bytes
    assert whole > 0
    assert source.lag({"ts": [150, 1]}).size_bytes == whole // 2
    assert source.lag({"ts": [250, 1]}).size_bytes == 0
    oplog.drop()
    mongo.fail("collStats", code=13)
    assert source.lag({"ts": [150, 1]}) == Lag()
    mongo.fail("collStats")
    with pytest.raises(SourceUnreachable):
        source.lag({"ts": [150, 1]})


def test_nothing_is_left_in_the_database(source, db, mongo):
    db.orders.insert_one({})
    start = opened(source)
    db.orders.insert_one({})
    read_transactions(source, start, 1)
    source.acknowledge(start.at)
    source.remove()
    assert db.list_collection_names() == ["orders"]


def test_documents_of_sixteen_megabytes_pass(source, db):
    start = opened(source)
    text = "ü" * (8 * 1024 * 1024 - 100)
    db.blobs.insert_one({"_id": 1, "text": text})
    (change,) = changes_in(read_transactions(source, start, 1))
    assert change.after == {"_id": 1, "text": text}
