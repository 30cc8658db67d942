"""The Spark sink `format("headwater")`: DataFrames into topics, exactly once.

    tasks      rows ──▶ ready batches, compressed (client/writing/encoding.py) ──▶ commit message
    driver     commit(messages, batch) ──▶ one Kafka transaction: all batches, and the position
               {"batch": n} under the query's id (sinks/topic/transactional_positions.py)

Tasks write nothing, so a task that runs twice, or survives as a zombie, changes nothing. A batch
that Spark runs again is found by its position. The query's id is that of the checkpoint: it comes
with the tasks' local properties, and stays the same as long as the checkpoint exists.

Spark calls `commit` in a Python worker that it usually reuses, but not always. So the process that
commits caches its producer, and opens a new one (which fences the others) whenever the batch does
not follow its last one. The broker refuses a driver that was suspended and wakes up after its
successor has started.

All that a micro-batch writes passes through the memory of the driver, compressed: Spark refuses
more than `spark.driver.maxResultSize`, a task refuses more than half a GiB by itself.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.encoding import Encoded, EncodedBatch
from headwater.client.writing.sending import TopicPartition
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import ConfigError, PipelineError, StoreDiverged, UsageError
from headwater.pipelines.source.options import CLIENT, client_of
from headwater.pipelines.source.reading import settle
from headwater.sinks.contract import OP, TRUNCATE, Log, Target
from headwater.sinks.topic.records import Form, RecordBuilder, Topic, compression_of, find_topic
from headwater.sinks.topic.transactional_positions import (
    TransactionalPositions,
    as_sink_errors,
    read_positions,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS: Final = ("bootstrap", "topic", "key", "value", "partitions", "compression")
_SPARKS: Final = ("checkpointlocation", "path", "queryname")  # which it passes on with ours
_QUERY: Final = "sql.streaming.queryId"  # Spark's property of the tasks of a stream
_MOST_OF_A_TASK_BYTES: Final = 512 << 20
_CACHED_S: Final = 30.0  # for how long partitions and limits of a topic are cached
_PATIENCE_S: Final = 60.0
_MOST_COMMITTERS: Final = 8


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The batches of a task's rows."""

    query: str | None  # None: not a stream
    batches: Encoded


class _TopicWriter:
    """From rows to batches, on executors: the part that stream and batch writes share."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.log = _log_of(options)
        self.target, self.compression = _target_of(options)
        self._form = Form(self.target)
        names = schema.fieldNames()
        missing = [name for name in self.target.key if name not in names]
        if missing:
            raise ConfigError(
                f"topic {self.target.name}: the key has a column that is not there",
                detail=f"{', '.join(missing)}; there are {', '.join(names)}",
            )
        fields = to_arrow_schema(schema, timezone="UTC")
        self._form.check(pa.schema([field for field in fields if field.name != OP]))
        self.topic = _ensured_topic(self.log, self.target, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        builder = RecordBuilder(self._form, self.topic, self.target.key, self.compression)
        encoder = builder.encoder()
        for rows in iterator:
            _refuse_truncates(rows)
            for records in builder.records(pa.Table.from_batches([rows])):
                encoder.add(records)
            _check_size(encoder.packed_bytes)
        encoded = encoder.finish()
        _check_size(encoder.packed_bytes)
        context = TaskContext.get()
        if context is not None:
            settle()
        return Written(None if context is None else context.getLocalProperty(_QUERY), encoded)

    def _all(self, messages: Sequence[Any]) -> dict[TopicPartition, list[EncodedBatch]]:
        """The batches of all tasks, in their order."""
        batches: dict[TopicPartition, list[EncodedBatch]] = {}
        for message in messages:
            for partition, given in message.batches.items():
                batches.setdefault((self.target.name, partition), []).extend(given)
        return batches


class TopicStreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """Each micro-batch is one transaction, written once. `abort` has nothing to do: the batches of
    tasks are dropped, and the next producer aborts a transaction that was not committed.
    """

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 (Spark's name)
        queries = {message.query for message in messages}
        if len(queries) != 1 or None in queries:
            raise PipelineError("Spark does not report the id of the query", detail=str(queries))
        _commit(self.log, self.target.name, queries.pop(), batchId, self._all(messages))

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        return


class TopicBatchWriter(_TopicWriter, DataSourceArrowWriter):
    """The whole write is one transaction. Spark commits it once; if the answer to the commit is
    lost, the error states that the rows may be committed.
    """

    def commit(self, messages: list[Any]) -> None:
        with (
            as_sink_errors(),
            TransactionalProducer(
                self.log.bootstrap,
                f"headwater-write-{uuid4()}",
                login=self.log.login,
                patience_s=_PATIENCE_S,
            ) as producer,
        ):
            producer.fence()
            try:
                producer.send(self._all(messages))
            except BaseException:
                producer.abort()
                raise
            producer.commit()

    def abort(self, messages: list[Any]) -> None:
        return


def stream_writer(options: Mapping[str, str], schema: "StructType") -> DataSourceStreamArrowWriter:
    """For `DataSource.streamWriter`. Raises ConfigError, StoreRefused, StoreUnreachable."""
    return TopicStreamWriter(options, schema)


def batch_writer(options: Mapping[str, str], schema: "StructType") -> DataSourceArrowWriter:
    """For `DataSource.writer`; the same."""
    return TopicBatchWriter(options, schema)


def _log_of(options: Mapping[str, str]) -> Log:
    for name in options:
        if name.lower() not in (*OPTIONS, *_SPARKS) and not name.startswith(CLIENT):
            raise ConfigError(
                f'the topic sink has no option "{name}"',
                hint=f"options are {', '.join(OPTIONS)}, and client.*",
            )
    return Log(options.get("bootstrap", "127.0.0.1:9092"), client_of(options))


def _target_of(options: Mapping[str, str]) -> tuple[Target, str]:
    topic = options.get("topic", "")
    if not topic or "," in topic:
        raise ConfigError(
            "rows are written to one topic",
            detail=f"topic: {topic or 'not given'}",
            hint='.option("topic", "orders")',
        )
    key = tuple(name.strip() for name in options.get("key", "").split(",") if name.strip())
    target = Target("spark", topic, key, {"value": options.get("value", "json")})
    return target, compression_of(options)


_topics: dict[tuple[Log, str], tuple[float, Topic]] = {}  # of this process; at most a few


def _ensured_topic(log: Log, target: Target, options: Mapping[str, str]) -> Topic:
    """Created if it is missing. Cached, as writers are created for every micro-batch."""
    at_s, topic = _topics.get((log, target.name), (0.0, None))
    if topic is None or time.monotonic() - at_s > _CACHED_S:
        partitions = options.get("partitions", "1")
        if not partitions.isdigit() or not int(partitions):
            raise ConfigError(f"topic {target.name}: partitions is a number from 1 on")
        configs = {"cleanup.policy": "compact"} if target.key else {}
        new = NewTopic(target.name, int(partitions), configs)
        with as_sink_errors():
            ensure_topics(log.bootstrap, log.login, [new], patience_s=_PATIENCE_S)
            topic = find_topic(log, target.name, _PATIENCE_S)
        _topics.clear()
        _topics[log, target.name] = (time.monotonic(), topic)
    return topic


def _refuse_truncates(rows: pa.RecordBatch) -> None:
    if OP in rows.schema.names and pc.any(pc.equal(rows[OP], TRUNCATE)).as_py():
        raise UsageError(
            "a row is a TRUNCATE, which a record cannot represent",
            detail=f'{OP} = "{TRUNCATE}"',
            hint=f"filter such rows out: df.where(\"{OP} <> '{TRUNCATE}'\")",
        )


def _check_size(packed_bytes: int) -> None:
    if packed_bytes > _MOST_OF_A_TASK_BYTES:
        raise PipelineError(
            "a task has more rows than the driver can hold at once",
            detail=f"{packed_bytes} bytes after compression, at most {_MOST_OF_A_TASK_BYTES}",
            hint="smaller micro-batches (the source's max_rows or max_bytes), or more partitions:"
            " df.repartition(N)",
        )


# Committing, in a worker of the driver.

_committers: OrderedDict[tuple[Log, str, str], tuple[TransactionalPositions, int]] = OrderedDict()


def _commit(
    log: Log,
    topic: str,
    query: str,
    batch: int,
    batches: Mapping[TopicPartition, Sequence[EncodedBatch]],
) -> None:
    """Writes the batch, unless it is written already."""
    name = (log, topic, query)
    transactional_id, key = f"headwater-query-{query}-{topic}", f"/query/{query}/{topic}".encode()
    transactions, last = _committers.pop(name, (None, -1))
    if transactions is not None and batch != last + 1:
        transactions.close()
        transactions = None
    if transactions is None:
        # A late driver finds its batch here, and does not fence its successor.
        if _is_written(batch, read_positions(log, patience_s=_PATIENCE_S).get(key), topic):
            return
        transactions = TransactionalPositions(log, transactional_id, key, patience_s=_PATIENCE_S)
    try:
        if not _is_written(batch, transactions.position, topic):
            position = orjson.dumps(
                {"batch": batch, "topic": topic, "at_ms": int(time.time() * 1000)}
            )
            transactions.commit(batches, lambda _: position)
    except BaseException:
        transactions.close()
        raise
    _committers[name] = (transactions, batch)
    while len(_committers) > _MOST_COMMITTERS:
        _committers.popitem(last=False)[1][0].close()


def _is_written(batch: int, position: bytes | None, topic: str) -> bool:
    stored = -1 if position is None else int(orjson.loads(position)["batch"])
    if batch < stored:
        raise StoreDiverged(
            f"topic {topic} has batches of this query that come later",
            detail=f"this is batch {batch}, {stored} is there",
            hint="was an older checkpoint restored? A new one begins a new query",
        )
    return batch == stored
