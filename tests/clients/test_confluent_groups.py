"""confluent-kafka in groups: both protocols, every assignor, commits, patterns, static members."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Self
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from support.clients.confluent_wire import WAIT_S, consumer, create_topic, numbered, produce, take
from tiers import in_full, long, representative

OnRevoke = Callable[[Consumer, list[TopicPartition]], None]
PARTITIONS = 6
CLASSIC: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}
ASSIGNORS = ["range", "roundrobin", "cooperative-sticky"]
PROTOCOLS = [
    *(
        pytest.param({"partition_assignment_strategy": assignor, **CLASSIC}, id=assignor)
        for assignor in ASSIGNORS
    ),
    pytest.param({"group_protocol": "consumer"}, id="kip-848", marks=long),
]


@pytest.fixture
def topic(broker_address: str) -> str:
    return create_topic(broker_address, PARTITIONS)


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


class Members:
    """Consumers of one group, polled in turn; what they read is stored."""

    def __init__(self, address: str, group: str, topic: str, **config: Any) -> None:
        self._open = ExitStack()
        self._new = lambda **more: self._open.enter_context(
            consumer(address, group_id=group, **{**config, **more})
        )
        self._topic = topic
        self.all: list[Consumer] = []
        self.read: list[Message] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def join(self, on_revoke: OnRevoke = lambda _, __: None, **config: Any) -> Consumer:
        member = self._new(**config)
        member.subscribe([self._topic], on_revoke=on_revoke)
        self.all.append(member)
        return member

    def leave(self, member: Consumer) -> None:
        self.all.remove(member)
        member.close()

    def poll_until(self, condition: Callable[[], bool], timeout_s: float = 40) -> None:
        end_s = time.monotonic() + timeout_s  # less than a session of 45 s
        while not condition():
            assert time.monotonic() < end_s, f"not reached: {self.shares()}"
            for member in self.all:
                message = member.poll(0.02)
                if message is not None:
                    assert message.error() is None, message.error()
                    self.read.append(message)

    def shares(self) -> list[list[int]]:
        return [sorted(part.partition for part in consumer.assignment()) for consumer in self.all]

    def is_shared(self, *counts: int) -> bool:
        """Every partition has exactly one owner, and each member has so many."""
        shares = self.shares()
        owned = sorted(partition for share in shares for partition in share)
        return owned == list(range(PARTITIONS)) and sorted(map(len, shares)) == sorted(counts)


@pytest.mark.parametrize("config", PROTOCOLS)
def test_members_come_and_go(
    broker_address: str, topic: str, group: str, config: dict[str, Any]
) -> None:
    with Members(broker_address, group, topic, **config) as members:
        first = members.join()
        members.poll_until(lambda: members.is_shared(6))
        members.join()
        members.poll_until(lambda: members.is_shared(3, 3))
        members.join()
        members.poll_until(lambda: members.is_shared(2, 2, 2))
        members.leave(first)
        members.poll_until(lambda: members.is_shared(3, 3))


@pytest.mark.parametrize("config", PROTOCOLS)
@representative
def test_a_group_reads_every_record_once_and_goes_on_where_it_stopped(
    broker_address: str, topic: str, group: str, config: dict[str, Any]
) -> None:
    with Members(broker_address, group, topic, **config) as members:
        members.join()
        members.join()
        members.poll_until(lambda: members.is_shared(3, 3))
        produce(broker_address, topic, numbered(600), partitioner="murmur2_random")
        members.poll_until(lambda: len(members.read) >= 600)
        found = sorted(message.value() for message in members.read)
        assert found == sorted(b"v%d" % n for n in range(600))
        for member in members.all:
            member.commit(asynchronous=False)
    produce(broker_address, topic, [{"value": b"later", "partition": 3}])
    with Members(broker_address, group, topic, **config) as members:
        members.join()
        members.poll_until(lambda: len(members.read) > 0)
        assert [message.value() for message in members.read] == [b"later"]


def test_a_cooperative_rebalance_leaves_the_rest_in_place(
    broker_address: str, topic: str, group: str
) -> None:
    taken: list[list[int]] = []
    config = {"partition_assignment_strategy": "cooperative-sticky", **CLASSIC}
    with Members(broker_address, group, topic, **config) as members:
        members.join(on_revoke=lambda _, parts: taken.append([p.partition for p in parts]))
        members.poll_until(lambda: members.is_shared(6))
        members.join()
        members.poll_until(lambda: members.is_shared(3, 3))
        assert [len(message) for message in taken] == [3]


@pytest.mark.parametrize(
    "config", [CLASSIC, *in_full({"group_protocol": "consumer"})], ids=["classic", "kip-848"]
)
def test_a_static_member_returns_without_a_rebalance(
    broker_address: str, topic: str, group: str, config: dict[str, Any]
) -> None:
    with Members(broker_address, group, topic, **config) as members:
        revoked: list[Any] = []
        members.join(lambda _, parts: revoked.append(parts), group_instance_id="a")
        moving = members.join(group_instance_id="b")
        members.poll_until(lambda: members.is_shared(3, 3))
        before = members.shares()
        revoked.clear()
        members.leave(moving)  # a static member does not leave the group by closing
        members.join(group_instance_id="b")
        members.poll_until(lambda: members.is_shared(3, 3))
        assert members.shares() == before
        assert revoked == []


def test_a_second_member_of_the_same_instance_fences_the_first(
    broker_address: str, topic: str, group: str
) -> None:
    with (
        consumer(broker_address, group_id=group, group_instance_id="i", **CLASSIC) as old,
        consumer(broker_address, group_id=group, group_instance_id="i", **CLASSIC) as new,
    ):
        for reader in (old, new):
            reader.subscribe([topic])
            end_s = time.monotonic() + WAIT_S
            while not reader.assignment():
                assert time.monotonic() < end_s
                reader.poll(0.05)
        with pytest.raises(KafkaException) as raised:
            end_s = time.monotonic() + WAIT_S
            while time.monotonic() < end_s:
                message = old.poll(0.1)
                if message is not None and message.error() is not None:
                    raise KafkaException(message.error())
        assert raised.value.args[0].code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)


@pytest.mark.parametrize(
    "config", [{}, *in_full({"group_protocol": "consumer"})], ids=["classic", "kip-848"]
)
def test_a_pattern_finds_topics_that_appear_later(
    broker_address: str, group: str, config: dict[str, Any]
) -> None:
    prefix = f"pattern-{uuid4().hex[:8]}"
    produce(broker_address, f"{prefix}-one", [{"value": b"1"}])
    with Members(
        broker_address, group, f"^{prefix}-.*", topic_metadata_refresh_interval_ms=200, **config
    ) as members:
        members.join()
        members.poll_until(lambda: len(members.read) == 1)
        produce(broker_address, f"{prefix}-two", [{"value": b"2"}])
        produce(broker_address, f"other-{prefix}", [{"value": b"3"}])
        members.poll_until(lambda: members.read[-1].value() == b"2")
        assert {message.value() for message in members.read} == {b"1", b"2"}


@pytest.mark.parametrize(
    "config", [CLASSIC, *in_full({"group_protocol": "consumer"})], ids=["classic", "kip-848"]
)
def test_new_partitions_are_assigned(
    broker_address: str, group: str, config: dict[str, Any]
) -> None:
    from confluent_kafka.admin import NewPartitions

    topic = create_topic(broker_address, 2)
    admin = AdminClient({"bootstrap.servers": broker_address})
    with Members(
        broker_address, group, topic, topic_metadata_refresh_interval_ms=200, **config
    ) as members:
        members.join()
        members.poll_until(lambda: members.shares() == [[0, 1]])
        admin.create_partitions([NewPartitions(topic, 6)])[topic].result(WAIT_S)
        members.poll_until(lambda: members.is_shared(6))


@long
def test_a_member_that_dies_is_replaced_when_its_session_ends(
    broker_address: str, topic: str, group: str
) -> None:
    import subprocess
    import sys

    code = (
        "import sys, confluent_kafka as ck\n"
        "c = ck.Consumer({'bootstrap.servers': sys.argv[1], 'group.id': sys.argv[2],"
        " 'session.timeout.ms': 6000})\n"
        "c.subscribe([sys.argv[3]])\n"
        "while not c.assignment(): c.poll(0.05)\n"
        "print('in', flush=True)\n"
        "while True: c.poll(1)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, broker_address, group, topic], stdout=subprocess.PIPE
    ) as dying:
        assert dying.stdout is not None
        assert dying.stdout.readline() == b"in\n"
        with Members(broker_address, group, topic, **CLASSIC) as members:
            members.join()
            members.poll_until(lambda: [len(share) for share in members.shares()] == [3])
            dying.kill()
            dying.wait()
            killed_s = time.monotonic()
            members.poll_until(lambda: members.is_shared(6))
            assert time.monotonic() - killed_s < 12  # a session of 6 s, not more


@pytest.fixture
def reader(broker_address: str, topic: str, group: str) -> Iterator[Consumer]:
    with consumer(broker_address, group_id=group) as reader:
        yield reader


def test_commits_carry_metadata_and_outlive_the_consumer(
    broker_address: str, topic: str, group: str, reader: Consumer
) -> None:
    commits = [
        TopicPartition(topic, 0, 42, metadata="up to here: ü→"),
        TopicPartition(topic, 1, 0),
        TopicPartition(topic, 2, 2**40),
    ]
    reader.commit(offsets=commits, asynchronous=False)
    parts = [TopicPartition(topic, partition) for partition in range(4)]
    with consumer(broker_address, group_id=group) as later:
        found = later.committed(parts, WAIT_S)
    assert [(message.offset, message.metadata) for message in found] == [
        (42, "up to here: ü→"),
        (0, None),
        (2**40, None),
        (-1001, None),
    ]


def test_metadata_that_is_too_long_is_refused(topic: str, reader: Consumer) -> None:
    long = TopicPartition(topic, 0, 1, metadata="x" * 5000)
    with pytest.raises(KafkaException) as raised:
        reader.commit(offsets=[long], asynchronous=False)
    assert raised.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE


def test_auto_commit_and_stored_offsets(broker_address: str, topic: str, group: str) -> None:
    produce(broker_address, topic, [{"value": b"x", "partition": 0}] * 10)
    with consumer(
        broker_address, group_id=group, enable_auto_commit=True, enable_auto_offset_store=False
    ) as reader:
        reader.subscribe([topic])
        reader.store_offsets(message=take(reader, 10)[3])
    with consumer(broker_address, group_id=group) as reader:
        [found] = reader.committed([TopicPartition(topic, 0)], WAIT_S)
        assert found.offset == 4
        reader.subscribe([topic])
        assert [message.offset() for message in take(reader, 6)] == list(range(4, 10))


def test_a_commit_from_outside_an_active_group_is_refused(
    broker_address: str, topic: str, group: str, reader: Consumer
) -> None:
    with Members(broker_address, group, topic, **CLASSIC) as members:
        members.join()
        members.poll_until(lambda: members.is_shared(6))
        with pytest.raises(KafkaException) as raised:
            reader.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
        assert raised.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
