"""The figures that are sampled, by the name of their series: "<figure>/<what it is of>".

The most important come first, because a history has places for a bounded number of series.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from headwater.console.history.process_usage import Usage
from headwater.console.project.definitions import ProjectState
from headwater.console.project.group_lags import GroupLag
from headwater.console.topics.topic_list import Reading, Topic
from headwater.inspect.captures import CaptureState
from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.inspect.share_groups import ShareGroup

Figures = Iterator[tuple[str, float | None]]

# With these bounds, and three figures of a topic, all fit into a history.
_MOST_TOPICS: Final = 300
_MOST_GROUPS: Final = 300
_MOST_QUEUES: Final = 150
_MOST_CAPTURES: Final = 100
_MOST_WRITES: Final = 150
_MOST_PROCESSES: Final = 100

ALL_RECORDS: Final = "records_per_s"
ALL_BYTES: Final = "size_bytes"
DISK_FREE: Final = "disk.free"
CONNECTIONS: Final = "connections"
SHOWN_APIS: Final = ("Produce", "Fetch", "Metadata", "ListOffsets", "OffsetCommit")


def figures(
    topics: Reading,
    project: ProjectState | None,
    groups: Iterable[GroupLag],
    queues: Iterable[ShareGroup],
    usages: Iterable[Usage],
    requests: Mapping[str, float],
    watched: Collection[str] = (),
) -> dict[str, float]:
    """Those that are known. `watched`: topics and groups ("topic/NAME", "group/NAME") that have a
    history however quiet they are; of the others, those that are at work.
    """
    found: dict[str, float] = {}
    for name, value in _all(topics, project, groups, queues, usages, requests, watched):
        if value is not None:
            found[name] = float(value)
    return found


def _all(
    topics: Reading,
    project: ProjectState | None,
    groups: Iterable[GroupLag],
    queues: Iterable[ShareGroup],
    usages: Iterable[Usage],
    requests: Mapping[str, float],
    watched: Collection[str],
) -> Figures:
    every = list(topics.topics.values())
    rates = [topic.records_per_s for topic in every if topic.records_per_s is not None]
    yield ALL_RECORDS, sum(rates) if rates else None
    sizes = [topic.size_bytes for topic in every if topic.size_bytes is not None]
    yield ALL_BYTES, sum(sizes) if sizes else None
    yield from requests.items()
    for usage in list(usages)[:_MOST_PROCESSES]:
        yield f"process.cpu/{usage.name}", usage.cpu_share
        yield f"process.memory/{usage.name}", usage.memory_bytes
    if project is not None:
        for capture in project.captures[:_MOST_CAPTURES]:
            yield from _of_capture(capture)
        writes = [(pipeline, write) for pipeline in project.pipelines for write in pipeline.writes]
        for pipeline, write in writes[:_MOST_WRITES]:
            yield from _of_write(pipeline, write)
    for queue in list(queues)[:_MOST_QUEUES]:
        yield f"queue.backlog/{queue.name}", queue.total("backlog")
        yield f"queue.in_flight/{queue.name}", queue.total("in_flight")
    lags = [group for group in groups if group.lag is not None]
    for group in heapq.nlargest(
        _MOST_GROUPS, lags, key=lambda group: (f"group/{group.name}" in watched, group.lag or 0)
    ):
        yield f"group.lag/{group.name}", group.lag
    for topic in heapq.nlargest(
        _MOST_TOPICS,
        every,
        key=lambda topic: (
            f"topic/{topic.name}" in watched,
            not topic.is_internal,
            topic.records_per_s or 0.0,
            topic.size_bytes or 0,
        ),
    ):
        yield f"topic.rate/{topic.name}", topic.records_per_s
        yield f"topic.size/{topic.name}", topic.size_bytes
        yield f"topic.skew/{topic.name}", skew_of(topic)


def skew_of(topic: Topic) -> float | None:
    """The largest partition in means of all: 1 if they are equal, their number if one has all."""
    parts = [
        partition.records if partition.size_bytes is None else partition.size_bytes
        for partition in topic.partitions
    ]
    known = [part for part in parts if part is not None]
    if len(known) < 2 or not sum(known):
        return None
    return max(known) * len(known) / sum(known)


def _of_capture(capture: CaptureState) -> Figures:
    yield f"capture.lag_bytes/{capture.name}", capture.lag.size_bytes
    yield f"capture.lag_s/{capture.name}", capture.lag_s
    yield f"capture.retained/{capture.name}", capture.lag.retained_bytes


def _of_write(pipeline: PipelineState, write: WriteState) -> Figures:
    """A batch counts until the write has been idle for some seconds."""
    name = f"{pipeline.name}/{write.name}"
    yield f"write.lag/{name}", write.lag
    if not pipeline.is_running:
        return
    reported = write.reported
    batch = {} if write.is_idle else reported
    for figure in ("batch_ms", "store_ms", "rows_per_s", "input_rows_per_s"):
        is_rate = figure.endswith("per_s")
        idle = 0.0 if is_rate and write.is_idle and figure in reported else None
        yield f"write.{figure}/{name}", batch.get(figure, idle)
    operators = write.operators
    state_bytes = [operator.get("state_bytes") or 0 for operator in operators.values()]
    if operators or "state_bytes" in reported:
        yield f"write.state/{name}", (reported.get("state_bytes") or 0) + sum(state_bytes)
    gaps = [
        operator["watermark_gap_s"]
        for operator in operators.values()
        if "watermark_gap_s" in operator
    ]
    yield f"write.gap/{name}", max(gaps, default=None)
    late = [operator["late"] for operator in operators.values() if "late" in operator]
    yield f"write.late/{name}", sum(late) if late else None
    for operator, metrics in operators.items():
        yield f"operator.state/{name}/{operator}", metrics.get("state_bytes")
