"""The `_position` column: topic, partition and offset of the record that a row was read from."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

POSITION: Final = "_position"
POSITION_TYPE: Final = pa.struct(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
POSITION_FIELDS: Final = tuple(POSITION_TYPE.names)


def positions(
    partitions: Sequence[Sequence[str | int]], index: pa.Array, offset: pa.Array
) -> pa.StructArray:
    """Of each row. `index` points into `partitions`, which are pairs of topic and number."""
    topics = pa.array([topic for topic, _ in partitions], pa.string())
    numbers = pa.array([number for _, number in partitions], pa.int32())
    return pa.StructArray.from_arrays(
        [topics.take(index), numbers.take(index), offset], fields=list(POSITION_TYPE)
    )
