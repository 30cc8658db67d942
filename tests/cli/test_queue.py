"""`headwater queue …`: share groups made by librdkafka's share consumer."""

import json
import signal
import time
from contextlib import contextmanager

import pytest
from confluent_kafka import AcknowledgeType, Consumer, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from tiers import long

from .conftest import TIMEOUT_S, stop, unique, wait_until


class Queue:
    """A topic with records, and a share group that reads it from its beginning."""

    def __init__(self, setup, bootstrap, partitions=1):
        self.name = unique("queue")
        self.topic = unique("jobs")
        self.dlq = f"{self.topic}.dlq"
        self.bootstrap = bootstrap
        self.admin = setup.admin
        new = NewTopic(self.topic, num_partitions=partitions)
        self.admin.create_topics([new])[self.topic].result(TIMEOUT_S)
        self.set("share.auto.offset.reset", "earliest")

    def set(self, name, value, group=None):
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(
            ConfigResource.Type.GROUP, group or self.name, incremental_configs=[entry]
        )
        self.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)

    def fill(self, count, partition=0):
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for number in range(count):
            producer.produce(
                self.topic, str(number), f"k{number}", partition, headers={"kind": b"test"}
            )
        assert producer.flush(TIMEOUT_S) == 0

    @contextmanager
    def consumer(self, group=None):
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group or self.name,
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic])
        try:
            yield consumer
        finally:
            consumer.close()

    @staticmethod
    def take(consumer, count):
        taken = []
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(taken) < count:
            assert time.monotonic() < deadline_s, f"only {len(taken)} of {count} records came"
            taken += [message for message in consumer.poll(0.5) if message.error() is None]
        return taken

    def reject(self, count, group=None):
        """`count` records of the topic become dead letters."""
        with self.consumer(group) as consumer:
            for position, message in enumerate(self.take(consumer, count)):
                is_bad = position < count
                consumer.acknowledge(
                    message, AcknowledgeType.REJECT if is_bad else AcknowledgeType.RELEASE
                )
            consumer.commit_sync()

    def read(self, topic, count):
        """The first `count` records of a topic, as read_committed sees them."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": unique("reader"),
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            records = []
            while len(records) < count:
                message = consumer.poll(TIMEOUT_S)
                assert message is not None, f"only {len(records)} of {count} records came"
                records.append(message)
            assert consumer.poll(0.5) is None, "more records than expected"
            return records
        finally:
            consumer.close()


@pytest.fixture
def queue(setup, bootstrap):
    return Queue(setup, bootstrap)


def row_of(cli, queue):
    (row,) = [row for row in cli.json("queue", "list") if row["queue"] == queue.name]
    return row


def letters_of(cli, queue):
    return row_of(cli, queue)["dead_letters"]


def test_list_and_describe(cli, queue):
    queue.fill(10)
    with queue.consumer() as consumer:
        taken = queue.take(consumer, 10)
        for message in taken[:4]:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
        consumer.acknowledge(taken[4], AcknowledgeType.REJECT)
        consumer.commit_sync()
        wait_until(lambda: letters_of(cli, queue) == 1)
        assert row_of(cli, queue) == {
            "queue": queue.name,
            "state": "stable",
            "members": 1,
            "topics": [queue.topic],
            "backlog": 5,
            "in_flight": 5,
            "dead_letters": 1,
        }
        (described,) = cli.json("queue", "describe", queue.name)
        (partition,) = described["partitions"]
        assert partition.pop("oldest_lock_s") >= 0
        assert partition == {
            "topic": queue.topic,
            "partition": 0,
            "start_offset": 5,
            "end_offset": 10,
            "backlog": 5,
            "in_flight": 5,
            "dead_letters": 1,
        }
        (member,) = described["members"]
        assert (member["topics"], member["partitions"]) == ([queue.topic], 1)
        assert {
            "setting": "share.auto.offset.reset",
            "value": "earliest",
            "is_set": True,
        } in described["settings"]
        shown = cli("queue", "describe", queue.name).splitlines()
        assert shown[0] == f"{queue.name}  stable, 1 member, backlog 5, in flight 5"
        for message in taken[5:]:
            consumer.acknowledge(message, AcknowledgeType.ACCEPT)
    row = row_of(cli, queue)
    assert (row["state"], row["members"], row["in_flight"]) == ("empty", 0, 0)
    headers = cli("queue", "list").splitlines()[0].split("  ")
    assert [header.strip() for header in headers if header][-2:] == ["IN FLIGHT", "DEAD LETTERS"]


def test_what_does_not_exist(cli):
    error = cli.error("queue", "describe", unique("nobody"))
    assert error.startswith("error: there is no queue ")
    assert "hint: " in error
    topic = unique("nothing")
    assert f"there is no topic {topic}.dlq" in cli.error("queue", "redrive", topic)


def test_group_list_has_share_groups_and_says_where_to_look(cli, queue):
    queue.fill(3)
    with queue.consumer() as consumer:
        queue.take(consumer, 3)
        (row,) = [row for row in cli.json("group", "list") if row["group"] == queue.name]
        assert row == {
            "group": queue.name,
            "state": "stable",
            "type": "share",
            "members": 1,
            "topics": 1,
            "lag": 3,
        }
        error = cli.error("group", "describe", queue.name)
        assert f"headwater queue describe {queue.name}" in error


def test_alter(cli, queue):
    limit = "share.delivery.count.limit"
    said = cli("queue", "alter", queue.name, "--set", f"{limit}=3")
    assert said == f"altered {queue.name}\n"
    queue.fill(1)
    with queue.consumer() as consumer:
        queue.take(consumer, 1)

        def settings():
            (described,) = cli.json("queue", "describe", queue.name)
            return {
                setting["setting"]: (setting["value"], setting["is_set"])
                for setting in described["settings"]
            }

        assert settings()[limit] == ("3", True)
        cli("queue", "alter", queue.name, "--unset", limit)
        assert settings()[limit] == ("5", False)
    lock = "share.record.lock.duration.ms"
    cli("queue", "alter", queue.name, "--set", f"{lock}=20s")
    assert settings()[lock] == ("20000", True)
    assert "expected a duration" in cli.error(
        "queue", "alter", queue.name, "--set", f"{lock}=long", code=2
    )
    assert limit in cli.error("queue", "alter", queue.name, "--set", f"{limit}=99")
    assert "nothing to alter" in cli.error("queue", "alter", queue.name, code=2)


def test_redrive(cli, queue):
    queue.fill(5)
    queue.reject(5)
    wait_until(lambda: letters_of(cli, queue) == 5)
    planned = cli.json("queue", "redrive", queue.topic, "--dry-run")
    assert (planned["wanted"], planned["redriven"], planned["dry_run"]) == (5, 0, True)
    assert list(planned["causes"].values()) == [5]
    done = cli.json("queue", "redrive", queue.topic)
    assert (done["wanted"], done["redriven"]) == (5, 5)
    back = queue.read(queue.topic, 10)[5:]
    assert [message.value() for message in back] == [b"0", b"1", b"2", b"3", b"4"]
    assert [message.key() for message in back] == [b"k0", b"k1", b"k2", b"k3", b"k4"]
    assert back[0].headers() == [("kind", b"test"), ("headwater.redrive.count", b"1")]
    assert letters_of(cli, queue) == 0
    assert cli.json("queue", "redrive", queue.dlq)["redriven"] == 0  # the name of either will do

    queue.reject(1)  # the first of them dies again
    wait_until(lambda: letters_of(cli, queue) == 1)
    assert cli("queue", "redrive", queue.topic).endswith(f"redrove 1 record to {queue.topic}\n")
    assert ("headwater.redrive.count", b"2") in queue.read(queue.topic, 11)[10].headers()


@long
def test_redrive_some(cli, queue):
    """Those that are not wanted stay, behind the others."""
    other = unique("other")
    queue.set("share.auto.offset.reset", "earliest", other)
    queue.fill(3)
    queue.reject(3)
    queue.reject(3, other)
    wait_until(lambda: letters_of(cli, queue) == 6)
    redrive = ("queue", "redrive", queue.topic)
    assert cli.json(*redrive, "--cause", "no such thing")["redriven"] == 0
    assert cli.json(*redrive, "--group", unique("nobody"))["redriven"] == 0
    assert letters_of(cli, queue) == 6
    assert cli.json(*redrive, "--group", other, "--max", "2")["redriven"] == 2
    assert [message.value() for message in queue.read(queue.topic, 5)[3:]] == [b"0", b"1"]
    assert cli.json(*redrive, "--dry-run")["wanted"] == 4
    assert cli.json(*redrive, "--group", queue.name)["redriven"] == 3
    assert cli.json(*redrive, "--cause", "rejected")["redriven"] == 1
    values = [message.value() for message in queue.read(queue.topic, 9)[5:]]
    assert values == [b"0", b"1", b"2", b"2"]
    assert cli.json(*redrive)["redriven"] == 0


@pytest.mark.slow
def test_an_interrupted_redrive_goes_on_where_it_was(cli, queue):
    """Killed at any moment, it loses and repeats nothing."""
    count = 20_000
    producer = Producer({"bootstrap.servers": queue.bootstrap, "linger.ms": 20})
    queue.admin.create_topics([NewTopic(queue.dlq, 1)])[queue.dlq].result(TIMEOUT_S)
    for number in range(count):
        about = {"headwater.dlq.cause": b"test", "headwater.dlq.partition": b"0"}
        producer.produce(queue.dlq, str(number), headers=about)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    for number in (signal.SIGKILL, signal.SIGINT):
        before = end_of(queue)
        process = cli.start("queue", "redrive", queue.topic, "--json")
        # It may be quicker than this test is at looking.
        wait_until(
            lambda before=before, process=process: (
                end_of(queue) > before or process.poll() is not None
            )
        )
        code = stop(process, number)
        assert code in (-signal.SIGKILL, 130, 0)
    last = json.loads(cli("queue", "redrive", queue.topic, "--json"))
    assert last["redriven"] == last["wanted"]
    values = [int(message.value()) for message in queue.read(queue.topic, count)]
    assert values == list(range(count))


def end_of(queue):
    consumer = Consumer({"bootstrap.servers": queue.bootstrap, "group.id": unique("reader")})
    try:
        return consumer.get_watermark_offsets(TopicPartition(queue.topic, 0), TIMEOUT_S)[1]
    finally:
        consumer.close()
