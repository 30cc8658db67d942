"""DataFrames into topics, through Spark; the kills are in tests/sinks/topic/test_topic_kills.py."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import orjson
import pytest
from pyspark.errors import PySparkException
from support import SUPPORT
from support.sinks.topic_places import read_messages, read_records
from tiers import long

from headwater.errors import Fenced
from headwater.sinks.contract import Log
from headwater.sinks.topic.transactional_positions import TransactionalPositions, read_positions

CHILD = SUPPORT / "pipelines" / "topic_stream.py"


def new_name() -> str:
    return f"out-{uuid4().hex[:8]}"


def values(address: str, topic: str, partition: int = 0) -> list[dict]:
    return [orjson.loads(value) for _, value in read_records(address, topic, partition)]


class Stream:
    """Files into a topic: each file is a micro-batch."""

    def __init__(self, spark, address: str, tmp_path: Path, topic: str, **options: str) -> None:
        self._spark = spark
        self._options = {"bootstrap": address, "topic": topic, **options}
        self.checkpoint, self._files = tmp_path / "checkpoint", tmp_path / "files"
        self._files.mkdir()

    def put(self, *ids: int) -> None:
        number = len(list(self._files.iterdir()))
        file = self._files.parent / f"{number:03}"
        file.write_text("".join(f'{{"id":{number}}}\n' for number in ids))
        os.utime(file, (number, number))  # which Spark goes by
        file.rename(self._files / file.name)

    def run(self) -> str:
        """All that is there; the query's id."""
        frame = (
            self._spark.readStream.schema("id long")
            .option("maxFilesPerTrigger", 1)
            .json(str(self._files))
        )
        query = (
            frame.writeStream.format("headwater")
            .options(**self._options)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query.id


def test_a_write_is_one_transaction_with_keys_in_their_partitions(spark, broker_address) -> None:
    topic = new_name()
    frame = spark.range(20, numPartitions=4).selectExpr("id", "concat('n', id) AS name")
    frame.write.format("headwater").mode("append").options(
        bootstrap=broker_address, topic=topic, key="id", partitions="2"
    ).save()
    found = [read_messages(broker_address, topic, partition) for partition in (0, 1)]
    assert all(found)
    rows = [(message.key(), orjson.loads(message.value())) for message in found[0] + found[1]]
    assert sorted(rows, key=lambda row: row[1]["id"]) == [
        (b'{"id":%d}' % n, {"id": n, "name": f"n{n}"}) for n in range(20)
    ]


def test_bytes_headers_and_partitions_as_they_are(spark, broker_address) -> None:
    topic = new_name()
    frame = spark.sql(
        "SELECT CAST('k' AS BINARY) AS key, CAST('v' AS BINARY) AS value, 1 AS partition,"
        " array(named_struct('name', 'h', 'value', CAST('x' AS BINARY))) AS headers,"
        " TIMESTAMP '2026-01-02 03:04:05.678' AS timestamp"
    )
    frame.write.format("headwater").mode("append").options(
        bootstrap=broker_address, topic=topic, value="bytes", partitions="2"
    ).save()
    (found,) = read_messages(broker_address, topic, 1)
    assert (found.key(), found.value(), found.headers()) == (b"k", b"v", [("h", b"x")])
    assert found.timestamp()[1] == 1_767_323_045_678


def test_a_micro_batch_that_is_run_again_is_there_once(spark, broker_address, tmp_path) -> None:
    topic = new_name()
    stream = Stream(spark, broker_address, tmp_path, topic)
    stream.put(1, 2)
    stream.put()
    stream.put(3)
    query = stream.run()
    key = f"/query/{query}/{topic}".encode()
    assert orjson.loads(read_positions(Log(broker_address))[key])["batch"] == 2
    (stream.checkpoint / "commits" / "2").unlink()  # as if Spark had crashed behind the commit
    stream.put(4)
    assert stream.run() == query
    assert [row["id"] for row in values(broker_address, topic)] == [1, 2, 3, 4]
    for number in (1, 2, 3):
        (stream.checkpoint / "commits" / str(number)).unlink(missing_ok=True)
        if number > 1:
            (stream.checkpoint / "offsets" / str(number)).unlink()
    with pytest.raises(PySparkException, match="come later"):  # a checkpoint from yesterday
        stream.run()
    assert [row["id"] for row in values(broker_address, topic)] == [1, 2, 3, 4]


def test_a_new_query_fences_the_old_one(spark, broker_address, tmp_path) -> None:
    """The one that was there first can write no more."""
    topic = new_name()
    stream = Stream(spark, broker_address, tmp_path, topic)
    stream.put(1)
    query = stream.run()
    name = (f"headwater-query-{query}-{topic}", f"/query/{query}/{topic}".encode())
    zombie = TransactionalPositions(Log(broker_address), *name)
    stream.put(2)
    stream.put(3)
    with pytest.raises(PySparkException, match="another process writes"):
        stream.run()  # by its cached producer
    stream.run()
    with pytest.raises(Fenced):
        zombie.commit({}, lambda _: b"")
    zombie.close()
    assert [row["id"] for row in values(broker_address, topic)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topic": ""}, "one topic"),
        ({"topic": "a,b"}, "one topic"),
        ({"topic": "a", "key": "colour"}, "colour"),
        ({"topic": "a", "value": "xml"}, "unknown value"),
        ({"topic": "a", "value": "bytes"}, "bytes are written from"),
        ({"topic": "a", "partitions": "no"}, "a number from 1 on"),
        ({"topic": "a", "compresion": "lz4"}, "no option"),
        ({"topic": "a b"}, "a b"),
    ],
)
def test_mistakes_are_named(spark, broker_address, options, says) -> None:
    writer = spark.range(1).write.format("headwater").mode("append")
    with pytest.raises(PySparkException, match=says) as caught:
        writer.options(bootstrap=broker_address, **options).save()
    assert "Traceback" not in str(caught.value)


def test_a_topic_is_not_overwritten(spark, broker_address) -> None:
    writer = spark.range(1).write.format("headwater").mode("overwrite")
    with pytest.raises(PySparkException, match="not overwritten"):
        writer.options(bootstrap=broker_address, topic=new_name()).save()


@pytest.mark.slow
@pytest.mark.timeout(900)
@long  # minutes; test_operator_kills.py kills drivers, too
def test_a_driver_that_is_killed(broker_address, tmp_path) -> None:
    """At random in its batches, a few times, then to the end. Its Python workers live on for a
    moment, as they would: what they still commit is found, or they are fenced.
    """
    topic, files = new_name(), tmp_path / "files"
    files.mkdir()
    for number in range(30):
        (files / f"{number:03}").write_text(f'{{"id":{number}}}\n')
    command = [sys.executable, str(CHILD), broker_address, topic, str(files), str(tmp_path / "c")]
    for kill in range(3):
        with subprocess.Popen(command, start_new_session=True) as process:
            try:
                _wait_for_commits(tmp_path / "c", kill * 6 + 3, process)
            finally:
                os.killpg(process.pid, signal.SIGKILL)  # also its JVM
    subprocess.run(command, check=True, timeout=300)
    assert sorted(row["id"] for row in values(broker_address, topic)) == list(range(30))


def _wait_for_commits(checkpoint: Path, count: int, process: subprocess.Popen) -> None:
    deadline_s = time.monotonic() + 240
    while len(list((checkpoint / "commits").glob("[0-9]*"))) < count:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < deadline_s, "it does not get on"
        time.sleep(0.02)
