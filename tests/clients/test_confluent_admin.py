"""confluent-kafka's administration: topics, configs, groups, offsets, the cluster."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from support.clients.confluent_wire import (
    AN_HOUR_AGO_MS,
    WAIT_S,
    consumer,
    create_topic,
    numbered,
    produce,
    take,
    wait_for,
)


@pytest.fixture
def admin(broker_address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker_address})


@pytest.fixture
def topic(broker_address: str) -> str:
    return create_topic(broker_address, 2)


@pytest.fixture
def group() -> str:
    return f"group-{uuid4().hex[:12]}"


def done(futures: dict[Any, Any]) -> Any:
    """The one result."""
    [future] = futures.values()
    return future.result(WAIT_S)


def code_of(futures: dict[Any, Any]) -> int:
    with pytest.raises(KafkaException) as raised:
        done(futures)
    return raised.value.args[0].code()


def test_topics(admin: AdminClient, topic: str) -> None:
    described = done(admin.describe_topics(TopicCollection([topic])))
    assert described.name == topic
    assert str(described.topic_id)
    assert not described.is_internal
    assert [partition.id for partition in described.partitions] == [0, 1]
    done(admin.create_partitions([NewPartitions(topic, 4)]))
    wait_for(lambda: len(admin.list_topics(topic, WAIT_S).topics[topic].partitions) == 4)
    done(admin.delete_topics([topic]))
    wait_for(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics)


def test_what_cannot_be_done_says_why(admin: AdminClient, topic: str) -> None:
    def create(name: str, *args: Any, **config: Any) -> int:
        return code_of(admin.create_topics([NewTopic(name, *args, **config)]))

    new = f"new-{uuid4().hex[:8]}"
    assert create(topic, 1, 1) == KafkaError.TOPIC_ALREADY_EXISTS
    assert create("no/slash", 1, 1) == KafkaError.TOPIC_EXCEPTION
    assert create(new, 0, 1) == KafkaError.INVALID_PARTITIONS
    assert create(new, 1, 3) == KafkaError.INVALID_REPLICATION_FACTOR
    assert create(new, 1, 1, config={"retention.ms": "soon"}) == KafkaError.INVALID_CONFIG
    assert create(new, 1, 1, config={"no.such.setting": "1"}) == KafkaError.INVALID_CONFIG
    assert (
        code_of(admin.create_partitions([NewPartitions(topic, 2)])) == KafkaError.INVALID_PARTITIONS
    )
    assert code_of(admin.delete_topics([new])) == KafkaError.UNKNOWN_TOPIC_OR_PART
    checked = admin.create_topics([NewTopic(new, 1, 1)], validate_only=True)
    assert done(checked) is None
    assert new not in admin.list_topics(timeout=WAIT_S).topics


def test_configs(admin: AdminClient, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def entry(name: str) -> ConfigEntry:
        return done(admin.describe_configs([resource]))[name]

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        change = ConfigEntry(name, value, incremental_operation=operation)
        wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        done(admin.incremental_alter_configs([wanted]))

    assert (entry("retention.ms").value, entry("retention.ms").is_default) == ("604800000", True)
    alter("retention.ms", "1234567", AlterConfigOpType.SET)
    assert (entry("retention.ms").value, entry("retention.ms").is_default) == ("1234567", False)
    assert entry("retention.ms").source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    assert set(entry("cleanup.policy").value.split(",")) == {"delete", "compact"}
    alter("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT)
    assert entry("cleanup.policy").value == "compact"
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    assert entry("retention.ms").is_default
    with pytest.raises(KafkaException) as raised:
        alter("retention.ms", "x", AlterConfigOpType.SET)
    assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG


def test_a_change_of_max_message_bytes_holds_at_once(
    admin: AdminClient, broker_address: str, topic: str
) -> None:
    produce(broker_address, topic, [{"value": bytes(50_000)}])
    change = ConfigEntry("max.message.bytes", "1000", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    done(admin.incremental_alter_configs([wanted]))
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker_address})
    producer.produce(topic, bytes(50_000), on_delivery=lambda error, _: errors.append(error))
    producer.flush(WAIT_S)
    assert [error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_the_broker_is_described(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(WAIT_S)
    assert cluster.cluster_id
    [node] = cluster.nodes
    assert cluster.controller.id == node.id
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    configs = done(admin.describe_configs([resource]))
    assert configs["auto.create.topics.enable"].value == "true"


def test_delete_records_and_list_offsets(
    admin: AdminClient, broker_address: str, topic: str
) -> None:
    at_ms = AN_HOUR_AGO_MS
    records = [{"value": b"x", "partition": 0, "timestamp": at_ms + n} for n in (0, 5, 3, 4)]
    produce(broker_address, topic, records, batch_num_messages=1)

    def offset(spec: OffsetSpec) -> tuple[int, int]:
        found = done(admin.list_offsets({TopicPartition(topic, 0): spec}))
        return found.offset, found.timestamp

    assert offset(OffsetSpec.earliest())[0] == 0
    assert offset(OffsetSpec.latest())[0] == 4
    assert offset(OffsetSpec.max_timestamp()) == (1, at_ms + 5)
    assert offset(OffsetSpec.for_timestamp(at_ms + 4)) == (1, at_ms + 5)
    assert done(admin.delete_records([TopicPartition(topic, 0, 2)])).low_watermark == 2
    assert offset(OffsetSpec.earliest())[0] == 2
    all_ = TopicPartition(topic, 0, -1)
    assert done(admin.delete_records([all_])).low_watermark == 4
    assert (
        code_of(admin.delete_records([TopicPartition(topic, 0, 9)]))
        == KafkaError.OFFSET_OUT_OF_RANGE
    )


@pytest.fixture(params=["classic", "consumer"])
def reader(
    request: pytest.FixtureRequest, broker_address: str, topic: str, group: str
) -> Iterator[Any]:
    """A member that has read ten records and committed."""
    produce(broker_address, topic, [{**number, "partition": 0} for number in numbered(10)])
    with consumer(
        broker_address, group_id=group, group_protocol=request.param, client_id="the-reader"
    ) as member:
        member.subscribe([topic])
        take(member, 10)
        member.commit(asynchronous=False)
        yield member


def test_groups(
    admin: AdminClient, topic: str, group: str, reader: Any, request: pytest.FixtureRequest
) -> None:
    kind = ConsumerGroupType[request.node.callspec.params["reader"].upper()]
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert listed.errors == []
    [found] = [entry for entry in listed.valid if entry.group_id == group]
    assert (found.state, found.type) == (ConsumerGroupState.STABLE, kind)
    by_type = admin.list_consumer_groups(types={kind}, states={ConsumerGroupState.STABLE})
    assert group in {entry.group_id for entry in by_type.result(WAIT_S).valid}

    described = done(admin.describe_consumer_groups([group]))
    assert (described.state, described.type) == (ConsumerGroupState.STABLE, kind)
    [member] = described.members
    assert member.client_id == "the-reader"
    assert member.host
    owned = {(part.topic, part.partition) for part in member.assignment.topic_partitions}
    assert owned == {(topic, 0), (topic, 1)}
    assert code_of(admin.delete_consumer_groups([group])) == KafkaError.NON_EMPTY_GROUP


def test_offsets_of_groups(admin: AdminClient, topic: str, group: str, reader: Any) -> None:
    def offsets() -> dict[int, int]:
        wanted = ConsumerGroupTopicPartitions(group)
        found = done(admin.list_consumer_group_offsets([wanted])).topic_partitions
        return {part.partition: part.offset for part in found if part.topic == topic}

    assert offsets()[0] == 10
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 4)])
    [refused] = done(admin.alter_consumer_group_offsets([moved])).topic_partitions
    assert refused.error.code() == KafkaError.UNKNOWN_MEMBER_ID  # the group is in use
    reader.close()
    done(admin.alter_consumer_group_offsets([moved]))
    assert offsets()[0] == 4
    done(admin.delete_consumer_groups([group]))
    listed = admin.list_consumer_groups().result(WAIT_S).valid
    assert group not in {entry.group_id for entry in listed}
    assert code_of(admin.delete_consumer_groups([group])) == KafkaError.GROUP_ID_NOT_FOUND
