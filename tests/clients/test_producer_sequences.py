"""Sequences, epochs and transactions on the wire, answered as Kafka answers them.

Against Apache Kafka itself: HEADWATER_TEST_BOOTSTRAP=kafka.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from support.clients.broker_under_test import Broker
from support.wire import Wire, batch_of, produce_request

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
)
from headwater.protocol.messages.end_txn import EndTxnRequest
from headwater.protocol.messages.find_coordinator import FindCoordinatorRequest
from headwater.protocol.messages.init_producer_id import InitProducerIdRequest
from headwater.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headwater.protocol.records import TRANSACTIONAL

GAP = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
TOPIC = "producer-sequences"


def asked_until_answered(ask: Callable[[], object], deadline_s: float = 60) -> object:
    """Real Kafka needs a while until its coordinators are there."""
    ends_s = time.monotonic() + deadline_s
    while True:
        answer = ask()
        if not answer.error_code:  # type: ignore[attr-defined]
            return answer
        assert time.monotonic() < ends_s, answer
        time.sleep(0.2)


class Session:
    def __init__(self, address: str, topic: str) -> None:
        self.wire, self.topic = Wire(address), topic
        asked_until_answered(self._topic)

    def _topic(self) -> object:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=self.topic)])
        return self.wire.ask(request, 12).topics[0]

    def producer(self, transactional_id: str | None = None) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
        )
        answer = asked_until_answered(lambda: self.wire.ask(request, 4))
        return answer.producer_id, answer.producer_epoch  # type: ignore[attr-defined]

    def send(
        self, pid: int, epoch: int, sequence: int, count: int = 1, transaction: str | None = None
    ) -> int | ErrorCode:
        """The offset, counted from the beginning of the test's topic, or the error."""
        batch = batch_of(
            *[b"x"] * count,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if transaction else 0,
        )
        request = produce_request(self.topic, batch)
        request.transactional_id = transaction
        answer = self.wire.ask(request, 12).responses[0].partition_responses[0]
        return ErrorCode(answer.error_code) if answer.error_code else answer.base_offset

    def described(self, pid: int) -> tuple[int, int, int, int]:
        wanted = DescribeProducersRequestTopicRequest(name=self.topic, partition_indexes=[0])
        answer = self.wire.ask(DescribeProducersRequest(topics=[wanted]), 0)
        (found,) = [
            active_producer
            for active_producer in answer.topics[0].partitions[0].active_producers
            if active_producer.producer_id == pid
        ]
        return (
            found.producer_epoch,
            found.last_sequence,
            found.coordinator_epoch,
            found.current_txn_start_offset,
        )


@pytest.fixture
def session(broker: Broker, request: pytest.FixtureRequest) -> Iterator[Session]:
    opened = Session(broker.address, f"{TOPIC}-{request.node.name}")
    yield opened
    opened.wire.close()


def test_sequences(session: Session) -> None:
    pid, _ = session.producer()
    assert session.send(pid, 0, 5) == 0  # unknown: it may begin anywhere
    assert [session.send(pid, 0, sequence) for sequence in range(6, 13)] == list(range(1, 8))
    assert session.send(pid, 0, 12) == 7  # the last five are remembered again
    assert session.send(pid, 0, 8) == 3
    assert session.send(pid, 0, 7) == GAP  # one more is not
    assert session.send(pid, 0, 15) == GAP
    assert session.send(pid, 0, 11, 4) == GAP  # in part a repetition


def test_epochs(session: Session) -> None:
    pid, _ = session.producer()
    assert session.send(pid, 0, 0) == 0
    assert session.send(pid, 1, 3) == GAP
    assert session.send(pid, 1, 0) == 1
    assert session.send(pid, 0, 1) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_sequences_wrap(session: Session) -> None:
    pid, _ = session.producer()
    assert session.send(pid, 0, 2**31 - 2, 4) == 0
    assert session.send(pid, 0, 2) == 4
    assert session.send(pid, 0, 2**31 - 2, 4) == 0


def test_a_transaction(session: Session) -> None:
    tx = session.topic
    find = FindCoordinatorRequest(key_type=1, coordinator_keys=[tx])
    asked_until_answered(lambda: session.wire.ask(find, 4).coordinators[0])
    pid, epoch = session.producer(tx)
    assert epoch == 0
    assert session.send(pid, 0, 0, 2, tx) == 0
    assert session.send(pid, 0, 2) == ErrorCode.INVALID_TXN_STATE  # plain, in between
    assert session.send(pid, 0, 2, 1, tx) == 2
    assert session.described(pid) == (0, 2, -1, 0)
    fetched = session.wire.fetch(session.topic, 0, isolation_level=1)
    assert (fetched.high_watermark, fetched.last_stable_offset) == (3, 0)
    assert fetched.aborted_transactions == []
    uncommitted = session.wire.fetch(session.topic, 0)
    assert (uncommitted.last_stable_offset, uncommitted.aborted_transactions) == (0, None)

    end = EndTxnRequest(transactional_id=tx, producer_id=pid, producer_epoch=0, committed=False)
    ended = session.wire.ask(end, 5)
    assert (ended.error_code, ended.producer_epoch) == (0, 1)  # KIP-890

    ends_s = time.monotonic() + 20
    while session.wire.fetch(session.topic, 0, isolation_level=1).last_stable_offset != 4:
        assert time.monotonic() < ends_s
    fetched = session.wire.fetch(session.topic, 0, isolation_level=1)
    assert [(a.producer_id, a.first_offset) for a in fetched.aborted_transactions] == [(pid, 0)]
    assert session.described(pid) == (1, -1, 0, -1)
    assert session.send(pid, 0, 3, 1, tx) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert session.send(pid, 1, 4, 1, tx) == GAP
    assert session.send(pid, 1, 0, 1, tx) == 4
    assert session.send(pid, 1, 0, 1, tx) == 4
