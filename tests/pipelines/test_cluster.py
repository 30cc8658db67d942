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
from support.pipelines.project import Project, is_at, wait_for
from support.pipelines.spark_cluster import spark_cluster
from support.pipelines.spark_killing import Producing, Victim
from support.sinks.topic_places import read_messages
from tiers import IS_FULL, SPARK_INTERPRETS, long, some

from bench.peers.kafka import TOOL_JVM, kafka
from bench.peers.provision import missing_tools
from bench.peers.s3proxy import BUCKET, s3_server
from headwater.pipelines.offsets import ends_of
from headwater.pipelines.running.rebuilding import versions_of
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
    assert writer.flush(60) == 0
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
def test_the_same_pipelines_with_two_addresses_changed(tmp_path, spark, monkeypatch) -> None:
    """Apache Kafka as the log, a cluster as Spark; an executor is killed in the midst of a batch,
    of pipelines and, in the full tier, of a query that writes by `format("headwater")`.
    """
    options = os.environ["JAVA_TOOL_OPTIONS"].replace(SPARK_INTERPRETS, "")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", options)
    with kafka(tmp_path / "kafka", jvm=TOOL_JVM) as broker, spark_cluster(tmp_path) as master:
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
            for write in some(*pipeline.flow().writes, quick=2):
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


STAGED = """
    orders = flow.changes("{TOPIC}", "{SCHEMA}")

    @F.udf("bigint")
    def slow(number):
        import time

        time.sleep(0.002)
        return number

    slowed = orders.withColumn("number", slow("number"))
    flow.write(slowed, to="warehouse", table="orders", key="id")
"""


@long  # tests/sinks/postgres has it without Spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_executors_that_stage_in_the_store_are_killed(
    tmp_path, spark, broker_address, postgres
) -> None:
    """Their batches are run by others; what was staged before does not count, and is removed."""
    topic = new_topic(broker_address, 2)
    with spark_cluster(tmp_path) as master:
        project = Project(tmp_path, broker_address)
        project.section(
            f"""
            [spark]
            master = "{master}"
            state_dir = "shared"

            [spark.conf]
            "spark.executor.memory" = "512m"
            "spark.driver.host" = "127.0.0.1"
            "spark.sql.shuffle.partitions" = 2
            """
        )
        project.section(f'[sink.warehouse]\nkind = "postgres"\nurl = "{postgres.url}"')
        body = STAGED.replace("{SCHEMA}", SCHEMA).replace("{TOPIC}", topic)
        project.pipeline("copies", body, batch_rows="1000")
        producing = Producing(project, topic)
        producing.some(1500)
        victim = Victim(project, "copies", most_backlog=300, fewest_staged=1)
        try:
            checkpoint = tmp_path / "shared" / "copies" / "warehouse.orders" / "v1" / "checkpoint"
            for _ in range(3):
                done = _newest(checkpoint / "commits")
                victim.wait_until(lambda d=done: _newest(checkpoint / "commits") > d, "a batch")
                producing.some(3000)
                victim.wait_until(lambda: _is_at_work(checkpoint), "a batch at work")
                _kill_an_executor(tmp_path)
            project.wait_until_at_end(spark, topic, "copies")
            victim.process.terminate()
            assert victim.wait() == 0, victim.said()
        finally:
            victim.end()
        (pipeline,) = project.pipelines(spark, "copies")
        (write,) = pipeline.flow().writes
        verdict = verify(pipeline, write.name)
        assert verdict.is_equal, verdict
        assert verdict.version == 1


WINDOW_AND_JOIN = """
    events = flow.changes("events", "id bigint, name string, n bigint, at timestamp")
    replies = flow.changes("replies", "id bigint, text string, replied_at timestamp")

    @F.udf("bigint")
    def slow(number):
        import time

        time.sleep(0.002)
        return number

    at = hw.event_time("at", delay="5 seconds", future=None)
    windows = hw.tumbling(events.withColumn("n", slow("n")), at, "10 seconds", by="name")
    sums = windows.agg(total=hw.agg.sum("n"), rows=hw.agg.count())
    flow.write(sums, to="cache", table="sums", key=["name", "window_start"])
    answered = hw.join(
        events, replies, on="id", within="30 seconds", how="left", left_time=at,
        right_time=hw.event_time("replied_at", delay="5 seconds", future=None),
    )
    flow.write(answered.select("id", "n", "text", "_op", "_at", "_position"),
               to="cache", table="answered", key="id")
"""


@long
@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH")
def test_workers_that_share_nothing_but_an_object_store(
    tmp_path, spark, broker_address, monkeypatch
) -> None:
    """State of a window and a join is in S3; an executor is killed in the midst of a batch."""
    driver = tmp_path / "driver"
    driver.mkdir()
    with s3_server(_made(tmp_path / "s3")) as s3:
        for name, value in s3.environment.items():  # of the workers and of the driver
            monkeypatch.setenv(name, value)
        with spark_cluster(tmp_path) as master:
            project = Project(driver, broker_address)
            for topic in ("events", "replies"):
                project.topic(topic, 2)
            project.section(
                f"""
                [spark]
                master = "{master}"
                state_url = "s3://{BUCKET}/state?endpoint={s3.endpoint}"

                [spark.conf]
                "spark.executor.memory" = "512m"
                "spark.driver.host" = "127.0.0.1"
                "spark.sql.shuffle.partitions" = 2
                """
            )
            project.pipeline("answers", WINDOW_AND_JOIN, batch_rows="500")
            _events(project, 0, 1500)
            victim = Victim(project, "answers", most_backlog=300)  # fewer run in the driver
            try:
                checkpoint = project.state_dir / "answers" / "cache.sums" / "v1" / "checkpoint"
                victim.wait_until(lambda: _newest(checkpoint / "commits") >= 1, "the first batches")
                _events(project, 1500, 3000)
                victim.wait_until(lambda: _is_at_work(checkpoint), "a batch")
                _kill_an_executor(tmp_path)
                _events(project, 3000, 4000)
                _wait_until_at_end(project, spark)
                caches = _caches(tmp_path)
                _events(project, 4000, 4020)  # in the driver, from the state that tasks have left
                _wait_until_at_end(project, spark)
                (pipeline,) = project.pipelines(spark, "answers")
                for write in pipeline.flow().writes:
                    verdict = verify(pipeline, write.name)
                    assert verdict.is_equal, verdict
                    assert verdict.rows > 100
                    versions = versions_of(pipeline, write)
                    assert [version.number for version in versions] == [1], "no state was lost"
                victim.process.terminate()
                assert victim.wait() == 0, victim.said()
            finally:
                victim.end()
        objects = [path for path in (s3.bucket_path / "state").rglob("*.arrow") if path.is_file()]
        of_tasks = [path for path in objects if path.parent.name.isdigit()]
        assert {path.parts[-4].partition("-")[0] for path in of_tasks} == {"v1"}
        assert len({path.parent.parent for path in of_tasks}) == 2, "those of two operators"
    # Nothing of it is in a directory but copies, of each worker below its own.
    assert not list(project.state_dir.rglob("operators/**/*"))
    assert not list(driver.rglob("*.arrow"))
    for worker in ("worker-0", "worker-1"):
        assert any(tmp_path / worker in path.parents for path in caches), worker
    assert all(path.parent.name == "headwater-state" for path in caches)
    assert s3.environment["AWS_SECRET_ACCESS_KEY"] not in victim.said()


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


def _caches(cluster: Path) -> list[Path]:
    """Arrow files of workers."""
    return [path for worker in cluster.glob("worker-?") for path in worker.rglob("*.arrow")]


def _events(project: Project, start: int, end: int) -> None:
    """An event every tenth of a second, and a reply to two thirds of them."""

    def at(tenths: int) -> str:
        seconds, tenth = divmod(tenths, 10)
        return f"2026-01-01T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{tenth}Z"

    events = [{"id": n, "name": f"n{n % 7}", "n": n, "at": at(n)} for n in range(start, end)]
    project.produce("events", *events)
    project.produce(
        "replies",
        *[
            {"id": n, "text": f"to {n}", "replied_at": at(n + 50)}
            for n in range(start, end)
            if n % 3
        ],
    )


def _wait_until_at_end(project: Project, spark) -> None:
    (pipeline,) = project.pipelines(spark, "answers")
    for write in pipeline.flow().writes:
        ends = ends_of(pipeline.environment.log, write.topics)
        wait_for(lambda w=write, e=ends: is_at(pipeline, w, e), f"the end of {write.name}", 600)


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
