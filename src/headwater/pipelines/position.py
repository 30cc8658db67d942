"""The column `_position` of rows: the record that a row comes from, by topic, partition, offset."""

from typing import Final

import pyarrow as pa

POSITION: Final = "_position"
POSITION_TYPE: Final = pa.struct(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]
)
POSITION_NAMES: Final = ("topic", "partition", "offset")
