"""The flow as a graph: rates, lag and the cause of backpressure of each source, topic and store.

Pure functions from states to the contents of the graph (graph.py); layout.py positions them.

The cause of backpressure is attributed to where the time of a batch goes:

    its store does not answer, or takes most of the batch's time      the store
    it does not run, has failed, is starting; Spark takes the time     the pipeline
    a capture that is behind its database, stopped, or has failed      the source
    a group with lag and without members, or slower than its topics    the group
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

from headwater.capture.records.plan import topic_name
from headwater.client.groups import SHARE
from headwater.console.flow.graph import (
    BEHIND,
    BROKEN,
    GROUP,
    IDLE,
    PIPELINE,
    SOURCE,
    STORE,
    TOPIC,
    WELL,
    Edge,
    Graph,
    Node,
    shown_rate,
)
from headwater.console.flow.grouping import grouped
from headwater.console.project.group_lags import GroupLag
from headwater.inspect.captures import FOLLOWING, CaptureState
from headwater.inspect.pipelines import PipelineState, WriteState
from headwater.pipelines.offsets import lag_records
from headwater.terminal.output import count, duration, plural, size

BEHIND_S: Final = 10.0  # a smaller lag counts as up to date
_BEHIND_BYTES: Final = 16 << 20  # of a source's log
_OWN_GROUPS: Final = "headwater."  # groups of pipelines and of redrives: shown by what they are
_SINGLE_GROUPS: Final = 100  # that lag most


@dataclass(frozen=True, slots=True)
class TopicFlow:
    """The records and the rate of a topic."""

    records: int | None
    per_s: float | None


def graph_of(
    captures: Iterable[CaptureState],
    pipelines: Iterable[PipelineState],
    topics: Mapping[str, TopicFlow],
    groups: Iterable[GroupLag] = (),
    lag_s: Mapping[str, float] | None = None,
    read_per_s: Mapping[str, float] | None = None,
    topic_sinks: Collection[str] = ("topic",),
) -> Graph:
    """`lag_s` and `read_per_s` are of writes, by <pipeline>/<sink>/<table>: how long ago the log
    was where the store is now, and how many records it takes in a second. `topic_sinks` are those
    whose tables are topics.
    """
    graph = Graph()
    for capture in captures:
        _add_capture(graph, capture, topics)
    for pipeline in pipelines:
        _add_pipeline(graph, pipeline, topics, lag_s or {}, read_per_s or {}, topic_sinks)
    shown = [group for group in groups if not group.name.startswith(_OWN_GROUPS)]
    shown.sort(key=lambda group: (-(group.lag or 0), group.name))
    for group in shown[:_SINGLE_GROUPS]:
        _add_group(graph, group, topics)
    _add_other_groups(graph, shown[_SINGLE_GROUPS:], topics)
    for name in topics:
        _add_topic(graph, name, topics)
    return grouped(graph)


def _well(flowing: float | None) -> str:
    """Of a part without trouble: whether anything flows through it, or waits to."""
    return WELL if flowing else IDLE


def _topic_id(name: str) -> str:
    return f"topic:{name}"


def _add_topic(graph: Graph, name: str, topics: Mapping[str, TopicFlow]) -> None:
    if _topic_id(name) in graph.nodes:
        return
    topic = topics.get(name)
    if topic is None:
        graph.add(
            Node(_topic_id(name), TOPIC, name, _href("topics", name), IDLE, ("not there yet",))
        )
        return
    notes = [plural(topic.records, "record")] if topic.records is not None else []
    graph.add(
        Node(
            _topic_id(name),
            TOPIC,
            name,
            _href("topics", name),
            _well(topic.per_s),
            (*([shown_rate(topic.per_s)] if topic.per_s else []), *notes),
            topic.per_s,
        )
    )


def _add_capture(graph: Graph, capture: CaptureState, topics: Mapping[str, TopicFlow]) -> None:
    node_id = f"source:{capture.name}"
    names = [topic_name(capture.name, table.table) for table in capture.stored.tables.values()]
    # Changes of tables, transactions, an outbox's topics.
    names += [
        topic
        for topic in topics
        if topic.startswith(f"{capture.name}.")
        and not topic.endswith(".dlq")
        and topic not in names
    ]
    per_s = [topics[name].per_s or 0.0 for name in names if name in topics]
    total = sum(per_s)
    state, notes, cause = _well(total), [], None
    lag_bytes = capture.stored.capture.lag.size_bytes if capture.stored.capture else None
    if capture.state != FOLLOWING:
        state, cause = BROKEN, capture.not_ready or f"the capture {_does_not_run(capture.state)}"
        notes.append(capture.state)
    elif capture.failed:
        state = BROKEN
        cause = f"{plural(len(capture.failed), 'table')} not followed: {', '.join(capture.failed)}"
        notes.append(f"{plural(len(capture.failed), 'table')} failed")
    elif (capture.lag_s or 0) > BEHIND_S or (lag_bytes or 0) > _BEHIND_BYTES:
        state = BEHIND
        cause = f"the capture is behind its database by {_shown_lag(lag_bytes, capture.lag_s)}"
        notes.append(f"{_shown_lag(lag_bytes, capture.lag_s)} behind")
    else:
        copying = sum(
            table.snapshot is not None and not table.snapshot.is_done
            for table in capture.stored.tables.values()
        )
        state = _well(total or copying)
        notes.append(f"copies {plural(copying, 'table')}" if copying else "follows")
    notes += [shown_rate(total)] if total else []
    href = _href("captures", capture.name)
    graph.add(Node(node_id, SOURCE, capture.name, href, state, tuple(notes), total, None, cause))
    for name in names:
        _add_topic(graph, name, topics)
        rate = topics[name].per_s if name in topics else None
        graph.join(Edge(node_id, _topic_id(name), rate, is_behind=state == BEHIND))


def _does_not_run(state: str) -> str:
    return {"never ran": "has never run", "stopped": "does not run"}.get(state, f"is {state}")


def _shown_lag(lag_bytes: int | None, lag_s: float | None) -> str:
    parts = [size(lag_bytes)] if lag_bytes else []
    parts += [duration(lag_s)] if lag_s else []
    return ", ".join(parts)


def _add_pipeline(
    graph: Graph,
    pipeline: PipelineState,
    topics: Mapping[str, TopicFlow],
    lag_s: Mapping[str, float],
    read_per_s: Mapping[str, float],
    topic_sinks: Collection[str],
) -> None:
    node_id = f"pipeline:{pipeline.name}"
    names = [f"{pipeline.name}/{write.name}" for write in pipeline.writes]
    rates = [read_per_s[name] for name in names if name in read_per_s]
    lags = [write.lag for write in pipeline.writes if write.lag is not None]
    state, cause = _pipeline_state(pipeline)
    notes = [pipeline.state] if pipeline.state != "running" else []
    blamed: list[str] = [cause] if cause else []
    for write in pipeline.writes:
        write_lag_s = lag_s.get(f"{pipeline.name}/{write.name}")
        per_s = read_per_s.get(f"{pipeline.name}/{write.name}")
        store_id, (store_state, store_cause), (why, is_behind) = _write_states(
            pipeline, write, write_lag_s, per_s, topic_sinks
        )
        if is_behind and state == WELL:
            state = BEHIND
        if why and why not in blamed:
            blamed.append(why)
        if store_id.startswith("topic:"):
            _add_topic(graph, write.reported["table"], topics)
            if store_cause:
                graph.add(replace(graph.nodes[store_id], state=store_state, cause=store_cause))
        else:
            _add_store(graph, store_id, pipeline, write, store_state, store_cause, write_lag_s)
        graph.join(Edge(node_id, store_id, per_s, write.lag, is_behind))
        for topic in write.reported.get("topics", ()):
            _add_topic(graph, topic, topics)
            before = graph.edges.get((_topic_id(topic), node_id))
            behind = is_behind or (before is not None and before.is_behind)
            lag = max(_lag_in(topic, write), (before.lag or 0) if before else 0)
            rate = topics[topic].per_s if topic in topics else None
            graph.join(Edge(_topic_id(topic), node_id, rate, lag, behind))
    total = max(rates, default=None)
    state = _well(total or max(lags, default=0)) if state == WELL else state
    notes += [shown_rate(total)] if total else []
    at_work = [write for write in pipeline.writes if not write.is_idle]
    batches = [ms for write in at_work if (ms := write.reported.get("batch_ms")) is not None]
    notes += [f"batch {duration(max(batches) / 1000)}"] if batches and pipeline.is_running else []
    graph.add(
        Node(
            node_id,
            PIPELINE,
            pipeline.name,
            _href("pipelines", pipeline.name),
            state,
            tuple(notes),
            total,
            max(lags, default=None),
            "; ".join(blamed) or None,
        )
    )


def _pipeline_state(pipeline: PipelineState) -> tuple[str, str | None]:
    """Of the pipeline as a whole."""
    match pipeline.state:
        case "stopped":
            return BROKEN, "the pipeline does not run"
        case "never ran":
            return IDLE, None
        case "failed":
            errors = [pipeline.error, *(write.reported.get("error") for write in pipeline.writes)]
            error = next((error for error in errors if error), "it fails")
            return BROKEN, error
        case "starting":
            return IDLE, None
    return WELL, None


def _lag_in(topic: str, write: WriteState) -> int:
    """Records of one of its topics that the store does not have; 0 if that cannot be determined."""
    if write.error is not None:
        return 0
    return lag_records(write.position, {topic: write.ends.get(topic, {})})


def _write_states(
    pipeline: PipelineState,
    write: WriteState,
    lag_s: float | None,
    per_s: float | None,
    topic_sinks: Collection[str],
) -> tuple[str, tuple[str, str | None], tuple[str | None, bool]]:
    """The store's id, its state and its blame, and the pipeline's blame and whether the write is
    behind.
    """
    reported = write.reported
    is_topic = reported["sink"] in topic_sinks
    store_id = _topic_id(reported["table"]) if is_topic else f"store:{pipeline.name}/{write.name}"
    is_behind = bool(write.lag) and (
        not pipeline.is_running or (lag_s is not None and lag_s >= BEHIND_S)
    )
    if reported.get("state") == "waiting" and pipeline.is_running:
        return store_id, (BROKEN, f"it does not take rows: {reported.get('error')}"), (None, True)
    if write.error is not None:
        return store_id, (BROKEN, f"it cannot be read: {write.error}"), (None, is_behind)
    if not is_behind:
        return store_id, (_well(per_s or write.lag), None), (None, False)
    if not pipeline.is_running or reported.get("state") != "running":
        return store_id, (BEHIND, None), (None, True)  # the pipeline as a whole has its cause
    batch_ms, store_ms = reported.get("batch_ms"), reported.get("store_ms")
    if batch_ms and store_ms is not None and store_ms > batch_ms / 2:
        share = f"{100 * store_ms / batch_ms:.0f} %"
        return store_id, (BEHIND, f"it takes {share} of the batch's time"), (None, True)
    return store_id, (BEHIND, None), (_of_spark(write), True)


def _of_spark(write: WriteState) -> str:
    """Why rows wait for Spark, judged by its last batch."""
    batch_ms = write.reported.get("batch_ms")
    since_s = write.idle_s or 0.0
    if since_s >= BEHIND_S:
        return f"no batch of Spark has finished for {duration(since_s)}"
    spent = f" ({duration(batch_ms / 1000)} a batch)" if batch_ms else ""
    return f"Spark does not keep up{spent}"


def _add_store(
    graph: Graph,
    store_id: str,
    pipeline: PipelineState,
    write: WriteState,
    state: str,
    cause: str | None,
    lag_s: float | None,
) -> None:
    if write.lag is None:
        notes: tuple[str, ...] = ("does not answer",) if write.error else ()
    elif write.lag == 0:
        notes = ("up to date",)
    else:
        since = f", {duration(lag_s)}" if lag_s is not None and lag_s >= 1 else ""
        notes = (f"{plural(write.lag, 'record')} behind{since}",)
    if write.refused:
        notes += (f"{plural(write.refused, 'row')} refused",)
    name = f"{write.reported['sink']}/{write.reported['table']}"
    href = _href("stores", pipeline.name, write.reported["sink"], write.reported["table"])
    graph.add(Node(store_id, STORE, name, href, state, notes, None, write.lag, cause))


def _add_group(graph: Graph, group: GroupLag, topics: Mapping[str, TopicFlow]) -> None:
    read = [topic for topic in group.topics if topic in topics]
    if not read:
        return
    per_s = sum(topics[topic].per_s or 0.0 for topic in read)
    lag = group.lag or 0
    state, cause = _well(per_s or lag), None
    if lag and group.state in ("empty", "dead"):
        state, cause = BEHIND, f"{count(lag)} records wait, and the group has no members"
    elif lag > BEHIND_S * max(per_s, 1.0):
        state = BEHIND
        cause = f"the group is {plural(lag, 'record')} behind"
    elif group.state in ("empty", "dead"):
        state = IDLE
    notes = (f"{plural(lag, 'record')} behind" if lag else "up to date", group.state)
    node_id = f"group:{group.name}"
    href = _href("queues" if group.kind == SHARE else "groups", group.name)
    graph.add(Node(node_id, GROUP, group.name, href, state, notes, None, group.lag, cause))
    for topic in read:
        _add_topic(graph, topic, topics)
        graph.join(Edge(_topic_id(topic), node_id, topics[topic].per_s, lag, state == BEHIND))


def _add_other_groups(
    graph: Graph, groups: Sequence[GroupLag], topics: Mapping[str, TopicFlow]
) -> None:
    """The groups that lag less than those that are shown, as one node."""
    if not groups:
        return
    lag = sum(group.lag or 0 for group in groups)
    node_id = f"group:{groups[0].name}+{len(groups) - 1}"
    notes = (f"{plural(lag, 'record')} behind" if lag else "up to date",)
    name = f"{count(len(groups))} more groups"
    graph.add(Node(node_id, GROUP, name, "/groups", WELL, notes, None, lag))
    for topic in sorted({topic for group in groups for topic in group.topics if topic in topics}):
        _add_topic(graph, topic, topics)
        graph.join(Edge(_topic_id(topic), node_id, topics[topic].per_s))


def _href(*parts: str) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts) + "/"
