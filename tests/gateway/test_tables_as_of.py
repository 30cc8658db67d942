"""GET /tables/T/KEY?as_of: rows of a topic as they were, and refusals where that is not known."""

import json

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gateway.derived_store import DerivedStore
from support.gateway.serving import TIMEOUT_S, serving
from support.wire import wait_until
from tiers import examples, long

from headwater.broker import broker as broker_module
from headwater.client.reading.fetching import EARLIEST
from headwater.client.writing.batches import partition_of
from headwater.gateway.answers import Refusal
from headwater.gateway.tables import history
from headwater.protocol.records import Record
from headwater.testing import InProcessBroker

HOUR_MS = 3_600_000
BEGAN_MS = 1_790_000_000_000


@pytest.fixture
def write(gateway_broker):
    producer = Producer({"bootstrap.servers": gateway_broker, "partitioner": "murmur2_random"})

    def write(topic, *records):
        for key, value, hour in records:
            producer.produce(topic, value, key, timestamp=BEGAN_MS + hour * HOUR_MS)
        assert producer.flush(TIMEOUT_S) == 0

    return write


def at(hour):
    return str(BEGAN_MS + hour * HOUR_MS)


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_a_row_at_offsets_and_times(client, new_topic, write, policy):
    topic = new_topic(cleanup_policy=policy, retention_ms="-1")
    write(topic, ("a", "1", 0), ("b", "1", 1), ("a", "2", 2), ("a", None, 3), ("a", "3", 4))

    def row(moment, key="a"):
        answer = client.get(f"/tables/{topic}/{key}?as_of={moment}")
        return answer.json()["value"] if answer.status_code == 200 else answer.status_code

    assert [row(offset) for offset in range(5)] == [1, 1, 2, 404, 3]
    assert [row(at(hour)) for hour in (-1, 0, 1, 2, 3, 4, 99)] == [404, 1, 1, 2, 404, 3, 3]
    assert row("2026-09-21T13:59:59Z") in (404, 1, 2, 3)
    assert (row("0", "b"), row("1", "b"), row("4", "never")) == (404, 1, 404)
    answer = client.get(f"/tables/{topic}/a?as_of=2&columns=offset")
    assert answer.json() == {"offset": 2}
    assert answer.headers["headwater-position"] == f"{topic}:0:2"
    assert client.get(f"/tables/{topic}/a?as_of=5").status_code == 409
    for wrong in ("soon", "", "1.5", "-1"):
        assert client.get(f"/tables/{topic}/a?as_of={wrong}").status_code == 400, wrong
    assert client.get(f"/tables/{topic}?as_of=1").status_code == 400


def test_keys_by_the_values_of_their_columns(client, new_topic, write):
    topic = new_topic(partitions=3, retention_ms="-1")
    write(topic, ('{"id":17}', "1", 0), ('{"id":18}', "1", 0), ('{"id":17}', "2", 2))
    for key in ("17", "%7B%22id%22%3A17%7D"):
        answers = [client.get(f"/tables/{topic}/{key}?as_of={at(hour)}") for hour in (1, 2)]
        assert [answer.json()["value"] for answer in answers] == [1, 2]
    assert client.get(f"/tables/{topic}/19?as_of={at(2)}").status_code == 404
    assert client.get(f"/tables/{topic}/17/2?as_of={at(2)}").status_code == 400


def test_far_back_in_the_partition_of_the_key(client, new_topic, write):
    topic = new_topic(partitions=3)
    write(topic, ("a", "1", 0), *((f"k{n}", "x", 1) for n in range(20_000)), ("a", "2", 2))
    assert client.get(f"/tables/{topic}/a?as_of={at(1)}").json()["value"] == 1
    other = (partition_of(b"a", 3) + 1) % 3
    missing = client.get(f"/tables/{topic}/a?as_of={at(1)}&partition={other}")
    assert missing.status_code == 404
    assert client.get(f"/tables/{topic}/a?as_of=1&partition=3").status_code == 400


def test_what_retention_has_deleted_is_not_known(client, admin, new_topic, write):
    topic = new_topic()
    write(topic, ("a", "1", 0), ("b", "1", 1), ("b", "2", 2), ("a", "2", 3))
    for future in admin.delete_records([TopicPartition(topic, 0, 2)]).values():
        future.result(TIMEOUT_S)
    assert client.get(f"/tables/{topic}/b?as_of=2").json()["value"] == 2
    for key, moment in (("a", 2), ("b", 1), ("b", 0), ("never", 3), ("a", at(0))):
        answer = client.get(f"/tables/{topic}/{key}?as_of={moment}")
        assert (answer.status_code, "no longer has" in answer.json()["error"]) == (410, True)


@pytest.fixture
def compacting(tmp_path, monkeypatch):
    """A gateway whose broker compacts all the time, and a compacted topic."""
    monkeypatch.setattr(broker_module, "COMPACTION_S", 0.1)
    with (
        InProcessBroker.serving(str(tmp_path / "broker")) as broker,
        serving(tmp_path, broker__bootstrap=broker.bootstrap) as served,
        served.client() as client,
    ):
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "1",
        }
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", 1, config=config)])["t"].result(TIMEOUT_S)
        yield client, Producer({"bootstrap.servers": broker.bootstrap})


@long
def test_what_compaction_has_removed_is_not_known(compacting):
    client, producer = compacting
    topic = "t"

    def write(*records):
        for key, value in records:
            producer.produce(topic, value, key)
        assert producer.flush(TIMEOUT_S) == 0

    write(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"))

    def is_compacted():
        write(("d", "1"))  # begins another segment, so that the others are compacted
        found = client.get(f"/topics/{topic}?from=start&limit=5").json()["records"]
        return [record["offset"] for record in found][:2] == [1, 2]

    wait_until(is_compacted, 120, "the compaction")
    assert client.get(f"/tables/{topic}/b?as_of=1").json()["value"] == 1
    assert client.get(f"/tables/{topic}/a?as_of=2").json()["value"] == 2
    gone = client.get(f"/tables/{topic}/a?as_of=1")
    assert gone.status_code == 410
    assert "compacted" in gone.json()["detail"]


class CompactedLog:
    """Records of one partition of which compaction has removed some, as a Fetcher reads them."""

    def __init__(self, records, start, cleaned):
        latest = {record.key: record.offset for record in records[:cleaned]}
        self._end = len(records)
        self._start = start
        self._records = [
            record
            for record in records
            if record.offset >= cleaned or record.offset == latest[record.key]
        ]

    def offsets(self, places, at):
        (place,) = places
        return {place: self._start if at == EARLIEST else self._end}

    def records(self, topic, partition, start, end):
        return [record for record in self._records if start <= record.offset < end]


@settings(max_examples=examples(3000), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([b"1", b"2", None])), min_size=1),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(0, 60),
    st.booleans(),
)
def test_an_answer_is_true_or_there_is_none(pairs, cleaned, start, offset, is_compacted):
    records = [Record(n, n, key.encode(), value) for n, (key, value) in enumerate(pairs)]
    cleaned, offset = cleaned if is_compacted else 0, offset % len(records)
    log = CompactedLog(records, start if not is_compacted else 0, cleaned)
    truth = next((r for r in reversed(records[: offset + 1]) if r.key == b"a"), None)
    found = answered(log, offset, is_compacted)
    if found is None:
        assert cleaned if is_compacted else start, "all of the log is there"
    else:
        assert (found.record, found.end) == (truth, offset + 1)


def answered(log, offset, is_compacted):
    """None: it is not known any more."""
    as_of = history.AsOf(offset=offset)
    try:
        return history.last_before(log, "t", 0, b"a", as_of, is_compacted=is_compacted)
    except Refusal as refusal:
        if refusal.status != 410:
            raise
        return None


def test_a_derived_table_has_only_the_present(tmp_path, gateway_broker, new_topic):
    topic = new_topic()
    store = DerivedStore(tmp_path, topic)
    store.apply([{"id": 1, "city": "Wien", "total": None, "at": None}], 0)
    with (
        serving(store.directory, broker__bootstrap=gateway_broker) as served,
        served.client() as client,
    ):
        answer = client.get("/tables/orders/1?as_of=0")
    assert answer.status_code == 409
    assert topic in json.dumps(answer.json())
