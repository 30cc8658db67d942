"""The flow as a graph: sources, topics, pipelines, stores and groups; how much flows, who is
behind, and who is to blame for it.

Pure: from readings to a picture's contents (graph.py). layout.py says where everything
lies.

The cause of backpressure. A write that is behind has its cause where its batch's time goes:

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

BEHIND_S: Final = 10.0  # who is less behind than that keeps up
_BEHIND_BYTES: Final = 16 << 20  # of a source's log
_OWN_GROUPS: Final = "headwater."  # groups of pipelines and of redrives: shown by what they are
_SINGLE_GROUPS: Final = 100  # that lag most


@dataclass(frozen=True, slots=True)
class TopicFlow:
    """What the graph needs to know of a topic."""

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
    shown = [each for each in groups if not each.name.startswith(_OWN_GROUPS)]
    shown.sort(key=lambda each: (-(each.lag or 0), each.name))
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
    known = topics.get(name)
    if known is None:
        graph.add(
            Node(_topic_id(name), TOPIC, name, _href("topics", name), IDLE, ("not there yet",))
        )
        return
    notes = [plural(known.records, "record")] if known.records is not None else []
    graph.add(
        Node(
            _topic_id(name),
            TOPIC,
            name,
            _href("topics", name),
            _well(known.per_s),
            (*([shown_rate(known.per_s)] if known.per_s else []), *notes),
            known.per_s,
        )
    )


def _add_capture(graph: Graph, known: CaptureState, topics: Mapping[str, TopicFlow]) -> None:
    node_id = f"source:{known.name}"
    names = [topic_name(known.name, table.table) for table in known.stored.tables.values()]
    # Changes of tables, transactions, an outbox's topics.
    names += [
        topic
        for topic in topics
        if topic.startswith(f"{known.name}.") and not topic.endswith(".dlq") and topic not in names
    ]
    per_s = [topics[each].per_s or 0.0 for each in names if each in topics]
    total = sum(per_s)
    state, notes, cause = _well(total), [], None
    lag_bytes = known.stored.capture.lag.size_bytes if known.stored.capture else None
    if known.state != FOLLOWING:
        state, cause = BROKEN, known.not_ready or f"the capture {_does_not_run(known.state)}"
        notes.append(known.state)
    elif known.failed:
        state = BROKEN
        cause = f"{plural(len(known.failed), 'table')} not followed: {', '.join(known.failed)}"
        notes.append(f"{plural(len(known.failed), 'table')} failed")
    elif (known.lag_s or 0) > BEHIND_S or (lag_bytes or 0) > _BEHIND_BYTES:
        state = BEHIND
        cause = f"the capture is behind its database by {_shown_lag(lag_bytes, known.lag_s)}"
        notes.append(f"{_shown_lag(lag_bytes, known.lag_s)} behind")
    else:
        copying = sum(
            table.snapshot is not None and not table.snapshot.is_done
            for table in known.stored.tables.values()
        )
        state = _well(total or copying)
        notes.append(f"copies {plural(copying, 'table')}" if copying else "follows")
    notes += [shown_rate(total)] if total else []
    href = _href("captures", known.name)
    graph.add(Node(node_id, SOURCE, known.name, href, state, tuple(notes), total, None, cause))
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
    known: PipelineState,
    topics: Mapping[str, TopicFlow],
    lag_s: Mapping[str, float],
    read_per_s: Mapping[str, float],
    topic_sinks: Collection[str],
) -> None:
    node_id = f"pipeline:{known.name}"
    rates = [read_per_s[name] for each in known.writes if (name := f"{known.name}/{each.name}") in
             read_per_s]  # fmt: skip
    lags = [each.lag for each in known.writes if each.lag is not None]
    state, cause = _pipeline_state(known)
    notes = [known.state] if known.state != "running" else []
    blamed: list[str] = [cause] if cause else []
    for write in known.writes:
        write_lag_s = lag_s.get(f"{known.name}/{write.name}")
        per_s = read_per_s.get(f"{known.name}/{write.name}")
        store_id, (store_state, store_cause), (why, is_behind) = _write_states(
            known, write, write_lag_s, per_s, topic_sinks
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
            _add_store(graph, store_id, known, write, store_state, store_cause, write_lag_s)
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
    at_work = [each for each in known.writes if not each.is_idle]
    batches = [ms for each in at_work if (ms := each.reported.get("batch_ms")) is not None]
    notes += [f"batch {duration(max(batches) / 1000)}"] if batches and known.is_running else []
    graph.add(
        Node(
            node_id,
            PIPELINE,
            known.name,
            _href("pipelines", known.name),
            state,
            tuple(notes),
            total,
            max(lags, default=None),
            "; ".join(blamed) or None,
        )
    )


def _topic_lag(write: WriteState, topic: str) -> int:
    """Of all that it reads, what waits in this topic."""
    if write.error is not None:
        return 0
    read = write.position.offsets.get(topic, {}) if write.position else {}
    return sum(
        max(0, end - read.get(partition, 0)) for partition, end in write.ends.get(topic, {}).items()
    )


def _pipeline_state(known: PipelineState) -> tuple[str, str | None]:
    """Of the pipeline as a whole."""
    match known.state:
        case "stopped":
            return BROKEN, "the pipeline does not run"
        case "never ran":
            return IDLE, None
        case "failed":
            told = [known.error, *(write.reported.get("error") for write in known.writes)]
            error = next((each for each in told if each), "it fails")
            return BROKEN, error
        case "starting":
            return IDLE, None
    return WELL, None


def _lag_in(topic: str, write: WriteState) -> int:
    """Records of one of its topics that the store does not have; 0 if it cannot be told."""
    if write.error is not None:
        return 0
    return lag_records(write.position, {topic: write.ends.get(topic, {})})


def _write_states(
    known: PipelineState,
    write: WriteState,
    lag_s: float | None,
    per_s: float | None,
    topic_sinks: Collection[str],
) -> tuple[str, tuple[str, str | None], tuple[str | None, bool]]:
    """The store's id, its state and its blame, and the pipeline's blame and whether the write is
    behind.
    """
    told = write.reported
    is_topic = told["sink"] in topic_sinks
    store_id = _topic_id(told["table"]) if is_topic else f"store:{known.name}/{write.name}"
    is_behind = bool(write.lag) and (
        not known.is_running or (lag_s is not None and lag_s >= BEHIND_S)
    )
    if told.get("state") == "waiting" and known.is_running:
        return store_id, (BROKEN, f"it does not take rows: {told.get('error')}"), (None, True)
    if write.error is not None:
        return store_id, (BROKEN, f"it cannot be asked: {write.error}"), (None, is_behind)
    if not is_behind:
        return store_id, (_well(per_s or write.lag), None), (None, False)
    if not known.is_running or told.get("state") != "running":
        return store_id, (BEHIND, None), (None, True)  # the pipeline as a whole has its cause
    batch_ms, store_ms = told.get("batch_ms"), told.get("store_ms")
    if batch_ms and store_ms is not None and store_ms > batch_ms / 2:
        share = f"{100 * store_ms / batch_ms:.0f} %"
        return store_id, (BEHIND, f"it takes {share} of the batch's time"), (None, True)
    return store_id, (BEHIND, None), (_of_spark(write), True)


def _of_spark(write: WriteState) -> str:
    """Why rows wait for Spark, as far as its last batch tells."""
    batch_ms = write.reported.get("batch_ms")
    since_s = write.idle_s or 0.0
    if since_s >= BEHIND_S:
        return f"no batch of Spark has finished for {duration(since_s)}"
    spent = f" ({duration(batch_ms / 1000)} a batch)" if batch_ms else ""
    return f"Spark does not keep up{spent}"


def _add_store(
    graph: Graph,
    store_id: str,
    known: PipelineState,
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
    href = _href("stores", known.name, write.reported["sink"], write.reported["table"])
    graph.add(Node(store_id, STORE, name, href, state, notes, None, write.lag, cause))


def _add_group(graph: Graph, group: GroupLag, topics: Mapping[str, TopicFlow]) -> None:
    read = [each for each in group.topics if each in topics]
    if not read:
        return
    per_s = sum(topics[each].per_s or 0.0 for each in read)
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
    """Thousands that lag less than those that are shown, as one."""
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
