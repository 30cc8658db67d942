"""Envelopes beside those of Debezium's documentation, written down by hand."""

import json
from base64 import b64encode

import pytest

from headwater import __version__
from headwater.capture.contract import (
    UNAVAILABLE,
    Begin,
    Change,
    Column,
    Commit,
    Message,
    SchemaChange,
    Table,
)
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.errors import TableRefused
from headwater.settings import Secret

NOW_NS = 1_700_000_001_234_567_891
NOW = {"ts_ms": 1_700_000_001_234, "ts_us": 1_700_000_001_234_567, "ts_ns": NOW_NS}
CUSTOMERS = Table(
    "public",
    "customers",
    (
        Column("id", "integer", {"type": "int32"}, optional=False),
        Column("name", "text", {"type": "string"}),
        Column("email", "text", {"type": "string"}),
    ),
    ("id",),
)
ANNE = {"id": 1, "name": "Anne", "email": "anne@example.org"}
BEGIN = Begin({"lsn": 9}, "571:34500", 1_700_000_000_000, {"txId": 571})
SOURCE = {
    "version": __version__,
    "connector": "postgresql",
    "name": "shop",
    "ts_ms": 1_700_000_000_000,
    "snapshot": "false",
    "db": "shopdb",
    "sequence": None,
    "ts_us": 1_700_000_000_000_000,
    "ts_ns": 1_700_000_000_000_000_000,
    "schema": "public",
    "table": "customers",
    "txId": 571,
    "lsn": 34500,
    "xmin": None,
    "origin": None,
    "origin_lsn": None,
}


def make(connector="postgresql", **settings):
    chosen = CaptureSettings("shop", Secret("postgresql://x"), **settings)
    return Shaper(chosen, connector, "shopdb", now_ns=lambda: NOW_NS)


def shape(shaper, op, before=None, after=None, *, table=CUSTOMERS, ordinal=0, source=None):
    """What comes out of one change in a transaction, values read back."""
    shaper.begin(BEGIN)
    own = {"lsn": 34500} if source is None else source
    return [
        (topic, key and json.loads(key), value and json.loads(value), headers)
        for topic, key, value, headers in shaper.change(
            Change(table, op, before, after, ordinal, own)
        )
    ]


def envelope(op, before=None, after=None, source=SOURCE, transaction=None):
    rows = {"before": before, "after": after}
    return rows | {"source": source, "transaction": transaction, "op": op} | NOW


TOPIC = "shop.public.customers"


def test_an_insert():
    assert shape(make(), "c", None, ANNE) == [(TOPIC, {"id": 1}, envelope("c", None, ANNE), ())]


def test_fields_are_in_the_order_debezium_has_them():
    (record,) = shape(make(), "c", None, ANNE)
    assert list(record[2]) == [
        "before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"
    ]  # fmt: skip


def test_an_update_without_its_old_row_and_with_it():
    anna = ANNE | {"name": "Anna"}
    assert shape(make(), "u", None, anna) == [(TOPIC, {"id": 1}, envelope("u", None, anna), ())]
    assert shape(make(), "u", ANNE, anna) == [(TOPIC, {"id": 1}, envelope("u", ANNE, anna), ())]


def test_an_update_that_brings_only_the_key_it_had_has_no_before():
    assert shape(make(), "u", {"id": 1}, ANNE)[0][2]["before"] is None


def test_a_delete_is_followed_by_a_tombstone():
    expected = envelope("d", ANNE)
    assert shape(make(), "d", ANNE) == [
        (TOPIC, {"id": 1}, expected, ()),
        (TOPIC, {"id": 1}, None, ()),
    ]
    assert shape(make(tombstones=False), "d", ANNE) == [(TOPIC, {"id": 1}, expected, ())]


def test_a_delete_with_only_the_key_has_nulls_for_the_rest():
    record, tombstone = shape(make(), "d", {"id": 1})
    assert record[2] == envelope("d", {"id": 1, "name": None, "email": None})
    assert tombstone[:3] == (TOPIC, {"id": 1}, None)


@pytest.mark.parametrize("before", [ANNE, {"id": 1}])
def test_a_changed_key_is_a_delete_and_a_create_that_know_of_each_other(before):
    moved = ANNE | {"id": 2}
    whole = {"id": 1, "name": None, "email": None} | before
    new, old = (("__debezium.newkey", b'{"id":2}'),), (("__debezium.oldkey", b'{"id":1}'),)
    assert shape(make(), "u", before, moved) == [
        (TOPIC, {"id": 1}, envelope("d", whole), new),
        (TOPIC, {"id": 1}, None, new),
        (TOPIC, {"id": 2}, envelope("c", None, moved), old),
    ]
    assert len(shape(make(tombstones=False), "u", before, moved)) == 2


def test_a_key_that_was_too_large_to_be_written_again_has_not_changed():
    table = Table("public", "pages", (Column("url", "text"), Column("hits", "integer")), ("url",))
    (record,) = shape(make(), "u", {"url": "long"}, {"url": UNAVAILABLE, "hits": 2}, table=table)
    assert record[1] == {"url": "long"}
    assert record[2]["after"] == {"url": "long", "hits": 2}


def test_an_old_row_without_the_key_is_no_change_of_the_key():
    """PostgreSQL's replica identity may be another index than the primary key's."""
    (record,) = shape(make(), "u", {"email": "old@example.org"}, ANNE)
    assert record[1:] == ({"id": 1}, envelope("u", None, ANNE), ())


def test_what_the_log_left_out_has_the_type_of_its_column():
    columns = (Column("id", "int", {"type": "int32"}), Column("data", "blob", {"type": "bytes"}))
    table = Table("public", "files", columns, ("id",))
    left_out = {"id": 1, "data": UNAVAILABLE}
    marked = {"id": 1, "data": b64encode(UNAVAILABLE.encode()).decode()}
    (record,) = shape(make(), "u", left_out, left_out, table=table)
    assert (record[2]["before"], record[2]["after"]) == (marked, marked)
    *_, moved = shape(make(), "u", {"id": 2}, left_out, table=table)
    assert moved[2]["after"] == marked


def test_changes_of_a_transaction_may_have_different_fields_of_source():
    shaper = make()
    shaper.begin(BEGIN)
    owns: list[dict] = [{"lsn": 1}, {}, {"lsn": 2, "xmin": 3}, {"lsn": 4}]
    for number, own in enumerate(owns):
        ((_, _, value, _),) = shaper.change(Change(CUSTOMERS, "c", None, ANNE, number, own))
        assert json.loads(value)["source"] == SOURCE | {"lsn": None} | own


def test_a_long_transaction_reports_when_its_changes_were_processed():
    times = iter(range(10**9, 10**12, 10**9))
    chosen = CaptureSettings("shop", Secret("postgresql://x"))
    shaper = Shaper(chosen, "postgresql", "shopdb", now_ns=lambda: next(times))
    shaper.begin(BEGIN)
    seen = []
    for number in (0, 1, 1023, 1024, 1025, 2048):
        ((_, _, value, _),) = shaper.change(Change(CUSTOMERS, "c", None, ANNE, number, {"lsn": 1}))
        seen.append(json.loads(value)["ts_ms"])
    assert seen == [1000, 1000, 1000, 2000, 2000, 3000]


def test_a_truncate_has_no_key_unless_the_topic_is_compacted():
    assert shape(make(), "t") == [(TOPIC, None, envelope("t"), ())]
    compacted = make(topic_config={"cleanup.policy": "compact"})
    assert shape(compacted, "t") == [(TOPIC, {}, envelope("t"), ())]
    compacted = make(topic_config={"cleanup.policy": "compact"}, schemas=True)
    assert shape(compacted, "t")[0][1] == {"schema": None, "payload": {}}  # for Connect


def test_a_key_of_several_columns_is_in_the_keys_order():
    table = Table("public", "lines", tuple(Column(n, "integer") for n in "abc"), ("c", "a"))
    shaper = make()
    shaper.begin(BEGIN)
    ((_, key, _, _),) = shaper.change(Change(table, "c", None, {"a": 1, "b": 2, "c": 3}, 0, {}))
    assert key == b'{"c":3,"a":1}'
    assert shaper.key_of(table, {"c": 3, "a": 1}) == key


def test_a_table_without_a_key_has_records_without_one_and_no_tombstones():
    table = Table("public", "notes", (Column("text", "text"),), ())
    assert [r[1] for r in shape(make(), "c", None, {"text": "x"}, table=table)] == [None]
    assert [r[1] for r in shape(make(), "d", {"text": "x"}, None, table=table)] == [None]


def test_a_table_without_a_key_is_refused_in_a_compacted_topic():
    table = Table("public", "notes", (Column("text", "text"),), ())
    shaper = make(topic_config={"cleanup.policy": "delete, compact"})
    with pytest.raises(TableRefused, match="no primary key"):
        shape(shaper, "c", None, {"text": "x"}, table=table)
    assert [error.what for error in shaper.check([CUSTOMERS, table])] == [
        "table public.notes has no primary key, and its topic is to be compacted"
    ]


def test_names_are_sanitised_and_tables_that_would_share_a_topic_refused():
    shaper = make()
    first, second = (Table("public", name, (), ("id",)) for name in ("a b", "a:b"))
    assert shaper.topic_of(first) == "shop.public.a_b"
    with pytest.raises(TableRefused, match=r"public.a b and public.a:b would share the topic"):
        shaper.topic_of(second)
    assert shaper.topic_of(Table("public", "x" * 300, (), ())) == "shop.public." + "x" * 237


@pytest.mark.parametrize("connector", ["mysql", "mariadb"])
def test_source_of_mysql(connector):
    shaper = make(connector)
    shaper.begin(Begin({}, "gtid", 1_700_000_000_000, {"server_id": 7, "gtid": "0-1-5"}))
    own = {"file": "bin.000001", "pos": 12, "row": 3}
    table = Table("inventory", "customers", CUSTOMERS.columns, ("id",))
    ((topic, _, value, _),) = shaper.change(Change(table, "c", None, ANNE, 5, own))
    assert topic == "shop.inventory.customers"
    assert json.loads(value)["source"] == {
        "version": __version__,
        "connector": connector,
        "name": "shop",
        "ts_ms": 1_700_000_000_000,
        "snapshot": "false",
        "db": "inventory",
        "sequence": None,
        "ts_us": 1_700_000_000_000_000,
        "ts_ns": 1_700_000_000_000_000_000,
        "table": "customers",
        "server_id": 7,
        "gtid": "0-1-5",
        "thread": None,
        "query": None,
        "file": "bin.000001",
        "pos": 12,
        "row": 3,
    }


def test_a_change_may_bring_any_field_of_source_or_none():
    own = {"sequence": '["1","2"]', "lsn": 1, "ts_us": 5}
    (record,) = shape(make(), "c", None, ANNE, source=own)
    assert record[2]["source"] == SOURCE | own
    (record,) = shape(make(), "c", None, ANNE, source={})
    assert record[2]["source"] == SOURCE | {"lsn": None}


def test_an_unknown_database_has_the_common_fields():
    (record,) = shape(make("oracle"), "c", None, ANNE, source={"scn": "5"})
    common = {name: SOURCE[name] for name in list(SOURCE)[:11]}
    assert record[2]["source"] == common | {"connector": "oracle", "txId": 571, "scn": "5"}


def test_changes_of_one_transaction_may_differ_in_the_fields_they_bring():
    shaper = make("mysql")
    shaper.begin(BEGIN)
    for own in ({"pos": 1}, {"pos": 2, "query": "insert …"}, {"pos": 3}):
        ((_, _, value, _),) = shaper.change(Change(CUSTOMERS, "c", None, ANNE, 1, own))
        source = json.loads(value)["source"]
        assert (source["pos"], source["query"]) == (own["pos"], own.get("query"))


def test_what_snapshots_read():
    shaper = make()
    records = list(shaper.rows(CUSTOMERS, [ANNE, ANNE | {"id": 2}], "incremental", 5, {"lsn": 77}))
    assert [record[:2] for record in records] == [(TOPIC, b'{"id":1}'), (TOPIC, b'{"id":2}')]
    times = {"ts_ms": 5, "ts_us": 5_000, "ts_ns": 5_000_000}
    read = SOURCE | times | {"snapshot": "incremental", "lsn": 77, "txId": None}
    assert json.loads(records[0][2]) == envelope("r", None, ANNE, read)


def test_messages_of_applications():
    shaper = make()
    shaper.begin(BEGIN)
    ((topic, key, value, _),) = shaper.message(Message("greet", b"hello", 0, {"lsn": 34500}))
    assert (topic, key) == ("shop.message", b'{"prefix":"greet"}')
    assert json.loads(value) == {
        "op": "m",
        "ts_ms": NOW["ts_ms"],
        "source": SOURCE | {"schema": "", "table": ""},
        "transaction": None,
        "message": {"prefix": "greet", "content": "aGVsbG8="},
    }


def test_the_transaction_topic_frames_the_events_and_counts_them():
    shaper = make(transactions=True)
    orders = Table("public", "orders", CUSTOMERS.columns, ("id",))
    shaper.begin(BEGIN)
    records = [
        record
        for n, (table, op, before, after) in enumerate(
            [
                (CUSTOMERS, "c", None, ANNE),
                (orders, "c", None, ANNE),
                (CUSTOMERS, "u", ANNE, ANNE | {"id": 2}),
                (CUSTOMERS, "t", None, None),
            ]
        )
        for record in shaper.change(Change(table, op, before, after, n, {"lsn": 1}))
    ] + shaper.commit(Commit(4))
    first, last = records[0], records[-1]
    assert first[:2] == ("shop.transaction", b'{"id":"571:34500"}')
    assert json.loads(first[2]) == {
        "status": "BEGIN",
        "id": "571:34500",
        "event_count": None,
        "data_collections": None,
        "ts_ms": 1_700_000_000_000,
    }
    blocks = [json.loads(r[2])["transaction"] for r in records[1:-1] if r[2] is not None]
    assert [(b["id"], b["total_order"], b["data_collection_order"]) for b in blocks] == [
        ("571:34500", 1, 1),
        ("571:34500", 2, 1),
        ("571:34500", 3, 2),
        ("571:34500", 4, 3),
        ("571:34500", 5, 4),
    ]
    assert json.loads(last[2]) == {
        "status": "END",
        "id": "571:34500",
        "event_count": 5,
        "data_collections": [
            {"data_collection": "public.customers", "event_count": 4},
            {"data_collection": "public.orders", "event_count": 1},
        ],
        "ts_ms": 1_700_000_000_000,
    }


def test_a_transaction_goes_on_counting_where_it_was():
    whole, split = make(transactions=True), make(transactions=True)
    changes = [Change(CUSTOMERS, "c", None, ANNE | {"id": n}, n, {"lsn": n}) for n in range(6)]
    whole.begin(BEGIN)
    expected = [r for c in changes for r in whole.change(c)] + whole.commit(Commit(6))
    split.begin(BEGIN)
    records = [r for c in changes[:3] for r in split.change(c)]
    counts = split.counts
    again = make(transactions=True)
    again.begin(BEGIN, counts)
    records += [r for c in changes[3:] for r in again.change(c)] + again.commit(Commit(6))
    assert records == expected


@pytest.mark.parametrize(
    ("op", "before", "after"),
    [
        ("c", None, ANNE | {"name": b"x"}),
        ("u", ANNE, ANNE | {"name": b"x"}),
        ("u", ANNE, {"id": 2, "name": b"x", "email": None}),
        ("d", ANNE | {"name": b"x"}, None),
    ],
)
def test_what_cannot_be_written_is_not_counted(op, before, after):
    shaper = make(transactions=True)
    shaper.begin(BEGIN)
    with pytest.raises(TableRefused):
        shaper.change(Change(CUSTOMERS, op, before, after, 0, {"lsn": 1}))
    assert shaper.counts == {}
    begun, _ = shaper.change(Change(CUSTOMERS, "c", None, ANNE, 1, {"lsn": 1}))
    assert json.loads(begun[2])["status"] == "BEGIN"


def test_an_empty_transaction_leaves_no_trace():
    shaper = make(transactions=True)
    shaper.begin(BEGIN)
    assert shaper.commit(Commit(0)) == []


def test_the_schema_topic_reports_what_became_of_a_table():
    shaper = make()
    smaller = Table("public", "customers", CUSTOMERS.columns[:2], ("id",))

    def summary(change, before):
        ((topic, key, value, _),) = shaper.schema_change(change, before)
        assert (topic, key) == ("shop.schema", b'{"databaseName":"shopdb"}')
        return json.loads(value)

    created = summary(SchemaChange(CUSTOMERS.id, CUSTOMERS, "create table …"), None)
    assert created["ddl"] == "create table …"
    assert created["tableChanges"][0]["type"] == "CREATE"
    altered = summary(SchemaChange(CUSTOMERS.id, smaller), CUSTOMERS)["tableChanges"][0]
    assert altered["type"] == "ALTER"
    assert [column["name"] for column in altered["table"]["columns"]] == ["id", "name"]
    assert altered["table"]["primaryKeyColumnNames"] == ["id"]
    dropped = summary(SchemaChange(CUSTOMERS.id, None), CUSTOMERS)["tableChanges"][0]
    assert dropped == {"type": "DROP", "id": '"public"."customers"', "table": None}


def test_a_row_that_cannot_be_written_is_an_error_of_its_table():
    with pytest.raises(TableRefused, match=r"a row of public.customers cannot be written"):
        shape(make(), "c", None, ANNE | {"name": b"bytes"})
    with pytest.raises(TableRefused, match=r"a row of public.customers cannot be written"):
        shape(make(columns={"*.name": "hash"}), "c", None, ANNE | {"name": "\ud800"})
    with pytest.raises(TableRefused, match=r"column 'id' is missing"):
        make().key_of(CUSTOMERS, {"name": "x"})
    with pytest.raises(TableRefused, match=r"column 'id' is missing"):
        shape(make(), "c", None, {"name": "x"})
