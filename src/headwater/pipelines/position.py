"""The `_position` column: topic, partition and offset of the record that a row was read from.

Results of windows are no records. They have positions in a partition of their own (`result_topic`),
whose offset is the end of the window in microseconds since 1970. Windows become final in the order
of their ends, and all that end at the same time in the same batch. So these positions do not depend
on how the log was cut into batches, and later results have higher ones. Results of hw.process have
such positions, too, by their time.

An operator with event time also emits rows that have nothing but a position: its output watermark
as an offset in WATERMARK_PARTITION of its own topic (operators/runtime/watermark_rows.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa

POSITION: Final = "_position"
POSITION_TYPE: Final = pa.struct(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
POSITION_FIELDS: Final = tuple(POSITION_TYPE.names)
# In the metadata of `_position`: rows are results of windows, which are FINAL, or CHANGING if later
# ones retract or replace them (of matches, too); EVENTS in the order of their time, or such that
# later ones replace (CHANGING_EVENTS); or changes of a TABLE.
RESULTS: Final = "headwater.results"
FINAL: Final = "final"
CHANGING: Final = "changing"
EVENTS: Final = "events"
CHANGING_EVENTS: Final = "changing events"
TABLE: Final = "table"
WATERMARK_PARTITION: Final = -1
IS_RESULT: Final = f"NOT ({POSITION}.partition <=> {WATERMARK_PARTITION})"  # SQL; no watermark row
# In the metadata of a time: in later results it is at least at the operator's output watermark plus
# so many microseconds.
FLOOR: Final = "headwater.floor_us"
_SPARK_METADATA: Final = b"SPARK::metadata::json"  # where Spark has a column's metadata in Arrow


def positions(
    partitions: Sequence[Sequence[str | int]], index: pa.Array, offset: pa.Array
) -> pa.StructArray:
    """Of each row. `index` points into `partitions`, which are pairs of topic and number."""
    topics = pa.array([topic for topic, _ in partitions], pa.string())
    numbers = pa.array([number for _, number in partitions], pa.int32())
    return pa.StructArray.from_arrays(
        [topics.take(index), numbers.take(index), offset], fields=list(POSITION_TYPE)
    )


def result_topic(operator: str) -> str:
    """The topic in positions of an operator's results. No topic of a log has such a name."""
    return f"operator/{operator}"


def result_positions(topic: str, end_us: pa.Array) -> pa.StructArray:
    partition = pa.repeat(pa.scalar(0, pa.int32()), len(end_us))
    return pa.StructArray.from_arrays(
        [pa.repeat(topic, len(end_us)), partition, end_us], fields=list(POSITION_TYPE)
    )


def metadata_of(column: pa.Field) -> dict[str, Any]:
    """What Spark has of it."""
    found: dict[str, Any] = orjson.loads((column.metadata or {}).get(_SPARK_METADATA, b"{}"))
    return found


def with_metadata(column: pa.Field, metadata: Mapping[str, str | int]) -> pa.Field:
    """The column with metadata that Spark's has, too, also when it is selected or renamed."""
    return column.with_metadata({_SPARK_METADATA: orjson.dumps(metadata)})
