"""Decoding: raw records (key, value, offset, timestamp) into typed columns, inside the reader's
task; what cannot be read is told apart with its cause, and the rest goes on.

contract        what a decoder takes and gives
json_records    values that are JSON objects
debezium        values in Debezium's envelope, as captures write them
captured        the columns of a captured table's topic
connect_types   Kafka Connect's types
unavailable     values that a database's log left out
avro            values that are Avro
protobuf        values that are Protobuf messages
framing         the id of a schema in front of either
python_rows     values record by record into columns, for both
tombstones      records without a value
json_kernels    is it JSON, and where are its members: loops compiled by numba
json_rows       many objects at once into columns, by Arrow's parser
json_nodes      how each type is read, all at once and one by one
merging         the order of the records, after parts of them were read apart
times           ISO 8601
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from headwater.errors import ConfigError
from headwater.pipelines.decoding.contract import ADDED, Decoded, Decoder, Rejected

__all__ = ["ADDED", "KINDS", "Decoded", "Decoder", "Rejected", "decoder"]

KINDS: Final = ("json", "debezium", "avro", "protobuf")


def decoder(kind: str, schema: pa.Schema, options: Mapping[str, str]) -> Decoder:
    """Raises ConfigError for a kind, a schema or an option that cannot be. Options are named
    without the kind in front that the source's have: `schema` is its `avro.schema`.
    """
    if kind == "json":
        from headwater.pipelines.decoding.json_records import JsonDecoder

        return JsonDecoder(schema, options)
    if kind == "debezium":
        from headwater.pipelines.decoding.debezium import DebeziumDecoder

        return DebeziumDecoder(schema, options)
    if kind == "avro":
        from headwater.pipelines.decoding.avro import AvroDecoder

        return AvroDecoder(schema, options)
    if kind == "protobuf":
        from headwater.pipelines.decoding.protobuf import ProtobufDecoder

        return ProtobufDecoder(schema, options)
    raise ConfigError(f"values cannot be decoded as {kind}", hint=f"kinds are {', '.join(KINDS)}")
