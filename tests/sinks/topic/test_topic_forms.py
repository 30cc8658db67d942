"""The record formats of a topic, and rows that they cannot represent."""

from contextlib import closing
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import uuid4

import orjson
import pyarrow as pa
import pytest
from support.sinks.sink_contract import ID
from support.sinks.sink_rows import batch, rows_of, table
from support.sinks.topic_places import read_messages, read_records

from headwater.errors import ConfigError, StoreRefused
from headwater.pipelines.decoding.avro.registered import latest_schema, registered_columns
from headwater.schema_lookup.lookup import SchemaLookup
from headwater.schema_lookup.registration import TopicRegistration as Registration
from headwater.schema_lookup.sources import TopicSource
from headwater.schemas.schema import Schema
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log, Target
from headwater.sinks.settings import SinkSettings
from headwater.sinks.topic.store import TopicStore


@pytest.fixture
def topic() -> str:
    return f"forms-{uuid4().hex[:8]}"


def store(address: str, topic: str, *key: str, **options: str) -> TopicStore:
    settings = SinkSettings("topics", kind="topic")
    return TopicStore(settings, Target("shop", topic, key, options), Log(address))


def test_debezium_envelopes_with_deletions_before_their_tombstones(topic_headwater, topic) -> None:
    sink = store(topic_headwater, topic, "id", value="debezium")
    with sink.writer(1, ID) as writer:
        rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1}, {"id": 3, "v": "c"}]
        writer.apply(batch(0, table(ID, rows, ["c", None, "d", "r"])))
        assert rows_of(sink) == [{"id": 2, "v": "b"}, {"id": 3, "v": "c"}]
        writer.apply(batch(1, table(ID, [{}, {"id": 4, "v": "d"}], ["t", "c"])))
        assert rows_of(sink) == [{"id": 4, "v": "d"}]
    found = [
        (orjson.loads(key)["id"], value and orjson.loads(value))
        for key, value in read_records(topic_headwater, topic)
    ]
    assert [(key, value and value["op"]) for key, value in found[:5]] == [
        (1, "c"), (2, "u"), (1, "d"), (1, None), (3, "r"),
    ]  # fmt: skip
    assert sorted((key, value and value["op"]) for key, value in found[5:9] if value) == [
        (2, "d"), (3, "d"),
    ]  # fmt: skip
    assert found[1][1]["after"] == {"id": 2, "v": "b"}
    assert found[1][1]["before"] is None
    assert found[2][1]["before"] == {"id": 1}
    assert found[2][1]["after"] is None
    assert found[1][1]["source"] == {"connector": "headwater", "name": "shop", "table": topic}
    assert found[1][1]["ts_ms"] > 1_700_000_000_000


def test_bytes_are_written_as_they_are(topic_headwater, topic) -> None:
    headers = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    fields = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", headers)])
    sink = store(topic_headwater, topic, "key", value="bytes")
    rows = [
        {"key": b"\0", "value": b"\xff", "headers": [{"name": "h", "value": b"1"}]},
        {"key": b"b", "value": b"2", "headers": None},
        {"key": b"b", "value": None, "headers": None},
    ]
    with sink.writer(1, fields) as writer:
        writer.apply(batch(0, table(fields, rows, ["c", "c", "d"])))
    found = read_messages(topic_headwater, topic)
    assert [(message.key(), message.value(), message.headers()) for message in found] == [
        (b"\0", b"\xff", [("h", b"1")]), (b"b", b"2", None), (b"b", None, None),
    ]  # fmt: skip
    assert rows_of(sink) == rows[:1]


def test_a_keyed_topic_is_compacted_and_others_are_retained(topic_headwater, topic) -> None:
    from headwater.client.cluster import Cluster
    from headwater.client.topics import topic_configs
    from headwater.settings import ClientSettings

    for name, key, setting in (
        (f"{topic}.keyed", ("id",), ("cleanup.policy", "compact")),
        (f"{topic}.added", (), ("retention.ms", "-1")),
    ):
        store(topic_headwater, name, *key, partitions="3").writer(1, ID).close()
        cluster = Cluster(topic_headwater, ClientSettings())
        assert topic_configs(cluster, name)[setting[0]] == setting[1]
        assert cluster.partitions(name) == 3
        cluster.close()


@pytest.mark.parametrize(
    ("key", "options", "says"),
    [
        ("id", {"value": "xml"}, "unknown value"),
        ("id", {"value": "bytes"}, "column key"),
        ("id", {"compression": "zip"}, "unknown compression"),
        ("id", {"partitions": "0"}, "from 1 on"),
        ("id", {"avro.registry": "log"}, 'needs value = "avro"'),
    ],
)
def test_options_that_are_wrong(topic, key, options, says) -> None:
    with pytest.raises(ConfigError, match=says):
        store("127.0.0.1:1", topic, key, **options)


EVERY_TYPE = pa.schema(
    [
        ("id", pa.int32()), ("b", pa.bool_()), ("l", pa.int64()), ("f", pa.float32()),
        ("d", pa.float64()), ("s", pa.string()), ("x", pa.binary()), ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("t", pa.time64("us")),
        ("n", pa.decimal128(20, 3)), ("many", pa.list_(pa.decimal128(5, 1))),
        ("map", pa.map_(pa.string(), pa.struct([("n", pa.int32())]))),
        ("place", pa.struct([("city", pa.string()), ("at", pa.struct([("lat", pa.float64())]))])),
    ]
)  # fmt: skip
FULL = {
    "id": 1, "b": True, "l": 1 << 40, "f": 1.5, "d": float("-inf"), "s": "é", "x": b"\xff",
    "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "local": datetime(1960, 1, 2, tzinfo=UTC).replace(tzinfo=None), "t": time(3, 4, 5, 6),
    "n": Decimal("-12345.670"),
    "many": [Decimal("1.5"), None], "map": [("a", {"n": 1}), ("b", None)],
    "place": {"city": "Wien", "at": {"lat": 48.2}},
}  # fmt: skip


@pytest.fixture
def schemas(topic_headwater):
    lookup = SchemaLookup(TopicSource(topic_headwater, ClientSettings()))
    yield lookup
    lookup.close()


def test_avro_of_every_type_is_read_back_and_by_others(topic_headwater, topic, schemas) -> None:
    empty = dict.fromkeys(EVERY_TYPE.names) | {"id": 2}
    with closing(store(topic_headwater, topic, "id", value="avro")) as sink:
        with sink.writer(1, EVERY_TYPE) as writer:
            rows = [FULL, empty, {**empty, "id": 3}, {**empty, "id": 3}]
            writer.apply(batch(0, table(EVERY_TYPE, rows, ["c", "c", "c", "d"])))
        assert sorted(rows_of(sink), key=lambda row: row["id"]) == [FULL, empty]
    (key, value), *_, (deleted, nothing) = read_records(topic_headwater, topic)
    assert schemas.decode(key).value == {"id": 1}
    found = schemas.decode(value).value
    assert found == {**FULL, "map": {"a": {"n": 1}, "b": None}, "local": found["local"]}
    assert (schemas.decode(deleted).value, nothing) == ({"id": 3}, None)
    columns = registered_columns(latest_schema(schemas.source, topic), topic)  # of flow.changes
    assert columns.names == EVERY_TYPE.names
    as_other = {"id": pa.int32(), "t": pa.string(), "x": pa.binary()}
    for field in EVERY_TYPE:
        if field.name not in ("map", "place"):  # whose fields are of Avro's own form
            assert columns.field(field.name).type == as_other.get(field.name, field.type)


def test_an_avro_schema_gets_a_version_for_a_new_column(topic_headwater, topic, schemas) -> None:
    wider = pa.schema([("id", pa.int64()), ("v", pa.string()), ("n", pa.int64())])
    narrow = pa.schema([("id", pa.int32()), ("v", pa.string())])
    with closing(store(topic_headwater, topic, "id", value="avro")) as sink:
        with sink.writer(1, narrow) as writer:
            rows = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}]
            writer.apply(batch(0, table(narrow, rows)))
        with sink.writer(1, wider) as writer:
            writer.apply(batch(1, table(wider, [{"id": 1, "v": "c", "n": 5}])))
        found = sorted(rows_of(sink), key=lambda row: row["id"])
    assert found == [{"id": 1, "v": "c", "n": 5}, {"id": 2, "v": "b", "n": None}]
    (first, old), _, (same, new) = read_records(topic_headwater, topic)
    assert first == same  # the wider integer is the same key
    assert schemas.decode(old).schema_id != schemas.decode(new).schema_id


def test_a_schema_that_the_registry_does_not_take(topic_headwater, topic) -> None:
    registry = Registration(topic_headwater, ClientSettings())
    registry.register(f"{topic}-value", Schema('"string"'))
    registry.close()
    with (
        closing(store(topic_headwater, topic, "id", value="avro")) as sink,
        sink.writer(1, ID) as writer,
        pytest.raises(StoreRefused, match="does not take"),
    ):
        writer.apply(batch(0, table(ID, [{"id": 1, "v": "a"}])))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([("id", pa.int64()), ("no name", pa.string())], "no name that Avro allows"),
        ([("id", pa.int64()), ("at", pa.timestamp("ns"))], "column at cannot be represented"),
        ([("id", pa.int64()), ("s", pa.struct([("a-b", pa.int32())]))], "column s cannot be"),
    ],
)
def test_columns_that_avro_has_not(topic_headwater, topic, fields, says) -> None:
    with (
        closing(store(topic_headwater, topic, "id", value="avro")) as sink,
        pytest.raises(StoreRefused, match=says),
    ):
        sink.writer(1, pa.schema(fields))


def test_a_topic_has_one_format(topic_headwater, topic) -> None:
    store(topic_headwater, topic, "id").writer(1, ID).close()
    for other in (
        store(topic_headwater, topic, "v"),
        store(topic_headwater, topic, "id", value="debezium"),
    ):
        with pytest.raises(StoreRefused, match="another format") as caught:
            other.writer(1, ID)
        assert "rebuild" in caught.value.hint


def test_a_key_whose_text_would_change_is_refused(topic_headwater, topic) -> None:
    """1.5 and 1.50 would be two keys."""
    narrow, wide = (
        pa.schema([("id", pa.decimal128(*digits)), ("v", pa.string())])
        for digits in ((5, 1), (9, 2))
    )
    sink = store(topic_headwater, topic, "id")
    with sink.writer(1, narrow) as writer:
        writer.apply(batch(0, table(narrow, [{"id": Decimal("1.5"), "v": "a"}])))
    with pytest.raises(StoreRefused, match="part of the key"):
        sink.writer(1, wide)
    with sink.writer(1, narrow) as writer:
        writer.apply(batch(1, table(narrow, [{"id": Decimal("1.5"), "v": "b"}])))
    assert rows_of(sink) == [{"id": Decimal("1.5"), "v": "b"}]
