"""OffsetForLeaderEpoch: where the log of an epoch ended; an epoch begins with each crash."""

import pytest
from support.wire import Wire, batch_of

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochRequestOffsetForLeaderTopic,
)
from headwater.testing import InProcessBroker


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """With 2 records of epoch 0, none of epoch 1, 3 of epoch 2."""
    broker = InProcessBroker(str(tmp_path_factory.mktemp("epochs")))
    broker.start()
    with Wire(broker.bootstrap) as client:
        client.create_topic("events")
        client.produce("events", batch_of(b"0", b"1"))
    broker.restart(crash=True)
    broker.restart(crash=True)
    with Wire(broker.bootstrap) as client:
        client.produce("events", batch_of(b"2", b"3", b"4"))
        yield client
    broker.stop()


def _end_of(client: Wire, epoch: int, version: int = 4, *, topic="events", current=-1):
    wanted = OffsetForLeaderEpochRequestOffsetForLeaderPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    topics = [OffsetForLeaderEpochRequestOffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    return client.ask(OffsetForLeaderEpochRequest(topics=topics), version).topics[0].partitions[0]


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(("epoch", "found"), [(0, (0, 2)), (1, (0, 2)), (2, (2, 5))])
def test_the_end_of_an_epoch(client, version, epoch, found):
    answer = _end_of(client, epoch, version)
    assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, *found)


def test_the_callers_own_epoch(client):
    assert _end_of(client, 0, current=2).error_code == 0
    assert _end_of(client, 0, current=1).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert _end_of(client, 0, current=3).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


def test_what_is_not_there(client):
    answer = _end_of(client, 0, topic="no-such-topic")
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (answer.leader_epoch, answer.end_offset) == (-1, -1)
