"""kafka-python: the newest versions of most APIs, idempotent by default."""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any
from uuid import uuid4

import pytest
from tiers import in_full

with warnings.catch_warnings():  # importing it reads files in a deprecated way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic, OffsetSpec
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from kafka.errors import (
        MessageSizeTooLargeError,
        OffsetOutOfRangeError,
        TopicAlreadyExistsError,
        UnknownTopicOrPartitionError,
    )
    from kafka.structs import OffsetAndMetadata, TopicPartition

WAIT_S = 60
# Retention counts from a record's own time, so an old one would be deleted soon.
AN_HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000
# A poll that ends amid a rebalance may leave kafka-python without heartbeats indefinitely.
POLL_MS = 1000
FAST: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
ASSIGNORS = [
    CooperativeStickyAssignor,
    *in_full(RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor),
]


@pytest.fixture(scope="module")
def admin(broker_address: str) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=broker_address)) as client:
        yield client


def create_topic(admin: KafkaAdminClient, partitions: int = 1, **configs: Any) -> str:
    name = f"topic-{uuid4().hex[:12]}"
    given = {key.replace("_", "."): str(value) for key, value in configs.items()}
    admin.create_topics([NewTopic(name, partitions, 1, topic_configs=given)])
    return name


@pytest.fixture
def topic(admin: KafkaAdminClient) -> str:
    return create_topic(admin)


@pytest.fixture
def producer(broker_address: str) -> Iterator[KafkaProducer]:
    with closing(KafkaProducer(bootstrap_servers=broker_address)) as client:
        yield client


Open = Callable[..., KafkaConsumer]


@pytest.fixture
def consumer(broker_address: str) -> Iterator[Open]:
    """Opens consumers that are closed at the end."""
    with ExitStack() as opened:

        def create(*topics: str, **config: Any) -> KafkaConsumer:
            settings = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 200, **config}
            client = KafkaConsumer(*topics, bootstrap_servers=broker_address, **settings)
            return opened.enter_context(closing(client))

        yield create


def take(reader: KafkaConsumer, count: int) -> list[Any]:
    taken: list[Any] = []
    end_s = time.monotonic() + WAIT_S
    while len(taken) < count:
        assert time.monotonic() < end_s, f"{len(taken)} of {count} records came"
        for records in reader.poll(POLL_MS, max_records=count - len(taken)).values():
            taken += records
    return taken


def assigned(reader: KafkaConsumer, topic: str, offset: int = 0) -> KafkaConsumer:
    reader.assign([TopicPartition(topic, 0)])
    reader.seek(TopicPartition(topic, 0), offset)
    return reader


def send(producer: KafkaProducer, topic: str, count: int, **record: Any) -> list[Any]:
    futures = [producer.send(topic, b"v%d" % n, **record) for n in range(count)]
    producer.flush(WAIT_S)
    return [future.get(WAIT_S) for future in futures]


# ── producing ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("acks", ["all", *in_full(0, 1)])
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_acks_and_compression(
    broker_address: str, topic: str, consumer: Open, acks: int | str, codec: str | None
) -> None:
    settings = {"acks": acks, "enable_idempotence": acks == "all", "compression_type": codec}
    with closing(KafkaProducer(bootstrap_servers=broker_address, **settings)) as producer:
        send(producer, topic, 100, headers=[("h", b"1"), ("h", b"")])
    found = take(assigned(consumer(), topic), 100)
    assert [record.value for record in found] == [b"v%d" % n for n in range(100)]
    assert [record.offset for record in found] == list(range(100))
    assert list(found[0].headers) == [("h", b"1"), ("h", b"")]


def test_null_key_value_and_timestamp(producer: KafkaProducer, topic: str, consumer: Open) -> None:
    producer.send(topic, value=None, key=b"k", timestamp_ms=AN_HOUR_AGO_MS)
    producer.send(topic, value=b"", key=None)
    producer.flush(WAIT_S)
    found = take(assigned(consumer(), topic), 2)
    assert [(record.key, record.value) for record in found] == [(b"k", None), (None, b"")]
    assert (found[0].timestamp, found[0].timestamp_type) == (AN_HOUR_AGO_MS, 0)


def test_log_append_time(admin: KafkaAdminClient, producer: KafkaProducer, consumer: Open) -> None:
    topic = create_topic(admin, message_timestamp_type="LogAppendTime")
    before_ms = int(time.time() * 1000)
    [sent] = send(producer, topic, 1, timestamp_ms=1)
    [found] = take(assigned(consumer(), topic), 1)
    assert found.timestamp_type == 1
    assert before_ms <= found.timestamp == sent.timestamp <= int(time.time() * 1000)


def test_a_record_above_the_largest_size(
    admin: KafkaAdminClient, producer: KafkaProducer, consumer: Open
) -> None:
    topic = create_topic(admin, max_message_bytes=50_000)
    producer.send(topic, bytes(49_000)).get(WAIT_S)
    with pytest.raises(MessageSizeTooLargeError):
        producer.send(topic, bytes(51_000)).get(WAIT_S)
    assert [len(record.value) for record in take(assigned(consumer(), topic), 1)] == [49_000]


def test_keys_choose_the_partition(admin: KafkaAdminClient, producer: KafkaProducer) -> None:
    topic = create_topic(admin, 4)
    where = [
        [sent.partition for sent in send(producer, topic, 2, key=b"k%d" % n)] for n in range(40)
    ]
    assert all(first == second for first, second in where)
    assert {first for first, _ in where} == {0, 1, 2, 3}


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_seek_pause_and_positions(producer: KafkaProducer, topic: str, consumer: Open) -> None:
    send(producer, topic, 50)
    part = TopicPartition(topic, 0)
    reader = assigned(consumer(), topic, 17)  # in the middle of a batch
    assert [record.offset for record in take(reader, 33)] == list(range(17, 50))
    assert reader.position(part) == 50
    assert reader.beginning_offsets([part]) == {part: 0}
    assert reader.end_offsets([part]) == {part: 50}
    reader.seek_to_beginning(part)
    assert take(reader, 1)[0].offset == 0
    reader.pause(part)
    assert reader.poll(300) == {}
    reader.resume(part)
    assert take(reader, 1)[0].offset == 1
    reader.seek_to_end(part)
    assert reader.position(part) == 50
    send(producer, topic, 1)
    assert take(reader, 1)[0].offset == 50


def test_from_a_time(producer: KafkaProducer, topic: str, consumer: Open) -> None:
    base_ms = AN_HOUR_AGO_MS
    for number in range(5):
        producer.send(topic, b"x", timestamp_ms=base_ms + number * 1000)
    producer.flush(WAIT_S)
    part = TopicPartition(topic, 0)
    reader = consumer()
    found = reader.offsets_for_times({part: base_ms + 1001})
    assert (found[part].offset, found[part].timestamp) == (2, base_ms + 2000)
    assert reader.offsets_for_times({part: base_ms + 10_000}) == {part: None}


def test_a_small_fetch_limit(
    admin: KafkaAdminClient, producer: KafkaProducer, consumer: Open
) -> None:
    topic = create_topic(admin, 3)
    for partition in range(3):
        send(producer, topic, 200, partition=partition)
    reader = consumer(max_partition_fetch_bytes=100, fetch_max_bytes=100)
    reader.assign([TopicPartition(topic, partition) for partition in range(3)])
    found = take(reader, 600)
    assert sorted((r.partition, r.offset) for r in found) == [
        (p, n) for p in range(3) for n in range(200)
    ]


@pytest.mark.parametrize("sessions", [True, False])
def test_a_waiting_fetch_wakes_on_append(
    producer: KafkaProducer, topic: str, consumer: Open, sessions: bool
) -> None:
    reader = consumer(fetch_max_wait_ms=10_000, enable_incremental_fetch_sessions=sessions)
    assigned(reader, topic)
    assert reader.poll(300) == {}
    for _ in range(3):
        sent_s = time.monotonic()
        producer.send(topic, b"x").get(WAIT_S)
        take(reader, 1)
        assert time.monotonic() - sent_s < 8  # and not 10


def test_deleted_records_reset_or_raise(
    admin: KafkaAdminClient, producer: KafkaProducer, topic: str, consumer: Open
) -> None:
    send(producer, topic, 10)
    part = TopicPartition(topic, 0)
    assert admin.delete_records({part: 6})[part]["low_watermark"] == 6
    assert take(assigned(consumer(), topic, 2), 4)[0].offset == 6
    strict = assigned(consumer(auto_offset_reset="none"), topic, 2)
    with pytest.raises(OffsetOutOfRangeError):
        take(strict, 1)


def test_reading_creates_a_topic_if_asked(consumer: Open) -> None:
    absent = f"absent-{uuid4().hex[:8]}"
    reader = consumer(absent, group_id=f"g-{uuid4().hex[:8]}", allow_auto_create_topics=True)
    end_s = time.monotonic() + WAIT_S
    while not reader.assignment():
        assert time.monotonic() < end_s
        reader.poll(POLL_MS)
    assert reader.partitions_for_topic(absent) == {0}


# ── groups ────────────────────────────────────────────────────────────────────────────────────────


class Member(threading.Thread, ConsumerRebalanceListener):
    """A consumer that is polled all the time, as rebalances need it; only its thread touches it."""

    def __init__(self, reader: KafkaConsumer, topic: str) -> None:
        super().__init__(daemon=True)
        self._reader = reader
        self._reader.subscribe([topic], listener=self)
        self.leaving = threading.Event()
        self.owned: set[int] = set()
        self.read: list[Any] = []
        self.start()

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.owned = self.owned | {part.partition for part in assigned}

    def on_partitions_revoked(self, revoked: Any) -> None:
        self.owned = self.owned - {part.partition for part in revoked}

    def run(self) -> None:
        while not self.leaving.is_set():
            for records in self._reader.poll(POLL_MS).values():
                self.read += records
        self._reader.close()


class Members(list[Member]):
    def wait_until_shared(self, *counts: int) -> None:
        """Every partition has exactly one owner, and each member has so many."""
        wait_for(
            lambda: (
                sorted(part for member in self for part in member.owned) == list(range(6))
                and sorted(len(member.owned) for member in self) == [*counts]
            )
        )

    def leave(self, member: Member) -> None:
        self.remove(member)
        member.leaving.set()
        member.join()


def wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 40
    while not condition():
        assert time.monotonic() < end_s, "not reached"
        time.sleep(0.02)


@pytest.fixture
def members() -> Iterator[Members]:
    all_ = Members()
    yield all_
    for member in all_:
        member.leaving.set()
    for member in all_:
        member.join()


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda entry: entry.name)
def test_members_come_and_go(
    admin: KafkaAdminClient,
    producer: KafkaProducer,
    consumer: Open,
    group: str,
    members: Members,
    assignor: Any,
) -> None:
    topic = create_topic(admin, 6)
    config = {"group_id": group, "partition_assignment_strategy": [assignor], **FAST}
    members.append(Member(consumer(**config), topic))
    members.wait_until_shared(6)
    members.append(Member(consumer(**config), topic))
    members.wait_until_shared(3, 3)
    members.append(Member(consumer(**config), topic))
    members.wait_until_shared(2, 2, 2)
    for partition in range(6):
        send(producer, topic, 10, partition=partition)
    wanted = {(partition, offset) for partition in range(6) for offset in range(10)}
    wait_for(lambda: {(r.partition, r.offset) for member in members for r in member.read} == wanted)
    members.leave(members[0])
    members.wait_until_shared(3, 3)


def test_a_static_member_returns_without_a_rebalance(
    admin: KafkaAdminClient, consumer: Open, group: str, members: Members
) -> None:
    topic = create_topic(admin, 6)

    def ids() -> dict[str, str]:
        [described] = admin.describe_groups([group]).values()
        return {member["group_instance_id"]: member["member_id"] for member in described["members"]}

    for name in "ab":
        members.append(Member(consumer(group_id=group, group_instance_id=name, **FAST), topic))
    members.wait_until_shared(3, 3)
    owned, before = [member.owned for member in members], ids()
    members.leave(members[1])
    members.append(Member(consumer(group_id=group, group_instance_id="b", **FAST), topic))
    members.wait_until_shared(3, 3)
    after = ids()
    assert [member.owned for member in members] == owned
    assert after["a"] == before["a"]
    assert after["b"] != before["b"]  # the returning one has a new id, and replaced the old one
    assert len(after) == 2


def test_a_pattern_finds_topics_that_appear_later(
    producer: KafkaProducer, consumer: Open, group: str
) -> None:
    prefix = f"pattern-{uuid4().hex[:8]}"
    send(producer, f"{prefix}-one", 1)
    reader = consumer(group_id=group, metadata_max_age_ms=300, **FAST)
    reader.subscribe(pattern=f"^{prefix}-.*")
    assert take(reader, 1)[0].topic == f"{prefix}-one"
    reader.commit()
    send(producer, f"{prefix}-two", 1)
    assert take(reader, 1)[0].topic == f"{prefix}-two"


def test_commits_carry_metadata_and_outlive_the_consumer(
    topic: str, consumer: Open, group: str
) -> None:
    part = TopicPartition(topic, 0)
    assigned(consumer(group_id=group), topic).commit({part: OffsetAndMetadata(42, "here: ü→", -1)})
    later = consumer(group_id=group)
    later.assign([part])
    assert later.committed(part) == 42
    assert later.committed(part, metadata=True).metadata == "here: ü→"
    assert later.committed(TopicPartition(topic, 1)) is None


# ── administration ────────────────────────────────────────────────────────────────────────────────


def test_topics(admin: KafkaAdminClient) -> None:
    name = create_topic(admin, 2, retention_ms=60_000)
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(name, 1, 1)])
    [described] = admin.describe_topics([name])
    assert described["error_code"] == 0
    assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1]
    admin.create_partitions({name: NewPartitions(5)})
    wait_for(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 5)
    assert name in admin.list_topics()
    admin.delete_topics([name])
    wait_for(lambda: name not in admin.list_topics())
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def test_configs(admin: KafkaAdminClient, topic: str) -> None:
    def changed() -> dict[str, str]:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return {name: entry["value"] for name, entry in found["topic"][topic].items()}

    wanted = {"retention.ms": "1234567", "max.message.bytes": "2000000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, wanted)])
    assert changed() == wanted
    admin.reset_configs([ConfigResource(ConfigResourceType.TOPIC, topic, ["retention.ms"])])
    assert changed() == {"max.message.bytes": "2000000"}


def test_groups(
    admin: KafkaAdminClient, producer: KafkaProducer, topic: str, consumer: Open, group: str
) -> None:
    part = TopicPartition(topic, 0)
    send(producer, topic, 3)
    reader = consumer(topic, group_id=group, client_id="the-reader", **FAST)
    take(reader, 3)
    reader.commit()
    [described] = admin.describe_groups([group]).values()
    assert described["group_state"] == "Stable"
    assert [member["client_id"] for member in described["members"]] == ["the-reader"]
    assert group in {listed["group_id"] for listed in admin.list_groups(states_filter=["Stable"])}
    assert admin.delete_groups([group])[group] == "NonEmptyGroupError"
    reader.close()
    assert admin.list_group_offsets({group: [part]})[group][part].offset == 3
    admin.alter_group_offsets(group, {part: OffsetAndMetadata(1, "", -1)})
    assert admin.list_group_offsets({group: [part]})[group][part].offset == 1
    assert admin.delete_groups([group])[group] == "OK"
    assert group not in {listed["group_id"] for listed in admin.list_groups()}


def test_offsets_log_dirs_and_the_cluster(
    admin: KafkaAdminClient, producer: KafkaProducer, topic: str
) -> None:
    send(producer, topic, 7)
    part = TopicPartition(topic, 0)
    for spec, offset in ((OffsetSpec.EARLIEST, 0), (OffsetSpec.LATEST, 7)):
        assert admin.list_partition_offsets({part: spec})[part].offset == offset
    newest = admin.list_partition_offsets({part: OffsetSpec.MAX_TIMESTAMP})[part]
    assert 0 <= newest.offset < 7
    [broker] = admin.describe_cluster()["brokers"]
    [dirs] = admin.describe_log_dirs()
    assert dirs["broker"] == broker["broker_id"]
    sizes = {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for log_dir in dirs["log_dirs"]
        for topic in log_dir["topics"]
        for partition in topic["partitions"]
    }
    assert sizes[topic, 0] > 7
