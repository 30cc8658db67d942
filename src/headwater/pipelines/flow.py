"""`hw.Flow`, the argument of a pipeline's function: the log as DataFrames, and writes to sinks."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.naming import (
    Built,
    inputs_with_rows,
    is_operator,
    operators_in,
)
from headwater.pipelines.operators.windows.results import WINDOW_END, WINDOW_START
from headwater.pipelines.plans import (
    Node,
    comes_from,
    disorders_rows,
    first_column_id,
    gives_op,
    plan_of,
    reads_alias,
    source_options_of,
    streams_of,
)
from headwater.pipelines.position import CHANGING, FINAL, POSITION, RESULTS
from headwater.sinks.contract import OP
from headwater.sinks.settings import SinkSettings
from headwater.spelling import nearest

AT: Final = "_at"
WRITTEN: Final = "headwater.written"  # in the metadata of `_op`: "u" is any value, also a new one
STORED_OP: Final = "op"  # `_op` where all rows are added
TOPICS: Final = "topic"  # the sink that needs no section: a topic of the log itself
_TABLE: Final = "a topic by flow.table, as it is now"
TABLE_MARK: Final = "headwater_table"  # in Spark's plans
_READ: Final = "_headwater_read"
_MODES: Final = ("append", "update")

Schema = str | StructType


@dataclass(frozen=True)
class Write:
    """One `flow.write`."""

    frame: DataFrame
    to: str
    table: str
    key: tuple[str, ...]
    mode: str  # Spark's output mode
    options: Mapping[str, str]
    topics: tuple[
        str, ...
    ] = ()  # that its rows come from; not those that are read again for each batch
    patterns: tuple[str, ...] = ()
    operators: tuple[Built, ...] = ()  # that its rows pass
    not_from_log: str = ""  # what else its rows depend on, so that they cannot be derived again
    rows_of: Callable[[str], bool] = lambda _: True  # whether a topic's rows go into it, as rows
    steps: Callable[[], Mapping[str, Any]] | None = None  # of a view (views/plan_steps.py)

    @property
    def name(self) -> str:
        return f"{self.to}/{self.table}"

    def reads(self, topic: str) -> bool:
        return _is_among(self.topics, self.patterns, topic)


@dataclass(frozen=True)
class DerivedTopic:
    """A topic that a view or another pipeline writes: how its records are read."""

    name: str
    schema: Schema
    value: str


class Reader(Protocol):
    """How a flow reads the log: as a stream, bounded by a position, or rows of a test instead."""

    def changes(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        """Without a topic, the options have a `pattern`."""
        ...

    def table(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame: ...

    def key_of(self, topic: str, options: Mapping[str, str]) -> tuple[str, ...]:
        """From the options, else that of a captured table."""
        ...

    def cleanup_policy(self, topic: str) -> str:
        """Of the topic: "delete", "compact", or both."""
        ...

    def derived_topic(self, view: str, topic: str | None) -> DerivedTopic:
        """That has every change of the view; `topic` chooses one of several. Raises PipelineError
        if there is none.
        """
        ...


@dataclass(frozen=True)
class TopicRead:
    """The topic and options of a frame of `flow.changes` or `flow.table`, so that it can be read in
    another way (`hw.enrich`).
    """

    reader: Reader
    topic: str
    schema: Schema | None
    value: str
    options: Mapping[str, str]  # with `key` if one was given


_reads: Final[WeakValueDictionary[int, TopicRead]] = WeakValueDictionary()


def read_of(frame: DataFrame) -> TopicRead | None:
    """None if the frame is not exactly one that the flow has returned."""
    found = vars(frame).get(_READ)
    return found if isinstance(found, TopicRead) else None


def _standing_for(frame: DataFrame, read: TopicRead) -> DataFrame:
    setattr(frame, _READ, read)
    _reads[first_column_id(frame)] = read
    return frame


def read_at(column_id: int) -> TopicRead | None:
    """The read whose frame has this id of Spark's for its first column: of frames that users derive
    from it. None if its flow is no longer used.
    """
    return _reads.get(column_id)


@dataclass
class Flow:
    """The flow of one pipeline; `hw.Flow` in the signature of its function."""

    spark: SparkSession
    name: str
    reader: Reader
    sinks: Mapping[str, SinkSettings] | None  # None: any name is one, as in tests
    writes: list[Write] = field(default_factory=list)
    reads: list[TopicRead] = field(default_factory=list)
    unrepeatable: Sequence[str] = ()  # operators by which results depend on when they were derived
    now_us: int | None = None  # the time of a bounded run, instead of the clock's

    def changes(
        self,
        topic: str | None = None,
        schema: Schema | None = None,
        *,
        pattern: str | None = None,
        value: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """The records of a topic, in the order of the log within a partition: the columns, and

        `_op`        how the row changed: c, u, r (created, updated, read), d (deleted), t (all
                     rows of the table were)
        `_at`        when, by the clock of the source of the change
        `_position`  its position in the log: topic, partition, offset

        The columns of a captured table are read from its capture; of any other topic `schema` has
        them (Spark's DDL, "id bigint, total decimal(10,2)"), and `value` their format: json (the
        default), debezium, avro, protobuf, or bytes (key and value as they are). Columns of avro
        and protobuf are those of the schema registry, if no schema is given. Instead of a
        topic (or several, with commas), `pattern` is a regular expression for whole names; topics
        that appear later are read from their first record.
        """
        if (topic is None) == (pattern is None):
            raise PipelineError(
                f"pipeline {self.name}: flow.changes needs a topic or a pattern",
                hint='flow.changes("orders"), flow.changes(pattern="orders-.*", schema=…)',
            )
        given = dict(options or {}) | ({"pattern": pattern} if pattern is not None else {})
        kind = _kind(schema, value)
        frame = self.reader.changes(topic or "", schema, kind, given)
        self.reads.append(TopicRead(self.reader, topic or "", schema, kind, given))
        return _standing_for(frame, self.reads[-1])

    def changes_of(self, view: str, *, topic: str | None = None) -> DataFrame:
        """The changes of a view that is written into a topic, or of a pipeline that writes one, as
        `changes` has them: the columns of its rows, `_op`, `_at` and `_position`.

        Each change is an event: it is there once, whatever comes later. `_op` is "u" for a row that
        is new or has changed, and "d" for one that has left the result, which has the columns of
        the key only; with `value = "debezium"` among the view's options new rows have "c". `topic`
        chooses one, if there are several.
        """
        found = self.reader.derived_topic(view, topic)
        frame = self.reader.changes(found.name, found.schema, found.value, {})
        self.reads.append(TopicRead(self.reader, found.name, found.schema, found.value, {}))
        return frame.withMetadata(OP, {WRITTEN: True})

    def table(
        self,
        topic: str,
        schema: Schema | None = None,
        *,
        value: str | None = None,
        key: Sequence[str] | str = (),
        options: Mapping[str, str] | None = None,
    ) -> DataFrame:
        """The topic as a table, for `hw.enrich`, which updates it from the log. For Spark's own
        joins it is the newest row of each key, read again for each batch: such rows are not revised
        when the table changes; nor can they be verified.

        `key` are the columns that identify a row; those of a captured table are its own.
        """
        given = dict(options or {}) | {"key": ",".join(_names(key))}
        kind = _kind(schema, value)
        frame = self.reader.table(topic, schema, kind, given).alias(TABLE_MARK)
        self.reads.append(TopicRead(self.reader, topic, schema, kind, given))
        return _standing_for(frame, self.reads[-1])

    def write(
        self,
        frame: DataFrame,
        to: str,
        table: str,
        key: Sequence[str] | str = (),
        *,
        mode: str | None = None,
        ignore_deletes: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Maintains `table` of the sink `to` from the frame: rows of a key replace each other,
        those with `_op` "d" are deleted; without `key` all rows are added. `_at` and `_position`
        are not stored, unless under another name.
        """
        if not isinstance(frame, DataFrame):
            raise PipelineError(
                f"pipeline {self.name}: what is written to {table} is no DataFrame",
                detail=f"it is {type(frame).__name__}",
                hint="windows become one by .agg(…)",
            )
        columns, keys = frame.columns, _names(key)
        self._check_sink(to)
        twice = sorted({name for name in columns if columns.count(name) > 1})
        if twice:
            raise PipelineError(
                f"pipeline {self.name}: two columns of {table} have the same name",
                detail=", ".join(twice),
                hint="rename one of them: .withColumnRenamed(…), or .alias(…) in a select",
            )
        for name in keys:
            if name not in columns:
                raise PipelineError(
                    f"pipeline {self.name}: the key of {table} has a column that is not there",
                    detail=f"{name} (of {', '.join(columns)})",
                )
        if any(write.to == to and write.table == table for write in self.writes):
            raise PipelineError(f"pipeline {self.name} writes {to}/{table} twice")
        if mode is not None and mode not in _MODES:
            raise PipelineError(
                f"pipeline {self.name}: mode={mode!r}", hint="it is " + " or ".join(_MODES)
            )
        plan = plan_of(frame)
        if keys and OP not in columns and not ignore_deletes:
            self._check_deletes(plan, table)
        if keys and POSITION not in columns:
            self._check_order(frame, plan, table)
        if keys and (POSITION not in columns or has_results(frame)):
            self._check_windows(frame, plan, table, keys)
        if not keys and OP in columns:
            is_free = STORED_OP not in columns
            frame = frame.withColumnRenamed(OP, STORED_OP) if is_free else frame.drop(OP)
        topics, patterns = _topics(streams_of(plan))
        self.writes.append(
            Write(
                frame,
                to,
                table,
                keys,
                mode or ("update" if keys else "append"),
                {name: str(value) for name, value in (options or {}).items()},
                topics,
                patterns,
                operators_in(plan),
                _TABLE if reads_alias(plan, TABLE_MARK) else "",
                partial(_is_among, *_topics(streams_of(plan, inputs_with_rows))),
            )
        )

    def _check_sink(self, to: str) -> None:
        if self.sinks is None or to in self.sinks or to == TOPICS:
            return
        meant = nearest(to, (*self.sinks, TOPICS))
        raise PipelineError(
            f"pipeline {self.name} writes to a sink that does not exist: {to}",
            hint=f"did you mean {meant}?" if meant else f"[sink.{to}] in headwater.toml makes it",
        )

    def _check_deletes(self, plan: Node, table: str) -> None:
        """A projection without `_op` would silently leave deleted rows in the store. Aggregations
        and joins have no such column, unless the operator adds one.
        """
        if gives_op(plan, is_operator):
            raise PipelineError(
                f"pipeline {self.name}: what is written to {table} has lost its column {OP}",
                detail="deleted rows would stay in the store",
                hint=f'select "{OP}" and "{POSITION}" too, or set ignore_deletes=True',
            )

    def _check_order(self, frame: DataFrame, plan: Node, table: str) -> None:
        """Without `_position` rows of a key replace each other in their order of arrival, which has
        to be deterministic. (`verify` finds other cases by counting.)
        """
        if OP in frame.columns and disorders_rows(plan, is_operator):
            raise PipelineError(
                f"pipeline {self.name}: what is written to {table} has {OP} and no {POSITION}",
                detail="it comes out of a join or a shuffle of Spark's, so the order of the changes"
                " of a row is undefined",
                hint=f'select "{POSITION}" too; it is not stored',
            )

    def _check_windows(
        self, frame: DataFrame, plan: Node, table: str, key: tuple[str, ...]
    ) -> None:
        if operators_in(plan) and comes_from(frame, key, (WINDOW_START, WINDOW_END)) is False:
            raise PipelineError(
                f"pipeline {self.name}: the key of {table} does not distinguish windows",
                detail=f"it is {', '.join(key)}: of several windows one would stay",
                hint=f'key=[…, "{WINDOW_START}"], also under another name',
            )


def _topics(streams: Sequence[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """And patterns."""
    topics = {name for stream in streams for name in stream.topic.split(",") if name}
    return tuple(sorted(topics)), tuple(sorted({stream.pattern for stream in streams} - {""}))


def _is_among(topics: tuple[str, ...], patterns: tuple[str, ...], topic: str) -> bool:
    return topic in topics or any(re.fullmatch(pattern, topic) for pattern in patterns)


def has_events(frame: DataFrame) -> bool:
    """Whether its rows are records of topics that are no captured tables: each is an event, though
    its `_op` is "u", as the log does not record whether it replaces another.
    """
    if frame.schema[OP].metadata.get(WRITTEN):
        return True
    values = [options.get("value") for _, options in _sources(frame)]
    return bool(values) and all(value not in (None, "debezium") for value in values)


def has_results(frame: DataFrame) -> bool:
    """Whether its `_position` is that of results of windows, which is none of the log."""
    if POSITION not in frame.columns:
        return False
    return (frame.schema[POSITION].metadata or {}).get(RESULTS) in (FINAL, CHANGING)


def reads_twice(frame: DataFrame) -> bool:
    """Whether the plan reads a topic more than once, as by a union with itself."""
    read = [options.get("topic") or options.get("pattern") for _, options in _sources(frame)]
    return len(set(read)) < len(read)


def _sources(frame: DataFrame) -> list[tuple[str, Any]]:
    """The sources of the plan, with their options."""
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()  # noqa: SLF001
    found = [leaves.apply(index) for index in range(leaves.size())]
    return [
        (leaf.nodeName(), options)
        for leaf in found
        if (options := source_options_of(leaf)) is not None
    ]


def _names(key: Sequence[str] | str) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def _kind(schema: Any, value: str | None) -> str:
    return value or ("debezium" if schema is None else "json")
