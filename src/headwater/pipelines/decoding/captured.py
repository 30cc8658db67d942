"""The schema of a captured table's topic, from the state that its capture stores."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa

from headwater.capture import positions
from headwater.capture.contract import Column, Table
from headwater.capture.records.plan import topic_name
from headwater.capture.rules.personal_columns import ENCRYPTED_TYPE
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import ConfigError, RequestRefused
from headwater.pipelines.decoding.connect_types import CONNECT_METADATA, arrow_type
from headwater.settings import ClientSettings

_TEXT = {"type": "string"}


def schema_of(columns: Sequence[Column]) -> pa.Schema:
    """What captured columns become:

    numeric(p, s), money                     decimal (money: 19 digits, 2 of them cents)
    numeric without precision, or above 38   string: no decimal of Spark holds all of them
    bigint unsigned                          decimal(20, 0)
    timestamptz; timestamp, datetime         timestamp in UTC; timestamp without a zone
    date; time                               date32; string "13:51:30.123456"
    interval                                 int64, microseconds (string with times = "iso")
    bytea, blob, bit(n)                      binary
    arrays, points                           list, struct
    uuid, json, enums, all else              string

    All are nullable, also those that the table says are not: records from before a column was added
    lack it. Each field carries its Connect type, by which the decoder reads values.
    """
    return pa.schema(
        [
            pa.field(
                column.name,
                arrow_type(column.connect, column.type),
                metadata={CONNECT_METADATA: orjson.dumps(dict(column.connect))},
            )
            for column in columns
        ]
    )


def connect_option(schema: pa.Schema) -> str:
    """The Connect types of the fields, for the decoder's option "connect", where a schema loses the
    metadata of its fields on the way to the decoder (Spark's does).
    """
    found = {
        field.name: json.loads(field.metadata[CONNECT_METADATA])
        for field in schema
        if field.metadata and CONNECT_METADATA in field.metadata
    }
    return json.dumps(found)


def captured_schema(
    bootstrap: str, login: ClientSettings, topic: str, decrypt: Collection[str] = ()
) -> tuple[pa.Schema, tuple[str, ...]]:
    """The columns of a topic `<capture>.<schema>.<table>` as its newest records have them, and
    which of them are the key. Personal columns are texts, unless their kind of subject is among
    `decrypt`. Raises ConfigError if no capture has stored such a table.
    """
    records = read_committed_latest(bootstrap, login, positions.TOPIC)
    for capture in positions.captures_in(records):
        if not topic.startswith(f"{capture}."):
            continue
        for state in positions.decode(capture, records).tables.values():
            if topic_name(capture, state.table) == topic:
                if state.table.documents:
                    raise ConfigError(
                        f"the columns of {topic} are unknown",
                        detail="its rows are documents, each with fields of its own",
                        hint="give a schema: members of the document that it names become columns",
                    )
                shown = _shown(bootstrap, login, capture, state.table, decrypt)
                return schema_of(shown), state.table.key
    raise ConfigError(
        f"the columns of {topic} are unknown",
        detail=f"no capture has stored a table of this topic in {positions.TOPIC}",
        hint="start the capture first, or give a schema",
    )


def _shown(
    bootstrap: str, login: ClientSettings, capture: str, table: Table, decrypt: Collection[str]
) -> list[Column]:
    """The table's columns as the topic has them: the capture's rules may have left some out or
    turned them into texts. The capture's schema topic has the result.
    """
    described = _described(
        bootstrap, login, f"{capture}.schema", f'"{table.schema}"."{table.name}"'
    )
    if described is None:
        return list(table.columns)
    shown = []
    for column in table.columns:
        type_name = described.get(column.name)
        if type_name is not None:
            if type_name.startswith(ENCRYPTED_TYPE):
                kind, _, inner = type_name.removeprefix(ENCRYPTED_TYPE).partition(":")
                type_name = inner if kind in decrypt else type_name
            is_same = type_name == column.type
            shown.append(column if is_same else replace(column, type=type_name, connect=_TEXT))
    return shown


def _described(
    bootstrap: str, login: ClientSettings, topic: str, table_id: str
) -> dict[str, str] | None:
    """Names and types of the table's columns in the last record of the schema topic."""
    found: dict[str, str] | None = None
    with Fetcher(bootstrap, login) as fetcher:
        try:
            partitions = [(topic, partition) for partition in range(fetcher.partitions(topic))]
        except RequestRefused:
            return None
        starts, ends = fetcher.offsets(partitions, EARLIEST), fetcher.offsets(partitions, LATEST)
        for topic_partition in partitions:
            for batch in fetcher.read(
                *topic_partition, starts[topic_partition], ends[topic_partition], columns=("value",)
            ):
                for value in batch.column("value").to_pylist():
                    for change in _changes(value):
                        if change.get("id") == table_id and change.get("table"):
                            columns = change["table"]["columns"]
                            found = {column["name"]: column["typeName"] for column in columns}
    return found


def _changes(value: bytes | None) -> list[dict[str, Any]]:
    try:
        return list(orjson.loads(value or b"{}").get("tableChanges") or [])
    except (ValueError, AttributeError):
        return []
