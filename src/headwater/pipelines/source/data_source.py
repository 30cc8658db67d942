"""The Spark data source `format("headwater")`: its schema, readers and writers."""

import json
from functools import cached_property

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
)
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.errors import ConfigError
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.pipelines.source.batch import LogReader
from headwater.pipelines.source.options import SourceOptions, read_options
from headwater.pipelines.source.plain_errors import plain_errors
from headwater.pipelines.source.streaming import LogStreamReader

HEADERS = StructField(
    "headers",
    ArrayType(StructType([StructField("name", StringType()), StructField("value", BinaryType())])),
)
RAW = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)
# What decoding adds to the user's columns.
ADDED = [
    StructField("_op", StringType()),
    StructField("_at", TimestampType()),
    StructField(POSITION, from_arrow_type(POSITION_TYPE)),
]


class HeadwaterDataSource(DataSource):
    @cached_property
    def _read(self) -> SourceOptions:
        """Read only for readers; writers have other options."""
        with plain_errors():
            return read_options(self.options)

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType:
        with plain_errors():
            if self._read.value == "bytes":
                return StructType([*RAW, HEADERS]) if self._read.headers else RAW
            return _nullable(_decoded_schema(self._read))

    def reader(self, schema: StructType) -> LogReader:
        return LogReader(self._read, self._checked(schema))

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802
        return LogStreamReader(self._read, self._checked(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from headwater.pipelines.publishing.topic_writer import batch_writer

        with plain_errors():
            _refuse_overwriting(overwrite)
            return batch_writer(self.options, schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from headwater.pipelines.publishing.topic_writer import stream_writer

        with plain_errors():
            _refuse_overwriting(overwrite)
            return stream_writer(self.options, schema)

    def _checked(self, schema: StructType) -> StructType:
        """With values as bytes `.schema(…)` can choose columns, and no more."""
        if self._read.value == "bytes":
            raw_types = {field.name: field.dataType for field in [*RAW, HEADERS]}
            for field in schema:
                if raw_types.get(field.name) != field.dataType:
                    with plain_errors():
                        raise ConfigError(
                            f"column {field.name} {field.dataType.simpleString()} is not there",
                            hint="columns are "
                            + ", ".join(f"{n} {t.simpleString()}" for n, t in raw_types.items()),
                        )
        return schema


def _refuse_overwriting(overwrite: bool) -> None:
    if overwrite:
        raise ConfigError(
            "a topic is not overwritten: records are added to it",
            hint='.mode("append"), or .outputMode("append") or "update" for a stream',
        )


def _decoded_schema(options: SourceOptions) -> StructType:
    if options.schema is None:
        raise ConfigError(
            f"the columns of {options.value} values are missing",
            hint="give them by .schema(…), or by the option `schema` as JSON",
        )
    try:
        columns = StructType.fromJson(json.loads(options.schema))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "the option schema is not Spark's JSON of a schema",
            detail=str(error),
            hint="StructType.json() gives it",
        ) from None
    return StructType([*columns, *ADDED])


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType, True) for field in schema])
