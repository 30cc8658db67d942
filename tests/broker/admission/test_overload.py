"""Overload policies: producers faster than a group, and what the topic says about it."""

import threading

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from support.wire import Wire, batch_of, produce_request, wait_until

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.testing import InProcessBroker

LIMIT = 20_000


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker.serving(str(tmp_path)) as broker:
        yield broker


def create(broker, name: str, policy: str, **more: str) -> None:
    config = {
        "headwater.overload.policy": policy,
        "headwater.overload.group": "slow",
        "headwater.overload.bytes": str(LIMIT),
        **{key.replace("_", "."): value for key, value in more.items()},
    }
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for create_topic in admin.create_topics([NewTopic(name, 1, config=config)]).values():
        create_topic.result(60)


def commit(client: Wire, topic: str, offset: int) -> None:
    request = OffsetCommitRequest(
        group_id="slow",
        generation_id_or_member_epoch=-1,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
                ],
            )
        ],
    )
    assert client.ask(request, 8).topics[0].partitions[0].error_code == 0


def produced(answer):
    return answer.responses[0].partition_responses[0]


def test_a_policy_needs_a_group_and_a_limit(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    topic = NewTopic("t", 1, config={"headwater.overload.policy": "drop"})
    with pytest.raises(Exception, match="needs a group and a limit"):
        admin.create_topics([topic])["t"].result(60)


def test_backpressure_holds_a_producer_until_the_group_has_read(broker):
    create(broker, "t", "backpressure")
    batch = batch_of(b"x" * 9_000)
    with Wire(broker.bootstrap) as producer, Wire(broker.bootstrap) as consumer:
        for _ in range(2):
            assert produced(producer.ask(produce_request("t", batch), 9)).error_code == 0
        producer.send(produce_request("t", batch), 9)
        producer.send(produce_request("t", batch), 9)
        held = broker.running.broker.metrics.held_back_looks
        wait_until(lambda: held["t"] >= 2)  # looked at, and at again a second later
        partition = broker.running.store.partitions["t", 0]
        assert partition.next_offset == 2
        commit(consumer, "t", 1)  # room for one
        assert produced(producer.receive()).base_offset == 2
        assert partition.next_offset == 3
        commit(consumer, "t", 3)
        assert produced(producer.receive()).base_offset == 3


def test_a_held_request_of_a_client_that_has_gone_is_never_written(broker):
    create(broker, "t", "backpressure")
    batch = batch_of(b"x" * 15_000)
    with Wire(broker.bootstrap) as producer, Wire(broker.bootstrap) as consumer:
        producer.ask(produce_request("t", batch), 9)
        producer.send(produce_request("t", batch), 9)
        held = broker.running.broker.metrics.held_back_looks
        wait_until(lambda: held["t"] >= 1)
        connections = broker.running.server.connections
        producer.close()
        wait_until(lambda: len(connections) == 1)
        commit(consumer, "t", 1)
        assert produced(consumer.ask(produce_request("t", batch), 9)).base_offset == 1


def test_a_batch_larger_than_the_limit_passes_when_there_is_nothing_else(broker):
    create(broker, "t", "backpressure")
    with Wire(broker.bootstrap) as producer:
        batch = batch_of(b"x" * (2 * LIMIT))
        assert produced(producer.ask(produce_request("t", batch), 9)).base_offset == 0


def test_a_real_producer_and_a_slow_consumer(broker):
    """The lag stays bounded all the time, nothing is lost, and no client sees an error."""
    create(broker, "t", "backpressure")
    errors, count = [], 300
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "linger.ms": 0,
            "batch.num.messages": 5,
            "enable.idempotence": True,
        }
    )

    def produce():
        for number in range(count):
            producer.produce(
                "t",
                f"{number:04}".encode() * 250,
                on_delivery=lambda error, _: errors.append(error),
            )
            producer.poll(0)
        producer.flush(120)

    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "slow",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": 2_000,
        }
    )
    thread = threading.Thread(target=produce)
    thread.start()
    partition_of = broker.running.store.partitions
    consumer.assign([TopicPartition("t", 0, 0)])
    seen, worst_bytes = [], 0
    try:
        while len(seen) < count:
            for message in consumer.consume(7, 5):
                assert message.error() is None
                seen.append(int(message.value()[:4]))
                partition = partition_of["t", 0]
                unread = partition.high_watermark - len(seen)
                worst_bytes = max(worst_bytes, unread * 1_000)
            consumer.commit(offsets=[TopicPartition("t", 0, len(seen))], asynchronous=False)
    finally:
        consumer.close()
        thread.join(120)
    assert seen == list(range(count))
    assert errors == [None] * count
    assert worst_bytes <= LIMIT + 8 * 1_100  # what is not committed yet comes on top


def test_drop_refuses_the_newest_and_counts_it(broker):
    create(broker, "t", "drop")
    failed = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for _ in range(5):
        producer.produce("t", b"x" * 9_000, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(60) == 0
    assert [error and error.code() for error in failed] == [
        None, None, *[KafkaError.POLICY_VIOLATION] * 3
    ]  # fmt: skip
    assert broker.running.broker.metrics.dropped_records["t", "refused"] == 3
    with Wire(broker.bootstrap) as client:
        answer = produced(client.ask(produce_request("t", batch_of(b"x" * 9_000)), 9))
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert "group slow is more than 20000 bytes behind" in answer.error_message
        commit(client, "t", 2)
    producer.produce("t", b"again", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(60) == 0
    assert failed[-1] is None


def test_discard_acknowledges_the_newest_and_counts_it(broker):
    create(broker, "t", "drop", headwater_overload_drop="discard")
    delivered = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})

    def produce(value: bytes) -> None:
        producer.produce(
            "t", value, on_delivery=lambda error, message: delivered.append((error, message))
        )
        assert producer.flush(60) == 0

    for _ in range(5):
        produce(b"x" * 9_000)
    assert [error for error, _ in delivered] == [None] * 5
    assert broker.running.broker.metrics.dropped_records["t", "discarded"] == 3
    with Wire(broker.bootstrap) as client:
        commit(client, "t", 2)
    produce(b"again")
    assert delivered[-1][0] is None
    partition = broker.running.store.partitions["t", 0]
    wait_until(lambda: partition.high_watermark == 3)


def test_buffer_takes_everything(broker):
    with Wire(broker.bootstrap) as client:
        client.create_topic("t")
        for number in range(10):
            answer = produced(client.ask(produce_request("t", batch_of(b"x" * 9_000)), 9))
            assert answer.base_offset == number


def test_lifting_the_policy_lets_waiting_producers_go(broker):
    create(broker, "t", "backpressure")
    with Wire(broker.bootstrap) as client:
        client.ask(produce_request("t", batch_of(b"x" * 15_000)), 9)
        client.send(produce_request("t", batch_of(b"x" * 15_000)), 9)
        held = broker.running.broker.metrics.held_back_looks
        wait_until(lambda: held["t"] >= 1)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        change = ConfigEntry(
            "headwater.overload.policy", "buffer",
            incremental_operation=AlterConfigOpType.SET,
        )  # fmt: skip
        resource = ConfigResource("topic", "t", incremental_configs=[change])
        for config in admin.incremental_alter_configs([resource]).values():
            config.result(60)
        assert produced(client.receive()).base_offset == 1
