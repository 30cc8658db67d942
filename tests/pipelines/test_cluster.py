"""The same session and source on a standalone Spark cluster. A process has one Spark, so each test
here runs its pipeline in a process of its own.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Producer
from support import SUPPORT
from support.client.written import new_topic
from support.pipelines.project import Project, wait_for
from support.pipelines.spark_cluster import spark_cluster
from support.pipelines.spark_killing import Producing, Victim
from support.sinks.topic_places import read_messages
from tiers import IS_FULL, long

from bench.peers.kafka import kafka
from bench.peers.provision import missing_tools
from headwater.pipelines.verification.stores import verify

PIPELINE = textwrap.dedent(
    """
    import json, sys
    import headwater as hw

    master, bootstrap, topic, checkpoint = sys.argv[1:]
    spark = hw.spark("cluster", master, **{
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.host": "127.0.0.1",
    })
    options = {"bootstrap": bootstrap, "topic": topic}
    batch = spark.read.format("headwater").options(**options).load()
    from pyspark.sql.functions import spark_partition_id
    tasks = batch.select(spark_partition_id()).distinct().count()
    counts = {}

    def keep(frame, batch_id):
        counts.update({row["partition"]: row["count"] for row in frame.collect()})

    for _ in range(2):
        stream = spark.readStream.format("headwater").options(**options, max_rows="300").load()
        query = (
            stream.groupBy("partition").count().writeStream.foreachBatch(keep).outputMode("update")
            .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        )
        query.awaitTermination()
    print(json.dumps({"rows": batch.count(), "tasks": tasks, "counts": counts}))
    """
)


SCHEMA = "id bigint, country string, total decimal(10,2), number bigint"
COPIES = """
    orders = flow.changes("orders", "{SCHEMA}")

    @F.udf("bigint")
    def slow(number):
        import time

        time.sleep(0.002)
        return number

    flow.write(orders.withColumn("number", slow("number")), to="cache", table="orders", key="id")
    sums = orders.where("_op != 'd'").groupBy("country").agg(F.sum("total").alias("total"))
    flow.write(sums, to="cache", table="sums", key="country")
    flow.write(orders.select("_position.partition", "_position.offset"), to="topic", table="copied")
"""


@long  # the next one shows it, too, on Apache Kafka
@pytest.mark.slow
def test_source_and_state_on_a_standalone_cluster(broker_address, tmp_path) -> None:
    topic = new_topic(broker_address, 2)
    writer = Producer({"bootstrap.servers": broker_address})
    for number in range(1000):
        writer.produce(topic, b"%d" % number, partition=number % 2)
    assert writer.flush(30) == 0
    with spark_cluster(tmp_path) as master:
        result = subprocess.run(
            [sys.executable, "-c", PIPELINE, master, broker_address, topic, str(tmp_path / "c")],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found == {"rows": 1000, "tasks": 2, "counts": {"0": 500, "1": 500}}
    assert list((tmp_path / "c" / "state").rglob("*.changelog"))
    assert not list((tmp_path / "c").rglob(".*.crc"))


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH")
def test_the_same_pipelines_with_two_addresses_changed(tmp_path, spark) -> None:
    """Apache Kafka as the log, a cluster as Spark; an executor is killed in the midst of a batch,
    of pipelines and, in the full tier, of a query that writes by `format("headwater")`.
    """
    with kafka(tmp_path / "kafka") as broker, spark_cluster(tmp_path) as master:
        project = Project(tmp_path, broker.address)
        project.topic("orders", 2)
        project.section(f'[spark]\nmaster = "{master}"\nstate_dir = "shared"')
        project.section(
            """
            [spark.conf]
            "spark.executor.memory" = "512m"
            "spark.driver.host" = "127.0.0.1"
            "spark.sql.shuffle.partitions" = 2
            """
        )
        project.pipeline("copies", COPIES.replace("{SCHEMA}", SCHEMA))
        producing = Producing(project, "orders")
        producing.some(100)
        victim = Victim(project, "copies")
        try:
            checkpoint = tmp_path / "shared" / "copies" / "cache.orders" / "v1" / "checkpoint"
            victim.wait_until(lambda: _newest(checkpoint / "commits") >= 1, "the first rows")
            producing.some(1000)
            victim.wait_until(lambda: _is_at_work(checkpoint), "a batch")
            _kill_an_executor(tmp_path)
            producing.some(100)
            project.wait_until_at_end(spark, "orders", "copies")
            (pipeline,) = project.pipelines(spark, "copies")
            for write in pipeline.flow().writes:
                assert verify(pipeline, write.name).is_equal
            victim.process.terminate()
            assert victim.wait() == 0, victim.said()
        finally:
            victim.end()
        copied = [
            orjson.loads(message.value()) for message in read_messages(broker.address, "copied")
        ]
        positions = Counter((record["partition"], record["offset"]) for record in copied)
        assert len(positions) == 1200
        assert set(positions.values()) == {1}
        if IS_FULL:
            _a_query_that_writes(master, broker.address, tmp_path)


def _a_query_that_writes(master: str, bootstrap: str, directory: Path) -> None:
    """By `format("headwater")`; one of its executors is killed."""
    files = directory / "files"
    files.mkdir()
    for number in range(20):
        (files / f"{number:03}").write_text(f'{{"id":{number}}}\n')
    child = str(SUPPORT / "pipelines" / "topic_stream.py")
    command = [sys.executable, child, bootstrap, "out", str(files), str(directory / "out")]
    with subprocess.Popen([*command, master]) as query:
        wait_for(lambda: _newest(directory / "out" / "commits") >= 5, "some batches")
        _kill_an_executor(directory)
        assert query.wait(240) == 0
    written = [orjson.loads(message.value())["id"] for message in read_messages(bootstrap, "out")]
    assert sorted(written) == list(range(20))


def _newest(directory: Path) -> int:
    found = directory.iterdir() if directory.exists() else ()
    return max((int(path.name) for path in found if path.name.isdigit()), default=-1)


def _is_at_work(checkpoint: Path) -> bool:
    return _newest(checkpoint / "offsets") > _newest(checkpoint / "commits")


def _kill_an_executor(cluster: Path) -> None:
    """One of the cluster whose workers have their directories there."""

    def executors() -> list[int]:
        processes = [path for path in Path("/proc").iterdir() if path.name.isdigit()]
        return [int(path.name) for path in processes if _is_executor(path, cluster)]

    os.kill(wait_for(executors, "an executor")[0], signal.SIGKILL)


def _is_executor(process: Path, cluster: Path) -> bool:
    try:
        is_there = cluster in (process / "cwd").readlink().parents
        return is_there and b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
    except OSError:
        return False
