"""The record formats of a topic, and rows that they cannot represent."""

from decimal import Decimal
from uuid import uuid4

import orjson
import pyarrow as pa
import pytest
from support.sinks.sink_contract import ID
from support.sinks.sink_rows import batch, rows_of, table
from support.sinks.topic_places import read_messages, read_records

from headwater.errors import ConfigError, StoreRefused
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
    ],
)
def test_options_that_are_wrong(topic, key, options, says) -> None:
    with pytest.raises(ConfigError, match=says):
        store("127.0.0.1:1", topic, key, **options)


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
