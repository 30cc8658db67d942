"""Reading of an offset range of a partition into Arrow, in a task."""

import gc
import logging
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headwater.client.reading.fetching import EARLIEST, Fetcher
from headwater.errors import DataLost, PipelineError
from headwater.pipelines.source.options import SourceOptions
from headwater.pipelines.source.progress import progress_row

if TYPE_CHECKING:
    from headwater.pipelines.decoding.contract import Decoder, Rejected
    from headwater.pipelines.decoding.decrypting import Decrypting

_LOG = logging.getLogger(__name__)
_RAW: Final = ("key", "value", "offset", "timestamp")
_MOST_FETCHERS: Final = 8

# A worker process serves many tasks, one after the other: its connections outlive them. In the
# driver each thread has its own.
_of_thread = threading.local()
_frozen_modules = 0  # number of modules when `settle` last froze them


def fetcher_of(options: SourceOptions) -> Fetcher:
    """The fetcher of this thread for these brokers; an LRU cache closes the others."""
    key = (options.bootstrap, options.client, options.isolation)
    fetchers = _fetchers_of_thread()
    if key not in fetchers:
        if len(fetchers) >= _MOST_FETCHERS:
            fetchers.popitem(last=False)[1].close()
        fetchers[key] = Fetcher(options.bootstrap, options.client, isolation=options.isolation)
    fetchers.move_to_end(key)
    return fetchers[key]


def close_fetchers() -> None:
    """Those of this thread, before it ends."""
    fetchers = _fetchers_of_thread()
    while fetchers:
        fetchers.popitem()[1].close()


def _fetchers_of_thread() -> OrderedDict[tuple[object, ...], Fetcher]:
    if not hasattr(_of_thread, "fetchers"):
        _of_thread.fetchers = OrderedDict()
    found: OrderedDict[tuple[object, ...], Fetcher] = _of_thread.fetchers
    return found


class OffsetRange(InputPartition):
    """The offsets that one task reads: start <= offset < end. A start of EARLIEST is the first one
    that exists. `is_end`: whether the log ended there when this was planned; None if no progress
    row is wanted.
    """

    def __init__(
        self, topic: str, partition: int, start: int, end: int, *, is_end: bool | None = None
    ) -> None:
        super().__init__((topic, partition, start, end))
        self.is_end = is_end
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end


def read_range(
    options: SourceOptions, offsets: OffsetRange, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Its records in order, as rows of `schema`. DataLost if they are not all there, unless the
    options say to go on with those that are.
    """
    rows = rows_of(options, schema)
    for batch in _records(options, offsets, rows.columns):
        yield rows.rows(batch, offsets.topic, offsets.partition)
    if offsets.is_end is not None:
        yield progress_row(
            offsets.topic,
            offsets.partition,
            offsets.end,
            is_end=offsets.is_end,
            schema=to_arrow_schema(schema, timezone="UTC"),
        )
    settle()


def settle() -> None:
    """At the end of a task. Spark's workers collect garbage after each task, which takes 70 ms for
    the objects of the modules alone: more than it takes to read a small micro-batch. They stay
    anyway, so they are frozen (gc.freeze): again when modules were imported since, because a worker
    serves tasks of several kinds, and each kind imports its own.
    """
    global _frozen_modules  # noqa: PLW0603 (one garbage collector per process)
    if len(sys.modules) == _frozen_modules:
        return
    gc.collect()
    gc.freeze()
    _frozen_modules = len(sys.modules)


def rows_of(options: SourceOptions, schema: StructType) -> "Decoding | RawRows":
    """What makes rows of fetched records."""
    return RawRows(schema) if options.value == "bytes" else Decoding(options, schema)


class RawRows:
    """Raw records as rows of those of the columns of RAW that `schema` has."""

    def __init__(self, schema: StructType) -> None:
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        self.columns: Sequence[str] = [
            name for name in self._wanted.names if name not in ("topic", "partition")
        ] or ["offset"]

    def rows(self, batch: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        repeated = {
            "topic": pa.scalar(topic),
            "partition": pa.scalar(partition, pa.int32()),
        }
        arrays = [
            pa.repeat(repeated[name], batch.num_rows) if name in repeated else batch.column(name)
            for name in self._wanted.names
        ]
        return _fitted(arrays, self._wanted)


class Decoding:
    """Raw records into rows of `schema`; rejected records are handled as `on_bad` says."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        from headwater.pipelines.decoding import ADDED, decoder
        from headwater.schema_lookup.sources import TopicSource

        self._options = options
        self._wanted = to_arrow_schema(schema, timezone="UTC")
        added = {field.name for field in ADDED}
        self._decoder: Decoder | Decrypting = decoder(
            options.value,
            pa.schema([field for field in self._wanted if field.name not in added]),
            _decoding(options),
            partial(TopicSource, options.bootstrap, options.client),
        )
        if options.decrypt:
            from headwater.pipelines.decoding import decrypting

            assert options.keys is not None, "checked with the options"
            self._decoder = decrypting.Decrypting(self._decoder, options.decrypt, options.keys)
        # Dead letters have the whole record, headers included.
        self.columns: Sequence[str] = (
            (*_RAW, "erased", "headers") if options.on_bad == "dead-letter" else (*_RAW, "erased")
        )

    def rows(self, batch: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        decoded = self._decoder.decode(batch, topic, partition)
        if decoded.erased:
            _LOG.info("%d erased records of %s-%d are no rows", decoded.erased, topic, partition)
        if decoded.rejected:
            _reject(self._options, topic, partition, decoded.rejected)
        wanted = self._wanted
        return _fitted([decoded.rows.column(name) for name in wanted.names], wanted)


def _decoding(options: SourceOptions) -> Mapping[str, str]:
    if options.value != "debezium" or not options.decrypt:
        return options.decoding
    return {**options.decoding, "decrypt": ",".join(options.decrypt)}


def _reject(
    options: SourceOptions, topic: str, partition: int, rejected: Sequence["Rejected"]
) -> None:
    if options.on_bad == "fail":
        raise PipelineError(
            f"a record of {topic}-{partition} cannot be read",
            detail=f"offset {rejected[0].offset}: {rejected[0].cause}",
            hint='on_bad="dead-letter" goes on without it',
        )
    if options.on_bad == "dead-letter":
        from headwater.pipelines.publishing import dead_letters

        assert options.name is not None, "checked with the options"
        letters = dead_letters.of_process(options.bootstrap, options.client, options.name)
        letters.write(topic, partition, rejected)


def _records(
    options: SourceOptions, offsets: OffsetRange, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    fetcher = fetcher_of(options)
    partition = (offsets.topic, offsets.partition)
    start = offsets.start
    if start == EARLIEST:
        start = fetcher.offsets([partition], EARLIEST)[partition]
    while start < offsets.end:
        try:
            yield from fetcher.read(*partition, start, offsets.end, columns=columns)
            return
        except DataLost as lost:
            if options.on_lost == "fail":
                raise
            _LOG.warning("%s; skipped", lost)
            if lost.first <= lost.wanted:  # the log ends before the range does
                return
            start = lost.first


def _fitted(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Spark compares schemas to the letter: names of list elements, nullability."""
    fitted = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(fitted, schema=schema)
