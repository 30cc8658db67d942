"""Rows that are no records: how far a partition has been read, for joins that wait for it.

With the option `progress` each partition has one in each micro-batch of its source, behind its
records. Its `_op` says whether the log ended there when the micro-batch was planned; other columns
are null. What was true is kept with the offsets, in Spark's checkpoint, so that a micro-batch that
runs again says the same.
"""

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from headwater.client.sending import TopicPartition
from headwater.pipelines.position import POSITION

READ_TO_END: Final = "p"
READ_TO_HERE: Final = "p+"  # there are more records
NOTE: Final = "@"  # before a topic's name, among offsets: it cannot be part of one


def noted(offsets: dict[str, Any], at_end: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Offsets as Spark keeps them, with what is known of the ends of the log."""
    notes: dict[str, dict[str, int]] = {}
    for (topic, partition), end in sorted(at_end.items()):
        notes.setdefault(NOTE + topic, {})[str(partition)] = end
    return offsets | notes


def parted(offsets: Mapping[str, Any]) -> tuple[dict[str, Any], set[TopicPartition]]:
    """The offsets, and which partitions were read to their end with them."""
    plain = {name: each for name, each in offsets.items() if not name.startswith(NOTE)}
    at_end = {
        (name.removeprefix(NOTE), int(partition))
        for name, partitions in offsets.items()
        if name.startswith(NOTE)
        for partition in partitions
    }
    return plain, at_end


def progress_row(
    topic: str, partition: int, end: int, *, is_end: bool, schema: pa.Schema
) -> pa.RecordBatch:
    told = {
        "_op": READ_TO_END if is_end else READ_TO_HERE,
        POSITION: {"topic": topic, "partition": partition, "offset": end},
    }
    return pa.RecordBatch.from_arrays(
        [pa.array([told.get(field.name)], field.type) for field in schema], schema=schema
    )
