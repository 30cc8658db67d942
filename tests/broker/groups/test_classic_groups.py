import asyncio

import pytest
from support.broker.group_clients import Consumer, stabilise
from support.broker.group_harness import GroupCluster, settle

from headwater.broker.groups import GroupSettings
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_groups import DescribeGroupsRequest
from headwater.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupRequestMemberIdentity,
)


async def state_of(cluster, group="g"):
    response = await cluster.call(DescribeGroupsRequest(groups=[group]), 5)
    return response.groups[0].group_state


async def a_leader_and_a_follower(cluster):
    leader, follower = Consumer(cluster), Consumer(cluster)
    await stabilise(leader)
    await stabilise(leader, follower)
    assert leader.leads
    return leader, follower


async def rebalance_with(newcomer, *others):
    """The newcomer joins, the others learn it from their heartbeat and follow."""
    joining = newcomer.joining()
    await settle()
    for other in others:
        assert await other.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await asyncio.gather(joining, *(other.join() for other in others))
    await asyncio.gather(*(member.sync_in_its_role() for member in (newcomer, *others)))


@pytest.mark.parametrize("version", range(10))
async def test_one_member_joins_and_gets_what_its_leader_gives_in_every_version(version):
    cluster = await GroupCluster.start()
    consumer = Consumer(cluster, version=version)
    await stabilise(consumer)
    assert consumer.leads
    assert consumer.generation == 1
    assert consumer.joined.protocol_name == "range"
    assert [m.member_id for m in consumer.joined.members] == [consumer.member_id]
    assert consumer.assignment == consumer.member_id.encode()
    assert await consumer.heartbeat() == ErrorCode.NONE
    assert await state_of(cluster) == "Stable"


async def test_from_version_4_on_a_new_member_must_come_back_with_its_id():
    cluster = await GroupCluster.start()
    old, new = Consumer(cluster, group="old", version=3), Consumer(cluster, group="new", version=4)
    assert (await old.join_once()).error_code == ErrorCode.NONE
    response = await new.join_once()
    assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert new.member_id.startswith("client-")
    assert (await new.join_once()).error_code == ErrorCode.NONE


async def test_a_newcomer_has_everyone_rebalance_into_one_generation():
    cluster = await GroupCluster.start()
    first, second, third = (Consumer(cluster) for _ in range(3))
    await stabilise(first)
    await rebalance_with(second, first)
    await rebalance_with(third, first, second)
    assert {member.generation for member in (first, second, third)} == {3}
    for member in (first, second, third):
        assert member.assignment == member.member_id.encode()
        assert await member.heartbeat() == ErrorCode.NONE
    assert [member.leads for member in (first, second, third)] == [True, False, False]
    assert second.joined.members == []


async def test_a_follower_waits_for_the_leaders_assignment_to_be_durable():
    cluster = await GroupCluster.start()
    leader, follower = await a_leader_and_a_follower(cluster)
    cluster.log.is_held = True
    await asyncio.gather(leader.join(), follower.join_once_at_a_rebalance())
    following = asyncio.ensure_future(follower.sync_in_its_role())
    await settle()
    assert not following.done()
    leading = asyncio.ensure_future(leader.sync_in_its_role())
    await settle()
    assert not following.done()
    assert not leading.done()
    assert await state_of(cluster) == "CompletingRebalance"
    cluster.log.release()
    await asyncio.gather(following, leading)
    assert follower.assignment == follower.member_id.encode()


async def test_the_protocol_is_the_one_that_most_prefer_among_those_that_all_speak():
    cluster = await GroupCluster.start()
    members = [
        Consumer(cluster, protocols=("sticky", "range", "roundrobin")),
        Consumer(cluster, protocols=("roundrobin", "range")),
        Consumer(cluster, protocols=("range", "roundrobin")),
    ]
    await stabilise(*members)
    assert {member.joined.protocol_name for member in members} == {"range"}


@pytest.mark.parametrize(
    "stranger",
    [
        {"protocols": ("sticky",)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
async def test_a_member_that_has_nothing_in_common_is_refused(stranger):
    cluster = await GroupCluster.start()
    await stabilise(Consumer(cluster))
    response = await Consumer(cluster, **stranger).join()
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_group_that_refused_its_first_member_is_not_there():
    cluster = await GroupCluster.start()
    refused = await Consumer(cluster, protocols=()).join()
    assert refused.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert cluster.groups.registry.get("g") is None


@pytest.mark.parametrize("timeout_ms", [0, 5_999, 1_800_001])
async def test_session_timeouts_have_limits(timeout_ms):
    cluster = await GroupCluster.start()
    response = await Consumer(cluster, session_timeout_ms=timeout_ms).join()
    assert response.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


async def test_a_group_needs_a_name_and_a_named_member_needs_a_group():
    cluster = await GroupCluster.start()
    assert (await Consumer(cluster, group="").join()).error_code == ErrorCode.INVALID_GROUP_ID
    stranger = Consumer(cluster, member_id="who")
    assert (await stranger.join()).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert await stranger.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_silent_member_is_missed_after_its_session():
    cluster = await GroupCluster.start()
    alive, silent = Consumer(cluster), Consumer(cluster)
    await stabilise(alive, silent)
    await cluster.advance(6)
    assert await alive.heartbeat() == ErrorCode.NONE
    await cluster.advance(6)
    assert await alive.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert await silent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    await stabilise(alive)
    assert [m.member_id for m in alive.joined.members] == [alive.member_id]


async def test_heartbeats_and_commits_keep_a_member_alive():
    cluster = await GroupCluster.start()
    beating, committing = Consumer(cluster), Consumer(cluster)
    await stabilise(beating, committing)
    for number in range(20):
        await cluster.advance(9)
        assert await beating.heartbeat() == ErrorCode.NONE
        assert await committing.commit(number) == ErrorCode.NONE


async def test_who_does_not_rejoin_in_time_is_out():
    cluster = await GroupCluster.start()
    present, absent, newcomer = Consumer(cluster), Consumer(cluster), Consumer(cluster)
    await stabilise(present, absent)
    newcomers_join = newcomer.joining()
    await settle()
    joining = asyncio.gather(newcomers_join, present.join())
    for _ in range(6):
        await cluster.advance(9)
        assert not joining.done()
        # It is alive, but does not rejoin.
        assert await absent.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await cluster.advance(9)
    await joining
    assert await absent.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert newcomer.generation == present.generation


async def test_who_joins_and_never_syncs_is_out():
    cluster = await GroupCluster.start()
    good, lazy = Consumer(cluster), Consumer(cluster)
    await stabilise(good)
    joining = lazy.joining()
    await settle()
    await asyncio.gather(joining, good.join())
    await good.sync_in_its_role()
    for _ in range(7):
        assert await good.heartbeat() == ErrorCode.NONE
        assert await lazy.heartbeat() == ErrorCode.NONE
        await cluster.advance(9)
    assert await good.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert await lazy.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_never_came_back_with_its_id_delays_no_other_member():
    cluster = await GroupCluster.start()
    good, other, ghost = Consumer(cluster), Consumer(cluster), Consumer(cluster)
    await stabilise(good)
    await ghost.join_once()  # it gets its id
    others_join = other.joining()
    await settle()
    joining = asyncio.gather(others_join, good.join())
    await settle()
    assert not joining.done()
    await cluster.advance(10.1)
    await joining
    assert (await ghost.join_once()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_an_old_generation_is_fenced():
    cluster = await GroupCluster.start()
    member, other = Consumer(cluster), Consumer(cluster)
    await stabilise(member)
    await rebalance_with(other, member)
    member.generation -= 1
    assert await member.heartbeat() == ErrorCode.ILLEGAL_GENERATION
    assert await member.commit(1) == ErrorCode.ILLEGAL_GENERATION
    assert (await member.sync()).error_code == ErrorCode.ILLEGAL_GENERATION


async def test_sync_during_the_next_rebalance_is_sent_back():
    cluster = await GroupCluster.start()
    member, other = Consumer(cluster), Consumer(cluster)
    await stabilise(member)
    joining = other.joining()
    await settle()
    assert (await member.sync()).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    await asyncio.gather(joining, member.join())
    waiting = asyncio.ensure_future(other.sync())
    await settle()
    third = Consumer(cluster).joining()
    await settle()
    assert (await waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    third.cancel()


async def test_a_sync_for_another_protocol_is_refused():
    cluster = await GroupCluster.start()
    member = Consumer(cluster)
    await member.join()
    member.joined.protocol_name = "sticky"
    assert (await member.sync()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_stable_group_rebalances_for_its_leader_or_for_new_metadata_only():
    cluster = await GroupCluster.start()
    leader, follower = await a_leader_and_a_follower(cluster)
    generation = leader.generation
    assert (await follower.join()).generation_id == generation
    assert await leader.heartbeat() == ErrorCode.NONE

    follower.topics = ("t", "u")
    joining = follower.joining()
    await settle()
    assert not joining.done()
    await asyncio.gather(joining, leader.join())
    await asyncio.gather(leader.sync_in_its_role(), follower.sync_in_its_role())
    assert leader.generation == generation + 1

    joining = leader.joining()
    await settle()
    assert await follower.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await asyncio.gather(joining, follower.join())
    assert leader.generation == generation + 2


async def test_who_joins_again_before_the_sync_gets_the_same_answer():
    cluster = await GroupCluster.start()
    member = Consumer(cluster)
    first = await member.join()
    second = await member.join()
    assert second == first


async def test_leaving_is_noticed_at_once_and_the_last_one_leaves_an_empty_group():
    cluster = await GroupCluster.start()
    stays, goes = Consumer(cluster), Consumer(cluster)
    await stabilise(stays, goes)
    assert await goes.leave() == ErrorCode.NONE
    assert await goes.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    assert await stays.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await stabilise(stays)
    assert await stays.leave() == ErrorCode.NONE
    assert await state_of(cluster) == "Empty"


async def test_several_leave_with_one_request_and_one_rebalance():
    cluster = await GroupCluster.start()
    members = [Consumer(cluster) for _ in range(4)]
    await stabilise(*members)
    generation = members[0].generation
    identities = [LeaveGroupRequestMemberIdentity(member_id=m.member_id) for m in members[1:]]
    identities.append(LeaveGroupRequestMemberIdentity(member_id="nobody"))
    response = await cluster.call(LeaveGroupRequest(group_id="g", members=identities))
    assert [m.error_code for m in response.members] == [0, 0, 0, ErrorCode.UNKNOWN_MEMBER_ID]
    await stabilise(members[0])
    assert members[0].generation == generation + 1


@pytest.mark.parametrize("version", range(3))
async def test_leaving_in_old_versions_has_one_error_for_the_one_member(version):
    cluster = await GroupCluster.start()
    member = Consumer(cluster)
    await stabilise(member)
    leave = LeaveGroupRequest(group_id="g", member_id=member.member_id)
    assert (await cluster.call(leave, version)).error_code == ErrorCode.NONE
    assert (await cluster.call(leave, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    nowhere = LeaveGroupRequest(group_id="nowhere", member_id="x")
    assert (await cluster.call(nowhere, version)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_leaves_while_others_wait_for_it_lets_them_go_on():
    cluster = await GroupCluster.start()
    first, second, third = (Consumer(cluster) for _ in range(3))
    await stabilise(first, second)
    thirds_join = third.joining()
    await settle()
    joining = asyncio.gather(thirds_join, first.join())
    await settle()
    assert not joining.done()
    assert await second.leave() == ErrorCode.NONE
    await joining
    assert third.generation == first.generation


async def test_a_full_group_refuses_other_members():
    cluster = await GroupCluster.start(GroupSettings(max_size=2))
    members = [Consumer(cluster) for _ in range(2)]
    await stabilise(*members)
    assert (await Consumer(cluster).join()).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    joining = asyncio.gather(*(m.join() for m in members))
    await settle()
    assert (await Consumer(cluster, version=3).join()).error_code == (
        ErrorCode.GROUP_MAX_SIZE_REACHED
    )
    await joining


async def test_a_new_group_can_wait_for_more_members():
    cluster = await GroupCluster.start(GroupSettings(initial_rebalance_delay_ms=3_000))
    members = [Consumer(cluster) for _ in range(3)]
    joining = []
    for member in members:
        joining.append(member.joining())
        await settle()
        await cluster.advance(2)
    assert not any(member.done() for member in joining)
    await cluster.advance(3)
    await asyncio.gather(*joining)
    assert {member.generation for member in members} == {1}


async def test_a_failed_write_of_the_assignment_sends_everyone_back_to_join():
    cluster = await GroupCluster.start()
    leader, follower = await a_leader_and_a_follower(cluster)
    await asyncio.gather(leader.join(), follower.join_once_at_a_rebalance())
    cluster.log.fail_next = 1
    answers = await asyncio.gather(follower.sync_in_its_role(), leader.sync_in_its_role())
    assert {a.error_code for a in answers} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    await stabilise(leader, follower)
    assert follower.assignment == follower.member_id.encode()


async def test_a_leader_whose_connection_closes_during_the_write_still_makes_the_group_stable():
    cluster = await GroupCluster.start()
    leader = Consumer(cluster)
    await leader.join()
    cluster.log.is_held = True
    syncing = asyncio.ensure_future(leader.sync_in_its_role())
    await settle()
    syncing.cancel()
    await settle()
    cluster.log.release()
    await settle()
    assert await state_of(cluster) == "Stable"


async def test_members_survive_a_restart_and_go_on_in_their_generation():
    cluster = await GroupCluster.start()
    first, second = Consumer(cluster), Consumer(cluster)
    await stabilise(first, second)
    before = await cluster.call(DescribeGroupsRequest(groups=["g"]))
    await cluster.crash_and_restart()
    assert await cluster.call(DescribeGroupsRequest(groups=["g"])) == before
    await cluster.advance(6)
    assert await first.heartbeat() == ErrorCode.NONE
    assert (await first.sync()).error_code == ErrorCode.NONE
    await cluster.advance(6)
    assert await first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await stabilise(first)


async def test_a_generation_that_was_not_answered_may_be_forgotten_but_an_older_one_is_not():
    cluster = await GroupCluster.start()
    member, newcomer = Consumer(cluster), Consumer(cluster)
    await stabilise(member)
    joining = newcomer.joining()
    await settle()
    await cluster.crash_and_restart()
    joining.cancel()
    assert await member.heartbeat() == ErrorCode.NONE


async def test_an_empty_group_stays_empty_after_a_restart_and_its_generation_goes_on():
    cluster = await GroupCluster.start()
    member = Consumer(cluster)
    await stabilise(member)
    await member.leave()
    await cluster.crash_and_restart()
    assert await state_of(cluster) == "Empty"
    assert await member.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    member.member_id = ""
    await stabilise(member)
    assert member.generation == 3


async def test_until_the_groups_are_loaded_clients_are_asked_to_retry():
    cluster = GroupCluster()
    member = Consumer(cluster)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert (await member.join()).error_code == loading
    assert await member.heartbeat() == ErrorCode.NONE
    assert await cluster.fetch("g") == loading
    assert await cluster.commit("g", {("t", 0): 1}) == {("t", 0): loading}
    await cluster.groups.load()
    await stabilise(member)


async def test_closing_answers_all_waiting_members():
    cluster = await GroupCluster.start()
    first, second = Consumer(cluster), Consumer(cluster)
    await stabilise(first)
    joining = second.joining()
    await settle()
    await cluster.groups.close()
    assert (await joining).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await first.heartbeat() == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert all(timer.cancelled for _, _, timer in cluster.clock._timers)


async def test_five_hundred_members_form_one_generation():
    cluster = await GroupCluster.start()
    members = [Consumer(cluster) for _ in range(500)]
    await stabilise(*members)
    assert {member.assignment for member in members} == {
        member.member_id.encode() for member in members
    }


async def test_what_is_stored_of_a_request_does_not_alias_its_buffer():
    cluster = await GroupCluster.start()
    await stabilise(Consumer(cluster))
    (member,) = cluster.groups.registry.get("g").roster
    assert all(type(metadata) is bytes for _, metadata in member.protocols)
    assert type(member.assignment) is bytes
