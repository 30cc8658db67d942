"""Punctuations: the rows of a task that can move a producer's watermark, sent to every bucket.

A few rows of many matter: the first of each producer, those whose watermark is higher than its last
one, and those with which it leaves. The others change nothing, whatever was before.
"""

import base64
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.jit import kernel

ROW: Final = 0  # VALUE is its time
MARK: Final = 1  # VALUE is its watermark
LEFT: Final = 2
SCHEMA: Final = pa.schema(
    [("offset", pa.int64()), ("producer", pa.string()), ("value", pa.int64()), ("kind", pa.int8())]
)
_THINNED_ROWS: Final = 1 << 20  # buffered at most, besides those that matter


class Punctuations:
    """The punctuations of one partition, in one task."""

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._rows = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Of SCHEMA, in log order."""
        self._parts.append(rows)
        self._rows += rows.num_rows
        if self._rows > _THINNED_ROWS:
            self._parts, self._rows = self.thinned().to_batches(), 0

    def thinned(self) -> pa.Table:
        rows = pa.Table.from_batches(self._parts, SCHEMA).combine_chunks()
        if not len(rows):
            return rows
        producer = rows["producer"].combine_chunks().dictionary_encode()
        matters = _matters(
            producer.indices.to_numpy(),
            rows["kind"].combine_chunks().to_numpy(),
            rows["value"].combine_chunks().to_numpy(),
            len(producer.dictionary),
        )
        return rows.filter(pa.array(matters))

    def to_text(self) -> str:
        sink = pa.BufferOutputStream()
        rows = self.thinned()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_table(rows)
        return base64.b64encode(sink.getvalue()).decode()


def in_log_order(texts: tuple[str, ...]) -> pa.Table:
    """Of one partition, from all tasks that read it."""
    tables = [pa.ipc.open_stream(base64.b64decode(text)).read_all() for text in texts]
    if len(tables) == 1:
        return tables[0]
    return pa.concat_tables(tables).sort_by("offset") if tables else SCHEMA.empty_table()


@kernel
def _matters(
    codes: npt.NDArray[np.int32],
    kinds: npt.NDArray[np.int8],
    values: npt.NDArray[np.int64],
    producers: int,
) -> Any:
    is_met = np.zeros(producers, np.bool_)
    is_marked = np.zeros(producers, np.bool_)
    highest = np.zeros(producers, np.int64)
    matters = np.zeros(len(codes), np.bool_)
    for row in range(len(codes)):
        code, kind, value = codes[row], kinds[row], values[row]
        if kind == LEFT:
            matters[row] = True
            is_met[code] = is_marked[code] = False
        elif kind == MARK:
            if not is_marked[code] or value > highest[code]:
                matters[row] = is_met[code] = is_marked[code] = True
                highest[code] = value
        elif not is_met[code]:
            matters[row] = is_met[code] = True
    return matters
