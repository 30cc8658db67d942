"""A disk that is full or failing, under a running broker with producers and consumers on it."""

import errno
import random
import re
import threading
import urllib.error
import urllib.request
from collections import defaultdict

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support import wire
from support.wire import Wire, batch_of, wait_until

from headwater.log.disk import ballast
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.settings import BrokerSettings
from headwater.testing import FaultyFiles, InProcessBroker

SETTINGS = BrokerSettings(
    listen="127.0.0.1:0",
    metrics_listen="127.0.0.1:0",
    topic_defaults={"segment.bytes": "200000"},
)


class Faulty:
    """A broker and its disk."""

    def __init__(self, path: str) -> None:
        self.files = FaultyFiles()
        self.broker = InProcessBroker(path, SETTINGS, files=self.files)
        self.broker.start()

    @property
    def address(self) -> str:
        return self.broker.bootstrap

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.broker.metrics_address}/ready") as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            with error:
                return error.code != 503

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.broker.metrics_address}/metrics") as answer:
            return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1])

    def stored(self, topic: str) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        with Wire(self.address) as client:
            while True:
                offset = found[-1][0] + 1 if found else 0
                answer = client.fetch(topic, offset)
                assert answer.error_code == 0
                if offset == answer.high_watermark:
                    return found
                records = wire.records_in(answer.records)
                found += [
                    (record.offset, record.value) for record in records if record.offset >= offset
                ]


@pytest.fixture
def faulty(tmp_path):
    faulty = Faulty(str(tmp_path / "log"))
    yield faulty
    faulty.files.repair()
    faulty.broker.stop()


class Writer(threading.Thread):
    """An idempotent producer that never gives up, with some requests on their way at a time."""

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.topic = topic
        self.sent = 0
        self.acknowledged: dict[int, bytes] = {}
        self.errors: list[str] = []
        self.over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "linger.ms": 0,
                "batch.num.messages": 5,
                "retry.backoff.ms": 5,
                "retry.backoff.max.ms": 50,
                "queue.buffering.max.messages": 100,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self.over.is_set():
            try:
                self._producer.produce(
                    self.topic, b"%d" % self.sent + bytes(200), on_delivery=self._delivered
                )
                self.sent += 1
            except BufferError:
                self._producer.poll(0.01)
            self._producer.poll(0)
        if self._producer.flush(60):
            self.errors.append("not all was delivered within a minute")

    def _delivered(self, error, message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged[message.offset()] = message.value()

    def wait_for_more(self, count: int) -> None:
        wanted = len(self.acknowledged) + count
        wait_until(lambda: self.errors or len(self.acknowledged) >= wanted, 60)
        assert self.errors == []


FAULTS = {
    "full": lambda files: setattr(files, "room_bytes", 3000),
    "bad writes": lambda files: files.fail_writes(10**9, error=errno.EIO, partial_bytes=100),
    "bad syncs": lambda files: files.fail_syncs(10**9),
    "quota": lambda files: files.fail_writes(10**9, error=errno.EDQUOT),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_producers_wait_readers_go_on_and_nothing_is_lost(faulty, fault):
    with Wire(faulty.address) as client:
        client.create_topic("events")
        writers = [Writer(faulty.address, "events") for _ in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.wait_for_more(100)
        for _ in range(3):
            assert faulty.is_ready()
            FAULTS[fault](faulty.files)
            wait_until(lambda: not faulty.is_ready())
            assert faulty.metric("headwater_storage_failed_partitions") == 1
            # A producer gets the error; a reader has all that was acknowledged.
            answer = client.produce("events", batch_of(bytes(10_000)))
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            acknowledged = {
                k: v for writer in writers for k, v in dict(writer.acknowledged).items()
            }
            stored = dict(faulty.stored("events"))
            assert acknowledged.items() <= stored.items()

            faulty.files.repair()
            for writer in writers:
                writer.wait_for_more(100)
            wait_until(faulty.is_ready)
            assert faulty.metric("headwater_storage_failed_partitions") == 0
        for writer in writers:
            writer.over.set()
        for writer in writers:
            writer.join(90)
            assert writer.errors == []
            assert len(writer.acknowledged) == writer.sent

    # Each exactly once, in order, at the offsets of the answers; also after the power fails.
    acknowledged_records = {k: v for writer in writers for k, v in writer.acknowledged.items()}
    assert dict(faulty.stored("events")) == acknowledged_records
    faulty.broker.crash()
    faulty.files.power_cut(random.Random(1))
    faulty.broker.start()
    assert dict(faulty.stored("events")) == acknowledged_records
    for writer in writers:
        in_order = [value for _, value in sorted(writer.acknowledged.items())]
        assert in_order == [b"%d" % number + bytes(200) for number in range(writer.sent)]


def test_the_first_batch_of_a_producer_fails_and_the_second_does_not_overtake(faulty):
    """Unknown to the partition, a producer might begin with any sequence; not after a failure."""
    batches = [
        batch_of(b"%d" % number, producer_id=7, producer_epoch=0, base_sequence=number)
        for number in range(2)
    ]
    with Wire(faulty.address) as client:
        client.create_topic("events")
        client.produce("events", batch_of(b"-"))
        faulty.files.fail_syncs(1)
        assert client.produce("events", batches[0]).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        refused = client.produce("events", batches[1])
        assert refused.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [client.produce("events", batch).base_offset for batch in batches] == [1, 2]
    assert [value for _, value in faulty.stored("events")] == [b"-", b"0", b"1"]


def test_ready_again_without_a_producer(faulty):
    with Wire(faulty.address) as client:
        client.create_topic("events")
        client.produce("events", batch_of(b"before"))
        faulty.files.room_bytes = 100
        failed = client.produce("events", batch_of(bytes(5000)))
        assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    wait_until(lambda: not faulty.is_ready())
    before = faulty.metric("headwater_disk_free_bytes")
    wait_until(lambda: faulty.metric("headwater_disk_free_bytes") <= 5000 or before <= 5000)
    assert not faulty.is_ready()  # no producer writes, and still there is no room
    faulty.files.repair()
    wait_until(faulty.is_ready)
    assert [value for _, value in faulty.stored("events")] == [b"before"]


def test_topics_and_commits_on_a_full_disk(faulty):
    commit = OffsetCommitRequest(
        group_id="group",
        topics=[
            OffsetCommitRequestTopic(
                name="events", partitions=[OffsetCommitRequestPartition(committed_offset=5)]
            )
        ],
    )
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="more")])
    with Wire(faulty.address) as client:
        client.create_topic("events")
        assert client.ask(commit, 8).topics[0].partitions[0].error_code == 0
        faulty.files.room_bytes = 10
        assert client.ask(wanted, 12).topics[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.ask(commit, 8).topics[0].partitions[0].error_code != 0
        faulty.files.repair()
        assert client.ask(wanted, 12).topics[0].error_code == 0
        assert client.ask(commit, 8).topics[0].partitions[0].error_code == 0


def test_a_read_error_takes_out_of_service_only_what_it_hits(faulty):
    with Wire(faulty.address) as client:
        client.create_topic("events")
        client.create_topic("others")
        for number in range(4):
            client.produce("events", batch_of(b"%d" % number + bytes(150_000)))
        client.produce("others", batch_of(b"fine"))
    faulty.broker.restart()  # so that it has to search for what it reads
    segments = faulty.broker.running.store.partitions["events", 0].segments
    assert len(segments) >= 3
    with Wire(faulty.address) as client:
        faulty.files.fail_reads(1)
        assert client.fetch("events", 1).error_code == ErrorCode.CORRUPT_MESSAGE
        assert wire.records_in(client.fetch("others", 0).records)[0].value == b"fine"
        assert wire.records_in(client.fetch("events", 3).records)[0].offset == 3
        assert client.produce("events", batch_of(b"more")).error_code == 0


def test_acks_0_is_slowed_down_and_counted_when_the_disk_refuses(faulty):
    counts = defaultdict(int)
    with Wire(faulty.address) as client:
        client.create_topic("events")
        faulty.files.room_bytes = 100
        for _ in range(3):
            client.send(
                wire.produce_request("events", batch_of(bytes(5000)), acks=0), 9, is_answered=False
            )
        counts = faulty.broker.running.broker.metrics.refused_batches
        wait_until(lambda: counts["events"] == 3)
        faulty.files.repair()
        assert client.produce("events", batch_of(b"x")).base_offset == 0


def test_clients_delete_on_a_full_disk(tmp_path):
    """Each of these has to write something first."""
    faulty = Faulty(str(tmp_path))
    try:
        producer = Producer({"bootstrap.servers": faulty.address})
        for topic in ("gone", "cut", "shorter"):
            producer.produce(topic, bytes(1000))
        assert producer.flush(60) == 0
        held_back = faulty.broker.running.store.ballast
        wait_until(lambda: held_back.is_there)
        faulty.files.room_bytes = 0
        admin = AdminClient({"bootstrap.servers": faulty.address})
        deleted = admin.delete_records([TopicPartition("cut", 0, 1)])
        assert [deletion.result(60).low_watermark for deletion in deleted.values()] == [1]
        changes = [ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)]
        resource = ConfigResource(ResourceType.TOPIC, "shorter", incremental_configs=changes)
        for config in admin.incremental_alter_configs([resource]).values():
            config.result(60)
        for delete_topic in admin.delete_topics(["gone"]).values():
            delete_topic.result(60)
        assert "gone" not in admin.list_topics(timeout=60).topics
        faulty.files.room_bytes += 3 * ballast.SIZE_BYTES
        wait_until(lambda: held_back.is_there)
        producer.produce("fresh", b"again")
        assert producer.flush(60) == 0
        assert [value for _, value in faulty.stored("fresh")] == [b"again"]
    finally:
        faulty.broker.stop()
