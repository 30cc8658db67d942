"""Decoding of raw records (key, value, offset, timestamp) into typed columns, in the reader's task.

Records that cannot be decoded are rejected with a cause, and do not stop the others.

contract        the decoder's interface
json            values that are JSON objects
debezium        values in Debezium's envelope, as captures write them
captured        the columns of a captured table's topic
connect_types   Kafka Connect's types
unavailable     values that a database's log left out
decrypting      personal fields of subjects, decrypted before the rest
avro            values that are Avro, also in Debezium's envelope
protobuf        values that are Protobuf messages
framing         the schema id before either (Confluent's wire format)
python_rows     values record by record into columns, for both
tombstones      records without a value
merging         the order of the records, after parts of them were decoded apart
times           ISO 8601
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater.errors import ConfigError
from headwater.pipelines.decoding.contract import ADDED, Decoded, Decoder, Rejected

if TYPE_CHECKING:
    from headwater.pipelines.decoding.avro.registered import MakeSource

__all__ = ["ADDED", "KINDS", "Decoded", "Decoder", "Rejected", "decoder"]

KINDS: Final = ("json", "debezium", "avro", "protobuf")


def decoder(
    kind: str,
    schema: pa.Schema,
    options: Mapping[str, str],
    registry_of_log: "MakeSource | None" = None,
) -> Decoder:
    """Raises ConfigError for an invalid kind, schema or option. Options are named without the
    prefix that the source's have: `schema` is its `avro.schema`. `registry_of_log` reaches the
    schemas of the broker that the records come from.
    """
    if kind == "json":
        from headwater.pipelines.decoding.json.records import JsonDecoder

        return JsonDecoder(schema, options)
    if kind == "debezium":
        from headwater.pipelines.decoding.debezium import DebeziumDecoder

        return DebeziumDecoder(schema, options, registry_of_log)
    if kind == "avro":
        from headwater.pipelines.decoding.avro.decoder import AvroDecoder

        return AvroDecoder(schema, options, registry_of_log)
    if kind == "protobuf":
        from headwater.pipelines.decoding.protobuf.decoder import ProtobufDecoder

        return ProtobufDecoder(schema, options, registry_of_log)
    raise ConfigError(f"values cannot be decoded as {kind}", hint=f"kinds are {', '.join(KINDS)}")
