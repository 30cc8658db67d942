"""Rows of a batch as records of a topic, and back.

    value = json       key: JSON of the key's columns     value: JSON of the row
            debezium   the same                           {"before", "after", "source", "op", …}
            avro       both as Avro (avro_form.py)
            bytes      the columns key, value, headers, timestamp and partition, as they are

A row that was deleted is a tombstone: its key, and null. In Debezium's form an envelope with "op"
"d" precedes it, which has the row's key as "before". Without a key each
row is a record of its own, without a key.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.cluster import Cluster
from headwater.client.topics import topic_configs
from headwater.client.writing import encoding
from headwater.client.writing.encoding import Encoder, encode
from headwater.errors import ConfigError, RowRefused, StoreRefused
from headwater.protocol.compression import NAMES as COMPRESSIONS
from headwater.protocol.records import HEADER_BYTES
from headwater.sinks.contract import DELETE, OP, Log, Target
from headwater.sinks.rows import json_reading, json_text
from headwater.sinks.rows.last_by_key import with_keys
from headwater.sinks.rows.row_validation import shown

AVRO: Final = "avro"
REGISTRY: Final = "avro.registry"
REGISTRY_OPTIONS: Final = (REGISTRY, f"{REGISTRY}.username", f"{REGISTRY}.password")
FORMS: Final = ("json", "debezium", AVRO, "bytes")
BYTES: Final = pa.large_binary()
_NOTHING: Final = pa.scalar(None, BYTES)
CHUNK_ROWS: Final = 1 << 16
_BATCH_BYTES: Final = 1_000_000
_KAFKAS_LIMIT_BYTES: Final = 1_048_588  # max.message.bytes, if we may not read it
_AROUND_A_RECORD_BYTES: Final = 64


class Form:
    """The record format of one target."""

    def __init__(self, target: Target) -> None:
        self.name = target.options.get("value", "json")
        self._key = target.key
        if self.name not in FORMS:
            raise ConfigError(
                f"topic {target.name}: unknown value {self.name!r}",
                hint=f"known are: {', '.join(FORMS)}",
            )
        if self.name == "bytes" and target.key not in ((), ("key",)):
            raise ConfigError(
                f"topic {target.name}: the key of bytes is the column key",
                detail=f"given: {', '.join(target.key)}",
                hint='key = ["key"], or value = "json"',
            )
        source = {"connector": "headwater", "name": target.owner, "table": target.name}
        self._source = b',"source":' + orjson.dumps(source) + b',"op":'

    def of_topic(self, topic: str) -> "Form":
        """The format of a version's topic."""
        return self

    def close(self) -> None:
        return

    def check(self, fields: pa.Schema) -> None:
        """Raises StoreRefused for a column that the format cannot represent."""
        if self.name == "bytes":
            unknown = [name for name in fields.names if name not in encoding.COLUMNS]
            if unknown or "value" not in fields.names:
                raise StoreRefused(
                    "bytes are written from the columns " + ", ".join(encoding.COLUMNS),
                    detail=f"given: {', '.join(fields.names)}",
                    hint='select these, or give value = "json"',
                )
            return
        for field in fields:
            if not json_text.is_supported(field.type):
                raise StoreRefused(
                    f"column {field.name} cannot be represented in JSON", detail=str(field.type)
                )

    def columns(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """One record for each row, as columns of `client/writing/encoding.py`, before
        `with_tombstones`. The values of deleted rows (`is_deleted`) are meaningless.
        """
        names = [name for name in rows.schema.names if name != OP]
        if self.name == "bytes":
            return {"key": pa.nulls(len(rows)), **{name: rows[name] for name in names}}
        key = self._keys(rows)
        value = json_text.objects([rows[name] for name in names], names)
        if self.name == "debezium":
            value = self._enveloped(rows, key, value)
        return {"key": key, "value": value}

    @property
    def decisive_columns(self) -> tuple[str, ...]:
        """Those that a record's partition depends on."""
        return (*self._key, "partition") if self.name == "bytes" else self._key

    def partitioning(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        """Of rows with the decisive columns, those of `columns` that decide."""
        if self.name == "bytes":
            return self.columns(rows)
        return {"key": self._keys(rows)}

    def _keys(self, rows: pa.RecordBatch) -> pa.Array:
        if not self._key:
            return pa.nulls(len(rows), BYTES)
        return json_text.objects([rows[name] for name in self._key], self._key)

    def _enveloped(self, rows: pa.RecordBatch, keys: pa.Array, values: pa.Array) -> pa.Array:
        deleted = is_deleted(rows)
        ops = pa.array(["u" if self._key else "c"] * len(rows))
        if OP in rows.schema.names:
            ops = pc.coalesce(rows[OP].cast(pa.string()), ops)
        now_ms = int(time.time() * 1000)
        return json_text.joined(
            len(rows),
            [
                (b'{"before":', json_text.Ready(pc.if_else(deleted, keys, _NOTHING))),
                (b',"after":', json_text.Ready(pc.if_else(deleted, _NOTHING, values))),
                (self._source, ops),
            ],
            b',"ts_ms":%d}' % now_ms,
        )

    def with_tombstones(self, columns: dict[str, pa.Array], deleted: pa.Array) -> pa.RecordBatch:
        """The records, with the deletions in them as they are written."""
        if not pc.any(deleted).as_py():
            return pa.RecordBatch.from_pydict(columns)
        if self.name != "debezium":
            value = columns["value"]
            value = pc.if_else(deleted, pa.scalar(None, value.type), value)
            return pa.RecordBatch.from_pydict({**columns, "value": value})
        mask = deleted.to_numpy(zero_copy_only=False)
        twice = pa.RecordBatch.from_pydict(columns).take(
            pa.array(np.repeat(np.arange(len(mask)), np.where(mask, 2, 1)))
        )
        # The tombstone of a pair is shifted by the number of pairs before it, and one.
        seconds = np.flatnonzero(mask) + np.arange(1, int(mask.sum()) + 1)
        is_second = np.zeros(twice.num_rows, bool)
        is_second[seconds] = True
        value = pc.if_else(pa.array(is_second), _NOTHING, twice["value"])
        return pa.RecordBatch.from_pydict({"key": twice["key"], "value": value})

    def deletions(self, keys: Sequence[bytes]) -> pa.RecordBatch:
        """Of all these keys."""
        key = pa.array(keys, BYTES)
        columns = {"key": key, "value": pa.nulls(len(keys), BYTES)}
        if self.name == "debezium":
            columns["value"] = json_text.joined(
                len(keys),
                [(b'{"before":', json_text.Ready(key))],
                b',"after":null' + self._source + b'"d","ts_ms":%d}' % int(time.time() * 1000),
            )
        return self.with_tombstones(columns, pa.array(np.ones(len(keys), bool)))

    def rows(self, records: pa.Table, fields: pa.Schema) -> Iterator[pa.RecordBatch]:
        """From records that are no tombstones back to rows with these fields."""
        for chunk in records.to_batches(max_chunksize=CHUNK_ROWS):
            if self.name == "bytes":
                yield pa.RecordBatch.from_arrays(
                    [chunk[name].cast(fields.field(name).type) for name in fields.names],
                    schema=fields,
                )
            else:
                read = [orjson.loads(value) for value in chunk["value"].to_pylist()]
                if self.name == "debezium":
                    read = [envelope["after"] for envelope in read]
                yield json_reading.rows(read, fields)

    def record_columns(self, fields: pa.Schema) -> list[str]:
        """The columns of the records that `rows` needs, besides the key."""
        if self.name != "bytes":
            return ["value"]
        return [name for name in fields.names if name not in ("key", "partition")]


def form_of(target: Target, log: Log) -> Form:
    """Raises ConfigError."""
    if target.options.get("value") == AVRO:
        from headwater.sinks.topic.avro_form import AvroForm  # few topics need it

        return AvroForm(target, log)
    for name in REGISTRY_OPTIONS:
        if name in target.options:
            raise ConfigError(f'topic {target.name}: {name} needs value = "avro"')
    return Form(target)


def is_deleted(rows: pa.RecordBatch) -> pa.Array:
    if OP not in rows.schema.names:
        return pa.array(np.zeros(rows.num_rows, bool))
    return pc.fill_null(pc.equal(rows[OP], DELETE), fill_value=False)


def last_by_key(records: pa.Table) -> pa.Table:
    """The last record of each key; records without one are left out. In no certain order."""
    numbered = records.select(["key"]).append_column("row", pa.array(np.arange(len(records))))
    last = numbered.group_by("key", use_threads=False).aggregate([("row", "max")])
    last = last.filter(pc.is_valid(last["key"]))
    return records.take(last["row_max"])


@dataclass(frozen=True, slots=True)
class Topic:
    """The properties of a topic that batches for it depend on."""

    name: str
    partitions: int
    limit_bytes: int  # of a batch, as it is stored


def find_topic(log: Log, name: str, patience_s: float) -> Topic:
    cluster = Cluster(log.bootstrap, log.login, patience_s=patience_s)
    try:
        partitions = cluster.partitions(name)
        limit = topic_configs(cluster, name).get("max.message.bytes", "")
    finally:
        cluster.close()
    return Topic(name, partitions, int(limit) if limit.isdigit() else _KAFKAS_LIMIT_BYTES)


def compression_of(options: Mapping[str, str]) -> str:
    compression = options.get("compression", "lz4")
    if compression not in COMPRESSIONS:
        raise ConfigError(
            f"unknown compression {compression!r}", hint=f"known are: {', '.join(COMPRESSIONS)}"
        )
    return compression


class RecordBuilder:
    """Builds record batches of rows for a topic: the caller adds `records` to an `encoder`."""

    def __init__(self, form: Form, topic: Topic, key: Sequence[str], compression: str) -> None:
        self._form = form
        self._topic = topic
        self._key = key
        self._compression = compression
        # Incompressible data becomes a little larger.
        room_bytes = topic.limit_bytes - HEADER_BYTES - topic.limit_bytes // 256 - 64
        self._batch_bytes = max(1, min(_BATCH_BYTES, room_bytes))

    def encoder(self) -> Encoder:
        return Encoder(
            self._topic.partitions, compression=self._compression, max_bytes=self._batch_bytes
        )

    def records(
        self, rows: pa.Table, refused: list[RowRefused] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Raises RowRefused for a row without a key, and for one that is larger than the topic
        allows; with `refused` they are left out and added to it.
        """
        for chunk in with_keys(rows, self._key, refused).to_batches(max_chunksize=CHUNK_ROWS):
            columns, deleted = self._form.columns(chunk), is_deleted(chunk)
            too_large = [
                row
                for row in _oversized(columns, self._batch_bytes - _AROUND_A_RECORD_BYTES)
                if self._is_too_large(
                    {name: column.slice(row, 1) for name, column in columns.items()}
                )
            ]
            if too_large:
                errors = [self._refusal(chunk.slice(row, 1)) for row in too_large]
                if refused is None:
                    raise errors[0]
                refused += errors
                fits = np.ones(len(chunk), bool)
                fits[too_large] = False
                columns = {name: column.filter(pa.array(fits)) for name, column in columns.items()}
                deleted = deleted.filter(pa.array(fits))
            yield self._form.with_tombstones(columns, deleted)

    def _is_too_large(self, record: dict[str, pa.Array]) -> bool:
        alone = pa.RecordBatch.from_pydict(record)
        encoded = encode(alone, self._topic.partitions, compression=self._compression)
        ((batch,),) = encoded.values()
        return HEADER_BYTES + len(batch.packed) > self._topic.limit_bytes

    def _refusal(self, row: pa.RecordBatch) -> RowRefused:
        topic, limit_bytes = self._topic.name, self._topic.limit_bytes
        (values,) = shown(row)
        key = {name: values[name] for name in self._key}
        return RowRefused(
            f"a row is too large for topic {topic}",
            row=values,
            detail=f"{key or ''} max.message.bytes is {limit_bytes}".strip(),
            hint=f"`headwater topic alter {topic} -c max.message.bytes=SIZE` allows more",
        )


def _oversized(columns: dict[str, pa.Array], limit_bytes: int) -> list[int]:
    """Rows whose records are, before compression, larger than a batch of many may be."""
    sizes: Any = pc.add(_sizes(columns["key"]), _sizes(columns["value"]))
    return np.flatnonzero(pc.greater(sizes, limit_bytes).to_numpy(zero_copy_only=False)).tolist()


def _sizes(column: pa.Array) -> pa.Array:
    if pa.types.is_null(column.type):
        return pa.array(np.zeros(len(column), np.int64))
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
