"""Fetch and ListOffsets as a consumer with isolation.level=read_committed sees them.

The transactions are put into the log as a coordinator and its producers would.
"""

import asyncio
import re

import pytest
from support import wire
from support.wire import Wire, batch_of, fetch_request, records_in, wait_until

from headwater.protocol import records
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.fetch import FetchRequest
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
)
from headwater.protocol.records import CONTROL, TRANSACTIONAL, read_header
from headwater.testing import InProcessBroker

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
COMMITTED = {"isolation_level": 1}


class Transactions:
    """Writes to partition 0 of a topic; everything is durable on return."""

    def __init__(self, broker: InProcessBroker, topic: str) -> None:
        self.broker, self.topic = broker, topic
        self.sequences: dict[int, int] = {}

    @property
    def partition(self):
        return self.broker.running.store.partitions[self.topic, 0]

    def write(self, pid: int, *values: bytes, timestamp_ms: int | None = None) -> int:
        sequence = self.sequences.get(pid, 0)
        self.sequences[pid] = sequence + len(values)
        view = memoryview(
            batch_of(
                *values,
                timestamp_ms=timestamp_ms,
                producer_id=pid,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=TRANSACTIONAL,
            )
        )
        return self._run(lambda done: self.partition.append(view, read_header(view), done))

    def plain(self, *values: bytes) -> int:
        view = memoryview(batch_of(*values))
        return self._run(lambda done: self.partition.append(view, read_header(view), done))

    def end(self, pid: int, *, commit: bool) -> int:
        return self._run(
            lambda done: self.partition.append_marker(
                pid, 0, commit=commit, coordinator_epoch=0, done=done
            )
        )

    def roll(self) -> None:
        self._run(self.partition.roll)

    def _run(self, begin):
        async def work():
            future = asyncio.get_running_loop().create_future()
            offset = begin(future.set_result)
            assert await future is None
            return offset

        return asyncio.run_coroutine_threadsafe(work(), self.broker._loop).result(wire.TIMEOUT_S)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("committed"))) as broker:
        yield broker


@pytest.fixture
def client(broker):
    with Wire(broker.bootstrap) as client:
        yield client


@pytest.fixture
def log(broker, client, request) -> Transactions:
    name = re.sub(r"[^a-z0-9-]+", "_", request.node.name)
    client.create_topic(name)
    return Transactions(broker, name)


def values_for_the_application(answer) -> list[bytes]:
    """What a client makes of an answer."""
    assert answer.error_code == 0
    aborted = sorted(answer.aborted_transactions, key=lambda transaction: transaction.first_offset)
    ignored, values, at = set(), [], 0
    data = bytes(answer.records or b"")
    while at < len(data):
        header = read_header(data, at)
        batch = data[at : at + header.size_bytes]
        at += header.size_bytes
        while aborted and aborted[0].first_offset <= header.last_offset:
            ignored.add(aborted.pop(0).producer_id)
        if header.attributes & CONTROL:
            if not records.read_marker(batch).commit:
                ignored.discard(header.producer_id)
        elif not (header.attributes & TRANSACTIONAL and header.producer_id in ignored):
            values += [record.value for record in records.records_of(batch)]
    return values


@pytest.mark.parametrize("version", range(4, 13))
def test_only_what_is_committed(client, log, version):
    log.plain(b"plain")
    log.write(1, b"yes")
    log.write(2, b"no")
    log.end(1, commit=True)
    log.end(2, commit=False)
    log.write(3, b"open")
    log.plain(b"behind")
    answer = client.fetch(log.topic, 0, version=version, **COMMITTED)
    assert values_for_the_application(answer) == [b"plain", b"yes"]
    assert (answer.high_watermark, answer.last_stable_offset) == (7, 5)
    assert [(a.producer_id, a.first_offset) for a in answer.aborted_transactions] == [(2, 2)]

    answer = client.fetch(log.topic, 0, version=version)
    assert answer.aborted_transactions is None
    assert len(records_in(answer.records)) == 7
    assert (answer.high_watermark, answer.last_stable_offset) == (7, 5)

    log.end(3, commit=True)
    answer = client.fetch(log.topic, 5, version=version, **COMMITTED)
    assert values_for_the_application(answer) == [b"open", b"behind"]
    assert answer.aborted_transactions == []


def test_in_pieces_over_segments(client, log):
    expected = []
    for number in range(30):
        pid, commit = number % 4, number % 3 != 0
        log.write(pid, b"%d" % number + bytes(200))
        if number % 7 == 0:
            log.roll()
        if commit:
            expected.append(b"%d" % number + bytes(200))
        log.end(pid, commit=commit)
    found, offset = [], 0
    while offset < log.partition.high_watermark:
        answer = client.fetch(log.topic, offset, partition_max_bytes=700, **COMMITTED)
        found += values_for_the_application(answer)
        offset = records_in(answer.records)[-1].offset + 1
    assert found == expected


def test_from_the_middle_of_an_aborted_transaction(client, log):
    for _ in range(3):
        log.write(1, b"no")
    log.end(1, commit=False)
    log.plain(b"yes")
    for offset in range(4):
        answer = client.fetch(log.topic, offset, **COMMITTED)
        assert values_for_the_application(answer) == [b"yes"]


def test_nothing_behind_the_stable_part(client, log):
    log.plain(b"x")
    log.write(1, b"open")
    log.plain(b"behind")
    for offset in (1, 2, 3):
        answer = client.fetch(log.topic, offset, **COMMITTED)
        assert (answer.error_code, records_in(answer.records)) == (0, [])
    answer = client.fetch(log.topic, 4, **COMMITTED)
    assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_the_end_of_a_transaction_wakes_who_waits_and_nothing_else_does(broker, client, log):
    log.write(1, b"first")
    with Wire(broker.bootstrap) as consumer:
        wanted = {"max_wait_ms": 60_000, "min_bytes": 1, **COMMITTED}
        consumer.send(fetch_request(log.topic, 0, **wanted), 12)
        wait_until(lambda: log.partition.stable_waiters)
        log.write(1, b"second")
        log.plain(b"plain")
        assert len(log.partition.stable_waiters) == 1  # it waits on
        log.end(1, commit=True)
        answer = consumer.receive().responses[0].partitions[0]
        assert values_for_the_application(answer) == [b"first", b"second", b"plain"]
    wait_until(lambda: not log.partition.stable_waiters)


def test_min_bytes_counts_what_is_stable(broker, client, log):
    batch = batch_of(bytes(100))
    with Wire(broker.bootstrap) as consumer:
        wanted = {"max_wait_ms": 60_000, "min_bytes": len(batch) + 1, **COMMITTED}
        consumer.send(fetch_request(log.topic, 0, **wanted), 12)
        wait_until(lambda: log.partition.stable_waiters)
        log.plain(bytes(100))
        assert len(log.partition.stable_waiters) == 1
        log.plain(bytes(100))
        answer = consumer.receive().responses[0].partitions[0]
        assert len(values_for_the_application(answer)) == 2


def test_a_session_hears_of_the_end(client, log):
    log.write(1, b"x")
    begun = client.ask(fetch_request(log.topic, 0, session_epoch=0, **COMMITTED), 12)
    assert begun.responses[0].partitions[0].last_stable_offset == 0
    session = {"session_id": begun.session_id, **COMMITTED}
    assert client.ask(FetchRequest(session_epoch=1, **session), 12).responses == []
    log.end(1, commit=True)
    answer = client.ask(FetchRequest(session_epoch=2, **session), 12).responses[0].partitions[0]
    assert answer.last_stable_offset == 2
    assert values_for_the_application(answer) == [b"x"]


def test_a_damaged_index_is_an_error(client, log):
    log.write(1, b"x")
    log.end(1, commit=False)
    with open(log.partition.segments[0].txn_index_path, "r+b") as file:
        file.write(b"\xff\xff")
    answer = client.fetch(log.topic, 0, **COMMITTED)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert len(records_in(client.fetch(log.topic, 0).records)) == 2


@pytest.mark.parametrize("version", range(2, 12))
def test_list_offsets(client, log, version):
    log.write(1, b"stable", timestamp_ms=1000)
    log.end(1, commit=True)
    log.write(1, b"open", timestamp_ms=2**40 * 8)  # later than the marker

    def ask(timestamp: int, isolation_level: int) -> int:
        wanted = ListOffsetsRequestListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topics = [ListOffsetsRequestListOffsetsTopic(name=log.topic, partitions=[wanted])]
        request = ListOffsetsRequest(topics=topics, isolation_level=isolation_level)
        answer = client.ask(request, version).topics[0].partitions[0]
        assert answer.error_code == 0
        return answer.offset

    assert [ask(LATEST, level) for level in (0, 1)] == [3, 2]
    assert [ask(EARLIEST, level) for level in (0, 1)] == [0, 0]
    assert [ask(500, level) for level in (0, 1)] == [0, 0]
    assert [ask(2**40 * 8, level) for level in (0, 1)] == [2, -1]
    if version >= 7:
        assert [ask(MAX_TIMESTAMP, level) for level in (0, 1)] == [2, -1]
    log.end(1, commit=False)
    assert [ask(LATEST, level) for level in (0, 1)] == [4, 4]
