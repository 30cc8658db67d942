import asyncio

import pytest
from support.broker.group_clients import Consumer, Kip848Consumer, converge, stabilise
from support.broker.group_harness import GroupCluster, settle

from headwater.broker.groups import GroupSettings
from headwater.broker.groups.offsets.store import CommittedOffset, OffsetKey, OffsetStore
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.list_groups import ListGroupsRequest
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headwater.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

DAY_S = 24 * 3600


async def group_ids(cluster):
    response = await cluster.call(ListGroupsRequest())
    return {group.group_id for group in response.groups}


@pytest.mark.parametrize("version", range(2, 11))
async def test_a_commit_can_be_fetched_in_every_version(version):
    cluster = await GroupCluster.start()
    errors = await cluster.commit("g", {("t", 0): 7, ("t", 3): 0}, version=version)
    assert set(errors.values()) == {ErrorCode.NONE}
    assert await cluster.fetch("g") == {("t", 0): 7, ("t", 3): 0}


@pytest.mark.parametrize("version", range(1, 8))
async def test_fetching_in_versions_with_one_group(version):
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 1): 5}, metadata="noted")
    response = await cluster.call(
        OffsetFetchRequest(
            group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[1, 2])]
        ),
        version,
    )
    first, second = response.topics[0].partitions
    assert (first.committed_offset, first.metadata, first.error_code) == (5, "noted", 0)
    assert (second.committed_offset, second.metadata, second.error_code) == (-1, "", 0)
    if version >= 2:
        everything = await cluster.call(OffsetFetchRequest(group_id="g", topics=None), version)
        assert [p.partition_index for p in everything.topics[0].partitions] == [1]


async def test_fetching_by_topic_id():
    cluster = await GroupCluster.start(t=2, u=1)
    await cluster.commit("g", {("t", 1): 5, ("u", 0): 6}, version=10)
    unknown = type(cluster.topics.topic_id("t"))(int=77)
    asked = [
        OffsetFetchRequestTopics(topic_id=cluster.topics.topic_id("u"), partition_indexes=[0]),
        OffsetFetchRequestTopics(topic_id=unknown, partition_indexes=[0]),
    ]
    groups = [
        OffsetFetchRequestGroup(group_id="g", topics=asked),
        OffsetFetchRequestGroup(group_id="g", topics=None),
        OffsetFetchRequestGroup(group_id="none", topics=None),
    ]
    response = await cluster.call(OffsetFetchRequest(groups=groups), 10)
    found, lost = response.groups[0].topics
    assert found.partitions[0].committed_offset == 6
    assert lost.partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert {t.topic_id for t in response.groups[1].topics} == {
        cluster.topics.topic_id(name) for name in "tu"
    }
    assert response.groups[2].topics == []
    assert response.groups[2].error_code == ErrorCode.NONE


async def test_leader_epoch_and_metadata_come_back():
    cluster = await GroupCluster.start()
    await cluster.call(
        OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=0,
                            committed_offset=3,
                            committed_leader_epoch=11,
                            committed_metadata="grüße 🎈",
                        )
                    ],
                )
            ],
        ),
        8,
    )
    await cluster.crash_and_restart()
    groups = [OffsetFetchRequestGroup(group_id="g", topics=None)]
    response = await cluster.call(OffsetFetchRequest(groups=groups), 8)
    (partition,) = response.groups[0].topics[0].partitions
    assert partition.committed_leader_epoch == 11
    assert partition.metadata == "grüße 🎈"


async def test_what_cannot_be_committed_is_refused_partition_by_partition():
    cluster = await GroupCluster.start(t=2)
    errors = await cluster.commit("g", {("t", 0): 1, ("t", 2): 1, ("t", -1): 1, ("nope", 0): 1})
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert errors == {
        ("t", 0): ErrorCode.NONE,
        ("t", 2): unknown,
        ("t", -1): unknown,
        ("nope", 0): unknown,
    }
    assert await cluster.fetch("g") == {("t", 0): 1}
    by_id = await cluster.commit("g", {("nope", 0): 1}, version=10)
    assert list(by_id.values()) == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_metadata_has_a_limit():
    cluster = await GroupCluster.start()
    too_large = await cluster.commit("g", {("t", 0): 1}, metadata="x" * 4097)
    assert too_large == {("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE}
    assert await cluster.fetch("g") == {}
    await cluster.commit("g", {("t", 0): 1}, metadata="x" * 4096)
    assert await cluster.fetch("g") == {("t", 0): 1}


async def test_a_simple_consumer_commits_to_an_empty_group_only():
    cluster = await GroupCluster.start()
    assert await cluster.commit("g", {("t", 0): 1}) == {("t", 0): ErrorCode.NONE}
    member = Consumer(cluster)
    await stabilise(member)
    refused = await cluster.commit("g", {("t", 0): 2})
    assert refused == {("t", 0): ErrorCode.UNKNOWN_MEMBER_ID}
    await member.leave()
    assert await cluster.commit("g", {("t", 0): 3}) == {("t", 0): ErrorCode.NONE}
    assert await cluster.fetch("g") == {("t", 0): 3}


@pytest.mark.parametrize(
    ("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
async def test_a_member_of_no_group_cannot_commit(version, error):
    cluster = await GroupCluster.start()
    stranger = Consumer(cluster, member_id="who", generation=3)
    assert await stranger.commit(1, version=version) == error


async def test_members_commit_while_stable_or_about_to_rebalance_but_not_in_between():
    cluster = await GroupCluster.start()
    member, other = Consumer(cluster), Consumer(cluster)
    await stabilise(member)
    assert await member.commit(1) == ErrorCode.NONE
    joining = other.joining()
    await settle()
    assert await member.commit(2) == ErrorCode.NONE
    await asyncio.gather(joining, member.join())
    assert await member.commit(3) == ErrorCode.REBALANCE_IN_PROGRESS
    assert await cluster.fetch("g") == {("t", 0): 2}


async def test_an_offset_is_neither_answered_nor_shown_before_it_is_durable():
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 0): 1})
    cluster.log.is_held = True
    committing = asyncio.ensure_future(cluster.commit("g", {("t", 0): 2}))
    await settle()
    assert not committing.done()
    assert await cluster.fetch("g") == {("t", 0): 1}
    cluster.log.release()
    await committing
    assert await cluster.fetch("g") == {("t", 0): 2}


async def test_commits_of_one_partition_take_effect_in_the_order_of_the_log():
    cluster = await GroupCluster.start()
    cluster.log.is_held = True
    commits = [asyncio.ensure_future(cluster.commit("g", {("t", 0): n})) for n in range(20)]
    await settle()
    cluster.log.release()
    await asyncio.gather(*commits)
    assert await cluster.fetch("g") == {("t", 0): 19}
    await cluster.crash_and_restart()
    assert await cluster.fetch("g") == {("t", 0): 19}


async def test_a_failed_write_leaves_the_offset_as_it_was():
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 0): 1})
    cluster.log.fail_next = 1
    failed = await cluster.commit("g", {("t", 0): 2, ("t", 1): 2})
    assert set(failed.values()) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert await cluster.fetch("g") == {("t", 0): 1}
    cluster.log.fail_next = 1
    await cluster.commit("new", {("t", 0): 2})
    assert await group_ids(cluster) == {"g"}
    assert (await cluster.commit("g", {("t", 0): 3}))["t", 0] == ErrorCode.NONE


async def test_a_commit_whose_connection_closes_takes_effect_as_in_the_log():
    cluster = await GroupCluster.start()
    cluster.log.is_held = True
    committing = asyncio.ensure_future(cluster.commit("g", {("t", 0): 5}))
    await settle()
    committing.cancel()
    await settle()
    cluster.log.release()
    await settle()
    assert await cluster.fetch("g") == {("t", 0): 5}


async def test_a_thousand_partitions_in_one_commit():
    cluster = await GroupCluster.start(t=1000)
    offsets = {("t", n): n for n in range(1000)}
    assert set((await cluster.commit("g", offsets)).values()) == {ErrorCode.NONE}
    assert await cluster.fetch("g") == offsets
    assert cluster.log.appends == 1


async def test_a_commit_without_partitions_writes_nothing():
    cluster = await GroupCluster.start()
    assert await cluster.commit("g", {}) == {}
    assert cluster.log.appends == 0


# Deletion


async def delete(cluster, group, topic, *partitions):
    response = await cluster.call(
        OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetDeleteRequestPartition(partition_index=p) for p in partitions
                    ],
                )
            ],
        )
    )
    if response.error_code:
        return ErrorCode(response.error_code)
    return [ErrorCode(p.error_code) for p in response.topics[0].partitions]


async def test_offsets_are_deleted_for_good():
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 0): 1, ("t", 1): 2})
    assert await delete(cluster, "g", "t", 0, 3) == [ErrorCode.NONE, ErrorCode.NONE]
    assert await cluster.fetch("g") == {("t", 1): 2}
    await cluster.crash_and_restart()
    assert await cluster.fetch("g") == {("t", 1): 2}


async def test_deleting_offsets_that_do_not_exist_or_are_in_use():
    cluster = await GroupCluster.start(t=1, other=1)
    assert await delete(cluster, "none", "t", 0) == ErrorCode.GROUP_ID_NOT_FOUND
    member = Consumer(cluster)
    await stabilise(member)
    await member.commit(1)
    assert await delete(cluster, "g", "t", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert await delete(cluster, "g", "other", 0) == [ErrorCode.NONE]
    assert await delete(cluster, "g", "nope", 0) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    worker = Consumer(cluster, group="connect", protocol_type="connect")
    await stabilise(worker)
    assert await delete(cluster, "connect", "t", 0) == ErrorCode.NON_EMPTY_GROUP
    modern = Kip848Consumer(cluster, group="modern", regex="t|u", topics=None)
    await converge(modern)
    assert await delete(cluster, "modern", "t", 0) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert await delete(cluster, "modern", "other", 0) == [ErrorCode.NONE]


async def test_a_failed_deletion_leaves_the_offsets():
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 0): 1})
    cluster.log.fail_next = 1
    assert await delete(cluster, "g", "t", 0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await cluster.fetch("g") == {("t", 0): 1}


# Expiry

CHECK_S = GroupSettings().offsets_retention_check_ms / 1000


async def test_offsets_of_a_simple_consumer_expire_seven_days_after_the_commit():
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 0): 1})
    await cluster.advance(6 * DAY_S)
    await cluster.commit("g", {("t", 1): 1})
    await cluster.advance(DAY_S + CHECK_S)
    assert await cluster.fetch("g") == {("t", 1): 1}
    await cluster.advance(6 * DAY_S)
    assert await cluster.fetch("g") == {}
    assert await group_ids(cluster) == set()
    await cluster.crash_and_restart()
    assert await group_ids(cluster) == set()


async def test_offsets_of_a_group_expire_seven_days_after_it_became_empty():
    cluster = await GroupCluster.start()
    member = Consumer(cluster, session_timeout_ms=1_800_000)
    await stabilise(member)
    await member.commit(1)
    for _ in range(10 * 24 * 4):
        await cluster.advance(900)
        await member.heartbeat()
    assert await cluster.fetch("g") == {("t", 0): 1}
    await member.leave()
    await cluster.advance(6 * DAY_S)
    await cluster.crash_and_restart()
    await cluster.advance(DAY_S - 60)
    assert await cluster.fetch("g") == {("t", 0): 1}
    await cluster.advance(60 + 2 * CHECK_S)
    assert await cluster.fetch("g") == {}
    assert await group_ids(cluster) == set()


async def test_a_live_group_loses_the_old_offsets_of_topics_it_no_longer_reads():
    settings = GroupSettings(offsets_retention_ms=60_000, offsets_retention_check_ms=10_000)
    cluster = await GroupCluster.start(settings, t=1, old=1)
    member = Consumer(cluster, session_timeout_ms=1_800_000)
    modern = Kip848Consumer(cluster, group="m")
    for group in ("g", "m"):
        await cluster.commit(group, {("t", 0): 1, ("old", 0): 1})
    await stabilise(member)
    await modern.heartbeat()
    for _ in range(7):
        await cluster.advance(10)
        await modern.heartbeat()
        await member.heartbeat()
    assert await cluster.fetch("g") == {("t", 0): 1}
    assert await cluster.fetch("m") == {("t", 0): 1}


async def test_a_retention_of_its_own_is_respected():
    cluster = await GroupCluster.start()
    request = OffsetCommitRequest(
        group_id="g",
        retention_time_ms=60_000,
        topics=[
            OffsetCommitRequestTopic(
                name="t",
                partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=1)],
            )
        ],
    )
    await cluster.call(request, 3)
    await cluster.crash_and_restart()
    assert await cluster.fetch("g") == {("t", 0): 1}
    await cluster.advance(CHECK_S + 1)
    assert await cluster.fetch("g") == {}


async def test_a_failed_expiry_is_tried_again():
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 0): 1})
    await cluster.advance(7 * DAY_S - 1)
    cluster.log.fail_next = 1
    await cluster.advance(CHECK_S)
    assert await cluster.fetch("g") == {("t", 0): 1}
    assert (await cluster.commit("g", {("t", 1): 1}))["t", 1] == ErrorCode.NONE
    await cluster.advance(CHECK_S)
    assert await cluster.fetch("g") == {("t", 1): 1}


async def test_offsets_of_deleted_topics_are_forgotten_also_if_the_topic_comes_back():
    cluster = await GroupCluster.start(t=1, u=1)
    await cluster.commit("g", {("t", 0): 1, ("u", 0): 2})
    cluster.topics.delete("t")
    cluster.groups.topics_changed()
    await settle()
    assert await cluster.fetch("g") == {("u", 0): 2}
    # The broker stops between the deletion and our tombstones.
    cluster.topics.delete("u")
    cluster.topics.create("u", 1)
    await cluster.crash_and_restart()
    await settle()
    assert await cluster.fetch("g") == {}


async def test_lag_can_be_computed_from_all_offsets():
    cluster = await GroupCluster.start()
    await cluster.commit("a", {("t", 0): 1})
    await cluster.commit("b", {("t", 0): 2, ("t", 1): 3})
    rows = {(group, *key, c.offset) for group, key, c in cluster.groups.offsets.all_committed()}
    assert rows == {("a", "t", 0, 1), ("b", "t", 0, 2), ("b", "t", 1, 3)}


def test_offsets_can_be_gone_through_while_the_group_commits():
    """As the lag meter does, which gives others a turn on the way."""
    offsets = OffsetStore()
    for topic in ("a", "b"):
        offsets.put("g", OffsetKey(topic, 0), CommittedOffset(1))
    on_the_way = offsets.of_group("g")
    first, _ = next(on_the_way)
    for key in (OffsetKey("a", 1), OffsetKey("c", 0)):
        offsets.put("g", key, CommittedOffset(2))
    assert first == OffsetKey("a", 0)
    assert OffsetKey("b", 0) in {key for key, _ in on_the_way}
