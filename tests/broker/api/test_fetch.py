"""Fetch on the wire: what is sent, how much of it, and when."""

import asyncio
import re
import threading
import time
from uuid import UUID

import pytest
from support import wire
from support.wire import Wire, batch_of, fetch_request, records_in, wait_until

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import (
    FetchRequest,
    FetchRequestFetchPartition,
    FetchRequestFetchTopic,
    FetchRequestForgottenTopic,
)
from headwater.settings import BrokerSettings
from headwater.testing import FaultyFiles, InProcessBroker

PARTITIONS = 4


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = BrokerSettings(listen="127.0.0.1:0", default_partitions=PARTITIONS)
    path = str(tmp_path_factory.mktemp("fetch"))
    with InProcessBroker.serving(path, settings) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Wire(broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(client, request) -> str:
    name = re.sub(r"[^a-z0-9-]+", "_", request.node.name)
    client.create_topic(name)
    return name


def _values(answer) -> list[bytes]:
    assert answer.error_code == 0
    return [record.value for record in records_in(answer.records)]


def _of_partitions(topic: str, *indexes: int, offset=0, partition_max_bytes=1 << 20, **fields):
    """A fetch of several partitions."""
    wanted = [
        FetchRequestFetchPartition(
            partition=index, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        for index in indexes
    ]
    fields = {"max_bytes": 50 << 20, **fields}
    return FetchRequest(
        topics=[FetchRequestFetchTopic(topic=topic, partitions=wanted)] if indexes else [], **fields
    )


def _by_partition(answer) -> dict[int, object]:
    assert answer.error_code == 0
    return {
        partition.partition_index: partition
        for topic in answer.responses
        for partition in topic.partitions
    }


# ── what ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version(client, topic, version):
    topic_id = client.create_topic(topic).topic_id
    client.produce(topic, batch_of(b"one", b"two"))
    request = fetch_request(topic, 0)
    if version >= 13:
        request.topics[0].topic_id = topic_id
    (answers,) = client.ask(request, version).responses
    assert (answers.topic == topic) if version < 13 else (answers.topic_id == topic_id)
    (answer,) = answers.partitions
    assert _values(answer) == [b"one", b"two"]
    assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)
    if version >= 5:
        assert answer.log_start_offset == 0


def test_the_middle_of_a_batch_gives_the_whole_batch(client, topic):
    client.produce(topic, batch_of(b"0", b"1", b"2"))
    client.produce(topic, batch_of(b"3"))
    assert _values(client.fetch(topic, 1)) == [b"0", b"1", b"2", b"3"]
    assert _values(client.fetch(topic, 3)) == [b"3"]
    assert _values(client.fetch(topic, 4)) == []


@pytest.mark.parametrize("offset", [-1, -2, 2, 10**12])
def test_out_of_range(client, topic, offset):
    client.produce(topic, batch_of(b"x"))
    answer = client.fetch(topic, offset)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (answer.log_start_offset, answer.high_watermark) == (0, 1)


def test_what_a_consumer_missed_is_counted(broker, client, topic):
    for number in range(5):
        client.produce(topic, batch_of(b"%d" % number))
    store = broker.running.store
    partition = store.partitions[topic, 0]
    _run(broker, store.delete_records({partition: 3}))
    answer = client.fetch(topic, 1)
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 3)
    assert broker.running.broker.metrics.missed_records[topic] == 2
    assert _values(client.fetch(topic, 3)) == [b"3", b"4"]


def test_leader_epochs(broker, client, topic):
    client.produce(topic, batch_of(b"x"))
    epoch = broker.running.store.leader_epoch
    assert _values(client.fetch(topic, 0, epoch=epoch)) == [b"x"]
    newer = client.fetch(topic, 0, epoch=epoch + 1)
    assert newer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_an_older_epoch_is_fenced_after_a_crash(tmp_path):
    broker = InProcessBroker(str(tmp_path))
    broker.start()
    with Wire(broker.bootstrap) as client:
        topic = client.create_topic("events")
        epoch = topic.partitions[0].leader_epoch
        client.produce("events", batch_of(b"x"))
    broker.restart(crash=True)
    with Wire(broker.bootstrap) as client:
        assert client.create_topic("events").partitions[0].leader_epoch == epoch + 1
        assert client.fetch("events", 0, epoch=epoch).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert _values(client.fetch("events", 0, epoch=epoch + 1)) == [b"x"]
    broker.stop()


def test_what_is_not_there(client, topic):
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.fetch("no-such-topic", 0).error_code == unknown
    assert client.fetch(topic, 0, partition=99).error_code == unknown
    request = fetch_request("", 0)
    request.topics[0].topic_id = UUID(int=777)
    (answers,) = client.ask(request, 13).responses
    assert answers.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_an_error_does_not_hold_up_what_else_was_asked_for(client, topic):
    client.produce(topic, batch_of(b"x"))
    request = _of_partitions(topic, 99, 0, max_wait_ms=60_000, min_bytes=10_000_000)
    found = _by_partition(client.ask(request, 12))
    assert found[99].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert _values(found[0]) == [b"x"]


# ── how much ──────────────────────────────────────────────────────────────────────────────────


def _fill(client: Wire, topic: str, *partitions: int, batches: int = 10) -> int:
    """That many batches of the same size; returns the size of one."""
    for partition in partitions:
        for _ in range(batches):
            batch = batch_of(bytes(1000))
            assert client.produce(topic, batch, partition=partition).error_code == 0
    return len(batch)


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 1), (1, 1), (-1, 1), (1.0, 1), (2.9, 2), (3.0, 3)]
)
def test_partition_max_bytes_but_at_least_one_batch(client, topic, limit, count):
    size_bytes = _fill(client, topic, 0)
    limit_bytes = limit if isinstance(limit, int) else int(limit * size_bytes)
    answer = client.fetch(topic, 0, partition_max_bytes=limit_bytes)
    assert len(_values(answer)) == count


@pytest.mark.parametrize(
    ("limit", "count"), [(0, 1), (1, 1), (-1, 1), (2.9, 2), (3.0, 3), (99.0, 20)]
)
def test_max_bytes_over_all_partitions(client, topic, limit, count):
    size_bytes = _fill(client, topic, 0, 1)
    limit_bytes = limit if isinstance(limit, int) else int(limit * size_bytes)
    answer = client.ask(_of_partitions(topic, 0, 1, max_bytes=limit_bytes), 12)
    assert sum(len(_values(partition)) for partition in _by_partition(answer).values()) == count


def test_a_batch_beyond_the_limits_is_sent_only_first(client, topic):
    """KIP-74: the first one gets through, however large; behind others it waits its turn."""
    client.produce(topic, batch_of(bytes(100)), partition=0)
    client.produce(topic, batch_of(bytes(50_000)), partition=1)
    request = _of_partitions(topic, 0, 1, partition_max_bytes=10_000)
    found = _by_partition(client.ask(request, 12))
    assert (len(_values(found[0])), len(_values(found[1]))) == (1, 0)
    alone = _by_partition(client.ask(_of_partitions(topic, 1, partition_max_bytes=10_000), 12))
    assert len(_values(alone[1])) == 1


def test_all_of_a_long_log_comes_in_pieces(client, topic):
    _fill(client, topic, 0, batches=300)
    offset, pieces = 0, 0
    while offset < 300:
        found = records_in(client.fetch(topic, offset, partition_max_bytes=20_000).records)
        assert found[0].offset == offset
        assert [message.offset for message in found] == list(range(offset, offset + len(found)))
        offset, pieces = offset + len(found), pieces + 1
    assert pieces == 300 // (20_000 // (1000 + 61 + 8)) + 1


# ── when ──────────────────────────────────────────────────────────────────────────────────────


def _waiting(broker, topic: str, partition: int = 0) -> bool:
    return bool(broker.running.store.partitions[topic, partition].waiters)


def test_an_append_wakes_who_waits(broker, client, topic):
    with Wire(broker.bootstrap) as consumer:
        consumer.send(_of_partitions(topic, 0, 1, max_wait_ms=60_000, min_bytes=1), 12)
        wait_until(lambda: _waiting(broker, topic, 1))
        client.produce(topic, batch_of(b"news"), partition=1)
        assert _values(_by_partition(consumer.receive())[1]) == [b"news"]
    assert not _waiting(broker, topic)


def test_the_wait_ends_with_the_time(client, topic):
    began_s = time.monotonic()
    answer = client.fetch(topic, 0, max_wait_ms=300, min_bytes=1)
    assert _values(answer) == []
    assert 0.29 <= time.monotonic() - began_s < 10


def test_no_wait_without_need(client, topic):
    client.produce(topic, batch_of(b"x"))
    for fields in ({"min_bytes": 1}, {"min_bytes": 0}, {"min_bytes": -5}, {"max_wait_ms": -1}):
        began_s = time.monotonic()
        client.fetch(topic, 0, **{"max_wait_ms": 30_000, **fields})
        assert time.monotonic() - began_s < 10
    began_s = time.monotonic()
    client.fetch(topic, 1, max_wait_ms=30_000, min_bytes=0)
    assert time.monotonic() - began_s < 10


def test_min_bytes_counts_what_was_there_before(broker, client, topic):
    size_bytes = _fill(client, topic, 0, batches=3)
    with Wire(broker.bootstrap) as consumer:
        request = fetch_request(topic, 0, max_wait_ms=60_000, min_bytes=5 * size_bytes)
        consumer.send(request, 12)
        wait_until(lambda: _waiting(broker, topic))
        _fill(client, topic, 0, batches=1)
        consumer.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            consumer.socket.recv(1)
        consumer.socket.settimeout(wire.TIMEOUT_S)
        _fill(client, topic, 0, batches=1)
        assert len(_values(consumer.receive().responses[0].partitions[0])) == 5


@pytest.mark.parametrize("records", [0, 3])
def test_a_topic_deleted_while_someone_waits(broker, client, topic, records):
    for _ in range(records):
        client.produce(topic, batch_of(b"x"))
    with Wire(broker.bootstrap) as consumer:
        consumer.send(fetch_request(topic, records, max_wait_ms=60_000, min_bytes=1), 12)
        wait_until(lambda: _waiting(broker, topic))
        _run(broker, broker.running.broker.delete_topic(topic))
        (answers,) = consumer.receive().responses
        assert answers.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_consumer_that_leaves_while_it_waits_leaves_nothing(broker, topic):
    with Wire(broker.bootstrap) as consumer:
        consumer.send(fetch_request(topic, 0, max_wait_ms=60_000, min_bytes=1), 12)
        wait_until(lambda: _waiting(broker, topic))
    wait_until(lambda: not _waiting(broker, topic))


def test_only_what_is_durable_is_read(tmp_path):
    files, may_sync = FaultyFiles(), threading.Event()
    may_sync.set()
    files.before_sync = lambda path: may_sync.wait(60)
    broker = InProcessBroker(str(tmp_path), files=files)
    broker.start()
    with Wire(broker.bootstrap) as producer, Wire(broker.bootstrap) as consumer:
        producer.create_topic("events")
        producer.produce("events", batch_of(b"first"))
        may_sync.clear()
        producer.send(wire.produce_request("events", batch_of(b"second")), 9)
        partition = broker.running.store.partitions["events", 0]
        wait_until(lambda: partition.next_offset == 2)
        answer = consumer.fetch("events", 0)
        assert (_values(answer), answer.high_watermark) == ([b"first"], 1)
        may_sync.set()
        producer.receive()
        assert _values(consumer.fetch("events", 0)) == [b"first", b"second"]
    broker.stop()


# ── sessions (KIP-227) ────────────────────────────────────────────────────────────────────────


def test_a_session_reports_only_changes(client, topic):
    for partition in range(3):
        client.produce(topic, batch_of(b"old"), partition=partition)
    begun = client.ask(_of_partitions(topic, 0, 1, 2, session_epoch=0), 12)
    session = begun.session_id
    assert session > 0
    assert set(_by_partition(begun)) == {0, 1, 2}

    # The consumer moves on; of what it has read there is no news.
    moved = _of_partitions(topic, 0, 1, 2, offset=1, session_id=session, session_epoch=1)
    assert _by_partition(client.ask(moved, 12)) == {}
    # It need not repeat itself.
    client.produce(topic, batch_of(b"new"), partition=1)
    again = FetchRequest(session_id=session, session_epoch=2)
    answer = client.ask(again, 12)
    assert answer.session_id == session
    assert {k: _values(v) for k, v in _by_partition(answer).items()} == {1: [b"new"]}
    # What it forgets is no longer in the answer.
    client.produce(topic, batch_of(b"new"), partition=2)
    forgotten = [FetchRequestForgottenTopic(topic=topic, partitions=[1, 2])]
    request = FetchRequest(session_id=session, session_epoch=3, forgotten_topics_data=forgotten)
    assert _by_partition(client.ask(request, 12)) == {}
    client.produce(topic, batch_of(b"new"), partition=0)
    answer = client.ask(FetchRequest(session_id=session, session_epoch=4), 12)
    assert set(_by_partition(answer)) == {0}


def test_a_session_out_of_turn(client, topic):
    session = client.ask(_of_partitions(topic, 0, session_epoch=0), 12).session_id
    client.ask(FetchRequest(session_id=session, session_epoch=1), 12)
    for epoch in (1, 3, 99):
        answer = client.ask(FetchRequest(session_id=session, session_epoch=epoch), 12)
        assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert client.ask(FetchRequest(session_id=session, session_epoch=2), 12).error_code == 0
    unknown = client.ask(FetchRequest(session_id=123456, session_epoch=1), 12)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_is_closed(client, topic):
    session = client.ask(_of_partitions(topic, 0, session_epoch=0), 12).session_id
    closing = client.ask(_of_partitions(topic, 0, session_id=session, session_epoch=-1), 12)
    assert (closing.error_code, closing.session_id) == (0, 0)
    ended = client.ask(FetchRequest(session_id=session, session_epoch=1), 12)
    assert ended.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_by_id_is_not_one_by_name(client, topic):
    session = client.ask(_of_partitions(topic, 0, session_epoch=0), 12).session_id
    changed = client.ask(FetchRequest(session_id=session, session_epoch=1), 13)
    assert changed.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_topic_deleted_under_a_session(broker, client, topic):
    session = client.ask(_of_partitions(topic, 0, session_epoch=0), 12).session_id
    _run(broker, broker.running.broker.delete_topic(topic))
    for epoch in (1, 2):
        answer = client.ask(FetchRequest(session_id=session, session_epoch=epoch), 12)
        found = _by_partition(answer)
        assert found[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_busy_partition_starves_none(client, topic):
    size_bytes = _fill(client, topic, 0, 1, 2, batches=5)
    session, served = 0, []
    for epoch in range(3):
        request = FetchRequest(session_id=session, session_epoch=epoch, max_bytes=size_bytes)
        if epoch == 0:
            request.topics = _of_partitions(topic, 0, 1, 2).topics
        answer = client.ask(request, 12)
        session = answer.session_id
        served += [k for k, v in _by_partition(answer).items() if _values(v)]
    assert sorted(served) == [0, 1, 2]


def _run(broker: InProcessBroker, work):
    return asyncio.run_coroutine_threadsafe(work, broker._loop).result(wire.TIMEOUT_S)
