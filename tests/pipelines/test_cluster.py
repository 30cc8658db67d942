"""The same session and source on a standalone Spark cluster. A process has one Spark, so each test
here runs its pipeline in a process of its own.
"""

import json
import subprocess
import sys
import textwrap

import pytest
from confluent_kafka import Producer
from spark_cluster import spark_cluster
from written import new_topic

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


@pytest.mark.slow
def test_source_and_state_on_a_standalone_cluster(broker_address, tmp_path) -> None:
    topic = new_topic(broker_address, 2)
    writer = Producer({"bootstrap.servers": broker_address})
    for number in range(1000):
        writer.produce(topic, b"%d" % number, partition=number % 2)
    assert writer.flush(30) == 0
    with spark_cluster(tmp_path) as master:
        told = subprocess.run(
            [sys.executable, "-c", PIPELINE, master, broker_address, topic, str(tmp_path / "c")],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout.splitlines()[-1])
    assert found == {"rows": 1000, "tasks": 2, "counts": {"0": 500, "1": 500}}
    assert list((tmp_path / "c" / "state").rglob("*.changelog"))
    assert not list((tmp_path / "c").rglob(".*.crc"))
