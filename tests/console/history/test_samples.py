"""Which figures are sampled, and which are left out where there are too many."""

from datetime import UTC, datetime, timedelta

import pytest

from headwater.capture.contract import Lag, SourcePosition
from headwater.capture.positions import CapturePosition, Stored
from headwater.console.history import samples
from headwater.console.history.process_usage import Meter, Usage
from headwater.console.history.samples import figures, skew_of
from headwater.console.history.small_line import small_line
from headwater.console.project.definitions import ProjectState
from headwater.console.project.group_lags import GroupLag
from headwater.console.topics.topic_list import Partition, Reading, Topic
from headwater.inspect.captures import CaptureState
from headwater.inspect.kafka_cluster import Partition as Numbered
from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.inspect.share_groups import PartitionProgress, ShareGroup
from headwater.sinks.contract import Position, Version


def topic(name, *sizes, rate=0.0):
    partitions = tuple(Partition(n, 0, (0,), (0,), 0, 5, size) for n, size in enumerate(sizes))
    return Topic(name, name.startswith("__"), partitions, 5, 5, sum(sizes), rate)


def reading(*topics):
    return Reading(0.0, "c", {}, {topic.name: topic for topic in topics})


def pipeline(read, end, *, is_running=True, **reported):
    versions = [Version(1, True, Position("q", 1, {"t": {0: read}}), None)]
    about = {"sink": "cache", "table": "orders", "state": "running", **reported}
    write = WriteState("cache/orders", about, versions, None, {"t": {0: end}}, 0)
    return PipelineState("p", "p.py", is_running, False, None, "", {}, {}, [write])


def of_write(*arguments, **options):
    project = ProjectState(0.0, [], [pipeline(*arguments, **options)])
    found = figures(reading(), project, (), (), (), {})
    return {name.partition("/")[0]: value for name, value in found.items() if "/p/" in name}


def test_topics_groups_queues_and_processes():
    progress = [PartitionProgress(Numbered("t", 0), 0, 9, 2, None)]
    found = figures(
        reading(topic("t", 30, 10, rate=2.0), topic("u", 5, rate=3.0)),
        None,
        [GroupLag("g", "stable", "classic", ("t",), 7), GroupLag("q", "stable", "share", (), None)],
        [ShareGroup("q", "stable", [], progress)],
        [Usage("broker", None, 100), Usage("gateway", 0.5, 50)],
        {"connections": 3},
    )
    assert found == {
        "records_per_s": 5, "size_bytes": 45, "connections": 3, "process.memory/broker": 100,
        "process.cpu/gateway": 0.5, "process.memory/gateway": 50, "queue.backlog/q": 9,
        "queue.in_flight/q": 2, "group.lag/g": 7, "topic.rate/t": 2, "topic.size/t": 40,
        "topic.skew/t": 1.5, "topic.rate/u": 3, "topic.size/u": 5,
    }  # fmt: skip


def test_a_capture():
    stored = CapturePosition(
        SourcePosition({"id": 7}, None), ts_ms=0, written_ms=0, lag=Lag(10, 4096)
    )
    project = ProjectState(0.0, [CaptureState("shop", None, Stored(stored, {}))], [])
    found = figures(reading(), project, (), (), (), {})
    assert (found["capture.lag_bytes/shop"], found["capture.retained/shop"]) == (10, 4096)


def test_of_many_topics_the_busiest_and_those_that_were_looked_at(monkeypatch):
    monkeypatch.setattr(samples, "_MOST_TOPICS", 2)
    monkeypatch.setattr(samples, "_MOST_GROUPS", 1)
    topics = [topic(f"t{number}", 1, rate=float(number)) for number in range(9)]
    groups = [GroupLag(f"g{number}", "stable", "classic", (), number) for number in range(9)]
    found = figures(
        reading(*topics, topic("__x", 1, rate=99.0)), None, groups, (), (), {}, {"topic/t3"}
    )
    assert [name for name in found if "rate/" in name] == ["topic.rate/t3", "topic.rate/t8"]
    assert [name for name in found if "lag/" in name] == ["group.lag/g8"]


def test_skew_is_the_largest_partition_in_means():
    assert skew_of(topic("t", 10, 10)) == 1
    assert skew_of(topic("t", 90, 0, 0)) == 3
    assert skew_of(topic("t", 90)) is None
    assert skew_of(topic("t", 0, 0)) is None


def test_a_pipeline_that_does_not_run_has_no_batches():
    assert of_write(10, 20, batch_ms=250)["write.batch_ms"] == 250
    assert of_write(10, 20, batch_ms=250, is_running=False) == {"write.lag": 10}


def test_an_idle_pipeline_does_not_repeat_its_last_batch():
    batch = {"batch_ms": 250, "store_ms": 200, "rows_per_s": 163.0}

    def shown(read, end, ago_s):
        at = (datetime.now(UTC) - timedelta(seconds=ago_s)).isoformat()
        found = of_write(read, end, at=at, **batch)
        return [found.get(f"write.{name}") for name in batch]

    assert shown(20, 20, 0) == [250, 200, 163]
    assert shown(20, 20, 30) == [None, None, 0]
    assert shown(10, 20, 30) == [250, 200, 163]  # batches may be rare
    assert shown(10, 20, 300) == [None, None, 0]


def test_operators():
    operators = {
        "a": {"state_bytes": 10, "late": 2, "watermark_us": 0},
        "b": {"state_bytes": 5},
    }
    found = of_write(0, 0, operators=operators)
    assert (found["write.state"], found["write.late"]) == (15, 2)
    assert found["write.gap"] > 1e9


def test_processes_with_what_they_started(monkeypatch):
    """Their own CPU is used here; a child of this process counts for it."""
    import os

    meter = Meter()
    children = [{"name": "me", "pid": os.getpid()}, {"name": "none", "pid": None}]
    (first,) = meter.read(children)
    assert first.cpu_share is None
    assert first.memory_bytes > 10 << 20
    monkeypatch.setattr(meter, "_at_s", meter._at_s - 2)
    (second,) = meter.read(children)
    assert 0 <= second.cpu_share < 64


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([], []),
        ([1.0], []),
        ([None, None], []),
        ([0.0, 1.0], ["1.5,18.5 94.5,1.5"]),
        ([1.0, None, 1.0], ["1.5,1.5 1.5,1.5", "94.5,1.5 94.5,1.5"]),
    ],
)
def test_a_small_line_breaks_at_gaps(values, lines):
    assert small_line(values) == lines
