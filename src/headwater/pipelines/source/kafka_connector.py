"""The same topics through Spark's own connector for Kafka, where the session has its jars.

It supports neither our rules for lost data of single partitions nor groups. Values are decoded
after it, in Python workers of their own.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from headwater.client.login import properties_of
from headwater.client.reading.fetching import EARLIEST, LATEST
from headwater.errors import ConfigError
from headwater.pipelines.source.options import (
    OffsetSpec,
    SourceOptions,
    offsets_to_json,
    read_options,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_JAAS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def read_by_kafka_connector(
    spark: "SparkSession",
    given: Mapping[str, str],
    schema: "StructType | None" = None,
    *,
    streaming: bool,
) -> "DataFrame":
    """A DataFrame with the columns of `format("headwater")`; `schema` are those of decoded values.
    ConfigError for options that the connector has no counterpart of.
    """
    options = read_options(given)
    reader = spark.readStream if streaming else spark.read
    for name, value in connector_options(options, streaming=streaming).items():
        reader = reader.option(name, value)
    columns = ["key", "value", "topic", "partition", "offset", "timestamp"]
    found = reader.format("kafka").load()
    if options.headers or options.on_bad == "dead-letter":
        columns.append(
            "transform(headers, h -> struct(h.key AS name, h.value AS value)) AS headers"
        )
    raw = found.selectExpr(*columns)
    if options.value == "bytes":
        return raw
    if schema is None:
        raise ConfigError(f"the columns of {options.value} values are missing")

    def decoded(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        from headwater.pipelines.source.reading import Decoding

        decoding = Decoding(options, schema)
        for batch in batches:
            # Apache Kafka erases no records, and the connector has no column for it.
            columns = [name for name in decoding.columns if name in batch.schema.names]
            for topic, partition, piece in _of_one_partition(batch):
                yield decoding.rows(piece.select(columns), topic, partition)

    return raw.mapInArrow(decoded, schema)


def _of_one_partition(
    batch: "pa.RecordBatch",
) -> "Iterator[tuple[str, int, pa.RecordBatch]]":
    """The connector gives each task one partition; a plan may join tasks."""
    import numpy as np

    if not batch.num_rows:
        return
    topics, partitions = batch.column("topic"), batch.column("partition")
    kinds = topics.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    numbers = partitions.to_numpy(zero_copy_only=False)
    changes = (np.diff(kinds) != 0) | (np.diff(numbers) != 0)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist(), batch.num_rows]
    for start, end in itertools.pairwise(starts):
        yield topics[start].as_py(), partitions[start].as_py(), batch.slice(start, end - start)


def connector_options(options: SourceOptions, *, streaming: bool) -> dict[str, str]:
    if options.group is not None:
        raise ConfigError(
            "Spark's connector commits no offsets to a group", hint="leave out the option group"
        )
    chosen = {
        "kafka.bootstrap.servers": options.bootstrap,
        "kafka.isolation.level": options.isolation,
        "failOnDataLoss": str(options.on_lost == "fail").lower(),
        "includeHeaders": str(options.headers or options.on_bad == "dead-letter").lower(),
        **_where("starting", options.start),
        **_login(options),
    }
    if options.pattern is not None:
        chosen["subscribePattern"] = options.pattern
    else:
        chosen["subscribe"] = ",".join(options.topic)
    if streaming:
        chosen["maxOffsetsPerTrigger"] = str(options.max_rows)
    else:
        chosen |= _where("ending", options.end)
    return chosen


def _where(which: str, spec: OffsetSpec) -> dict[str, str]:
    import json

    if spec == EARLIEST:
        return {f"{which}Offsets": "earliest"}
    if spec == LATEST:
        return {f"{which}Offsets": "latest"}
    if isinstance(spec, int):
        # A partition without a record of that time or a later one: its end, as with ours.
        return {
            f"{which}Timestamp": str(spec),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    return {f"{which}Offsets": json.dumps(offsets_to_json(spec))}


def _login(options: SourceOptions) -> dict[str, str]:
    properties = properties_of(options.client)
    if not properties:
        return {}
    if "oauth_cb" in properties or properties.get("ssl.certificate.location"):
        raise ConfigError(
            "tokens and certificates of clients are set up in another way for Spark's connector",
            hint="give the kafka.* options of Spark's documentation yourself",
        )
    chosen = {"kafka.security.protocol": str(properties["security.protocol"]).upper()}
    if ca := properties.get("ssl.ca.location"):
        chosen |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": ca}
    if mechanism := properties.get("sasl.mechanism"):
        name, password = (
            str(properties[key]).replace("\\", "\\\\").replace('"', '\\"')
            for key in ("sasl.username", "sasl.password")
        )
        chosen["kafka.sasl.mechanism"] = mechanism
        chosen["kafka.sasl.jaas.config"] = (
            f'{_JAAS[mechanism]} required username="{name}" password="{password}";'
        )
    return chosen
