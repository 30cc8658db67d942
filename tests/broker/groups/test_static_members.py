"""KIP-345: a member with an instance id may be restarted without anyone noticing."""

import asyncio

import pytest
from support.broker.group_clients import Consumer, stabilise
from support.broker.group_harness import GroupCluster, settle

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupRequestMemberIdentity,
)


async def a_stable_group(**arguments):
    cluster = await GroupCluster.start()
    leader = Consumer(cluster, instance_id="i-0", **arguments)
    follower = Consumer(cluster, instance_id="i-1", **arguments)
    await stabilise(leader)
    await stabilise(leader, follower)
    assert leader.leads
    return cluster, leader, follower


def restarted(consumer):
    return Consumer(
        consumer.cluster,
        group=consumer.group,
        instance_id=consumer.instance_id,
        protocols=consumer.protocols,
        version=consumer.version,
    )


async def test_a_restarted_member_takes_over_its_assignment_without_a_rebalance():
    _, leader, follower = await a_stable_group()
    again = restarted(follower)
    response = await again.join_once()
    assert response.error_code == ErrorCode.NONE
    assert response.generation_id == follower.generation
    assert again.member_id != follower.member_id
    await again.sync()
    assert again.assignment == follower.assignment
    assert await leader.heartbeat() == ErrorCode.NONE
    assert await again.heartbeat() == ErrorCode.NONE


async def test_the_one_that_was_replaced_is_fenced():
    _, _, follower = await a_stable_group()
    await restarted(follower).join_once()
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert await follower.heartbeat() == fenced
    assert await follower.commit(1) == fenced
    assert (await follower.sync()).error_code == fenced
    assert (await follower.join_once()).error_code == fenced
    assert await follower.leave() == fenced


@pytest.mark.parametrize(("version", "skips"), [(9, True), (8, False)])
async def test_a_restarted_leader_does_not_assign_again(version, skips):
    _, leader, follower = await a_stable_group(version=version)
    old_id = leader.member_id
    again = restarted(leader)
    response = await again.join_once()
    assert response.skip_assignment is skips
    if skips:
        # It leads and gets the members, but has to skip the assignment (KIP-814).
        assert response.leader == again.member_id
        assert {m.member_id for m in response.members} == {again.member_id, follower.member_id}
    else:
        assert response.leader == old_id
        assert response.members == []
    await again.sync()
    assert again.assignment == leader.assignment
    assert await follower.heartbeat() == ErrorCode.NONE


async def test_the_new_id_is_returned_only_when_the_log_has_it():
    cluster, _, follower = await a_stable_group()
    cluster.log.is_held = True
    joining = asyncio.ensure_future(restarted(follower).join_once())
    await settle()
    assert not joining.done()
    assert await follower.heartbeat() == ErrorCode.NONE
    cluster.log.release()
    assert (await joining).error_code == ErrorCode.NONE
    assert await follower.heartbeat() == ErrorCode.FENCED_INSTANCE_ID


async def test_a_failed_write_leaves_the_old_incarnation_in_place():
    cluster, leader, follower = await a_stable_group()
    cluster.log.fail_next = 1
    response = await restarted(follower).join_once()
    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await follower.heartbeat() == ErrorCode.NONE
    assert await leader.heartbeat() == ErrorCode.NONE


async def test_the_new_incarnation_survives_a_crash():
    cluster, _, follower = await a_stable_group()
    again = restarted(follower)
    await again.join_once()
    await cluster.crash_and_restart()
    assert await again.heartbeat() == ErrorCode.NONE
    assert await follower.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    await again.sync()
    assert again.assignment == follower.assignment


async def test_a_restart_with_another_protocol_rebalances():
    _, leader, follower = await a_stable_group(protocols=("range", "sticky"))
    again = restarted(follower)
    again.protocols = ("sticky",)
    joining = asyncio.ensure_future(again.join_once())
    await settle()
    assert await leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    await asyncio.gather(joining, leader.join())
    assert leader.joined.protocol_name == "sticky"


async def test_a_restart_in_the_middle_of_a_rebalance_joins_it():
    cluster, leader, follower = await a_stable_group()
    newcomer = Consumer(cluster).joining()
    await settle()
    parked = follower.joining()
    await settle()
    again = restarted(follower)
    joining = asyncio.ensure_future(again.join_once())
    await settle()
    assert (await parked).error_code == ErrorCode.FENCED_INSTANCE_ID
    await asyncio.gather(newcomer, joining, leader.join())
    assert again.generation == leader.generation


async def test_a_static_member_that_does_not_rejoin_in_time_keeps_its_place():
    cluster, leader, follower = await a_stable_group(rebalance_timeout_ms=7_000)
    joining = leader.joining()
    await settle()
    await cluster.advance(6)
    assert not joining.done()
    await cluster.advance(2)
    await joining
    ids = {m.group_instance_id for m in leader.joined.members}
    assert ids == {leader.instance_id, follower.instance_id}


async def test_an_administrator_removes_static_members_by_instance_id():
    cluster, leader, follower = await a_stable_group()
    response = await cluster.call(
        LeaveGroupRequest(
            group_id="g",
            members=[
                LeaveGroupRequestMemberIdentity(member_id="", group_instance_id="i-1"),
                LeaveGroupRequestMemberIdentity(member_id="", group_instance_id="i-9"),
            ],
        )
    )
    assert [m.error_code for m in response.members] == [0, ErrorCode.UNKNOWN_MEMBER_ID]
    assert await leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    assert await follower.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID


async def test_an_instance_id_that_never_joined_is_unknown():
    cluster, leader, _ = await a_stable_group()
    stranger = Consumer(
        cluster, instance_id="i-9", member_id=leader.member_id, generation=leader.generation
    )
    assert await stranger.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
