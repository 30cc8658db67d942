import asyncio

import pytest
from support.broker.group_clients import Consumer, Kip848Consumer, converge, stabilise
from support.broker.group_harness import GroupCluster, settle

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headwater.protocol.messages.delete_groups import DeleteGroupsRequest
from headwater.protocol.messages.describe_groups import DescribeGroupsRequest
from headwater.protocol.messages.find_coordinator import FindCoordinatorRequest
from headwater.protocol.messages.list_groups import ListGroupsRequest


async def some_groups():
    cluster = await GroupCluster.start()
    await cluster.commit("simple", {("t", 0): 1})
    await stabilise(Consumer(cluster, group="classic"))
    emptied = Consumer(cluster, group="emptied")
    await stabilise(emptied)
    await emptied.commit(4)
    await emptied.leave()
    await converge(Kip848Consumer(cluster, group="modern"))
    return cluster


async def listed(cluster, version=5, **filters):
    response = await cluster.call(ListGroupsRequest(**filters), version)
    assert response.error_code == ErrorCode.NONE
    return {
        group.group_id: (group.protocol_type, group.group_state, group.group_type)
        for group in response.groups
    }


async def test_groups_are_listed_with_type_and_state():
    cluster = await some_groups()
    assert await listed(cluster) == {
        "simple": ("", "Empty", "classic"),
        "classic": ("consumer", "Stable", "classic"),
        "emptied": ("consumer", "Empty", "classic"),
        "modern": ("consumer", "Stable", "consumer"),
    }
    assert set(await listed(cluster, version=0)) == {"simple", "classic", "emptied", "modern"}


async def test_groups_are_filtered_by_state_and_type():
    cluster = await some_groups()
    assert set(await listed(cluster, states_filter=["stable"])) == {"classic", "modern"}
    assert set(await listed(cluster, types_filter=["Consumer"])) == {"modern"}
    both = await listed(cluster, states_filter=["Empty"], types_filter=["classic"])
    assert set(both) == {"simple", "emptied"}
    assert await listed(cluster, types_filter=["share"]) == {}


@pytest.mark.parametrize("version", range(7))
async def test_a_stable_group_is_described_with_its_members(version):
    cluster = await some_groups()
    request = DescribeGroupsRequest(groups=["classic"], include_authorized_operations=version >= 3)
    (group,) = (await cluster.call(request, version)).groups
    assert (group.group_state, group.protocol_type, group.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    (member,) = group.members
    assert member.client_id == "client"
    assert member.client_host == "/10.0.0.1"
    assert bytes(member.member_assignment) == member.member_id.encode()
    assert bytes(member.member_metadata).startswith(b"\x00\x00")
    if version >= 3:
        assert group.authorized_operations > 0


@pytest.mark.parametrize("name", ["nobody", "modern"])
async def test_what_is_no_classic_group_is_described_as_dead(name):
    cluster = await some_groups()
    request = DescribeGroupsRequest(groups=[name])
    (old,) = (await cluster.call(request, 5)).groups
    assert (old.group_state, old.error_code) == ("Dead", ErrorCode.NONE)
    (new,) = (await cluster.call(request, 6)).groups
    assert (new.group_state, new.error_code) == ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
    assert name in new.error_message


async def test_what_is_no_consumer_group_is_not_found():
    cluster = await some_groups()
    request = ConsumerGroupDescribeRequest(group_ids=["nobody", "classic", "", "modern"])
    groups = (await cluster.call(request)).groups
    assert [group.error_code for group in groups] == [
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.NONE,
    ]


async def delete(cluster, *names):
    response = await cluster.call(DeleteGroupsRequest(groups_names=list(names)))
    return {result.group_id: ErrorCode(result.error_code) for result in response.results}


async def test_empty_groups_are_deleted_with_their_offsets_for_good():
    cluster = await some_groups()
    left = Kip848Consumer(cluster, group="left")
    await converge(left)
    await left.leave()
    assert await delete(cluster, "simple", "emptied", "left", "classic", "modern", "nobody") == {
        "simple": ErrorCode.NONE,
        "emptied": ErrorCode.NONE,
        "left": ErrorCode.NONE,
        "classic": ErrorCode.NON_EMPTY_GROUP,
        "modern": ErrorCode.NON_EMPTY_GROUP,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    for _ in range(2):
        assert set(await listed(cluster)) == {"classic", "modern"}
        assert await cluster.fetch("emptied") == {}
        await cluster.crash_and_restart()


async def test_a_group_that_is_being_deleted_refuses_everyone_and_comes_back_if_it_fails():
    cluster = await some_groups()
    cluster.log.fail_next = 1
    cluster.log.is_held = True
    deleting = asyncio.ensure_future(delete(cluster, "emptied"))
    await settle()
    refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await Consumer(cluster, group="emptied").join()).error_code == refused
    assert await cluster.commit("emptied", {("t", 0): 9}) == {("t", 0): refused}
    assert (await Kip848Consumer(cluster, group="emptied").heartbeat()).error_code == refused
    assert await delete(cluster, "emptied") == {"emptied": ErrorCode.GROUP_ID_NOT_FOUND}
    cluster.log.release()
    assert await deleting == {"emptied": refused}
    assert await cluster.fetch("emptied") == {("t", 0): 4}
    await stabilise(Consumer(cluster, group="emptied"))


async def test_a_commit_on_its_way_does_not_outlive_the_group():
    cluster = await GroupCluster.start()
    await cluster.commit("g", {("t", 0): 1})
    cluster.log.is_held = True
    committing = asyncio.ensure_future(cluster.commit("g", {("t", 1): 2}))
    await settle()
    deleting = asyncio.ensure_future(delete(cluster, "g"))
    await settle()
    cluster.log.release()
    assert await committing == {("t", 1): ErrorCode.NONE}
    assert await deleting == {"g": ErrorCode.NONE}
    for _ in range(2):
        assert await listed(cluster) == {}
        assert await cluster.fetch("g") == {}
        await cluster.crash_and_restart()


async def test_counts_for_metrics():
    cluster = await some_groups()
    counts = cluster.groups.counts()
    assert counts.groups == {
        ("classic", "Empty"): 2,
        ("classic", "Stable"): 1,
        ("consumer", "Stable"): 1,
    }
    assert counts.members == 2


@pytest.mark.parametrize("key_type", [0, 1], ids=["group", "transactional id"])
@pytest.mark.parametrize("version", range(7))
async def test_the_coordinator_is_this_node(version, key_type):
    cluster = await GroupCluster.start()
    key_type = key_type if version else 0
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"], key_type=key_type)
    response = await cluster.call(request, version)
    found = response.coordinators if version >= 4 else [response]
    assert [(f.node_id, f.host, f.port) for f in found] == [(1, "localhost", 9092)] * len(found)
    assert {f.error_code for f in found} == {ErrorCode.NONE}
    if version >= 4:
        assert [f.key for f in found] == ["g", "h"]


@pytest.mark.parametrize("key_type", [2, 7])
async def test_coordinators_of_other_things_are_refused_with_an_error_that_ends_the_search(
    key_type,
):
    cluster = await GroupCluster.start()
    request = FindCoordinatorRequest(key="x", coordinator_keys=["x"], key_type=key_type)
    (found,) = (await cluster.call(request, 4)).coordinators
    assert found.error_code == ErrorCode.INVALID_REQUEST
    assert found.error_message
    assert (await cluster.call(request, 1)).error_code == ErrorCode.INVALID_REQUEST
