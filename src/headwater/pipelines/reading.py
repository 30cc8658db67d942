"""Readers of the log for a flow: as an unbounded stream, or bounded by offsets.

The same function of a pipeline runs on both, which is what makes backfills, rebuilds and
verification possible.
"""

import dataclasses
import re
import tempfile
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import orjson
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (as all of PySpark's users write it)
from pyspark.sql.types import StringType, StructField, StructType

from headwater.client.cluster import Cluster
from headwater.client.topics import topic_configs
from headwater.errors import PipelineError
from headwater.pipelines.flow import WRITTEN, DerivedTopic, Schema
from headwater.pipelines.position import POSITION
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.source.data_source import ADDED
from headwater.pipelines.source.kafka_connector import read_by_kafka_connector
from headwater.schema_lookup.sources import TopicSource
from headwater.settings import Secret
from headwater.sinks.contract import DELETE, OP, TRUNCATE, Log, Offsets
from headwater.subjects.access import key_option

FORMAT: Final = "headwater"
# Options of a view whose topic has every change of it.
HISTORY: Final = '{ "cleanup.policy" = "delete", "retention.ms" = "-1" }'
_PATIENCE_S: Final = 10.0
KAFKA_CONNECTOR: Final = "kafka"  # Spark's own, if its jars are installed


class LiveReader:
    """The log as a stream: existing records, and new ones."""

    def __init__(self, spark: SparkSession, log: Log, settings: PipelineSettings) -> None:
        self._spark = spark
        self.log = log
        self._settings = settings
        self.captured: dict[str, StructType] = {}  # topic to the columns found at the start
        self.connects: dict[str, str] = {}  # and to how captures write them (decoding/captured.py)
        self.topics: set[str] = set()  # that were read, except by patterns
        # For the ends of micro-batches, if a query reads the sources (engine/query_batches.py).
        self._ends_file = Path(tempfile.gettempdir()) / f"headwater-ends-{uuid.uuid4().hex}"

    def changes(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        settings = self._settings
        if topic:
            self.topics.update(topic.split(","))
        given = {
            **source_options(self.log, topic, value),
            "start": settings.start,
            "max_bytes": str(settings.batch_bytes),
            "max_rows": str(settings.batch_rows),
            "on_bad": "dead-letter",
            "name": settings.name,
            "ends": str(self._ends_file),
            **self._decryption(value),
            **options,
        }
        return self._loaded(given, topic, schema, streaming=True)

    def _decryption(self, value: str) -> dict[str, str]:
        """Of formats that have personal fields; a pipeline may read others beside them."""
        settings = self._settings
        if not settings.decrypt or settings.keys is None or value not in ("json", "debezium"):
            return {}
        keys = key_option(settings.keys, settings.subjects)
        return {"decrypt": ",".join(settings.decrypt), "keys": keys}

    def table(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        given = {
            **source_options(self.log, topic, value),
            "on_bad": "skip",
            **self._decryption(value),
            **options,
        }
        given.pop("key", None)
        frame = self._loaded(given, topic, schema, streaming=False)
        return as_table(frame, self.key_of(topic, options), topic)

    def _loaded(
        self, given: dict[str, str], topic: str, schema: Schema | None, *, streaming: bool
    ) -> DataFrame:
        connector = given.pop("connector", FORMAT)
        columns = None
        if given["value"] != "bytes":
            topics = topic.split(",") if topic else []
            if schema is None and given["value"] in ("avro", "protobuf"):
                given.setdefault(f"{given['value']}.registry", "log")
                schema, connect = _registered(self, topics, given)
                if connect is not None:
                    given = _of_envelopes(given, connect)
            elif schema is None:
                schema, given["debezium.connect"] = _captured(self, topics)
            elif isinstance(schema, str):
                schema = cast("StructType", StructType.fromDDL(schema))
            taken = [field.name for field in ADDED if field.name in schema.names]
            if taken:
                raise PipelineError(
                    f"{topic or 'the schema'} has a column with a reserved name: {taken[0]}",
                    hint="leave it out of the schema; of a captured table, let the capture drop it",
                )
            columns = StructType([*schema.fields, *ADDED])
            if given["value"] != "debezium":
                written = StructField(OP, StringType(), metadata={WRITTEN: True})
                columns = StructType([written if field.name == OP else field for field in columns])
        if connector == KAFKA_CONNECTOR:
            return read_by_kafka_connector(self._spark, given, columns, streaming=streaming)
        if connector != FORMAT:
            raise PipelineError(
                f"there is no connector {connector}", hint=f"{FORMAT} or {KAFKA_CONNECTOR}"
            )
        reader = self._spark.readStream if streaming else self._spark.read
        reader = reader.format(FORMAT).options(**given)
        return (reader if columns is None else reader.schema(columns)).load()

    def schema_of(self, topic: str) -> StructType:
        """The current columns of a captured table."""
        from pyspark.sql.pandas.types import from_arrow_schema

        from headwater.pipelines.decoding.captured import captured_schema, connect_option

        decrypt = self._settings.decrypt
        fields, _ = captured_schema(self.log.bootstrap, self.log.login, topic, decrypt)
        self.captured[topic] = from_arrow_schema(fields)
        self.connects[topic] = connect_option(fields)
        return self.captured[topic]

    def key_of(self, topic: str, options: Mapping[str, str]) -> tuple[str, ...]:
        if options.get("key"):
            return tuple(options["key"].split(","))
        from headwater.pipelines.decoding.captured import captured_schema

        _, key = captured_schema(self.log.bootstrap, self.log.login, topic)
        return tuple(key)

    def cleanup_policy(self, topic: str) -> str:
        cluster = Cluster(self.log.bootstrap, self.log.login)
        try:
            return topic_configs(cluster, topic).get("cleanup.policy", "")
        finally:
            cluster.close()

    def derived_topic(self, view: str, topic: str | None) -> DerivedTopic:
        from pyspark.sql.pandas.types import from_arrow_schema

        from headwater.sinks.topic.version_state import topics_of_owner

        found = topics_of_owner(self.log, view, patience_s=_PATIENCE_S)
        if topic is not None:
            found = [state for state in found if state.topic == topic]
        if len(found) != 1:
            raise _not_one_topic(view, [state.topic for state in found])
        (state,) = found
        if state.value == "bytes":
            raise PipelineError(
                f"topic {state.topic} has bytes, and no columns",
                hint=f'flow.changes("{state.topic}", value="bytes")',
            )
        if "compact" in self.cleanup_policy(state.topic):
            raise PipelineError(
                f"topic {state.topic} is compacted: it does not have every change of {view}",
                hint=f"[view.{view}] needs options = {HISTORY}, before its topic is created",
            )
        return DerivedTopic(state.topic, from_arrow_schema(state.fields), state.value)


class BoundedReader(LiveReader):
    """The log from `start` to `offsets`, as if the rest had not been written yet. Undecodable
    records are left out as in the stream, and not sent to dead letters again.
    """

    def __init__(
        self,
        spark: SparkSession,
        log: Log,
        settings: PipelineSettings,
        offsets: Offsets,
        *,
        start: str = "earliest",
    ) -> None:
        super().__init__(spark, log, settings)
        self._offsets = offsets
        self._start = start

    def changes(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        options = dict(options)
        names = self._matching(options.pop("pattern")) if not topic else topic.split(",")
        self.topics.update(names)
        ends = {name: self._offsets[name] for name in names if name in self._offsets}
        given = {
            **source_options(self.log, ",".join(names), value),
            "start": self._start,
            "on_bad": "skip",
            "end": orjson.dumps(ends, option=orjson.OPT_NON_STR_KEYS).decode(),
            **self._decryption(value),
            **options,
        }
        return self._loaded(given, topic, schema, streaming=False)

    def _matching(self, pattern: str) -> list[str]:
        return sorted(name for name in self._offsets if re.fullmatch(pattern, name))


def _not_one_topic(view: str, topics: list[str]) -> PipelineError:
    if topics:
        return PipelineError(
            f"{view} writes several topics",
            detail=", ".join(topics),
            hint=f'flow.changes_of("{view}", topic="{topics[0]}") reads one of them',
        )
    return PipelineError(
        f"no topic has the changes of {view}",
        detail="no view and no pipeline of this name has written one until now",
        hint=f"`headwater pipeline run {view}` (or `headwater up`) writes it, if [view.{view}] has"
        f' into = "topic" and options = {HISTORY}',
    )


def _registered(
    reader: LiveReader, topics: list[str], options: Mapping[str, str]
) -> tuple[StructType, str | None]:
    """The columns that these topics share, by the schema registry; and if they are change events,
    how their rows are written.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from headwater.pipelines.decoding.avro.envelopes import envelope_columns
    from headwater.pipelines.decoding.avro.registered import (
        latest_schema,
        registered_columns,
        registry_source,
    )
    from headwater.pipelines.decoding.captured import connect_option

    kind = options["value"]
    given = {name.removeprefix(f"{kind}."): text for name, text in options.items()}
    make = registry_source(given, partial(TopicSource, reader.log.bootstrap, reader.log.login))
    assert make is not None, "the option has a default"
    source = make()
    found: dict[str, tuple[StructType, str | None]] = {}
    try:
        for topic in topics:
            schema = latest_schema(source, topic)
            if kind == "protobuf":
                from headwater.pipelines.decoding.protobuf.registered import message_columns

                columns = message_columns(schema, given.get("message"), topic)
                found[topic] = from_arrow_schema(columns), None
                continue
            rows = envelope_columns(schema, topic)
            columns = registered_columns(schema, topic) if rows is None else rows
            found[topic] = (
                from_arrow_schema(columns),
                None if rows is None else connect_option(rows),
            )
    finally:
        source.close()
    _check_same(found)
    return next(iter(found.values()))


def _of_envelopes(options: Mapping[str, str], connect: str) -> dict[str, str]:
    """The options for Avro as those of the Debezium decoder, which reads envelopes."""
    given = {
        f"debezium.{name.removeprefix('avro.')}" if name.startswith("avro.") else name: text
        for name, text in options.items()
    }
    return {**given, "value": "debezium", "debezium.connect": connect}


def _captured(reader: LiveReader, topics: list[str]) -> tuple[StructType, str]:
    """The columns that these topics share, and how their captures write them."""
    found = {topic: (reader.schema_of(topic), reader.connects[topic]) for topic in topics}
    _check_same(found)
    return found[topics[0]]


def _check_same(found: Mapping[str, Any]) -> None:
    """Raises PipelineError if topics have different columns, or there is none."""
    if not found:
        raise PipelineError("topics by a pattern need a schema", hint='schema="id bigint, …"')
    first = next(iter(found))
    for topic, columns in found.items():
        if columns != found[first]:
            raise PipelineError(
                f"{first} and {topic} have different columns",
                hint="give a schema, or read them one by one and unite what they have in common",
            )


def source_options(log: Log, topic: str, value: str) -> dict[str, str]:
    login = {
        f"client.{option.name}": str(set_.reveal() if isinstance(set_, Secret) else set_)
        for option in dataclasses.fields(log.login)
        if (set_ := getattr(log.login, option.name)) != option.default
    }
    topics = {"topic": topic} if topic else {}  # else the options have a pattern
    return {"bootstrap": log.bootstrap, "value": value, **topics, **login}


def as_table(changes: DataFrame, key: tuple[str, ...], topic: str = "") -> DataFrame:
    """The newest row of each key, without those that were deleted. A key's changes are expected in
    one partition, where they have an order; if not, the last partition counts, as it does within
    a batch (`row_order.in_log_order`).
    """
    if not key:
        raise PipelineError(f"{topic} has no key to identify its rows", hint="name one: key=[…]")
    position = F.col(POSITION)
    if OP in changes.columns:
        of_partition = Window.partitionBy(position["topic"], position["partition"])
        truncated = F.max(F.when(F.col(OP) == TRUNCATE, position["offset"])).over(of_partition)
        changes = changes.withColumn("__truncated", truncated).where(
            F.coalesce("__truncated", F.lit(-1)) < position["offset"]
        )
        changes = changes.drop("__truncated")
    row = F.struct(*[F.col(name) for name in changes.columns])
    order = F.struct(position["topic"], position["partition"], position["offset"])
    newest = changes.groupBy(*[F.col(name).alias(f"__{name}") for name in key]).agg(
        F.max_by(row, order).alias("row")
    )
    rows = newest.select("row.*")
    return rows.where(F.coalesce(F.col(OP), F.lit("")) != DELETE) if OP in rows.columns else rows
