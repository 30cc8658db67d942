"""aiokafka: older versions of every API than the other clients speak."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

WAIT_S = 60
# Retention counts from a record's own time, so an old one would be deleted soon.
AN_HOUR_AGO_MS = int(time.time() * 1000) - 3_600_000
FAST: dict[str, Any] = {"session_timeout_ms": 6000, "heartbeat_interval_ms": 200}


class Clients:
    """Starts clients of one broker, and stops them at the end."""

    def __init__(self, address: str, opened: AsyncExitStack) -> None:
        self._address = address
        self._opened = opened

    async def _start(self, client: Any, stop: str = "stop") -> Any:
        await client.start()
        self._opened.push_async_callback(getattr(client, stop))
        return client

    async def producer(self, **config: Any) -> AIOKafkaProducer:
        return await self._start(AIOKafkaProducer(bootstrap_servers=self._address, **config))

    async def consumer(self, *topics: str, **config: Any) -> AIOKafkaConsumer:
        settings = {"auto_offset_reset": "earliest", **config}
        return await self._start(
            AIOKafkaConsumer(*topics, bootstrap_servers=self._address, **settings)
        )

    async def admin(self) -> AIOKafkaAdminClient:
        return await self._start(AIOKafkaAdminClient(bootstrap_servers=self._address), "close")

    async def create_topic(self, partitions: int = 1, **configs: Any) -> str:
        name = f"topic-{uuid4().hex[:12]}"
        given = {key.replace("_", "."): str(value) for key, value in configs.items()}
        response = await (await self.admin()).create_topics(
            [NewTopic(name, partitions, 1, topic_configs=given)]
        )
        assert response.topic_errors[0][1] == 0
        return name


@asynccontextmanager
async def clients(address: str) -> AsyncIterator[Clients]:
    async with asyncio.timeout(60), AsyncExitStack() as opened:
        yield Clients(address, opened)


async def take(reader: AIOKafkaConsumer, count: int) -> list[Any]:
    async with asyncio.timeout(WAIT_S):
        return [await reader.getone() for _ in range(count)]


async def assigned(reader: AIOKafkaConsumer, topic: str, offset: int = 0) -> AIOKafkaConsumer:
    part = TopicPartition(topic, 0)
    reader.assign([part])
    reader.seek(part, offset)
    return reader


Scenario = Callable[[Clients], Awaitable[None]]


@pytest.fixture
def run(broker_address: str) -> Callable[[Scenario], None]:
    """Runs a scenario with clients of the broker."""

    def call(scenario: Scenario) -> None:
        async def main() -> None:
            async with clients(broker_address) as opened:
                await scenario(opened)

        asyncio.run(main())

    return call


Run = Callable[[Scenario], None]


@pytest.mark.parametrize("acks", [0, 1, "all", "idempotent"])
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_acks_and_compression(run: Run, acks: int | str, codec: str | None) -> None:
    async def scenario(open_: Clients) -> None:
        topic = await open_.create_topic()
        kind = {"enable_idempotence": True} if acks == "idempotent" else {"acks": acks}
        producer = await open_.producer(compression_type=codec, linger_ms=5, **kind)
        sent = [
            await producer.send(topic, b"v%d" % n, key=b"k", headers=[("h", b"1"), ("h", b"")])
            for n in range(100)
        ]
        await asyncio.gather(*sent)
        found = await take(await assigned(await open_.consumer(), topic), 100)
        assert [(record.offset, record.value) for record in found] == [
            (n, b"v%d" % n) for n in range(100)
        ]
        assert found[0].headers == (("h", b"1"), ("h", b""))

    run(scenario)


def test_null_key_value_and_timestamps(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic = await open_.create_topic()
        stamped = await open_.create_topic(message_timestamp_type="LogAppendTime")
        producer = await open_.producer()
        before_ms = int(time.time() * 1000)
        for name in (topic, stamped):
            await producer.send_and_wait(name, None, key=b"k", timestamp_ms=AN_HOUR_AGO_MS)
            await producer.send_and_wait(name, b"", key=None, timestamp_ms=AN_HOUR_AGO_MS + 1)
        found = await take(await assigned(await open_.consumer(), topic), 2)
        assert [
            (message.key, message.value, message.timestamp, message.timestamp_type)
            for message in found
        ] == [
            (b"k", None, AN_HOUR_AGO_MS, 0),
            (None, b"", AN_HOUR_AGO_MS + 1, 0),
        ]
        found = await take(await assigned(await open_.consumer(), stamped), 2)
        assert [message.timestamp_type for message in found] == [1, 1]
        assert before_ms <= found[0].timestamp <= int(time.time() * 1000)

    run(scenario)


def test_a_record_above_the_largest_size(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic = await open_.create_topic(max_message_bytes=50_000)
        producer = await open_.producer(enable_idempotence=True)
        await producer.send_and_wait(topic, bytes(49_000))
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send_and_wait(topic, bytes(51_000))

    run(scenario)


def test_seek_positions_and_times(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic = await open_.create_topic()
        part = TopicPartition(topic, 0)
        producer = await open_.producer(linger_ms=50)
        base_ms = AN_HOUR_AGO_MS
        sent = [await producer.send(topic, b"x", timestamp_ms=base_ms + n) for n in range(50)]
        await asyncio.gather(*sent)
        reader = await assigned(await open_.consumer(), topic, 17)  # in the middle of a batch
        assert [record.offset for record in await take(reader, 33)] == list(range(17, 50))
        assert await reader.position(part) == 50
        assert await reader.beginning_offsets([part]) == {part: 0}
        assert await reader.end_offsets([part]) == {part: 50}
        found = await reader.offsets_for_times({part: base_ms + 20})
        assert (found[part].offset, found[part].timestamp) == (20, base_ms + 20)
        assert await reader.offsets_for_times({part: base_ms + 1000}) == {part: None}
        await reader.seek_to_beginning(part)
        assert (await take(reader, 1))[0].offset == 0
        reader.pause(part)
        assert await reader.getmany(timeout_ms=200) == {}
        reader.resume(part)
        assert (await take(reader, 1))[0].offset == 1
        await reader.seek_to_end(part)
        await producer.send_and_wait(topic, b"x")
        assert (await take(reader, 1))[0].offset == 50

    run(scenario)


def test_a_waiting_fetch_wakes_on_append(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic = await open_.create_topic()
        producer = await open_.producer()
        reader = await assigned(await open_.consumer(fetch_max_wait_ms=10_000), topic)
        assert await reader.getmany(timeout_ms=200) == {}
        for _ in range(3):
            sent_s = time.monotonic()
            await producer.send_and_wait(topic, b"x")
            await take(reader, 1)
            assert time.monotonic() - sent_s < 8  # and not 10

    run(scenario)


def test_small_fetch_limits(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic = await open_.create_topic(3)
        producer = await open_.producer(linger_ms=20)
        sent = [await producer.send(topic, bytes(500), partition=n % 3) for n in range(600)]
        await asyncio.gather(*sent)
        reader = await open_.consumer(max_partition_fetch_bytes=100, fetch_max_bytes=100)
        reader.assign([TopicPartition(topic, partition) for partition in range(3)])
        found = await take(reader, 600)
        assert sorted((r.partition, r.offset) for r in found) == [
            (p, n) for p in range(3) for n in range(200)
        ]

    run(scenario)


def test_deleted_records_reset_or_raise(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic = await open_.create_topic()
        part = TopicPartition(topic, 0)
        producer = await open_.producer()
        for _ in range(10):
            await producer.send_and_wait(topic, b"x")
        admin = await open_.admin()
        assert await admin.delete_records({part: RecordsToDelete(6)}) == {part: 6}
        reader = await assigned(await open_.consumer(), topic, 2)
        assert (await take(reader, 1))[0].offset == 6
        strict = await assigned(await open_.consumer(auto_offset_reset="none"), topic, 2)
        with pytest.raises(OffsetOutOfRangeError):
            await take(strict, 1)

    run(scenario)


# ── groups ────────────────────────────────────────────────────────────────────────────────────────


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "assignor",
    [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor],
    ids=lambda entry: entry.name,
)
def test_members_come_and_go(run: Run, assignor: Any) -> None:
    async def scenario(open_: Clients) -> None:
        topic, group = await open_.create_topic(6), f"group-{uuid4().hex[:12]}"
        config = {"group_id": group, "partition_assignment_strategy": [assignor], **FAST}
        members = [await open_.consumer(topic, **config)]

        def is_shared(*counts: int) -> bool:
            shares = [[part.partition for part in member.assignment()] for member in members]
            owned = sorted(partition for share in shares for partition in share)
            return owned == list(range(6)) and sorted(map(len, shares)) == sorted(counts)

        await until(lambda: is_shared(6))
        members.append(await open_.consumer(topic, **config))
        await until(lambda: is_shared(3, 3))
        members.append(await open_.consumer(topic, **config))
        await until(lambda: is_shared(2, 2, 2))
        await members.pop(0).stop()
        await until(lambda: is_shared(3, 3))

    run(scenario)


def test_a_group_goes_on_where_it_stopped(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic, group = await open_.create_topic(), f"group-{uuid4().hex[:12]}"
        part = TopicPartition(topic, 0)
        producer = await open_.producer()
        for number in range(5):
            await producer.send_and_wait(topic, b"%d" % number)
        config = {"group_id": group, "enable_auto_commit": False, **FAST}
        reader = await open_.consumer(topic, **config)
        await take(reader, 3)
        await reader.commit({part: (3, "up to here: ü→")})
        await reader.stop()
        later = await open_.consumer(topic, **config)
        assert [record.value for record in await take(later, 2)] == [b"3", b"4"]
        admin = await open_.admin()
        committed = (await admin.list_consumer_group_offsets(group))[part]
        assert (committed.offset, committed.metadata) == (3, "up to here: ü→")

    run(scenario)


def test_a_static_member_returns_without_a_rebalance(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic, group = await open_.create_topic(4), f"group-{uuid4().hex[:12]}"
        config = {"group_id": group, **FAST}
        staying = await open_.consumer(topic, group_instance_id="a", **config)
        moving = await open_.consumer(topic, group_instance_id="b", **config)
        await until(lambda: len(staying.assignment()) == len(moving.assignment()) == 2)
        generation = staying._coordinator.generation
        await moving.stop()
        back = await open_.consumer(topic, group_instance_id="b", **config)
        await until(lambda: len(back.assignment()) == 2)
        assert not staying.assignment() & back.assignment()
        assert staying._coordinator.generation == back._coordinator.generation == generation

    run(scenario)


def test_a_pattern_finds_topics_that_appear_later(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        prefix = f"pattern-{uuid4().hex[:8]}"
        producer = await open_.producer()
        await producer.send_and_wait(f"{prefix}-one", b"1")  # and is created by it
        reader = await open_.consumer(
            group_id=f"group-{uuid4().hex[:12]}", metadata_max_age_ms=300, **FAST
        )
        reader.subscribe(pattern=f"^{prefix}-.*")
        assert (await take(reader, 1))[0].value == b"1"
        await reader.commit()
        await producer.send_and_wait(f"{prefix}-two", b"2")
        assert (await take(reader, 1))[0].value == b"2"

    run(scenario)


# ── administration ────────────────────────────────────────────────────────────────────────────────


def test_administration(run: Run) -> None:
    async def scenario(open_: Clients) -> None:
        topic, group = await open_.create_topic(2), f"group-{uuid4().hex[:12]}"
        admin = await open_.admin()
        assert topic in await admin.list_topics()
        response = await admin.create_topics([NewTopic(topic, 1, 1)])
        assert response.topic_errors[0][1] == 36  # TOPIC_ALREADY_EXISTS
        await admin.create_partitions({topic: NewPartitions(5)})
        [described] = await admin.describe_topics([topic])
        assert len(described["partitions"]) == 5

        wanted = {"retention.ms": "1234567"}
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, wanted)
        await admin.alter_configs([resource])
        [response] = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        values = {entry[0]: entry[1] for entry in response.resources[0][4]}
        assert values["retention.ms"] == "1234567"
        assert values["cleanup.policy"] == "delete"

        reader = await open_.consumer(topic, group_id=group, client_id="the-reader", **FAST)
        await until(lambda: len(reader.assignment()) == 5)
        assert group in {consumer_group[0] for consumer_group in await admin.list_consumer_groups()}
        [response] = await admin.describe_consumer_groups([group])
        described = response.groups[0]
        assert (described[0], described[1], described[2]) == (0, group, "Stable")
        assert [member[1] for member in described[5]] == ["the-reader"]

        await reader.stop()
        cluster = await admin.describe_cluster()
        assert len(cluster["brokers"]) == 1
        response = await admin.delete_topics([topic])
        assert response.topic_error_codes == [(topic, 0)]
        assert topic not in await admin.list_topics()

    run(scenario)
