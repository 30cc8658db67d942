"""DescribeProducers: who writes to a partition, and in which transaction."""

import asyncio

from support.wire import Wire, batch_of

from headwater.broker.security.authorizer import Principal
from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
)
from headwater.protocol.records import TRANSACTIONAL, Record
from headwater.settings import BrokerSettings
from headwater.testing import FakeClock, InProcessBroker


def describe(asked, topic: str, *indexes: int, **options):
    wanted = DescribeProducersRequestTopicRequest(name=topic, partition_indexes=list(indexes))
    answer = asked.ask(DescribeProducersRequest(topics=[wanted]), 0, **options)
    assert [topic.name for topic in answer.topics] == [topic]
    return answer.topics[0].partitions


def run(asked, begin) -> int:
    async def work() -> int:
        future = asyncio.get_running_loop().create_future()
        offset = begin(future.set_result)
        assert await future is None
        return offset

    return asked.runner.run(work())


def write(asked, pid: int, sequence: int, count: int = 1, *, transactional: bool) -> int:
    now_ms = asked.broker.clock.now_ms()
    batch = records.build_batch(
        [Record(0, now_ms, b"k", b"v")] * count,
        producer_id=pid,
        producer_epoch=3,
        base_sequence=sequence,
        attributes=TRANSACTIONAL if transactional else 0,
    )
    view = memoryview(batch)
    partition = asked.store.partitions["t", 0]
    return run(asked, lambda done: partition.append(view, records.read_header(view), done))


def test_producers_and_their_transactions(asked):
    asked.topic("t", 2)
    before_ms = asked.broker.clock.now_ms()
    write(asked, 7, 0, 5, transactional=False)
    write(asked, 8, 0, 2, transactional=True)
    partition = asked.store.partitions["t", 0]
    first, second = describe(asked, "t", 0, 1)
    assert (first.partition_index, second.partition_index) == (0, 1)
    assert second.active_producers == []
    seven, eight = first.active_producers
    assert (seven.producer_id, seven.producer_epoch, seven.last_sequence) == (7, 3, 4)
    assert (seven.coordinator_epoch, seven.current_txn_start_offset) == (-1, -1)
    assert before_ms <= seven.last_timestamp <= asked.broker.clock.now_ms()
    assert (eight.producer_id, eight.last_sequence, eight.current_txn_start_offset) == (8, 1, 5)

    run(
        asked,
        lambda done: partition.append_marker(8, 4, commit=True, coordinator_epoch=2, done=done),
    )
    asked.reopen()
    _, eight = describe(asked, "t", 0)[0].active_producers
    assert (eight.producer_epoch, eight.last_sequence, eight.coordinator_epoch) == (4, -1, 2)
    assert eight.current_txn_start_offset == -1


def test_what_is_not_there(asked):
    asked.topic("t")
    for topic, index, code in (
        ("t", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("u", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no name!", 0, ErrorCode.INVALID_TOPIC_EXCEPTION),
    ):
        (answer,) = describe(asked, topic, index)
        assert answer.error_code == code
        assert answer.error_message


def test_needs_read_on_the_topic(guarded):
    guarded.topic("t")
    for topic in ("t", "not-there"):
        (answer,) = describe(guarded, topic, 0, principal=Principal("eve"))
        assert answer.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    (answer,) = describe(guarded, "t", 0, principal=Principal("admin"))
    assert answer.error_code == 0


def test_who_is_idle_is_forgotten_but_for_open_transactions(tmp_path):
    clock = FakeClock()
    settings = BrokerSettings(listen="127.0.0.1:0", producer_id_expiration_ms=60_000)
    serving = InProcessBroker.serving(str(tmp_path), settings, clock=clock)
    with serving as broker, Wire(broker.bootstrap) as client:
        client.create_topic("t")
        partition = broker.running.store.partitions["t", 0]
        ids = {"producer_epoch": 0, "base_sequence": 0, "timestamp_ms": clock.now_ms()}
        client.produce("t", batch_of(b"x", producer_id=7, **ids))
        view = memoryview(batch_of(b"x", producer_id=8, attributes=TRANSACTIONAL, **ids))

        async def open_transaction() -> None:
            partition.append(view, records.read_header(view), lambda _: None)

        asyncio.run_coroutine_threadsafe(open_transaction(), broker._loop).result(60)
        broker.advance(59)
        assert _retained(broker, partition) == [7, 8]
        broker.advance(2)
        assert _retained(broker, partition) == [8]


def _retained(broker, partition) -> list[int]:
    work = broker.running.broker.retain()
    asyncio.run_coroutine_threadsafe(work, broker._loop).result(60)
    return list(partition.producers.by_id)
