"""Progress rows: how far a partition has been read, for joins with pending events.

With the option `progress` each partition has one in each micro-batch of its source, after its
records. Its `_op` says whether the log ended there when the micro-batch was planned; other columns
are null. That is recorded with the offsets, in Spark's checkpoint, so that a micro-batch that runs
again has the same rows.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from headwater.client.writing.sending import TopicPartition
from headwater.pipelines.position import POSITION

READ_TO_END: Final = "p"
READ_TO_HERE: Final = "p+"  # there are more records
END_MARKER: Final = "@"  # before a topic's name, among offsets: it cannot be part of one


def with_end_markers(
    offsets: dict[str, Any], at_end: Mapping[TopicPartition, int]
) -> dict[str, Any]:
    """Offsets for Spark's checkpoint, with the partitions that are read to their end."""
    markers: dict[str, dict[str, int]] = {}
    for (topic, partition), end in sorted(at_end.items()):
        markers.setdefault(END_MARKER + topic, {})[str(partition)] = end
    return offsets | markers


def split_end_markers(offsets: Mapping[str, Any]) -> tuple[dict[str, Any], set[TopicPartition]]:
    """The offsets, and which partitions were read to their end with them."""
    plain = {name: value for name, value in offsets.items() if not name.startswith(END_MARKER)}
    at_end = {
        (name.removeprefix(END_MARKER), int(partition))
        for name, partitions in offsets.items()
        if name.startswith(END_MARKER)
        for partition in partitions
    }
    return plain, at_end


def progress_row(
    topic: str, partition: int, end: int, *, is_end: bool, schema: pa.Schema
) -> pa.RecordBatch:
    values = {
        "_op": READ_TO_END if is_end else READ_TO_HERE,
        POSITION: {"topic": topic, "partition": partition, "offset": end},
    }
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], field.type) for field in schema], schema=schema
    )
