"""Processes that write batches to topics, to be killed at any moment.

They are forked from one that has imported everything and done nothing, so each begins within
milliseconds. What Spark stores in a checkpoint (which batch comes next) is a file here, written
behind the commit, as Spark does it.
"""

import dataclasses
import multiprocessing
import os
import random
import sys
import time
from contextlib import suppress
from functools import cache
from itertools import count
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path

import pyarrow as pa
import pytest

from headwater.client.writing.encoding import encode
from headwater.errors import Fenced, StoreUnreachable
from headwater.sinks.contract import Log, Target
from headwater.sinks.rows import json_text
from headwater.sinks.settings import SinkSettings
from headwater.sinks.topic.store import TopicStore
from support.sinks.sink_rows import batch, table

ROWS = pa.schema([("id", pa.int64()), ("batch", pa.int64()), ("v", pa.string())])


@cache
def forked() -> BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "support.sinks.topic_killing",
            "headwater.pipelines.publishing.topic_writer",
            "pyspark.sql.pandas.types",
        ]
    )
    with pytest.MonkeyPatch.context() as patch:
        # Before Python 3.13 the server does not inherit our sys.path, and preloads nothing of it.
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        forkserver._forkserver._stop()  # that of other tests has preloaded other modules
        forkserver.ensure_running()
    return context


def rows_of(number: int) -> pa.Table:
    """Of that batch, always the same; some batches are empty."""
    count = number % 7 * 3
    return table(
        ROWS, [{"id": number * 100 + n, "batch": number, "v": "x" * n} for n in range(count)]
    )


# Compiled code is loaded by the process that the others are forked from.
encode(pa.record_batch({"key": json_text.objects([pa.array([1])], ["k"]), "value": pa.nulls(1)}), 2)


def store_of(address: str, topic: str) -> TopicStore:
    target = Target("killed", topic, (), {"partitions": "2"})
    return TopicStore(SinkSettings("topics", kind="topic"), target, Log(address))


def apply_batches(address: str, topic: str, seed: int, reports: Connection) -> None:
    """Through the sink, without an end: until it is fenced, or was stopped for too long."""
    with store_of(address, topic).writer(1, ROWS) as writer:
        done = 0 if writer.position is None else writer.position.batch
        with suppress(Fenced, StoreUnreachable):
            for number in count(done):  # the last one again
                writer.apply(batch(number, rows_of(number)))
                reports.send(number)


def commit_batches(
    address: str,
    topic: str,
    checkpoint: str,
    seed: int,
    reports: Connection,
    batches: int = 1_000_000,
) -> None:
    """Through Spark's writer, without Spark: each batch is cut into tasks again."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from headwater.pipelines.publishing.topic_writer import TopicStreamWriter

    rng = random.Random(seed)
    options = {"bootstrap": address, "topic": topic, "partitions": "2"}
    file = Path(checkpoint)
    while (number := int(file.read_text()) if file.exists() else 0) < batches:
        writer = TopicStreamWriter(options, from_arrow_schema(ROWS))
        rows = rows_of(number)
        cuts = sorted(rng.randint(0, len(rows)) for _ in range(rng.randint(0, 3)))
        tasks = [rows.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        messages = [writer.write(iter(task.to_batches())) for task in tasks]
        writer.commit([dataclasses.replace(message, query="q-1") for message in messages], number)
        reports.send(number)
        new = file.with_suffix(f".{seed}")
        new.write_text(str(number + 1))
        new.rename(file)


def kill_again_and_again(target, args: tuple, kills: int) -> int:
    """Each is killed some batches on, at a moment of its own: while it starts, writes, commits.
    The last batch that one of them has reported as committed.
    """
    context, rng, committed = forked(), random.Random(7), -1
    for seed in range(kills):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=target, args=(*args, seed, theirs))
        process.start()
        theirs.close()
        with ours:
            for _ in range(rng.randint(0, 4)):
                assert ours.poll(30), "it does not get on"
                committed = ours.recv()
            time.sleep(rng.uniform(0, 0.03))
            assert process.is_alive(), "it ended by itself"
            process.kill()
        process.join()
    return committed
