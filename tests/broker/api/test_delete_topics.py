from uuid import UUID

import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
)
from headwater.protocol.primitives import NIL_UUID


def delete(asked, *names, version=6):
    if version >= 6:
        topics = [DeleteTopicsRequestDeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(topics=topics)
    else:
        request = DeleteTopicsRequest(topic_names=list(names))
    return asked.ask(request, version).responses


def delete_states(asked, *states):
    topics = [
        DeleteTopicsRequestDeleteTopicState(name=name, topic_id=topic_id)
        for name, topic_id in states
    ]
    return asked.ask(DeleteTopicsRequest(topics=topics), 6).responses


@pytest.mark.parametrize("version", range(1, 7))
def test_by_name(asked, version):
    asked.topic("orders", 2)
    asked.append("orders", 3)
    topic_id = asked.broker.topic("orders").id

    deleted, unknown = delete(asked, "orders", "nothing", version=version)

    assert (deleted.name, deleted.error_code, deleted.error_message) == ("orders", 0, None)
    assert deleted.topic_id == (topic_id if version >= 6 else NIL_UUID)
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert asked.broker.topic("orders") is None
    assert not [key for key in asked.store.partitions if key[0] == "orders"]


def test_by_id(asked):
    asked.topic("orders")
    topic_id = asked.broker.topic("orders").id
    deleted, unknown = delete_states(asked, (None, topic_id), (None, UUID(int=7)))
    assert (deleted.name, deleted.topic_id, deleted.error_code) == ("orders", topic_id, 0)
    assert (unknown.name, unknown.error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert asked.broker.topic("orders") is None


def test_a_topic_named_twice_stays(asked):
    asked.topic("orders")
    topic_id = asked.broker.topic("orders").id
    for states in (
        [("orders", NIL_UUID), ("orders", NIL_UUID)],
        [(None, topic_id), (None, topic_id)],
        [("orders", NIL_UUID), (None, topic_id)],
        [("orders", topic_id)],
        [(None, NIL_UUID)],
    ):
        (result,) = delete_states(asked, *states)
        assert result.error_code == ErrorCode.INVALID_REQUEST, states
    assert asked.broker.topic("orders") is not None


def test_the_topic_of_the_groups_stays(asked):
    (result,) = delete(asked, "__consumer_offsets")
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert asked.broker.topic("__consumer_offsets") is not None


def test_a_new_topic_of_the_same_name_is_empty(asked):
    asked.topic("orders")
    asked.append("orders", 3)
    delete(asked, "orders")
    asked.topic("orders")
    asked.append("orders", 1)
    asked.reopen()
    assert asked.store.partitions["orders", 0].high_watermark == 1


def test_a_full_disk_leaves_the_topic(asked):
    asked.topic("orders")
    asked.files.is_full = True
    (result,) = delete(asked, "orders")
    asked.files.is_full = False
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    asked.append("orders", 1)


def test_of_two_who_delete_one_topic_one_succeeds(asked):
    asked.topic("orders")
    request = DeleteTopicsRequest(topic_names=["orders"])
    answers = asked.ask_at_once(request, request, version=5)
    codes = sorted(answer.responses[0].error_code for answer in answers)
    assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
