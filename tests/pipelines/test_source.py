"""The log as DataFrames, on a broker of ours; the expectation is what was written."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewPartitions
from support.client.written import batch, new_topic, producer
from support.wire import wait_until

from headwater.client.topics import NewTopic, ensure_topics
from headwater.settings import ClientSettings


def write(address: str, topic: str, values, partition: int = 0, **options) -> None:
    writer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for value in values:
        writer.produce(topic, value, partition=partition, **options)
    assert writer.flush(60) == 0


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


class Stream:
    """A query that notes what each of its micro-batches had; can be run again and again."""

    def __init__(self, spark, address: str, tmp_path, **options) -> None:
        self.spark = spark
        self.options = {"bootstrap": address, **options}
        self.checkpoint = tmp_path / f"checkpoint-{uuid4().hex[:6]}"
        self.batches: list[list] = []
        self.query = None

    def start(self, *, available_now: bool = False, **options):
        frame = self.spark.readStream.format("headwater").options(**self.options, **options).load()
        writer = frame.writeStream.foreachBatch(self.keep).option(
            "checkpointLocation", str(self.checkpoint)
        )
        trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        self.query = writer.trigger(**trigger).start()
        return self.query

    def keep(self, frame, batch_id: int) -> None:
        self.batches.append(frame.collect())

    def run(self, **options) -> "Stream":
        query = self.start(available_now=True, **options)
        assert query.awaitTermination(60)
        return self

    def values(self, topic: str | None = None) -> list[bytes]:
        return sorted(
            row["value"] for rows in self.batches for row in rows if topic in (None, row["topic"])
        )

    def waits_for(self, count: int, topic: str | None = None) -> None:
        def is_there() -> bool:
            assert self.query.exception() is None
            return len(self.values(topic)) >= count

        wait_until(is_there, timeout_s=60)

    def positions(self) -> list[dict]:
        """As they are in the checkpoint."""
        files = sorted(
            (self.checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name)
        )
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]


def read(spark, address: str, **options):
    return spark.read.format("headwater").options(bootstrap=address, **options).load()


def test_a_batch_read_has_every_record_with_its_place(spark, broker_address) -> None:
    topic = new_topic(broker_address, 2)
    write(broker_address, topic, [b"a", None], 0, key=b"k", timestamp=1_700_000_000_123)
    write(broker_address, topic, [b""], 1, headers=[("h", b"1"), ("n", None)])
    rows = read(spark, broker_address, topic=topic, headers="true").orderBy("partition", "offset")
    first, second, third = rows.collect()
    assert first.asDict(recursive=True) == {
        "key": b"k",
        "value": b"a",
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": datetime.fromtimestamp(1_700_000_000.123, UTC).replace(tzinfo=None),
        "headers": [],
    }
    assert (second.value, second.offset) == (None, 1)
    assert (third.key, third.value, third.partition) == (None, b"", 1)
    assert [tuple(header) for header in third.headers] == [("h", b"1"), ("n", None)]


def test_ranges_of_offsets_and_times_and_chosen_columns(spark, broker_address) -> None:
    topic = new_topic(broker_address, 1)
    for number in range(10):
        write(broker_address, topic, [b"%d" % number], timestamp=1_700_000_000_000 + number * 1000)

    def values(**options) -> list[bytes]:
        found = spark.read.format("headwater").schema("value binary")
        return [
            row.value
            for row in found.options(bootstrap=broker_address, topic=topic, **options)
            .load()
            .collect()
        ]

    assert values() == numbers(0, 10)
    assert values(start=json.dumps({topic: {"0": 3}}), end=json.dumps({topic: {"0": 5}})) == (
        numbers(3, 5)
    )
    assert values(start="@2023-11-14T22:13:22.500Z", end="@2023-11-14T22:13:25Z") == numbers(3, 5)
    assert values(start="latest") == []


def test_offsets_that_end_a_read_are_a_position(spark, broker_address) -> None:
    """A partition that it does not name did not exist when it was taken."""
    topic = new_topic(broker_address, 2)
    write(broker_address, topic, numbers(0, 5), 0)
    write(broker_address, topic, numbers(5, 9), 1)
    found = read(spark, broker_address, topic=topic, end=json.dumps({topic: {"0": 3}}))
    assert [row.value for row in found.collect()] == numbers(0, 3)


def test_aborted_and_open_transactions_are_not_read(spark, broker_address) -> None:
    topic = new_topic(broker_address, 1)
    with_transactions = producer(broker_address)
    for value, ends in ((b"kept", "commit"), (b"aborted", "abort"), (b"open", None)):
        with_transactions.send({(topic, 0): [batch(value)]})
        if ends:
            getattr(with_transactions, ends)()
    found = read(spark, broker_address, topic=topic).collect()
    assert [row.value for row in found] == [b"kept"]
    found = read(spark, broker_address, topic=topic, isolation="read_uncommitted").collect()
    assert [row.value for row in found] == [b"kept", b"aborted", b"open"]
    with_transactions.abort()
    with_transactions.close()


def test_a_stream_goes_on_where_it_was_and_keeps_its_limits(
    spark, broker_address, tmp_path
) -> None:
    topic = new_topic(broker_address, 2)
    write(broker_address, topic, numbers(0, 60), 0)
    write(broker_address, topic, numbers(60, 100), 1)
    stream = Stream(spark, broker_address, tmp_path, topic=topic, max_rows="50").run()
    assert [len(rows) for rows in stream.batches] == [0, 50, 50]
    assert stream.positions() == [
        {topic: {"0": 0, "1": 0}},
        {topic: {"0": 30, "1": 20}},
        {topic: {"0": 60, "1": 40}},
    ]
    write(broker_address, topic, numbers(100, 103), 1)
    stream.run()
    assert stream.values() == sorted(numbers(0, 103))
    progress = stream.query.lastProgress["sources"][0]
    assert json.loads(progress["latestOffset"]) == {topic: {"0": 60, "1": 43}}


def test_bytes_of_a_batch_are_bounded(spark, broker_address, tmp_path) -> None:
    topic = new_topic(broker_address, 1)
    write(broker_address, topic, [b"x" * 10_000] * 100)
    stream = Stream(spark, broker_address, tmp_path, topic=topic, max_bytes="400KB").run()
    sizes = [len(rows) for rows in stream.batches]
    assert sum(sizes) == 100
    assert 30 <= max(sizes) <= 41


def test_where_a_stream_begins_is_decided_once(spark, broker_address, tmp_path) -> None:
    """ "latest" of the first start, even if nothing was read before it stopped."""
    topic = new_topic(broker_address, 1)
    write(broker_address, topic, numbers(0, 5))
    stream = Stream(spark, broker_address, tmp_path, topic=topic, start="latest").run()
    write(broker_address, topic, numbers(5, 8))
    stream.run()
    assert stream.values() == numbers(5, 8)


def test_new_partitions_and_topics_are_found_and_read_from_their_start(
    spark, broker_address, tmp_path
) -> None:
    prefix = f"many-{uuid4().hex[:6]}"
    first, second = f"{prefix}-1", f"{prefix}-2"
    anonymous = ClientSettings()
    ensure_topics(broker_address, anonymous, [NewTopic(first, 1, {})])
    stream = Stream(spark, broker_address, tmp_path, pattern=f"{prefix}-.*", start="latest")
    query = stream.start()
    try:
        wait_until(lambda: query.lastProgress is not None or query.exception(), timeout_s=60)
        write(broker_address, first, numbers(0, 3))
        stream.waits_for(3)
        admin = AdminClient({"bootstrap.servers": broker_address})
        for future in admin.create_partitions([NewPartitions(first, 2)]).values():
            future.result()
        ensure_topics(broker_address, anonymous, [NewTopic(second, 1, {})])
        write(broker_address, first, numbers(3, 6), 1)
        write(broker_address, second, numbers(6, 9))
        stream.waits_for(9)
    finally:
        query.stop()
    assert stream.values() == numbers(0, 9)
    assert stream.values(second) == numbers(6, 9)


class Broken(Stream):
    """One whose store is down."""

    def keep(self, frame, batch_id: int) -> None:
        super().keep(frame, batch_id)
        raise ConnectionError("no store")


def test_a_micro_batch_that_failed_is_repeated_with_the_same_records(
    spark, broker_address, tmp_path
) -> None:
    topic = new_topic(broker_address, 1)
    stream = Stream(spark, broker_address, tmp_path, topic=topic).run()
    write(broker_address, topic, numbers(0, 5))
    broken = Broken(spark, broker_address, tmp_path, topic=topic)
    broken.checkpoint = stream.checkpoint
    with pytest.raises(Exception, match="no store"):
        broken.run()
    write(broker_address, topic, numbers(5, 9))
    stream.run()
    assert [[row.value for row in rows] for rows in stream.batches[1:]] == [
        numbers(0, 5),
        numbers(5, 9),
    ]
    assert broken.values() == numbers(0, 5)

    write(broker_address, topic, numbers(9, 15))
    with pytest.raises(Exception, match="no store"):
        broken.run()
    recreate(broker_address, topic)
    write(broker_address, topic, numbers(20, 22))
    with pytest.raises(Exception, match="offset 14 was to be read, the log ends at 2"):
        stream.run()
    stream.run(on_lost="skip")
    assert stream.values() == sorted(numbers(0, 9) + numbers(20, 22))


def recreate(address: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_topics([topic]).values():
        future.result()
    ensure_topics(address, ClientSettings(), [NewTopic(topic, 1, {})])


def delete_before(address: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.delete_records([Place(topic, 0, offset)]).values():
        future.result()


def test_records_that_retention_took_are_an_error_unless_the_options_allow_it(
    spark, broker_address, tmp_path
) -> None:
    topic = new_topic(broker_address, 1)
    write(broker_address, topic, numbers(0, 5))
    stream = Stream(spark, broker_address, tmp_path, topic=topic).run()
    write(broker_address, topic, numbers(5, 20))
    delete_before(broker_address, topic, 12)
    stream.start(available_now=True)
    with pytest.raises(Exception, match=rf"records of {topic}-0 are lost: offset 5 was to be read"):
        stream.query.awaitTermination(60)
    stream.run(on_lost="skip")
    assert stream.values() == sorted(numbers(0, 5) + numbers(12, 20))


def test_a_recreated_topic_is_an_error_unless_the_options_allow_it(
    spark, broker_address, tmp_path
) -> None:
    topic = new_topic(broker_address, 1)
    write(broker_address, topic, numbers(0, 9))
    stream = Stream(spark, broker_address, tmp_path, topic=topic).run()
    recreate(broker_address, topic)
    write(broker_address, topic, numbers(20, 23))
    stream.start(available_now=True)
    with pytest.raises(Exception, match="offset 9 was to be read, the log ends at 3"):
        stream.query.awaitTermination(60)
    stream.run(on_lost="skip")
    write(broker_address, topic, numbers(23, 25))
    stream.run(on_lost="skip")
    assert stream.values() == sorted(numbers(0, 9) + numbers(20, 25))


def test_mistakes_are_reported_without_a_traceback(spark, broker_address) -> None:
    with pytest.raises(Exception, match="there is no topic nowhere") as failed:
        read(spark, broker_address, topic="nowhere").count()
    assert "Traceback" not in str(failed.value)
    with pytest.raises(Exception, match=r'no option "topics".*options are bootstrap') as failed:
        read(spark, broker_address, topics="x")
    assert "Traceback" not in str(failed.value)


def test_a_password_is_nowhere_to_be_seen(spark, broker_address, tmp_path, capfd) -> None:
    topic = new_topic(broker_address, 1)
    options = {"topic": topic, "client.username": "me", "client.password": "hush-hush"}
    frame = read(spark, broker_address, **options)
    frame.explain("formatted")
    frame.explain(extended=True)
    stream = Stream(spark, broker_address, tmp_path, **options)
    stream.start(available_now=True)
    with pytest.raises(Exception, match="SASL") as failed:
        stream.query.awaitTermination(60)
    seen = f"{capfd.readouterr()} {failed.value} {frame._jdf.queryExecution().toString()}"
    assert "hush" not in seen
    for file in stream.checkpoint.rglob("*"):
        assert file.is_dir() or b"hush" not in file.read_bytes()


def test_json_values_become_columns(spark, broker_address) -> None:
    topic = new_topic(broker_address, 1)
    write(broker_address, topic, [b'{"id": 1, "name": "a"}', b'{"name": null, "id": 2}'])
    schema = spark.createDataFrame([], "id long, name string").schema.json()
    rows = read(spark, broker_address, topic=topic, value="json", schema=schema).collect()
    assert [(row.id, row.name, row._position.offset) for row in rows] == [(1, "a", 0), (2, None, 1)]
    chosen = spark.read.format("headwater").schema("name string")
    chosen = chosen.options(bootstrap=broker_address, topic=topic, value="json").load()
    assert [row.name for row in chosen.collect()] == ["a", None]


def test_offsets_are_committed_to_a_group(spark, broker_address, tmp_path) -> None:
    topic = new_topic(broker_address, 1)
    group = f"g-{uuid4().hex[:6]}"
    stream = Stream(spark, broker_address, tmp_path, topic=topic, group=group)
    query = stream.start()
    try:
        for first in (0, 5):  # a micro-batch is committed when the next one begins
            write(broker_address, topic, numbers(first, first + 5))
            stream.waits_for(first + 5)
        admin = AdminClient({"bootstrap.servers": broker_address})

        def is_committed() -> bool:
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
            found = asked[group].result().topic_partitions
            return [(record.topic, record.offset) for record in found] in (
                [(topic, 5)],
                [(topic, 10)],
            )

        wait_until(is_committed, timeout_s=60)
    finally:
        query.stop()


READ_AS_A_WORKER = """
import gc, sys
from headwater.pipelines.source.data_source import HeadwaterDataSource, RAW
reader = HeadwaterDataSource({"bootstrap": sys.argv[1], "topic": sys.argv[2]}).reader(RAW)
print(sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part)))
print(len(gc.get_objects()))
"""


def test_what_a_worker_collects_after_each_task_is_next_to_nothing(broker_address):
    topic = new_topic(broker_address)
    write(broker_address, topic, numbers(0, 10))
    command = [sys.executable, "-c", READ_AS_A_WORKER, broker_address, topic]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, to_collect = (int(line) for line in done.stdout.split())
    assert found == 10
    assert to_collect < 5_000  # of more than 100,000
