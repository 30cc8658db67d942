"""kill -9, again and again, while producers write and a consumer commits.

Whatever was acknowledged is there afterwards, at the acknowledged offset, in the order in which
it was sent; from idempotent producers nothing is there twice; committed offsets do not go back.

The full tier kills some thousands of times.
"""

import os
import random
import threading
import time
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.clients.broker_process import BrokerProcess
from support.wire import wait_until
from tiers import kills

KILLS = kills(quick=5, full=3000)
SEED = int(os.environ.get("HEADWATER_SEED", "20261115"))
KEYS = 4
TOPICS = {"exactly": 3, "also-exactly": 1, "at-least": 2}  # partitions
QUICK = {
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 40,
    "retry.backoff.ms": 5,
    "log_level": 0,  # each kill is a refused connection to them
}
GROUP = "committer"


class Writer(threading.Thread):
    """Writes 0, 1, 2, … under each of its keys until stopped; records what is acknowledged."""

    def __init__(
        self, address: str, name: str, topic: str, *, pause_s: float = 0.002, **config: object
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._pause_s = pause_s
        self.topic = topic
        self.sent: dict[bytes, int] = defaultdict(int)  # key -> how many
        self.acknowledged: dict[tuple[int, int], tuple[bytes, bytes]] = {}
        self.errors: list[str] = []
        self.over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "message.timeout.ms": 0,  # never gives up
                "retries": 2**31 - 1,
                "linger.ms": 1,
                "queue.buffering.max.messages": 2000,
                "partitioner": "murmur2",
                **QUICK,
                **config,
            }
        )

    def run(self) -> None:
        while not self.over.is_set():
            for number in range(KEYS):
                key = f"{self.name}-{number}".encode()
                try:
                    self._producer.produce(
                        self.topic, b"%d" % self.sent[key], key, on_delivery=self._delivered
                    )
                except BufferError:
                    self._producer.poll(0.05)
                    continue
                self.sent[key] += 1
            self._producer.poll(self._pause_s)
        if self._producer.flush(60):
            self.errors.append("not all was delivered within a minute after the last kill")

    def _delivered(self, error, message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        place = (message.partition(), message.offset())
        if place in self.acknowledged:
            self.errors.append(f"{place} was acknowledged twice")
        self.acknowledged[place] = (message.key(), message.value())

    def begin(self) -> None:
        """Starts, and returns when it writes.

        librdkafka asks for a producer id twice a second, and in vain if kills fall in between: it
        might write nothing until the last of them.
        """
        self.start()
        wait_until(lambda: self.acknowledged, what=f"{self.name} writes")


class Committer(threading.Thread):
    """Commits 1, 2, 3, … for a partition, as a consumer outside of any generation."""

    def __init__(self, address: str) -> None:
        super().__init__(name="committer", daemon=True)
        self.over = threading.Event()
        self.tried = self.acknowledged = 0
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP, **QUICK})

    def run(self) -> None:
        while not self.over.is_set():
            self.tried += 1
            wanted = [TopicPartition("exactly", 0, self.tried)]
            try:
                answer = self._consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException:
                time.sleep(0.01)  # as an application that tries again would
                continue
            if answer[0].error is None:
                self.acknowledged = self.tried
            time.sleep(0.002)
        self._consumer.close()


def _read_all(address: str, topic: str, partition: int) -> list[tuple[int, bytes, bytes]]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        messages = consumer.consume(10_000, 1.0)
        for message in messages:
            if message.error():
                assert message.error().name() == "_PARTITION_EOF", message.error()
                consumer.close()
                return found
            found.append((message.offset(), message.key(), message.value()))


@pytest.mark.slow
@pytest.mark.timeout(600 + 10 * KILLS)
def test_killed_again_and_again(tmp_path, record_property):
    chance = random.Random(SEED)
    # Small segments, so that kills also fall into the change from one to the next.
    broker = BrokerProcess(tmp_path / "data", "--topic-defaults", "segment.bytes=65536")
    broker.start()
    admin = AdminClient({"bootstrap.servers": broker.address, **QUICK})
    made = admin.create_topics([NewTopic(name, count) for name, count in TOPICS.items()])
    for future in made.values():
        future.result(60)

    once = {"enable.idempotence": True}
    plain = {"acks": "all", "max.in.flight": 1}  # preserves the order without idempotence
    writers = [
        Writer(broker.address, "first", "exactly", **once),
        Writer(broker.address, "second", "exactly", **once, **{"compression.type": "lz4"}),
        Writer(broker.address, "third", "also-exactly", **once, **{"linger.ms": 0}),
        Writer(broker.address, "fourth", "at-least", **plain),
    ]
    committer = Committer(broker.address)
    threads = [*writers, committer]
    for writer in writers:
        writer.begin()
    committer.start()

    starts_s = []
    for _ in range(KILLS):
        time.sleep(chance.choice([0.02, 0.1, 0.3, 0.6]) * (0.5 + chance.random()))
        broker.kill()
        began_s = time.monotonic()
        broker.start()
        starts_s.append(time.monotonic() - began_s)
    for thread in threads:
        thread.over.set()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), thread.name
    broker.kill()  # once more, when nothing is on its way
    broker.start()

    written = sum(len(writer.acknowledged) for writer in writers)
    starts_s.sort()
    report = (
        f"{KILLS} kills, {written} records and {committer.acknowledged} commits acknowledged;"
        f" start after a kill: median {starts_s[len(starts_s) // 2]:.2f} s,"
        f" slowest {starts_s[-1]:.2f} s"
    )
    record_property("kill_loop", report)
    print(report)
    try:
        _check(broker.address, writers, committer)
    finally:
        broker.stop()


def _check(address: str, writers: list[Writer], committer: Committer) -> None:
    for writer in writers:
        assert writer.errors == [], (writer.name, writer.errors[:3])
        assert len(writer.acknowledged) == sum(writer.sent.values())  # each was delivered
        assert len(writer.acknowledged) > KILLS
    for topic, partitions in TOPICS.items():
        stored = {
            (partition, offset): (key, value)
            for partition in range(partitions)
            for offset, key, value in _read_all(address, topic, partition)
        }
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for _, (key, value) in sorted(stored.items()):
            by_key[key].append(int(value))
        for writer in (candidate for candidate in writers if candidate.topic == topic):
            # Nothing that was acknowledged is lost, or stands elsewhere.
            for place, record in writer.acknowledged.items():
                assert stored.get(place) == record, (topic, place, record, stored.get(place))
            for key, count in writer.sent.items():
                values = by_key[key]
                if topic != "at-least":  # none twice, all in order
                    assert values == list(range(count)), (topic, key, _first_wrong(values))
                else:  # repeated perhaps, but in order
                    firsts = list(dict.fromkeys(values))
                    assert firsts == list(range(count)), (topic, key, _first_wrong(firsts))

    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    (committed,) = consumer.committed([TopicPartition("exactly", 0)], 30)
    consumer.close()
    assert committer.acknowledged > 0
    assert committer.acknowledged <= committed.offset <= committer.tried


def _first_wrong(values: list[int]) -> tuple[int, list[int]]:
    at = next((i for i, value in enumerate(values) if value != i), len(values))
    return at, values[max(at - 3, 0) : at + 3]
