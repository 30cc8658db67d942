"""Who is joined to whom, and who is to blame when something is behind."""

import time
from datetime import UTC, datetime, timedelta

from headwater.capture.contract import Column, Lag, SourcePosition, Table
from headwater.capture.positions import CapturePosition, Failure, Stored, TableState
from headwater.console.flow.flow import TopicFlow, graph_of
from headwater.console.flow.graph import BEHIND, BROKEN, IDLE, WELL
from headwater.console.flow.grouping import grouped
from headwater.console.project.group_lags import GroupLag
from headwater.inspect.captures import CaptureState
from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.sinks.contract import Position, Version

TOPIC = "shop.public.orders"
TOPICS = {TOPIC: TopicFlow(1000, 25.0), "other": TopicFlow(3, None)}


def capture(lag_bytes=0, *, failed=False, has_ended=False):
    table = Table("public", "orders", (Column("id", "int", False),), ("id",))
    failure = Failure("no key", hint="give it one") if failed else None
    stored = CapturePosition(
        SourcePosition({"lsn": 1}, None),
        ts_ms=0,
        written_ms=int(time.time() * 1000),
        has_ended=has_ended,
        lag=Lag(lag_bytes),
    )
    tables = {"public.orders": TableState(table, None, failure)}
    return CaptureState("shop", None, Stored(stored, tables))


def write(read=1000, end=1000, *, sink="cache", table="orders", error=None, **reported):
    about = {"sink": sink, "table": table, "topics": [TOPIC], "state": "running", **reported}
    versions = [Version(1, True, Position("q", 1, {TOPIC: {0: read}}), None)]
    return WriteState(
        f"{sink}/{table}", about, [] if error else versions, error, {TOPIC: {0: end}}, 0
    )


def pipeline(*writes, is_running=True, name="revenue", error=None):
    return PipelineState(name, "r.py", is_running, False, error, "", {}, {}, list(writes))


def causes(graph):
    return {cause.id: cause.cause for cause in graph.causes}


def test_from_source_to_store():
    graph = graph_of([capture()], [pipeline(write())], TOPICS)
    assert set(graph.edges) == {
        ("source:shop", f"topic:{TOPIC}"),
        (f"topic:{TOPIC}", "pipeline:revenue"),
        ("pipeline:revenue", "store:revenue/cache/orders"),
    }
    assert graph.nodes[f"topic:{TOPIC}"].per_s == 25.0
    assert graph.nodes["store:revenue/cache/orders"].notes == ("up to date",)
    assert graph.nodes["topic:other"].state == IDLE
    assert not graph.causes


def test_what_nothing_flows_through_is_quiet():
    quiet = {TOPIC: TopicFlow(1000, 0.0)}
    group = GroupLag("billing", "stable", "consumer", (TOPIC,), 0)
    graph = graph_of([capture()], [pipeline(write())], quiet, [group], {}, {})
    assert {node.id: node.state for node in graph.nodes.values() if node.state != IDLE} == {}
    assert not graph.causes
    read = {"revenue/cache/orders": 25.0}
    graph = graph_of([capture()], [pipeline(write())], TOPICS, [group], {}, read)
    flowing = {node.id for node in graph.nodes.values() if node.state == WELL}
    assert flowing == {
        "source:shop", f"topic:{TOPIC}", "pipeline:revenue", "store:revenue/cache/orders",
        "group:billing",
    }  # fmt: skip


def test_the_time_of_a_batch_is_shown_while_there_are_batches():
    now = datetime.now(UTC)
    for at, notes in ((now, ("batch 2 s",)), (now - timedelta(minutes=5), ())):
        slow = write(batch_ms=2000, at=at.isoformat())
        graph = graph_of([], [pipeline(slow)], TOPICS)
        assert graph.nodes["pipeline:revenue"].notes == notes


def test_an_edge_has_the_lag_of_its_own_topic():
    joined = write(read=990)
    joined.reported["topics"].append("other")
    joined.ends["other"] = {0: 3}
    graph = graph_of([], [pipeline(joined)], TOPICS)
    assert graph.edges[f"topic:{TOPIC}", "pipeline:revenue"].lag == 10
    assert graph.edges["topic:other", "pipeline:revenue"].lag == 3
    assert graph.nodes["pipeline:revenue"].lag == 13


def test_what_is_written_to_a_topic_goes_on_from_there():
    graph = graph_of([], [pipeline(write(sink="topic", table="other"))], TOPICS)
    assert ("pipeline:revenue", "topic:other") in graph.edges
    assert not any(node.kind == "store" for node in graph.nodes.values())


def test_a_store_that_takes_most_of_the_time_is_the_cause():
    slow = write(read=0, batch_ms=1000, store_ms=900)
    graph = graph_of([], [pipeline(slow)], TOPICS, lag_s={"revenue/cache/orders": 30.0})
    assert causes(graph) == {"store:revenue/cache/orders": "it takes 90 % of the batch's time"}
    assert graph.nodes["pipeline:revenue"].state == BEHIND
    assert graph.edges["pipeline:revenue", "store:revenue/cache/orders"].is_behind


def test_each_topic_shows_its_own_lag():
    of_two = write(read=900, topics=[TOPIC, "other"])
    of_two.ends["other"] = {0: 3}
    graph = graph_of([], [pipeline(of_two)], TOPICS)
    assert graph.edges[f"topic:{TOPIC}", "pipeline:revenue"].lag == 100
    assert graph.edges["topic:other", "pipeline:revenue"].lag == 3
    assert graph.edges["pipeline:revenue", "store:revenue/cache/orders"].lag == 103


def test_spark_is_the_cause_if_the_store_is_quick():
    slow = write(read=0, batch_ms=4000, store_ms=100)
    graph = graph_of([], [pipeline(slow)], TOPICS, lag_s={"revenue/cache/orders": 30.0})
    assert causes(graph) == {"pipeline:revenue": "Spark does not keep up (4 s a batch)"}


def test_a_batch_that_does_not_end_is_reported():
    ended = datetime.fromtimestamp(time.time() - 60, UTC).isoformat()
    stuck = write(read=0, batch_ms=250, store_ms=100, at=ended.replace("+00:00", "Z"))
    graph = graph_of([], [pipeline(stuck)], TOPICS, lag_s={"revenue/cache/orders": 30.0})
    assert causes(graph) == {
        "pipeline:revenue": "no batch of Spark has finished for 59 s"
    } or causes(graph) == {"pipeline:revenue": "no batch of Spark has finished for 60 s"}


def test_a_lag_of_a_moment_is_no_backpressure():
    graph = graph_of([], [pipeline(write(read=990))], TOPICS, lag_s={"revenue/cache/orders": 2.0})
    assert not graph.causes
    assert graph.nodes["pipeline:revenue"].state == WELL


def test_a_store_that_does_not_answer():
    waiting = write(read=0, state="waiting")
    waiting.reported["error"] = "connection refused"
    graph = graph_of([], [pipeline(waiting)], TOPICS)
    assert causes(graph) == {
        "store:revenue/cache/orders": "it does not take rows: connection refused"
    }
    graph = graph_of([], [pipeline(write(error="no route"))], TOPICS)
    assert graph.nodes["store:revenue/cache/orders"].state == BROKEN


def test_a_pipeline_that_does_not_run_or_fails():
    graph = graph_of([], [pipeline(write(read=0), is_running=False)], TOPICS)
    assert causes(graph) == {"pipeline:revenue": "the pipeline does not run"}
    failed = write(state="failed")
    failed.reported["error"] = "no such column"
    assert causes(graph_of([], [pipeline(failed)], TOPICS)) == {
        "pipeline:revenue": "no such column"
    }


def test_a_source_that_is_behind_stopped_or_has_failed_tables():
    behind = graph_of([capture(64 << 20)], [], TOPICS)
    assert behind.nodes["source:shop"].state == BEHIND
    assert "64.0 MiB" in causes(behind)["source:shop"]
    stopped = graph_of([capture(has_ended=True)], [], TOPICS)
    assert causes(stopped) == {"source:shop": "the capture does not run"}
    failed = graph_of([capture(failed=True)], [], TOPICS)
    assert "public.orders" in causes(failed)["source:shop"]


def test_groups_that_read():
    groups = [
        GroupLag("slow", "stable", "consumer", ("other",), 5_000),
        GroupLag("gone", "empty", "classic", (TOPIC,), 7),
        GroupLag("well", "stable", "classic", (TOPIC,), 20),
        GroupLag("headwater.revenue.cache.orders", "empty", "classic", (TOPIC,), 9),
        GroupLag("queue", "stable", "share", (TOPIC,), 3),
        GroupLag("of-deleted", "empty", "classic", ("gone",), 0),
    ]
    graph = graph_of([], [], TOPICS, groups)
    assert set(causes(graph)) == {"group:slow", "group:gone"}
    assert graph.nodes["group:well"].state == WELL
    assert graph.nodes["group:well"].href == "/groups/well/"
    assert graph.nodes["group:queue"].href == "/queues/queue/"
    assert "group:of-deleted" not in graph.nodes
    assert not any("headwater." in node for node in graph.nodes)


def test_many_are_shown_as_one_and_none_is_lost():
    topics = {f"t{n}": TopicFlow(n, 1.0) for n in range(300)}
    groups = [
        GroupLag(f"g{n}", "stable" if n else "empty", "classic", (f"t{n}",), n + 1)
        for n in range(300)
    ]
    graph = graph_of([], [], topics, groups)
    assert len(graph.nodes) <= 60
    names = " ".join(node.name for node in graph.nodes.values())
    assert "300 topics" in names
    assert "300 groups" in names
    (merged,) = [node for node in graph.nodes.values() if node.kind == "group"]
    assert merged.state == BEHIND
    assert merged.lag == sum(range(1, 301))
    assert merged.cause is not None
    assert "more" in merged.cause
    assert len(graph.edges) == 1
    thousands = [GroupLag(f"g{n}", "stable", "classic", ("t1",), 1) for n in range(5000)]
    many = graph_of([], [], {"t1": TopicFlow(1, 1.0)}, thousands)
    assert sum(node.lag or 0 for node in many.nodes.values()) == 5000
    assert any("5000 groups" in node.name for node in many.nodes.values())
    small = graph_of([], [], {f"t{n}": TopicFlow(n, 1.0) for n in range(60)})
    assert grouped(small) is small
