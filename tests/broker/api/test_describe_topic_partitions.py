import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestCursor,
    DescribeTopicPartitionsRequestTopicRequest,
)


def describe(asked, *names, limit=2000, cursor=None):
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequestTopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor
        and DescribeTopicPartitionsRequestCursor(topic_name=cursor[0], partition_index=cursor[1]),
    )
    return asked.ask(request, 0)


def described(response):
    return [
        (topic.name, [partition.partition_index for partition in topic.partitions])
        for topic in response.topics
    ]


def next_of(response):
    cursor = response.next_cursor
    return cursor and (cursor.topic_name, cursor.partition_index)


def test_a_topic(asked):
    asked.topic("orders", 2)
    response = describe(asked, "orders")
    (topic,) = response.topics
    assert (topic.name, topic.error_code) == ("orders", 0)
    assert topic.topic_id == asked.broker.topic("orders").id
    assert not topic.is_internal
    assert topic.topic_authorized_operations > 0
    partition = topic.partitions[1]
    assert (partition.partition_index, partition.leader_id) == (1, 1)
    assert partition.replica_nodes == partition.isr_nodes == [1]
    assert partition.leader_epoch == asked.store.leader_epoch
    assert partition.offline_replicas == partition.eligible_leader_replicas == []
    assert response.next_cursor is None


def test_sorted_by_name_and_each_once(asked):
    for name in ("b", "a", "c"):
        asked.topic(name)
    response = describe(asked, "c", "a", "a", "b")
    assert [name for name, _ in described(response)] == ["a", "b", "c"]
    every = [name for name, _ in described(describe(asked))]
    assert every == ["__consumer_offsets", "a", "b", "c"]
    assert describe(asked).topics[0].is_internal


def test_page_by_page(asked):
    asked.topic("a", 3)
    asked.topic("b", 2)
    asked.topic("c", 1)
    names = ["a", "b", "c"]
    first = describe(asked, *names, limit=2)
    assert (described(first), next_of(first)) == ([("a", [0, 1])], ("a", 2))
    second = describe(asked, *names, limit=3, cursor=next_of(first))
    assert (described(second), next_of(second)) == ([("a", [2]), ("b", [0, 1])], ("c", 0))
    third = describe(asked, *names, limit=3, cursor=next_of(second))
    assert (described(third), next_of(third)) == ([("c", [0])], None)


def test_pages_of_all_topics_hold_every_partition_once(asked):
    asked.topic("a", 7)
    asked.topic("b", 4)
    seen, cursor = [], None
    while True:
        response = describe(asked, limit=5, cursor=cursor)
        seen += [(name, index) for name, indexes in described(response) for index in indexes]
        cursor = next_of(response)
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 50 + 7 + 4


@pytest.mark.parametrize(("limit", "count"), [(0, 1), (-1, 1), (2**31 - 1, 2000)])
def test_the_limit_is_bounded(asked, limit, count):
    asked.topic("big", 2001)
    response = describe(asked, "big", limit=limit)
    assert len(response.topics[0].partitions) == count
    assert next_of(response) == ("big", count)


def test_topics_that_do_not_exist(asked):
    response = describe(asked, "nothing", "a b")
    codes = {topic.name: topic.error_code for topic in response.topics}
    assert codes == {
        "nothing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.parametrize("cursor", [("other", 0), ("a", -1)])
def test_a_cursor_that_cannot_be(asked, cursor):
    asked.topic("a")
    (topic,) = describe(asked, "a", cursor=cursor).topics
    assert topic.error_code == ErrorCode.INVALID_REQUEST


def test_a_cursor_on_a_topic_that_is_gone_goes_on_behind_it(asked):
    asked.topic("c")
    assert described(describe(asked, cursor=("b", 4))) == [("c", [0])]


def test_a_cursor_behind_the_last_partition(asked):
    asked.topic("a", 2)
    response = describe(asked, "a", cursor=("a", 2**31 - 1))
    assert (described(response), next_of(response)) == ([("a", [])], None)
