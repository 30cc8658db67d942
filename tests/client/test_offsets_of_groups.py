from uuid import uuid4

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from support.client.written import ANONYMOUS, WAIT_S, new_topic
from tiers import representative

from headwater.client.group_offsets import GroupOffsets
from headwater.errors import RequestRefused


def new_group() -> str:
    return f"group-{uuid4().hex[:8]}"


def as_tools_see(address: str, group: str) -> dict[tuple[str, int], int]:
    admin = AdminClient({"bootstrap.servers": address})
    (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {
        (partition.topic, partition.partition): partition.offset
        for partition in asked.result().topic_partitions
    }


@representative
def test_what_is_committed_is_seen_by_us_and_by_others(address: str) -> None:
    one, two, group = new_topic(address, 2), new_topic(address), new_group()
    places = [(one, 0), (one, 1), (two, 0)]
    with GroupOffsets(address, ANONYMOUS, group) as offsets:
        assert offsets.committed(places) == {}
        offsets.commit({})
        offsets.commit({(one, 0): 5, (two, 0): 7})
        offsets.commit({(one, 0): 6})
        assert offsets.committed(places) == {(one, 0): 6, (two, 0): 7}
        assert as_tools_see(address, group) == {(one, 0): 6, (two, 0): 7}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_left_alone(address: str, protocol: str) -> None:
    topic, group = new_topic(address), new_group()
    member = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
        }
    )
    joined = []
    member.subscribe([topic], on_assign=lambda _, places: joined.append(places))
    try:
        for _ in range(WAIT_S):
            member.poll(1)
            if joined:
                break
        assert joined
        with (
            GroupOffsets(address, ANONYMOUS, group) as offsets,
            pytest.raises(RequestRefused, match="has members of its own"),
        ):
            offsets.commit({(topic, 0): 1})
    finally:
        member.close()


def test_a_topic_that_does_not_exist(address: str) -> None:
    with (
        GroupOffsets(address, ANONYMOUS, new_group()) as offsets,
        pytest.raises(RequestRefused, match="no topic nowhere"),
    ):
        offsets.commit({("nowhere", 0): 1})


def test_a_reader_goes_on_where_the_group_stands(address: str) -> None:
    topic, group = new_topic(address), new_group()
    with GroupOffsets(address, ANONYMOUS, group) as offsets:
        offsets.commit({(topic, 0): 3})
    reader = Consumer({"bootstrap.servers": address, "group.id": group})
    try:
        (found,) = reader.committed([TopicPartition(topic, 0)], timeout=WAIT_S)
        assert found.offset == 3
    finally:
        reader.close()
