"""Late rows: each is in `<pipeline>.late` once, whatever process is killed at any step."""

from datetime import UTC, datetime

import numpy as np
import orjson
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.sinks.topic_places import read_messages
from test_undecodable import Failing

from headwater.errors import StoreUnreachable
from headwater.pipelines.operators.runtime.contract import (
    FAULT,
    OFFSET,
    ORIGIN,
    TIME,
    WATERMARK,
    Input,
)
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.state.state_files import FileState, begin
from headwater.pipelines.operators.state.state_metrics import (
    OperatorMetrics,
    SlowestSource,
    metrics_of,
    metrics_of_all,
    slowest_source,
)
from headwater.pipelines.operators.time.event_time import NEVER_US
from headwater.pipelines.operators.time.lateness import (
    CAUSE,
    CAUSES,
    EVENTS,
    LATE,
    OF_SIDE,
    PARTITION,
    TOPIC,
    admit,
    lateness_of,
)
from headwater.pipelines.publishing import idempotent_publisher
from headwater.pipelines.publishing.late_rows import LateRows, late_counts
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log
from headwater.sinks.topic import transactional_positions
from headwater.sinks.topic.transactional_positions import read_positions
from headwater.testing import InProcessBroker

BUCKETS = 2
OPERATOR = Built("tumbling-1", BUCKETS, (("name",),))


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("broker"))) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("events", 2)])["events"].result(60)
        yield broker


@pytest.fixture
def log(broker):
    return Log(broker.bootstrap, ClientSettings())


@pytest.fixture
def directory(tmp_path):
    begin(tmp_path / OPERATOR.name, BUCKETS)
    return tmp_path


def given(*rows):
    """Rows of one bucket: name, number, partition, offset, fault; all of them too late."""
    table = pa.table(
        {
            "name": pa.array([row[0] for row in rows], pa.string()),
            "n": pa.array([row[1] for row in rows], pa.decimal128(9, 2)),
            "at": pa.array(
                [datetime(2026, 1, 1, tzinfo=UTC)] * len(rows), pa.timestamp("us", "UTC")
            ),
            TIME: pa.array([0] * len(rows), pa.int64()),
            FAULT: pa.array([row[4] if len(row) > 4 else 0 for row in rows], pa.int8()),
            ORIGIN: pa.array([row[2] for row in rows], pa.int32()),
            OFFSET: pa.array([row[3] for row in rows], pa.int64()),
        }
    )
    return Input(table, (("events", 0), ("events", 1)), (), 0)


def batch(directory, number, *buckets, closes=True):
    """What a batch does in each bucket."""
    for bucket, rows in enumerate(buckets):
        state = FileState(directory / OPERATOR.name, bucket, number, buckets=BUCKETS, is_begun=True)
        own_us = np.full(len(rows.rows), 10, np.int64)
        due_us = np.full(len(rows.rows), 10 if closes else 11, np.int64)
        late = lateness_of("side", None)
        admit(state, rows, late, own_us=own_us, due_us=due_us, closed_us=0)
        state.document[WATERMARK] = 10 + number
        state.put("kept", rows.rows.select(["name"]))
        state.commit()


def published(broker, pipeline):
    found = [
        message
        for partition in (0, 1)
        for message in read_messages(broker.bootstrap, f"{pipeline}.late", partition)
    ]
    return sorted(found, key=lambda message: (message.partition(), message.offset()))


def about(message):
    return {
        name.removeprefix("headwater.late."): value.decode() for name, value in message.headers()
    }


def positions(messages):
    return sorted((about(message)["partition"], about(message)["offset"]) for message in messages)


def test_a_late_row_is_reported_in_full(broker, log, directory):
    batch(directory, 0, given(("a", 1, 1, 7)), given(("b", 2, 0, 5, 1), ("b", 3, 0, 6, 2)))
    late = LateRows(log, "whole", (OPERATOR,), directory)
    assert late.publish(0) == 3
    late.close()
    found = published(broker, "whole")
    assert [orjson.loads(message.key()) for message in found] == [
        {"name": "b"},
        {"name": "b"},
        {"name": "a"},
    ]
    assert orjson.loads(found[2].value()) == {
        "name": "a",
        "n": "1.00",
        "at": "2026-01-01T00:00:00.000000Z",
    }
    assert about(found[2]) == {
        "cause": "late",
        "topic": "events",
        "partition": "1",
        "offset": "7",
        "pipeline": "whole",
        "operator": "tumbling-1",
    }
    assert [about(message)["cause"] for message in found[:2]] == ["without_time", "future"]
    assert [message.partition() for message in found] == [0, 0, 1]
    assert late_counts(read_positions(log), "whole") == {"tumbling-1": 3}
    assert late_counts(read_positions(log), "who") == {}


def test_a_batch_that_runs_again_reports_nothing_again(broker, log, directory):
    rows = given(("a", 1, 1, 7)), given(("b", 2, 0, 5))
    for _ in range(3):
        batch(directory, 0, *rows)
        late = LateRows(log, "again", (OPERATOR,), directory)
        late.publish(0)
        late.publish(0)
        late.close()
    batch(directory, 1, given(("a", 1, 1, 8)), given())
    late = LateRows(log, "again", (OPERATOR,), directory)
    assert late.publish(1) == 1
    late.close()
    assert positions(published(broker, "again")) == [("0", "5"), ("1", "7"), ("1", "8")]


def test_a_row_of_two_operators_is_reported_by_each(broker, log, directory):
    other = Built("tumbling-2", BUCKETS, (("name",),))
    batch(directory, 0, given(("a", 1, 1, 7)), given())
    (directory / "tumbling-2").symlink_to(directory / OPERATOR.name)
    late = LateRows(log, "two", (OPERATOR, other), directory)
    assert late.publish(0) == 2
    late.close()
    assert sorted(about(message)["operator"] for message in published(broker, "two")) == [
        "tumbling-1",
        "tumbling-2",
    ]


def test_rows_of_one_record_are_all_reported(broker, log, directory, monkeypatch):
    """Several rows may be made of one record, for several keys."""
    monkeypatch.setattr(idempotent_publisher, "_PIECE_BYTES", 1)
    batch(
        directory, 0, given(("a", 1, 1, 7), ("c", 1, 1, 7)), given(("b", 2, 1, 7), ("b", 2, 1, 8))
    )
    late = LateRows(log, "several", (OPERATOR,), directory)
    assert late.publish(0) == 4
    assert late.publish(0) == 0
    late.close()
    assert len(published(broker, "several")) == 4


def test_a_batch_that_puts_nothing_aside_makes_no_topic(broker, log, directory):
    batch(directory, 0, given(("a", 1, 1, 7)), given(), closes=False)
    late = LateRows(log, "nothing", (OPERATOR,), directory)
    assert late.publish(0) == 0
    assert late.publish(1) == 0  # which did not reach the operator
    late.close()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    assert "nothing.late" not in admin.list_topics(timeout=60).topics


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("is_done_before", [False, True])
def test_killed_at_any_call(broker, log, directory, monkeypatch, call, is_done_before):
    monkeypatch.setattr(transactional_positions, "TransactionalProducer", Failing)
    monkeypatch.setattr(Failing, "fails_at", call)
    monkeypatch.setattr(Failing, "is_done_before", is_done_before)
    pipeline = f"killed{call}{is_done_before}"
    failures = 0
    for number, offsets in enumerate([(1, 2), (3,), (4, 5)]):
        while True:
            rows = [("a", offset, 1, offset) for offset in offsets]
            batch(directory, number, given(*rows[:1]), given(*rows[1:]))
            late = LateRows(log, pipeline, (OPERATOR,), directory)
            try:
                late.publish(number)
                break
            except StoreUnreachable:
                failures += 1
            finally:
                late.close()
    assert failures == 1
    assert positions(published(broker, pipeline)) == [("1", str(offset)) for offset in range(1, 6)]


def test_what_people_see_of_an_operator(directory):
    batch(directory, 0, given(("a", 1, 1, 7), ("a", 1, 1, 8, 1)), given(("b", 2, 0, 5)))
    batch(directory, 1, given(), given(("b", 2, 0, 6, 2)))
    metrics = metrics_of(directory / OPERATOR.name, BUCKETS, 1)
    assert (metrics.rows, metrics.watermark_us) == (1, 11)
    assert metrics.bytes > 0
    wanted = {EVENTS: 4, "not_events": 0, "late": 2, "without_time": 1, "future": 1}
    assert {name: metrics.counters.get(name, 0) for name in wanted} == wanted
    assert set(CAUSES) < set(wanted)
    assert metrics_of(directory / OPERATOR.name, BUCKETS, 0).counters[EVENTS] == 3


def test_time_is_the_least_that_a_bucket_knows(directory):
    for bucket, watermark_us in enumerate((7, 5)):
        state = FileState(directory / OPERATOR.name, bucket, 0, buckets=BUCKETS, is_begun=True)
        state.document[WATERMARK] = watermark_us
        state.commit()
    assert metrics_of(directory / OPERATOR.name, BUCKETS, 0).watermark_us == 5


def test_time_that_has_not_begun_is_not_reported(directory):
    state = FileState(directory / OPERATOR.name, 0, 0, buckets=BUCKETS, is_begun=True)
    state.document[WATERMARK] = NEVER_US
    state.commit()
    assert metrics_of(directory / OPERATOR.name, BUCKETS, 0) == OperatorMetrics()
    missing = Built("missing-1", BUCKETS, ())
    assert list(metrics_of_all(directory, (OPERATOR, missing), 0)) == ["tumbling-1"]


def test_the_slowest_partition_and_producer_are_reported():
    time = {"partitions": [["a", 0, 90, None], ["a", 1, 20, None], ["a", 2, 3, 1]], "now": 10}
    assert slowest_source({"time": time, "watermark_us": 10}) == SlowestSource(
        "partition 1 of a", 70
    )
    alone = {"partitions": [["a", 0, 90, None]], "now": 80}
    assert slowest_source({"time": alone}) is None
    other = {"watermarks": {"partitions": [["b", 0, 95, None]], "now": 80}, "closed": 80}
    assert slowest_source({"l": {"watermarks": alone}, "r": other}) == SlowestSource(
        "partition 0 of a", 5
    )
    producers = {"topic": "a", "partition": 0, "producers": ["x", "y"], "watermarks": [7, 5]}
    slowest = slowest_source({"time": {"members": [producers], "now": 5}})
    assert slowest == SlowestSource("producer y in partition 0 of a", 2)


def aside(directory, number, side, columns, offset):
    """What a batch of a join puts aside of one input, of a topic that is both of them."""
    state = FileState(directory / JOIN.name, 0, number, buckets=1, is_begun=True)
    about = {TOPIC: "events", PARTITION: 0, OFFSET: offset, CAUSE: "late", OF_SIDE: side}
    state.side(LATE, pa.Table.from_pylist([{**columns, **about}]))
    state.commit()


JOIN = Built("join-1", 1, (("id",), ("of",)))


def test_a_row_that_is_late_on_both_sides_of_a_join_is_reported_by_each(broker, log, tmp_path):
    """Though one side is read faster. Its key is that of its side, whatever columns it has."""
    begin(tmp_path / JOIN.name, 1)
    late = LateRows(log, "both", (JOIN,), tmp_path)
    aside(tmp_path, 0, "left", {"id": 1}, 5)
    assert late.publish(0) == 1
    aside(tmp_path, 1, "right", {"id": 2, "of": 1}, 5)
    assert late.publish(1) == 1
    assert late.publish(1) == 0
    late.close()
    found = published(broker, "both")
    assert [(about(message)["side"], orjson.loads(message.key())) for message in found] == [
        ("left", {"id": 1}),
        ("right", {"of": 1}),
    ]
    assert late_counts(read_positions(log), "both") == {"join-1": 2}
