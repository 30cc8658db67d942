"""What fails in the middle of a stream: a function of the user, a record, and its size."""

import resource
import threading
import time
import uuid

import orjson
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.pipelines.project import Project, wait_for
from support.sinks.topic_places import read_messages
from tiers import count, some

from headwater.pipelines.engine import local_run
from headwater.pipelines.running import status
from headwater.pipelines.verification.stores import verify

SCHEMA = "id bigint, label string"


@pytest.fixture
def project(tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.rows_topic = f"poison-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker_address})
    topic = NewTopic(project.rows_topic, 1, config={"max.message.bytes": str(32 << 20)})
    admin.create_topics([topic])[project.rows_topic].result()
    return project


def labelled(project, *lines):
    """`lines` of a function of the user's, which labels the rows of one of the two writes."""
    function = "\n".join(f"            {line}" for line in lines)
    project.pipeline(
        "poison",
        f"""
        rows = flow.changes("{project.rows_topic}", "{SCHEMA}")
        def label(text):
{function}
        flow.write(rows.withColumn("label", F.udf(label)("label")), to="cache",
            table="labelled", key="id")
        flow.write(rows, to="cache", table="plain", key="id")
        """,
    )


def produced(project, *labels):
    first = getattr(project, "made", 0)
    project.produce(
        project.rows_topic,
        *({"id": first + number, "label": label} for number, label in enumerate(labels)),
    )
    project.made = first + len(labels)


def rows_of(project, table):
    return dict(project.rows(f"SELECT id, label FROM {table}"))


def has_all(project, table):
    wait_for(lambda: len(rows_of(project, table)) == project.made, f"all rows of {table}")


@pytest.mark.timeout(600)
def test_a_function_that_raises_and_records_that_cannot_be_read(project, spark):
    labelled(
        project, "if text == 'bad':", "    raise ValueError('no label for ' + text)", "return 'old'"
    )
    produced(project, "a", "b")
    with project.running(spark, "poison"):
        has_all(project, "plain")
        has_all(project, "labelled")
        produced(project, "c", "bad", "d")
        project.produce_bytes(project.rows_topic, b"not JSON")

        def failed():
            found = status.read(project.state_dir, "poison").writes["cache/labelled"]
            return found["state"] == "failed" and found["error"]

        error = wait_for(failed, "the error of the function")
        assert "ValueError: no label for bad" in error
        assert "poison.py:" in error
        has_all(project, "plain")
        for number in range(5):  # the other write goes on
            produced(project, f"e{number}")
            has_all(project, "plain")
        # Many at once are decoded once for both writes, which see the same record rejected.
        produced(project, *("x" * 1000 for _ in range(200)))
        project.produce_bytes(project.rows_topic, b"{")
        produced(project, *("y" * 1000 for _ in range(200)))
        has_all(project, "plain")
        before = rows_of(project, "labelled")
        assert set(before) <= {0, 1, 2}, "none behind the row that fails"
        labelled(project, "return 'new'")
        has_all(project, "labelled")
        labels = rows_of(project, "labelled")
        expected = dict.fromkeys(range(project.made), "new") | before
        assert labels == expected, "it went on from where it was"
    letters = read_messages(project.bootstrap, f"{project.rows_topic}.dlq")
    assert [message.value() for message in letters] == [b"not JSON", b"{"]
    (pipeline,) = project.pipelines(spark, "poison")
    assert verify(pipeline, "plain").is_equal


class Peak:
    """The largest memory of Arrow's pool while it is open, and how far the process has grown."""

    def __enter__(self):
        self._ending = threading.Event()
        self.pool_bytes = 0
        self._before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self):
        while not self._ending.wait(0.005):
            self.pool_bytes = max(self.pool_bytes, pa.total_allocated_bytes())

    def __exit__(self, *_):
        self._ending.set()
        self._thread.join()
        self.grown_bytes = 1024 * (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._before_kb
        )


@pytest.mark.timeout(900)
def test_more_than_a_batch_of_the_driver(project, spark, monkeypatch):
    """A large record, and a transaction larger than all bounds, while a window and a copy run."""
    rows = count(quick=15_000, full=500_000)
    if rows < local_run.MOST_BACKLOG:
        monkeypatch.setattr(local_run, "MOST_BACKLOG", 5_000)
    project.pipeline(
        "large",
        f"""
        rows = flow.changes("{project.rows_topic}", "{SCHEMA}, at timestamp")
        flow.write(rows.selectExpr("id", "length(label) AS size", "_op", "_position"), to="cache",
            table="copied", key="id")
        at = hw.event_time("at", delay="1 second", future=None)
        sums = hw.tumbling(rows, at, "1 minute", by=[]).agg(n=hw.agg.count())
        flow.write(sums, to="cache", table="sums", key="window_start")
        """,
    )
    producer = Producer(
        {
            "bootstrap.servers": project.bootstrap,
            "transactional.id": project.rows_topic,
            "message.max.bytes": 32 << 20,
            "linger.ms": 20,
            "compression.type": "zstd",
        }
    )
    producer.init_transactions()

    def transaction(sizes, first):
        producer.begin_transaction()
        for number, size in enumerate(sizes, first):
            minute, second = divmod(number // 500, 60)
            hour, minute = divmod(minute, 60)
            at = f"2026-01-01T{hour:02}:{minute:02}:{second:02}Z"
            row = {"id": number, "label": "x" * size, "at": at}
            while True:
                try:
                    producer.produce(project.rows_topic, orjson.dumps(row), partition=0)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.commit_transaction()

    def has(number):
        wait_for(
            lambda: project.rows("SELECT count(*) FROM copied") == [(number,)], "all rows", 600
        )

    transaction([10] * 10, 0)
    with project.running(spark, "large"), Peak() as peak:
        has(10)
        transaction([10, 10 << 20, 10, 10 << 20, 10 << 20], 10)
        has(15)
        began_s = time.monotonic()
        transaction([10] * rows, 15)
        has(15 + rows)
        took_s = time.monotonic() - began_s
        transaction([10] * 10, 15 + rows)  # goes on in the driver
        has(25 + rows)
    print(
        f"{rows} rows in {took_s:.1f} s; Arrow's pool at most {peak.pool_bytes >> 20} MB,"
        f" the process has grown by {peak.grown_bytes >> 20} MB"
    )
    large = project.rows("SELECT id FROM copied WHERE size = 10485760 ORDER BY id")
    assert large == [(11,), (13,), (14,)]
    (pipeline,) = project.pipelines(spark, "large")
    for write in some("cache/sums", "cache/copied"):
        assert verify(pipeline, write).is_equal, write
    assert peak.pool_bytes < 256 << 20
    assert peak.grown_bytes < 768 << 20
