"""The reader of a flow in a test: the given rows of each topic instead of the log."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import orjson
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from headwater.errors import PipelineError
from headwater.pipelines.flow import WRITTEN, DerivedTopic, Schema
from headwater.pipelines.plans import IN_MEMORY_OPTIONS
from headwater.pipelines.reading import as_table
from headwater.pipelines.source.data_source import ADDED, HEADERS, RAW
from headwater.sinks.contract import OP, Offsets
from headwater.spelling import nearest
from headwater.testing.topic_rows import TopicRows, struct_of

_DEFAULT_AT: Final = datetime(2026, 1, 1, tzinfo=UTC)
_DELETES_NOTHING: Final = "delete"  # cleanup.policy: every row is there


class MemoryReader:
    """Reads rows as `BoundedReader` reads the log, with the same columns: a local relation instead
    of our data source, which the plan marks with the options of that source.
    """

    def __init__(self, spark: SparkSession, topics: Mapping[str, TopicRows]) -> None:
        self._spark = spark
        self._topics = topics
        self._default_at = _default_at(topics)
        self.topics: set[str] = set()  # that were read
        self.patterns: set[str] = set()

    @property
    def offsets(self) -> Offsets:
        return {name: {0: len(rows)} for name, rows in self._topics.items()}

    def changes(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        """Without rows, a topic whose columns the function gives is empty."""
        rows, columns, source = self._read(topic, schema, value, options)
        *others, last = columns.fields
        marks = {IN_MEMORY_OPTIONS: orjson.dumps(source).decode()}
        marked = StructField(last.name, last.dataType, metadata={**last.metadata, **marks})
        return self._frame(rows, StructType([*others, marked]))

    def table(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> DataFrame:
        """As it is after all rows; its topic is none of those that a write follows."""
        rows, columns, _ = self._read(topic, schema, value, options)
        return as_table(self._frame(rows, columns), self.key_of(topic, options), topic)

    def _read(
        self, topic: str, schema: Schema | None, value: str, options: Mapping[str, str]
    ) -> tuple[list[pa.Table], StructType, dict[str, str]]:
        """The rows of each topic, their columns, and the options of the source they stand for."""
        if topic:
            names = topic.split(",")
            self.topics.update(names)
        else:
            pattern = options["pattern"]
            self.patterns.add(pattern)
            names = sorted(name for name in self._topics if re.fullmatch(pattern, name))
        given = {"topic": ",".join(names), "value": value}
        if value == "bytes":
            return *self._raw(names, options), given
        columns = self._captured(names) if schema is None else struct_of(schema)
        rows = [
            self._rows_of(name).table(
                columns,
                op="c" if value == "debezium" else "u",
                default_at=self._default_at,
                unit=options.get(f"{value}.timestamp.unit"),
            )
            for name in names
        ]
        fields = [StructField(field.name, field.dataType) for field in columns]
        added = [
            StructField(OP, StringType(), metadata={WRITTEN: True})
            if field.name == OP and value != "debezium"
            else field
            for field in ADDED
        ]
        return rows, StructType([*fields, *added]), given

    def key_of(self, topic: str, options: Mapping[str, str]) -> tuple[str, ...]:
        if options.get("key"):
            return tuple(options["key"].split(","))
        key = self._rows_of(topic).key
        if not key:
            raise PipelineError(
                f"the key of {topic} is unknown",
                detail="of a captured table the capture stores it; here the test has to",
                hint=f'{{"{topic}": hw.testing.topic(rows, key="id")}}',
            )
        return key

    def cleanup_policy(self, topic: str) -> str:
        return _DELETES_NOTHING

    def derived_topic(self, view: str, topic: str | None) -> DerivedTopic:
        """The rows that the test has under the name of the topic, or of the view."""
        name = topic or view
        return DerivedTopic(name, self._captured([name]), "json")

    def _rows_of(self, topic: str) -> TopicRows:
        return self._topics[topic] if topic in self._topics else TopicRows(topic, [])

    def _captured(self, names: list[str]) -> StructType:
        if not names:
            raise PipelineError("topics by a pattern need a schema", hint='schema="id bigint, …"')
        for name in names:
            if name not in self._topics:
                meant = nearest(name, tuple(self._topics))
                raise PipelineError(
                    f"the test has no rows of {name}, which the pipeline reads",
                    detail=f"it has rows of {', '.join(self._topics)}" if self._topics else "",
                    hint=f"does {meant} mean it?"
                    if meant
                    else f'"{name}": [{{…}}], or hw.testing.topic([], schema="id bigint, …")'
                    " if it is empty",
                )
        found = {name: self._topics[name].columns() for name in names}
        first = names[0]
        for name, columns in found.items():
            if columns != found[first]:
                raise PipelineError(
                    f"{first} and {name} have different columns",
                    detail=f"{found[first].simpleString()} and {columns.simpleString()}",
                    hint="give both the same schema: hw.testing.topic(rows, schema=…)",
                )
        return found[first]

    def _raw(
        self, names: list[str], options: Mapping[str, str]
    ) -> tuple[list[pa.Table], StructType]:
        headers = options.get("headers", "false").lower() == "true"
        rows = [
            self._rows_of(name).raw(default_at=self._default_at, headers=headers) for name in names
        ]
        return rows, StructType([*RAW, HEADERS]) if headers else RAW

    def _frame(self, rows: list[pa.Table], columns: StructType) -> DataFrame:
        schema = to_arrow_schema(columns, timezone="UTC")
        table = pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in rows)])
        return self._spark.createDataFrame(table, columns)


def _default_at(topics: Mapping[str, TopicRows]) -> datetime:
    """When rows without a time are written: all at once, after the times that they have; or before
    all others, if there are others.
    """
    given = [at for rows in topics.values() for at in rows.times if at is not None]
    if given:
        return min(given)
    latest = (at for rows in topics.values() for at in rows.latest if at is not None)
    return max(latest, default=_DEFAULT_AT)
