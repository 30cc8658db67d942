"""Batch reads of the log: offset ranges, resolved once and shared by tasks."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.client.reading.fetching import EARLIEST
from headwater.pipelines.source.log_ends import LogEnds
from headwater.pipelines.source.options import SourceOptions
from headwater.pipelines.source.plain_errors import plain_errors
from headwater.pipelines.source.reading import OffsetRange, read_range

_LEAST_ROWS: Final = 500_000  # of a task: a quarter of a second of work
_MOST_TASKS: Final = 200  # of a partition


class LogReader(DataSourceReader):
    """Offsets are resolved once, when the query is planned; a repeated task reads the same."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        with plain_errors():
            ends = LogEnds(self._options)
            partitions = ends.partitions()
            starts = ends.at(self._options.start, partitions, unnamed=EARLIEST)
            # Offsets that end a read are a position: partitions that it does not name are not read.
            stops = ends.at(self._options.end, partitions, unnamed=EARLIEST)
        return [
            part
            for topic, partition in partitions
            for part in split(topic, partition, starts[topic, partition], stops[topic, partition])
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, OffsetRange):  # Spark creates a partition where there is none
            with plain_errors():
                yield from read_range(self._options, partition, self._schema)


def split(topic: str, partition: int, start: int, end: int) -> list[OffsetRange]:
    """Into offset ranges for several tasks, in the order of the log."""
    if end <= start:
        return []
    size = max(_LEAST_ROWS, -(-(end - start) // _MOST_TASKS))
    return [
        OffsetRange(topic, partition, first, min(first + size, end))
        for first in range(start, end, size)
    ]
