"""Rows of a large batch, encoded by tasks: ready record batches, which the driver only forwards.

    task      rows of some partitions of the topic, in log order ──▶ compressed record batches
    driver    one Kafka transaction: all batches as they are, and the state of the version

Tasks send nothing. A transaction belongs to one producer: several producers cannot commit together,
and what one attempt of a task has sent within a shared one could not be taken back. All rows of a
partition are encoded by one task, so that their order is that of the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.writing.encoding import Encoded, EncodedBatch, partitions_of
from headwater.client.writing.sending import TopicPartition
from headwater.errors import HeadwaterError, NotStaged
from headwater.sinks.contract import OP, TRUNCATE, Staging
from headwater.sinks.rows.schema_evolution import fitted
from headwater.sinks.topic.records import Form, RecordBuilder, Topic

_MOST_OF_A_TASK_BYTES: Final = 512 << 20  # of which the driver has a copy
_ENCODED: Final = pa.schema(
    [
        ("partition", pa.int32()),
        ("count", pa.int64()),
        ("size_bytes", pa.int64()),
        ("base_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("codec", pa.int8()),
        ("packed", pa.large_binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class TopicStaging(Staging):
    form: Form
    topic: Topic
    key: tuple[str, ...]
    compression: str
    fields: pa.Schema  # of the version, with the columns that are new in the batch

    @property
    def tasks(self) -> int:  # type: ignore[override]
        return self.topic.partitions

    def task_of(self, rows: pa.RecordBatch) -> pa.Array:
        """Its partition of the topic. Rows that `stage` refuses may be anywhere."""
        try:
            columns = self.form.partitioning(self._decisive(rows))
            found = partitions_of(pa.RecordBatch.from_pydict(columns), self.topic.partitions)
        except HeadwaterError:
            found = np.zeros(rows.num_rows)
        return pa.array(found.astype(np.int32))

    def _decisive(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that decide, as `stage` has them."""
        given = rows.schema.names
        names = [name for name in self.form.decisive_columns if name in given]
        table = pa.Table.from_batches([rows.select(names)])
        types = pa.schema([self.fields.field(name) for name in names])
        return fitted(table, types).combine_chunks().to_batches()[0]

    def stage(self, rows: Iterator[pa.Table], attempt: str) -> bytes:
        builder = RecordBuilder(self.form, self.topic, self.key, self.compression)
        encoder = builder.encoder()
        for some in rows:
            if OP in some.column_names and pc.any(pc.equal(some[OP], TRUNCATE)).as_py():
                raise NotStaged("a truncate concerns the rows of all tasks")
            for records in builder.records(fitted_with_ops(some, self.fields)):
                encoder.add(records)
        encoded = encoder.finish()
        if encoder.packed_bytes > _MOST_OF_A_TASK_BYTES:
            raise NotStaged(
                "a task has more rows than the driver can forward at once",
                detail=f"{encoder.packed_bytes} bytes after compression",
            )
        return _to_bytes(encoded)


def fitted_with_ops(rows: pa.Table, fields: pa.Schema) -> pa.Table:
    """The rows with the columns of `fields`, and OP if they have it."""
    if OP not in rows.column_names:
        return fitted(rows, fields)
    return fitted(rows.drop_columns([OP]), fields).append_column(OP, rows[OP])


def batches_of(topic: str, tokens: Sequence[bytes]) -> Mapping[TopicPartition, list[EncodedBatch]]:
    """By partition, in the order of their rows."""
    batches: dict[TopicPartition, list[EncodedBatch]] = {}
    for token in tokens:
        for row in pa.ipc.open_stream(token).read_all().to_pylist():
            batches.setdefault((topic, row.pop("partition")), []).append(EncodedBatch(**row))
    return batches


def _to_bytes(encoded: Encoded) -> bytes:
    batches = [(at, batch) for at, given in encoded.items() for batch in given]
    names = _ENCODED.names[1:]
    columns = [[at for at, _ in batches]]
    columns += [[getattr(batch, name) for _, batch in batches] for name in names]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ENCODED, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _ENCODED) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_ENCODED))
    return bytes(sink.getvalue().to_pybytes())
