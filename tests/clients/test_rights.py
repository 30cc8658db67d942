"""librdkafka with just the rights it needs, and without them."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.clients.rights import TIMEOUT_S, GuardedBroker, guarded_broker

from headwater.broker.security.acls import Operation
from headwater.broker.security.acls import ResourceType as Kind


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with guarded_broker(tmp_path_factory.mktemp("guarded")) as running:
        yield running


def produce(guarded: GuardedBroker, user: str, topic: str, **properties: Any) -> KafkaError | None:
    """The error of one record, or None."""
    outcome: list[KafkaError | None] = []
    producer = Producer(guarded.client(user, message_timeout_ms=10_000, **properties))
    producer.produce(topic, b"v", on_delivery=lambda error, _: outcome.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    return outcome[0]


def consumer(guarded: GuardedBroker, user: str, group: str, **properties: Any) -> Consumer:
    return Consumer(
        guarded.client(user, group_id=group, auto_offset_reset="earliest", **properties)
    )


def first_record(reader: Consumer, topic: str) -> bytes:
    """The value of the first record, committed. Raises the consumer's error."""
    reader.subscribe([topic])
    try:
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        if message.error():
            raise KafkaException(message.error())
        reader.commit(message, asynchronous=False)
        value = message.value()
        assert value is not None
        return value
    finally:
        reader.close()


@pytest.mark.parametrize("idempotence", [False, True])
def test_a_producer_needs_write(guarded: GuardedBroker, idempotence: bool) -> None:
    user, topic = guarded.user(), guarded.topic()
    properties = {"enable_idempotence": idempotence}
    refused = produce(guarded, user, topic, **properties)
    assert refused is not None
    assert refused.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError._FATAL,
    )
    guarded.allow(user, Operation.WRITE, Kind.TOPIC, topic)
    assert produce(guarded, user, topic, **properties) is None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_needs_read_on_its_topic_and_group(
    guarded: GuardedBroker, protocol: str
) -> None:
    user, topic = guarded.user(), guarded.topic()
    assert produce(guarded, "admin", topic) is None

    def read() -> bytes:
        return first_record(consumer(guarded, user, user, group_protocol=protocol), topic)

    with pytest.raises(KafkaException) as refused:
        read()
    assert refused.value.args[0].code() in (
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
    guarded.allow(user, Operation.READ, Kind.GROUP, user)
    with pytest.raises(KafkaException) as refused:
        read()
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    guarded.allow(user, Operation.READ, Kind.TOPIC, topic)
    assert read() == b"v"


def test_a_transaction_needs_write_on_its_id(guarded: GuardedBroker) -> None:
    user, source, target = guarded.user(), guarded.topic(), guarded.topic()
    assert produce(guarded, "admin", source) is None
    guarded.allow(user, Operation.WRITE, Kind.TOPIC, target)
    guarded.allow(user, Operation.READ, Kind.TOPIC, source)
    guarded.allow(user, Operation.READ, Kind.GROUP, user)

    def producer() -> Producer:
        return Producer(guarded.client(user, transactional_id=f"{user}-tx"))

    with pytest.raises(KafkaException) as refused:
        producer().init_transactions(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    guarded.allow(user, Operation.WRITE, Kind.TRANSACTIONAL_ID, user, prefix=True)
    writer = producer()
    writer.init_transactions(TIMEOUT_S)
    reader = consumer(guarded, user, user, enable_auto_commit=False)
    reader.subscribe([source])
    message = reader.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    writer.begin_transaction()
    writer.produce(target, message.value())
    position = [TopicPartition(source, 0, message.offset() + 1)]
    writer.send_offsets_to_transaction(position, reader.consumer_group_metadata(), TIMEOUT_S)
    writer.commit_transaction(TIMEOUT_S)
    reader.close()
    seen = consumer(guarded, "admin", f"{user}-check", isolation_level="read_committed")
    assert first_record(seen, target) == b"v"


def test_a_transaction_into_a_topic_without_write_is_refused(guarded: GuardedBroker) -> None:
    user, topic = guarded.user(), guarded.topic()
    guarded.allow(user, Operation.WRITE, Kind.TRANSACTIONAL_ID, user)
    guarded.allow(user, Operation.DESCRIBE, Kind.TOPIC, topic)
    writer = Producer(guarded.client(user, transactional_id=user))
    writer.init_transactions(TIMEOUT_S)
    writer.begin_transaction()
    writer.produce(topic, b"v")
    with pytest.raises(KafkaException) as refused:
        writer.commit_transaction(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_topics_that_a_user_may_not_see_are_not_in_its_list(guarded: GuardedBroker) -> None:
    user, shown, hidden = guarded.user(), guarded.topic(), guarded.topic()
    guarded.allow(user, Operation.DESCRIBE, Kind.TOPIC, shown)
    topics = guarded.admin(user).list_topics(timeout=TIMEOUT_S).topics
    assert set(topics) == {shown}
    named = guarded.admin(user).list_topics(hidden, timeout=TIMEOUT_S).topics[hidden]
    assert named.error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_creating_configuring_and_deleting(guarded: GuardedBroker) -> None:
    user = guarded.user()
    name = f"{user}-orders"
    admin = guarded.admin(user)

    def code(futures: dict[Any, Any]) -> int | None:
        (future,) = futures.values()
        try:
            future.result(TIMEOUT_S)
        except KafkaException as error:
            failure: int = error.args[0].code()
            return failure
        return None

    config = ConfigResource(ConfigResource.Type.TOPIC, name)
    steps = [
        (Operation.CREATE, lambda: admin.create_topics([NewTopic(name, 1)])),
        (Operation.DESCRIBE_CONFIGS, lambda: admin.describe_configs([config])),
        (Operation.DELETE, lambda: admin.delete_topics([name])),
    ]
    for operation, step in steps:
        assert code(step()) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        guarded.allow(user, operation, Kind.TOPIC, user, prefix=True)
        assert code(step()) is None


def test_acls_by_the_admin_client(guarded: GuardedBroker) -> None:
    user = guarded.user()
    admin = guarded.admin()
    wanted = [
        AclBinding(
            ResourceType.TOPIC, name, pattern, f"User:{user}", "*", operation,
            AclPermissionType.ALLOW,
        )
        for name, pattern, operation in (
            ("orders", ResourcePatternType.LITERAL, AclOperation.READ),
            ("team-", ResourcePatternType.PREFIXED, AclOperation.ALL),
        )
    ]  # fmt: skip
    for future in admin.create_acls(wanted).values():
        assert future.result(TIMEOUT_S) is None
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    assert set(admin.describe_acls(everything).result(TIMEOUT_S)) == set(wanted)
    matching = AclBindingFilter(
        ResourceType.TOPIC, "team-a", ResourcePatternType.MATCH, None, None, AclOperation.ANY,
        AclPermissionType.ANY,
    )  # fmt: skip
    assert admin.describe_acls(matching).result(TIMEOUT_S) == [wanted[1]]
    (deleted,) = admin.delete_acls([matching]).values()
    assert deleted.result(TIMEOUT_S) == [wanted[1]]
    assert admin.describe_acls(everything).result(TIMEOUT_S) == [wanted[0]]


def test_who_may_not_alter_the_cluster_makes_no_acls(guarded: GuardedBroker) -> None:
    user = guarded.user()
    wanted = AclBinding(
        ResourceType.TOPIC, "*", ResourcePatternType.LITERAL, f"User:{user}", "*",
        AclOperation.ALL, AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = guarded.admin(user)
    (future,) = admin.create_acls([wanted]).values()
    with pytest.raises(KafkaException) as refused:
        future.result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
