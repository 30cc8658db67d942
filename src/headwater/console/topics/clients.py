"""Who writes a topic and who reads it, as far as that leaves a trace: captures, pipelines, groups,
and the producers that number their records.
"""

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from headwater.capture.records.plan import topic_name
from headwater.client.cluster import LOST, Cluster
from headwater.client.groups import SHARE
from headwater.console.project.overview import Overview
from headwater.console.topics.topic_list import Topic
from headwater.errors import HeadwaterError, RequestRefused
from headwater.inspect.captures import CaptureState
from headwater.inspect.pipelines import PipelineState
from headwater.pipelines.offsets import lag_records
from headwater.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeProducersResponse,
)
from headwater.terminal.output import duration

_MOST: Final = 200  # of each kind
_MOST_PARTITIONS: Final = 1000  # whose producers are asked for
_AGE_S: Final = 5.0


async def writers_of(overview: Overview, topic: Topic) -> list[dict[str, Any]]:
    """Captures, pipelines, then producers, the latest first."""
    found: list[dict[str, Any]] = []
    captures, pipelines = await _project(overview)
    for capture in captures:
        tables = {topic_name(capture.name, t.table) for t in capture.stored.tables.values()}
        if topic.name in tables:
            address = f"/captures/{quote(capture.name, safe='')}/"
            found.append(_one("capture", capture.name, address, note=capture.state))
    for pipeline in pipelines:
        for write in pipeline.writes:
            if write.reported["table"] == topic.name and overview.is_topic(write.reported["sink"]):
                address = f"/pipelines/{quote(pipeline.name, safe='')}/"
                found.append(_one("pipeline", pipeline.name, address, note=pipeline.state))
    brokers = (await overview.access.topics()).brokers
    producers = await overview.access.shared.get(
        ("producers", topic.name),
        lambda: overview.access.ask(lambda cluster: read_producers(cluster, topic, brokers)),
        _AGE_S,
    )
    now_ms = time.time() * 1000
    for producer in producers[:_MOST]:
        since_s = max(0.0, (now_ms - producer["last_ms"]) / 1000)
        note = f"{'last record' if producer['last_ms'] > 0 else 'no record'}"
        note += f" {duration(since_s)} ago" if producer["last_ms"] > 0 else ""
        note += ", in a transaction" if producer["in_transaction"] else ""
        found.append(_one("producer", f"id {producer['producer_id']}", None, note=note))
    return found


async def readers_of(overview: Overview, topic: Topic) -> list[dict[str, Any]]:
    """Pipelines, then groups and queues, by lag."""
    _, pipelines = await _project(overview)
    found = []
    for pipeline in pipelines:
        for write in pipeline.writes:
            if topic.name in write.reported.get("topics", ()):
                lag = None
                if write.error is None:
                    lag = lag_records(write.position, {topic.name: write.ends.get(topic.name, {})})
                address = f"/pipelines/{quote(pipeline.name, safe='')}/"
                found.append(_one("pipeline", f"{pipeline.name}/{write.name}", address, lag=lag))
    try:
        groups = await overview.groups()
    except HeadwaterError:
        groups = []  # one may see a topic without the right to see groups
    if any(group.kind == SHARE for group in groups):
        groups = await overview.with_backlogs(groups)
    reading = [group for group in groups if topic.name in group.topics]
    for group in sorted(reading, key=lambda group: -(group.lag or 0))[:_MOST]:
        kind = "queue" if group.kind == SHARE else "group"
        address = f"/{kind}s/{quote(group.name, safe='')}/"
        # Of all topics of the group: those of one would be a request for each.
        lag = group.lag if len(group.topics) == 1 else None
        found.append(_one(kind, group.name, address, lag=lag))
    return found


async def _project(overview: Overview) -> tuple[list[CaptureState], list[PipelineState]]:
    """None for a user who may see the topic, and not the positions of captures and pipelines."""
    try:
        project = await overview.project()
    except RequestRefused:
        return [], []
    return project.captures, project.pipelines


def _one(
    kind: str, name: str, address: str | None, *, note: str = "", lag: int | None = None
) -> dict[str, Any]:
    return {"kind": kind, "name": name, "address": address, "note": note, "lag": lag}


def read_producers(
    cluster: Cluster, topic: Topic, brokers: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Those that have numbered records, the latest first; none of partitions that do not answer."""
    by_leader: dict[str, list[int]] = {}
    for partition in topic.partitions[:_MOST_PARTITIONS]:
        if partition.leader is not None and partition.leader in brokers:
            by_leader.setdefault(brokers[partition.leader], []).append(partition.number)
    producers: dict[int, dict[str, Any]] = {}
    for address, numbers in by_leader.items():
        request = DescribeProducersRequest(
            topics=[
                DescribeProducersRequestTopicRequest(name=topic.name, partition_indexes=numbers)
            ]
        )
        try:
            answer = cluster.connection(address).ask(
                request, DescribeProducersResponse, first=0, last=0
            )
        except (HeadwaterError, *LOST):
            continue
        for described in answer.topics:
            for answered in described.partitions:
                for state in answered.active_producers:
                    one = producers.setdefault(
                        state.producer_id,
                        {
                            "producer_id": state.producer_id,
                            "epoch": state.producer_epoch,
                            "last_ms": -1,
                            "in_transaction": False,
                            "partitions": 0,
                        },
                    )
                    one["last_ms"] = max(one["last_ms"], state.last_timestamp)
                    one["in_transaction"] |= state.current_txn_start_offset >= 0
                    one["partitions"] += 1
    return sorted(producers.values(), key=lambda one: -one["last_ms"])
