"""Share groups as their members and administrators see them; queue state is a stand-in."""

import asyncio

import pytest
from support.broker.group_clients import (
    Consumer,
    Kip848Consumer,
    ShareConsumer,
    converge,
    share,
    stabilise,
)
from support.broker.group_harness import GroupCluster, settle

from headwater.broker.groups import GroupSettings
from headwater.errors import StorageFailed
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from headwater.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headwater.protocol.messages.delete_groups import DeleteGroupsRequest
from headwater.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from headwater.protocol.messages.describe_groups import DescribeGroupsRequest
from headwater.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from headwater.protocol.messages.find_coordinator import FindCoordinatorRequest
from headwater.protocol.messages.list_groups import ListGroupsRequest
from headwater.protocol.messages.share_group_describe import ShareGroupDescribeRequest


async def describe(cluster, group="s"):
    request = ShareGroupDescribeRequest(group_ids=[group], include_authorized_operations=True)
    (described,) = (await cluster.call(request)).groups
    return described


async def offsets(cluster, *topics, group="s", version=1):
    """{(topic, partition): (start offset, error)}; without topics: all that the group has."""
    asked = [
        DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=list(partitions))
        for name, partitions in topics
    ]
    (described,) = (
        await cluster.call(
            DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=asked or None)]
            ),
            version,
        )
    ).groups
    if described.error_code:
        return ErrorCode(described.error_code)
    return {
        (topic.topic_name, partition.partition_index): (
            partition.start_offset,
            ErrorCode(partition.error_code),
        )
        for topic in described.topics
        for partition in topic.partitions
    }


async def alter(cluster, topic, partition, offset, group="s"):
    """The error of the whole, or of the partition."""
    response = await cluster.call(
        AlterShareGroupOffsetsRequest(
            group_id=group,
            topics=[
                AlterShareGroupOffsetsRequestTopic(
                    topic_name=topic,
                    partitions=[
                        AlterShareGroupOffsetsRequestPartition(
                            partition_index=partition, start_offset=offset
                        )
                    ],
                )
            ],
        )
    )
    if response.error_code:
        return ErrorCode(response.error_code)
    return ErrorCode(response.responses[0].partitions[0].error_code)


async def delete_offsets(cluster, topic, group="s"):
    response = await cluster.call(
        DeleteShareGroupOffsetsRequest(
            group_id=group, topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
        )
    )
    if response.error_code:
        return ErrorCode(response.error_code)
    return ErrorCode(response.responses[0].error_code)


async def delete_group(cluster, group="s"):
    response = await cluster.call(DeleteGroupsRequest(groups_names=[group]))
    return ErrorCode(response.results[0].error_code)


async def types(cluster, **filters):
    response = await cluster.call(ListGroupsRequest(**filters))
    return {group.group_id: (group.group_type, group.group_state) for group in response.groups}


# Membership


async def test_a_lone_member_reads_everything():
    cluster = await GroupCluster.start(t=3)
    member = ShareConsumer(cluster)
    response = await member.heartbeat()
    assert (response.member_id, response.member_epoch) == (member.member_id, 1)
    assert response.heartbeat_interval_ms == 5_000
    assert member.partitions == [0, 1, 2]
    again = await member.heartbeat()
    assert (again.member_epoch, again.assignment) == (1, None)


async def test_partitions_are_shared_out_evenly_and_stay_where_they_are():
    cluster = await GroupCluster.start(t=4)
    first, second = ShareConsumer(cluster), ShareConsumer(cluster)
    await share(first, second)
    assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
    assert len(first.partitions) == 2
    had = first.partitions
    third, fourth = ShareConsumer(cluster), ShareConsumer(cluster)
    await share(first, second, third, fourth)
    assert set(first.partitions) < set(had)
    everything = [p for member in (first, second, third, fourth) for p in member.partitions]
    assert sorted(everything) == [0, 1, 2, 3]


async def test_more_members_than_partitions_share_them():
    cluster = await GroupCluster.start(t=2)
    members = [ShareConsumer(cluster) for _ in range(5)]
    await share(*members)
    assert all(len(member.partitions) == 1 for member in members)
    readers = sorted(sum(member.partitions == [p] for member in members) for p in (0, 1))
    assert readers == [2, 3]


async def test_who_reads_different_topics_shares_only_what_both_read():
    cluster = await GroupCluster.start(t=2, u=1)
    both, one = ShareConsumer(cluster, topics=("t", "u")), ShareConsumer(cluster)
    await share(both, one)
    t, u = cluster.topics.topic_id("t"), cluster.topics.topic_id("u")
    assert (u, 0) in both.assigned
    assert {partition for partition in both.assigned | one.assigned if partition[0] == t} == {
        (t, 0),
        (t, 1),
    }
    assert len(one.assigned) == 1


async def test_a_member_leaves_and_its_part_goes_to_the_others():
    cluster = await GroupCluster.start(t=2)
    stays, goes = ShareConsumer(cluster), ShareConsumer(cluster)
    await share(stays, goes)
    response = await goes.leave()
    assert (response.error_code, response.member_epoch) == (0, -1)
    assert cluster.queues.left == [("s", goes.member_id)]
    await stays.heartbeat()
    assert stays.partitions == [0, 1]
    assert (await goes.leave()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_silent_member_is_fenced_after_the_groups_own_session():
    cluster = await GroupCluster.start(t=2)
    await cluster.configs.set(
        "s", {"share.session.timeout.ms": "2000", "share.heartbeat.interval.ms": "500"}
    )
    alive, silent = ShareConsumer(cluster), ShareConsumer(cluster)
    await share(alive, silent)
    for _ in range(3):
        await cluster.advance(0.8)
        assert (await alive.heartbeat()).heartbeat_interval_ms == 500
    assert alive.partitions == [0, 1]
    assert cluster.queues.left == [("s", silent.member_id)]
    assert (await silent.heartbeat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_lost_answer_is_sent_again_and_any_other_epoch_is_fenced():
    cluster = await GroupCluster.start(t=2)
    first = ShareConsumer(cluster)
    await first.heartbeat()
    second = ShareConsumer(cluster)
    await second.heartbeat()
    await first.heartbeat()
    assert first.epoch == 2
    lost = await first.heartbeat(member_epoch=1)  # as if the answer had not come
    assert (lost.error_code, lost.member_epoch) == (0, 2)
    assert lost.assignment is not None
    for epoch in (3, 99):
        fenced = await first.heartbeat(member_epoch=epoch)
        assert fenced.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    rejoined = await first.heartbeat(member_epoch=0, subscribed_topic_names=["t"])
    assert rejoined.error_code == 0
    assert rejoined.assignment is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"group_id": ""},
        {"member_id": ""},
        {"rack_id": ""},
        {"member_epoch": -2},
        {"subscribed_topic_names": None},
        {"subscribed_topic_names": []},
    ],
)
async def test_nonsense_is_refused(changes):
    cluster = await GroupCluster.start()
    response = await ShareConsumer(cluster).heartbeat(**changes)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert await types(cluster) == {}


async def test_a_group_that_there_is_not_can_only_be_joined():
    cluster = await GroupCluster.start()
    for epoch in (-1, 1):
        response = await ShareConsumer(cluster).heartbeat(member_epoch=epoch)
        assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_full_group_refuses_new_members():
    cluster = await GroupCluster.start(GroupSettings(share_max_size=1))
    member = ShareConsumer(cluster)
    await share(member)
    assert (await ShareConsumer(cluster).heartbeat()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await member.heartbeat()).error_code == 0


async def test_several_found_a_group_at_once():
    cluster = await GroupCluster.start(t=3)
    members = [ShareConsumer(cluster) for _ in range(3)]
    await asyncio.gather(*(member.heartbeat() for member in members))
    await share(*members)
    assert sorted(p for member in members for p in member.partitions) == [0, 1, 2]


async def test_a_new_subscription():
    cluster = await GroupCluster.start(t=1, u=1)
    member = ShareConsumer(cluster)
    await member.heartbeat()
    response = await member.heartbeat(subscribed_topic_names=["u"])
    assert response.member_epoch == 2
    assert member.assigned == {(cluster.topics.topic_id("u"), 0)}


# Topics and queue state


async def test_queue_state_comes_before_the_assignment():
    cluster = await GroupCluster.start(t=2)
    cluster.queues.refuses = StorageFailed("full")
    member = ShareConsumer(cluster)
    assert (await member.heartbeat()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await types(cluster) == {}
    cluster.queues.refuses = None
    await member.heartbeat()
    assert member.partitions == [0, 1]
    assert await offsets(cluster) == {("t", p): (-1, ErrorCode.NONE) for p in (0, 1)}


async def test_new_partitions_of_a_subscribed_topic_are_read_from_their_beginning():
    cluster = await GroupCluster.start(t=1)
    member = ShareConsumer(cluster)
    await member.heartbeat()
    cluster.topics.grow("t", 2)
    cluster.groups.topics_changed("t")
    await member.heartbeat()
    assert member.partitions == [0, 1]
    assert await offsets(cluster) == {
        ("t", 0): (-1, ErrorCode.NONE),
        ("t", 1): (0, ErrorCode.NONE),
    }


async def test_a_topic_that_comes_later():
    cluster = await GroupCluster.start(t=1)
    member = ShareConsumer(cluster, topics=("later",))
    assert (await member.heartbeat()).assignment.topic_partitions == []
    cluster.topics.create("later", 1)
    cluster.groups.topics_changed("later")
    await member.heartbeat()
    assert member.partitions == [0]


async def test_a_deleted_topic_takes_its_queue_state_along():
    cluster = await GroupCluster.start(t=1, u=1)
    member = ShareConsumer(cluster, topics=("t", "u"))
    await member.heartbeat()
    cluster.topics.delete("t")
    cluster.groups.topics_changed("t")
    await settle()
    u = cluster.topics.topic_id("u")
    assert set(cluster.queues.offsets) == {("s", u, 0)}
    await member.heartbeat()
    assert member.assigned == {(u, 0)}
    assert await offsets(cluster) == {("u", 0): (-1, ErrorCode.NONE)}


async def test_a_topic_that_was_deleted_while_the_broker_was_down():
    cluster = await GroupCluster.start(t=1)
    await share(ShareConsumer(cluster))
    cluster.topics.delete("t")
    await cluster.crash_and_restart()
    await settle()
    assert cluster.queues.offsets == {}


# Restart


async def test_a_restart_brings_everything_back():
    cluster = await GroupCluster.start(t=3)
    first, second = ShareConsumer(cluster, rack_id="r1"), ShareConsumer(cluster)
    await share(first, second)
    before = await describe(cluster)
    await cluster.crash_and_restart()
    assert await describe(cluster) == before
    assert await offsets(cluster) == {("t", p): (-1, ErrorCode.NONE) for p in range(3)}
    for client in (first, second):
        response = await client.heartbeat()
        assert (response.error_code, response.assignment) == (0, None)
    await cluster.advance(46)
    assert (await describe(cluster)).members == []


async def test_a_failing_log_changes_nothing():
    cluster = await GroupCluster.start(t=1)
    cluster.log.fail_next = 1
    member = ShareConsumer(cluster)
    assert (await member.heartbeat()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await types(cluster) == {}
    assert (await member.heartbeat()).error_code == 0


# Administration


async def test_described():
    cluster = await GroupCluster.start(t=1)
    member = ShareConsumer(cluster, rack_id="r1")
    await member.heartbeat()
    group = await describe(cluster)
    assert (group.group_state, group.assignor_name) == ("Stable", "simple")
    assert (group.group_epoch, group.assignment_epoch) == (1, 1)
    assert group.authorized_operations > 0
    (described,) = group.members
    assert (described.member_id, described.rack_id, described.member_epoch) == (
        member.member_id,
        "r1",
        1,
    )
    assert (described.client_id, described.client_host) == ("client", "/10.0.0.1")
    assert described.subscribed_topic_names == ["t"]
    (topic,) = described.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == ("t", [0])
    await member.leave()
    assert (await describe(cluster)).group_state == "Empty"
    assert (await describe(cluster, "nobody")).error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_listed_by_type_and_state():
    cluster = await GroupCluster.start(t=1)
    await share(ShareConsumer(cluster))
    left = ShareConsumer(cluster, group="gone")
    await share(left)
    await left.leave()
    await converge(Kip848Consumer(cluster))
    assert await types(cluster) == {
        "s": ("share", "Stable"),
        "gone": ("share", "Empty"),
        "g": ("consumer", "Stable"),
    }
    assert set(await types(cluster, types_filter=["Share"])) == {"s", "gone"}
    both = await types(cluster, types_filter=["share"], states_filter=["Empty"])
    assert set(both) == {"gone"}


async def test_other_protocols_do_not_touch_a_share_group():
    cluster = await GroupCluster.start(t=1)
    member = ShareConsumer(cluster)
    await member.heartbeat()
    await member.leave()  # not even when it is empty
    joined = await Consumer(cluster, group="s").join()
    assert joined.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    modern = await Kip848Consumer(cluster, group="s").heartbeat()
    assert modern.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    committed = await cluster.commit("s", {("t", 0): 1})
    assert committed == {("t", 0): ErrorCode.GROUP_ID_NOT_FOUND}
    (classic,) = (await cluster.call(DescribeGroupsRequest(groups=["s"]))).groups
    assert (classic.group_state, classic.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    (other,) = (await cluster.call(ConsumerGroupDescribeRequest(group_ids=["s"]))).groups
    assert other.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert await types(cluster) == {"s": ("share", "Empty")}


async def test_groups_of_other_types_cannot_be_shared():
    cluster = await GroupCluster.start(t=1)
    await stabilise(Consumer(cluster, group="classic"))
    await converge(Kip848Consumer(cluster, group="modern"))
    await cluster.commit("simple", {("t", 0): 1})
    for group in ("classic", "modern", "simple"):
        response = await ShareConsumer(cluster, group=group).heartbeat()
        assert response.error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert (await describe(cluster, group)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert await alter(cluster, "t", 0, 1, group=group) is ErrorCode.GROUP_ID_NOT_FOUND
        assert await delete_offsets(cluster, "t", group=group) is ErrorCode.GROUP_ID_NOT_FOUND
        assert await offsets(cluster, group=group) == {}


async def test_only_one_protocol_founds_a_group():
    cluster = await GroupCluster.start(t=1)
    cluster.log.is_held = True
    shared = asyncio.ensure_future(ShareConsumer(cluster, group="x").heartbeat())
    await settle()
    modern = await Kip848Consumer(cluster, group="x").heartbeat()
    assert modern.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    cluster.log.release()
    assert (await shared).error_code == 0
    cluster.log.is_held = True
    modern = asyncio.ensure_future(Kip848Consumer(cluster, group="y").heartbeat())
    await settle()
    shared = await ShareConsumer(cluster, group="y").heartbeat()
    assert shared.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    cluster.log.release()
    assert (await modern).error_code == 0


@pytest.mark.parametrize(
    "failure", [StorageFailed("full"), ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)]
)
async def test_only_an_empty_group_is_deleted_and_its_queue_state_with_it(failure):
    cluster = await GroupCluster.start(t=1)
    member = ShareConsumer(cluster)
    await member.heartbeat()
    assert await delete_group(cluster) is ErrorCode.NON_EMPTY_GROUP
    await member.leave()
    cluster.queues.refuses = failure
    assert await delete_group(cluster) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    cluster.queues.refuses = None
    assert await types(cluster) == {"s": ("share", "Empty")}
    assert await delete_group(cluster) is ErrorCode.NONE
    assert cluster.queues.offsets == {}
    assert await delete_group(cluster) is ErrorCode.GROUP_ID_NOT_FOUND
    await cluster.crash_and_restart()
    assert await types(cluster) == {}


async def test_offsets_of_an_empty_group_are_altered():
    cluster = await GroupCluster.start(t=2, u=1)
    member = ShareConsumer(cluster)
    await member.heartbeat()
    assert await alter(cluster, "t", 0, 7) is ErrorCode.NON_EMPTY_GROUP
    await member.leave()
    assert await alter(cluster, "t", 0, 7) is ErrorCode.NONE
    assert await alter(cluster, "u", 0, 3) is ErrorCode.NONE  # never read so far
    assert await alter(cluster, "t", 2, 7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(cluster, "none", 0, 7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(cluster, "t", 0, -7) is ErrorCode.INVALID_REQUEST
    expected = {("t", 0): 7, ("t", 1): -1, ("u", 0): 3}
    for _ in range(2):
        described = await offsets(cluster)
        assert {key: start for key, (start, _) in described.items()} == expected
        await cluster.crash_and_restart()


async def test_offsets_can_be_set_before_the_first_member_comes():
    cluster = await GroupCluster.start(t=2)
    assert await alter(cluster, "none", 0, 1) is ErrorCode.GROUP_ID_NOT_FOUND
    cluster.log.fail_next = 1
    assert await alter(cluster, "t", 1, 3) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await types(cluster) == {}
    assert await alter(cluster, "t", 1, 3) is ErrorCode.NONE
    await cluster.crash_and_restart()
    assert await types(cluster) == {"s": ("share", "Empty")}
    member = ShareConsumer(cluster)
    await member.heartbeat()
    assert member.partitions == [0, 1]
    assert await offsets(cluster) == {
        ("t", 0): (-1, ErrorCode.NONE),
        ("t", 1): (3, ErrorCode.NONE),
    }


async def test_offsets_are_described():
    cluster = await GroupCluster.start(t=1)
    await share(ShareConsumer(cluster))
    for version in (0, 1):
        described = await offsets(cluster, ("t", [0, 5]), ("none", [0]), version=version)
        assert described == {
            ("t", 0): (-1, ErrorCode.NONE),
            ("t", 5): (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("none", 0): (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        }
    assert await offsets(cluster, group="none") == {}
    described = await offsets(cluster, ("t", [0]), group="none")
    assert described == {("t", 0): (-1, ErrorCode.NONE)}


async def test_offsets_of_a_topic_are_deleted():
    cluster = await GroupCluster.start(t=1, u=1)
    member = ShareConsumer(cluster, topics=("t", "u"))
    await member.heartbeat()
    assert await delete_offsets(cluster, "t") is ErrorCode.NON_EMPTY_GROUP
    await member.leave()
    assert await delete_offsets(cluster, "t") is ErrorCode.NONE
    assert await delete_offsets(cluster, "t") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await offsets(cluster) == {("u", 0): (-1, ErrorCode.NONE)}
    await cluster.crash_and_restart()
    assert await offsets(cluster) == {("u", 0): (-1, ErrorCode.NONE)}
    await member.heartbeat()
    assert set(await offsets(cluster)) == {("t", 0), ("u", 0)}


async def test_an_abandoned_group_expires_with_all_it_has():
    cluster = await GroupCluster.start(t=1)
    await cluster.configs.set("short", {"headwater.share.expire.ms": "3600000"})
    members = [ShareConsumer(cluster, group=group) for group in ("s", "short")]
    await share(*members)
    for member in members:
        await member.leave()
    await cluster.advance(1_800)
    await cluster.crash_and_restart()  # does not begin to count again
    await cluster.advance(1_801)
    assert set(await types(cluster)) == {"s"}
    assert {key[0] for key in cluster.queues.offsets} == {"s"}
    await cluster.advance(7 * 24 * 3600)
    assert await types(cluster) == {}


async def test_a_group_with_members_does_not_expire():
    cluster = await GroupCluster.start(t=1)
    await cluster.configs.set("s", {"headwater.share.expire.ms": "1000"})
    member = ShareConsumer(cluster)
    await member.heartbeat()
    for _ in range(40):
        await cluster.advance(30)
        assert (await member.heartbeat()).error_code == 0


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ("s:AAAAAAAAAAAAAAAAAAAAAA:0", ErrorCode.NONE),
        ("a:b:AAAAAAAAAAAAAAAAAAAAAA:12", ErrorCode.NONE),
        ("s", ErrorCode.INVALID_REQUEST),
        ("s:AAAAAAAAAAAAAAAAAAAAAA:x", ErrorCode.INVALID_REQUEST),
    ],
)
async def test_the_coordinator_of_a_share_partition_is_this_node(key, error):
    cluster = await GroupCluster.start()
    request = FindCoordinatorRequest(coordinator_keys=[key], key_type=2)
    (found,) = (await cluster.call(request, 6)).coordinators
    assert found.error_code == error
    assert found.node_id == (-1 if error else 1)
