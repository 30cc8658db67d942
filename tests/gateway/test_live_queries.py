"""Live queries: what a client has equals the filter over the log, at every id that it gets."""

import json
import time

import pytest
from confluent_kafka import Producer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.gateway.live_client import LiveClient, positions
from support.gateway.serving import TIMEOUT_S
from tiers import count

from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.gateway.live import tables as all_tables
from headwater.settings import ClientSettings

COMPACTED = {"cleanup_policy": "compact"}
KEYS = ["a", "b", "c", "d"]
FILTERS = {
    "": lambda row: True,
    "where=n>=5": lambda row: row["n"] >= 5,
    "where=city=Wien&where=n<7": lambda row: row["city"] == "Wien" and row["n"] < 7,
    "where=city!=Wien&columns=n": lambda row: row["city"] != "Wien",
}


def is_ready(client):
    return client.names[-1] == "ready"


@pytest.fixture(scope="module")
def producer(gateway_broker):
    return Producer({"bootstrap.servers": gateway_broker, "linger.ms": 0})


def write(producer, topic, *pairs, partition=None):
    """Pairs of key and row; None: a tombstone. The position behind the last one."""
    found = []
    for key, row in pairs:
        producer.produce(
            topic, None if row is None else json.dumps(row), key,
            partition=-1 if partition is None else partition,
            on_delivery=lambda error, message: found.append(message),
        )  # fmt: skip
    assert producer.flush(TIMEOUT_S) == 0
    assert all(message.error() is None for message in found)
    return {message.partition(): message.offset() + 1 for message in found}


def test_rows_then_changes(client, new_topic, producer):
    topic = new_topic(**COMPACTED)
    write(producer, topic, ("1", {"n": 1}), ("2", {"n": 9}), ("3", {"n": 7}), ("3", None))
    mine = LiveClient()
    mine.read(client, f"/live/{topic}?where=n>=5", is_ready)
    assert mine.names == ["reset", "snapshot", "ready"]
    assert mine.table == {"2": {"n": 9}}
    write(
        producer, topic,
        ("1", {"n": 5}), ("2", {"n": 8}), ("2", {"n": 8}), ("1", {"n": 4}), ("1", {"n": 3}),
        ("2", None), ("2", None), ("4", {"n": 6}),
    )  # fmt: skip
    mine.names.clear()
    mine.read(client, f"/live/{topic}?where=n>=5", lambda one: "4" in one.table)
    assert mine.names == ["added", "changed", "removed", "removed", "added"]
    assert mine.table == {"4": {"n": 6}}


def test_change_events_are_rows(client, new_topic, producer):
    """As captures write them: the topic has all records, and is not compacted."""
    topic = new_topic(retention_ms="-1")
    row = {"id": 1, "city": "Wien", "note": "long"}
    left_out = {**row, "city": "Graz", "note": "__debezium_unavailable_value"}
    key = '{"id":1}'
    write(
        producer, topic,
        (key, {"op": "c", "before": None, "after": row}),
        ('{"id":2}', {"op": "r", "before": None, "after": {**row, "id": 2}}),
        (key, {"schema": None, "payload": {"op": "u", "before": None, "after": left_out}}),
    )  # fmt: skip
    mine = LiveClient()
    mine.read(client, f"/live/{topic}?columns=city,note", is_ready)
    assert mine.table == {
        key: {"city": "Graz", "note": "long"},
        '{"id":2}': {"city": "Wien", "note": "long"},
    }
    write(producer, topic, (key, {"op": "d", "before": row, "after": None}), (key, None))
    mine.read(client, f"/live/{topic}?columns=city,note", lambda one: key not in one.table)
    write(producer, topic, (None, {"op": "t", "before": None, "after": None}))
    mine.read(client, f"/live/{topic}?columns=city,note", lambda one: not one.table)


OPERATION = st.one_of(
    st.tuples(
        st.just("write"),
        st.lists(
            st.tuples(
                st.sampled_from(KEYS),
                st.one_of(
                    st.none(),
                    st.fixed_dictionaries(
                        {"n": st.integers(0, 9), "city": st.sampled_from(["Wien", "Graz"])}
                    ),
                ),
            ),
            min_size=1,
            max_size=8,
        ),
    ),
    st.tuples(st.just("cut"), st.integers(1, 6)),  # a client that leaves after so many events
    st.tuples(st.just("read"), st.none()),
    st.tuples(st.just("rewind"), st.integers(0, 50)),  # goes on from an id that it had
    st.tuples(st.just("drop"), st.none()),  # of all that the gateway holds
)


@pytest.mark.parametrize("partitions", [1, 3])
def test_what_a_client_has_is_the_filter_over_the_log(
    client, gateway, new_topic, producer, gateway_broker, partitions
):
    topic = new_topic(partitions, **COMPACTED)  # one for all: creating them takes longest
    ends = {}

    @settings(
        max_examples=count(quick=25, full=200),
        deadline=None,
        phases=[Phase.generate],  # the log of one example is there in the next one
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(st.lists(OPERATION, min_size=4, max_size=10), st.sampled_from(sorted(FILTERS)))
    def check(operations, query):
        mine = LiveClient()
        history = {}  # the table at each id
        path = f"/live/{topic}?{query}"
        for operation, detail in operations:
            match operation:
                case "write":
                    ends.update(write(producer, topic, *detail))
                case "cut":
                    mine.read(client, path, is_ready, stop_after=detail)
                case "read":
                    mine.read(client, path, is_ready)
                    assert_equal(mine, ends, gateway_broker, topic, query, at_end=True)
                case "rewind" if history:
                    mine.mark = sorted(history)[detail % len(history)]
                    mine.table = dict(history[mine.mark])
                case "drop":
                    drop(gateway)
            if mine.mark and mine.seen and positions(mine.mark) == mine.seen[-1][0]:
                history[mine.mark] = dict(mine.seen[-1][1])
        mine.read(client, path, is_ready)
        assert_equal(mine, ends, gateway_broker, topic, query, at_end=True)

    check()


def drop(gateway):
    """As if the gateway had been started again: nothing is held."""
    done = []

    def breaking():
        for access in gateway.gateway.accesses._by_login.values():
            found = access._parts.get(all_tables.Tables)
            for table in found.all() if found else ():
                table.break_off()
        done.append(True)

    access = next(iter(gateway.gateway.accesses._by_login.values()), None)
    found = access._parts.get(all_tables.Tables) if access else None
    if found is not None:
        found._loop.call_soon_threadsafe(breaking)
        until_s = time.monotonic() + TIMEOUT_S
        while not done:
            assert time.monotonic() < until_s
            time.sleep(0.001)


def assert_equal(mine, ends, bootstrap, topic, query, *, at_end):
    """At every id since the last look, and now."""
    log = {}
    for partition, record in read_by_partition(bootstrap, topic):
        log.setdefault(partition, []).append(record)
    for found, table in [*mine.seen, *([(ends, mine.table)] if at_end else [])]:
        rows = {}
        for partition, records in log.items():
            for record in records:
                if record.offset < found.get(partition, 0):
                    key = record.key.decode()
                    rows.pop(key, None)
                    if record.value is not None:
                        rows[key] = json.loads(record.value)
        passing = {key: row for key, row in rows.items() if FILTERS[query](row)}
        if "columns=n" in query:
            passing = {key: {"n": row["n"]} for key, row in passing.items()}
        assert table == passing, (found, mine.names)
    mine.seen.clear()


def read_by_partition(bootstrap, topic):
    with Fetcher(bootstrap, ClientSettings()) as fetcher:
        for number in range(fetcher.partitions(topic)):
            end = fetcher.offsets([(topic, number)], LATEST)[topic, number]
            for record in fetcher.records(topic, number, 0, end):
                yield number, record
