"""The same topics through Spark's own connector for Kafka, where its jars are given to the session.

It knows neither our decoding nor our rules for lost data of single partitions, and has its own
offsets in the checkpoint: a stream cannot change from one to the other.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headwater.client.fetching import EARLIEST, LATEST
from headwater.client.login import properties_of
from headwater.errors import ConfigError
from headwater.pipelines.source.options import Place, SourceOptions, offsets_to_json, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_JAAS = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def read_by_kafka_connector(
    spark: "SparkSession", given: Mapping[str, str], *, streaming: bool
) -> "DataFrame":
    """A DataFrame with the columns of `format("headwater")` and values as bytes. ConfigError for
    options that the connector has no counterpart of.
    """
    options = read_options(given)
    reader = spark.readStream if streaming else spark.read
    for name, value in connector_options(options, streaming=streaming).items():
        reader = reader.option(name, value)
    columns = ["key", "value", "topic", "partition", "offset", "timestamp"]
    found = reader.format("kafka").load()
    if not options.headers:
        return found.select(columns)
    headers = "transform(headers, h -> struct(h.key AS name, h.value AS value)) AS headers"
    return found.selectExpr(*columns, headers)


def connector_options(options: SourceOptions, *, streaming: bool) -> dict[str, str]:
    if options.value != "bytes":
        raise ConfigError(
            "Spark's connector does not decode values",
            detail=f"value = {options.value}",
            hint='use it with value = "bytes", or our own source',
        )
    if options.group is not None:
        raise ConfigError(
            "Spark's connector commits no offsets to a group", hint="leave out the option group"
        )
    chosen = {
        "kafka.bootstrap.servers": options.bootstrap,
        "kafka.isolation.level": options.isolation,
        "failOnDataLoss": str(options.on_lost == "fail").lower(),
        "includeHeaders": str(options.headers).lower(),
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


def _where(which: str, place: Place) -> dict[str, str]:
    import json

    if place == EARLIEST:
        return {f"{which}Offsets": "earliest"}
    if place == LATEST:
        return {f"{which}Offsets": "latest"}
    if isinstance(place, int):
        # A partition without a record of that time or a later one: its end, as with ours.
        return {
            f"{which}Timestamp": str(place),
            "startingOffsetsByTimestampStrategy": "latest",
        }
    return {f"{which}Offsets": json.dumps(offsets_to_json(place))}


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
