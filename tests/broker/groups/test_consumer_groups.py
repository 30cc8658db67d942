"""KIP-848: the broker assigns, members follow at their own pace."""

import asyncio
import random

import pytest
from support.broker.group_clients import Consumer, Kip848Consumer, converge, stabilise
from support.broker.group_harness import GroupCluster, settle

from headwater.broker.groups import GroupSettings
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headwater.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


async def describe(cluster, group="g"):
    request = ConsumerGroupDescribeRequest(group_ids=[group])
    return (await cluster.call(request)).groups[0]


def everything(cluster, *topics):
    return {
        (cluster.topics.topic_id(name), p)
        for name in topics
        for p in range(cluster.topics.partition_count(name))
    }


def owned_by_all(*consumers):
    return sorted(partition for consumer in consumers for partition in consumer.owned)


async def test_the_first_member_gets_everything_with_its_first_heartbeat():
    cluster = await GroupCluster.start(t=3, u=2)
    member = Kip848Consumer(cluster, topics=("t", "u", "missing"))
    response = await member.heartbeat()
    assert response.error_code == ErrorCode.NONE
    assert response.heartbeat_interval_ms == 5_000
    assert member.epoch == 1
    assert member.owned == everything(cluster, "t", "u")
    # Nothing new, so the answer has no assignment.
    assert (await member.heartbeat(acknowledges=False)).assignment is None
    assert (await member.heartbeat(full=True)).assignment is not None
    group = await describe(cluster)
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 1, 1)
    assert group.assignor_name == "uniform"
    (described,) = group.members
    assert described.member_id == member.member_id
    assert described.subscribed_topic_names == ["missing", "t", "u"]
    assert described.client_host == "/10.0.0.1"
    assert {(t.topic_name, tuple(t.partitions)) for t in described.assignment.topic_partitions} == {
        ("t", (0, 1, 2)),
        ("u", (0, 1)),
    }
    assert described.target_assignment == described.assignment


async def test_a_newcomer_gets_a_partition_only_when_the_owner_has_given_it_up():
    cluster = await GroupCluster.start(t=4)
    first, second = Kip848Consumer(cluster), Kip848Consumer(cluster)
    await first.heartbeat()
    await second.heartbeat()
    assert (second.epoch, second.owned) == (2, frozenset())
    assert (await describe(cluster)).group_state == "Reconciling"

    still_owned = first.owned
    response = await first.heartbeat(acknowledges=False)
    assert response.member_epoch == 1  # it has not given up anything yet
    assert len(first.owned) == 2
    await second.heartbeat()
    assert second.owned == frozenset()
    retained, first.owned = first.owned, still_owned  # it is slow, and reports so
    await first.heartbeat()
    await second.heartbeat()
    assert second.owned == frozenset()

    first.owned = retained
    await first.heartbeat()
    assert first.epoch == 2
    await second.heartbeat()
    assert owned_by_all(first, second) == sorted(everything(cluster, "t"))
    assert (await describe(cluster)).group_state == "Stable"


async def test_members_share_evenly_and_take_over_when_one_leaves():
    cluster = await GroupCluster.start(t=7)
    members = [Kip848Consumer(cluster) for _ in range(3)]
    await converge(*members)
    assert sorted(len(member.owned) for member in members) == [2, 2, 3]
    leaving = members.pop()
    response = await leaving.leave()
    assert (response.error_code, response.member_epoch) == (ErrorCode.NONE, -1)
    assert (await describe(cluster)).group_state == "Assigning"
    await converge(*members)
    assert owned_by_all(*members) == sorted(everything(cluster, "t"))
    for member in members:
        await member.leave()
    assert (await describe(cluster)).group_state == "Empty"


async def test_the_range_assignor_gives_the_same_numbers_of_all_topics():
    cluster = await GroupCluster.start(t=4, u=4)
    members = [Kip848Consumer(cluster, topics=("t", "u"), assignor="range") for _ in range(2)]
    await converge(*members)
    for member in members:
        numbers = [{p for topic_id, p in member.owned if topic_id == i} for i in topic_ids(cluster)]
        assert numbers[0] == numbers[1]
        assert numbers[0] in ({0, 1}, {2, 3})
    assert (await describe(cluster)).assignor_name == "range"


def topic_ids(cluster):
    return [cluster.topics.topic_id(name) for name in ("t", "u")]


async def test_a_silent_member_is_fenced_after_its_session():
    cluster = await GroupCluster.start(t=4)
    alive, silent = Kip848Consumer(cluster), Kip848Consumer(cluster)
    await converge(alive, silent)
    for _ in range(5):
        await cluster.advance(10)
        await alive.heartbeat()
    assert len(alive.owned) == 4
    response = await silent.heartbeat()
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    await converge(alive, silent)
    assert len(silent.owned) == 2


async def test_a_group_may_have_times_of_its_own():
    cluster = await GroupCluster.start(t=4)
    await cluster.configs.set(
        "g", {"consumer.session.timeout.ms": "1000", "consumer.heartbeat.interval.ms": "200"}
    )
    member = Kip848Consumer(cluster)
    assert (await member.heartbeat()).heartbeat_interval_ms == 200
    await cluster.advance(1.1)
    assert (await member.heartbeat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_member_that_does_not_give_up_in_time_is_fenced():
    cluster = await GroupCluster.start(t=4)
    stubborn = Kip848Consumer(cluster, rebalance_timeout_ms=20_000)
    newcomer = Kip848Consumer(cluster)
    await stubborn.heartbeat()
    await newcomer.heartbeat()
    for _ in range(3):
        await stubborn.heartbeat(acknowledges=False)
        await newcomer.heartbeat()
        await cluster.advance(7)
    await newcomer.heartbeat()
    assert newcomer.owned == everything(cluster, "t")
    assert (await stubborn.heartbeat()).error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_epochs_that_are_not_the_members_are_fenced():
    cluster = await GroupCluster.start()
    member, other = Kip848Consumer(cluster), Kip848Consumer(cluster)
    await member.heartbeat()
    ahead = await member.heartbeat(member_epoch=9)
    assert ahead.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    await converge(member, other)
    # It was taken in again with epoch 0.
    assert member.epoch == 2
    assert len(member.owned) == 2
    answer = await Kip848Consumer(cluster, epoch=3).heartbeat()
    assert answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    nowhere = await Kip848Consumer(cluster, group="none", epoch=3).heartbeat()
    assert nowhere.error_code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_a_lost_answer_with_a_new_epoch_does_no_harm():
    cluster = await GroupCluster.start(t=2)
    member = Kip848Consumer(cluster)
    await member.heartbeat()
    cluster.topics.grow("t", 4)
    cluster.groups.topics_changed()
    before = (member.epoch, member.owned)
    await member.heartbeat()
    member.epoch, member.owned = before  # it never heard of it
    response = await member.heartbeat(full=True)
    assert response.error_code == ErrorCode.NONE
    assert member.owned == everything(cluster, "t")
    # But one who claims what it was never given is not believed.
    member.epoch, member.owned = before[0], frozenset({(cluster.topics.topic_id("t"), 99)})
    assert (await member.heartbeat()).error_code == ErrorCode.FENCED_MEMBER_EPOCH


async def test_new_topics_more_partitions_and_deleted_topics_reach_the_members():
    cluster = await GroupCluster.start(t=2)
    member = Kip848Consumer(cluster, topics=("t", "u"))
    await converge(member)
    appends = cluster.log.appends

    cluster.topics.create("unrelated", 3)
    cluster.groups.topics_changed()
    await converge(member)
    assert cluster.log.appends == appends

    cluster.topics.create("u", 2)
    cluster.groups.topics_changed()
    await converge(member)
    assert member.owned == everything(cluster, "t", "u")

    cluster.topics.grow("t", 5)
    cluster.groups.topics_changed()
    await converge(member)
    assert member.owned == everything(cluster, "t", "u")

    cluster.topics.delete("u")
    cluster.groups.topics_changed()
    await converge(member)
    assert member.owned == everything(cluster, "t")


async def test_a_change_of_the_topics_while_the_broker_was_down_is_noticed():
    cluster = await GroupCluster.start(t=2)
    member = Kip848Consumer(cluster)
    await converge(member)
    cluster.topics.grow("t", 3)
    await cluster.crash_and_restart()
    await converge(member)
    assert member.owned == everything(cluster, "t")


async def test_subscriptions_by_pattern_follow_the_topics():
    cluster = await GroupCluster.start(orders_eu=1, orders_us=1, payments=1)
    cluster.topics.create("__consumer_offsets", 3)
    member = Kip848Consumer(cluster, topics=None, regex="orders_.*|.*offsets")
    await converge(member)
    assert member.owned == everything(cluster, "orders_eu", "orders_us")
    cluster.topics.create("orders_asia", 2)
    cluster.groups.topics_changed()
    await converge(member)
    assert member.owned == everything(cluster, "orders_eu", "orders_us", "orders_asia")
    # An empty pattern takes the subscription back.
    await member.heartbeat(subscribed_topic_regex="", subscribed_topic_names=["payments"])
    await converge(member)
    assert member.owned == everything(cluster, "payments")


@pytest.mark.parametrize("pattern", ["(", "[z-a]", r"(a)\1", "(?=a)a", "a{9999}", "(?P<n>a)(?P=n)",
     "(?:){30000000}", "x" * 5000])  # fmt: skip
async def test_a_pattern_that_cannot_be_matched_is_refused(pattern):
    cluster = await GroupCluster.start()
    response = await Kip848Consumer(cluster, topics=None, regex=pattern).heartbeat()
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert response.error_message


async def test_a_pattern_that_is_slow_with_the_topics_of_this_broker_is_refused():
    cluster = await GroupCluster.start()
    for seed in range(300):
        cluster.topics.create("".join(random.Random(seed).choices("abc-", k=249)), 1)
    response = await Kip848Consumer(cluster, topics=None, regex=".*a.{900}").heartbeat()
    assert response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
    member = Kip848Consumer(cluster, topics=None, regex="[a-c-]{249}")
    await converge(member)
    assert len(member.owned) == 300


async def test_a_pattern_that_became_slow_matches_nothing_new_and_fails_no_member():
    """It was accepted when there were few topics."""
    cluster = await GroupCluster.start(t=2)
    slow = Kip848Consumer(cluster, topics=None, regex=".*a.{900}|t")
    other = Kip848Consumer(cluster, topics=["t"])
    await converge(slow, other)
    for seed in range(300):
        cluster.topics.create("".join(random.Random(seed).choices("abc-", k=249)), 1)
    cluster.groups.topics_changed()
    await converge(slow, other)
    assert owned_by_all(slow, other) == sorted(everything(cluster, "t"))


@pytest.mark.parametrize(
    ("nonsense", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ],
)
async def test_nonsense_is_refused_with_a_reason(nonsense, error):
    cluster = await GroupCluster.start()
    response = await Kip848Consumer(cluster).heartbeat(**nonsense)
    assert response.error_code == error
    assert response.error_message
    assert cluster.log.appends == 0


async def test_in_version_0_the_broker_chooses_the_member_id():
    cluster = await GroupCluster.start()
    response = await cluster.call(
        ConsumerGroupHeartbeatRequest(
            group_id="g",
            rebalance_timeout_ms=1000,
            subscribed_topic_names=["t"],
            topic_partitions=[],
        ),
        0,
    )
    assert response.error_code == ErrorCode.NONE
    assert response.member_id


async def test_a_full_group_refuses_other_members():
    cluster = await GroupCluster.start(GroupSettings(consumer_max_size=1))
    member = Kip848Consumer(cluster)
    await member.heartbeat()
    refused = await Kip848Consumer(cluster).heartbeat()
    assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await member.heartbeat()).error_code == ErrorCode.NONE


async def test_a_static_member_comes_back_to_its_partitions():
    cluster = await GroupCluster.start(t=4)
    first = Kip848Consumer(cluster, instance_id="a")
    other = Kip848Consumer(cluster, instance_id="b")
    await converge(first, other)
    mine, group_epoch = first.owned, (await describe(cluster)).group_epoch

    impostor = await Kip848Consumer(cluster, instance_id="a").heartbeat()
    assert impostor.error_code == ErrorCode.UNRELEASED_INSTANCE_ID
    assert (await first.leave(epoch=-2)).member_epoch == -2

    again = Kip848Consumer(cluster, instance_id="a")
    await again.heartbeat()
    assert again.owned == mine
    assert (await describe(cluster)).group_epoch == group_epoch
    fenced = await first.heartbeat(member_epoch=2, topic_partitions=None)
    assert fenced.error_code == ErrorCode.FENCED_INSTANCE_ID
    await converge(again, other)


async def test_a_static_member_that_stays_away_loses_its_partitions():
    cluster = await GroupCluster.start(t=4)
    first = Kip848Consumer(cluster, instance_id="a")
    other = Kip848Consumer(cluster)
    await converge(first, other)
    await first.leave(epoch=-2)
    for _ in range(5):
        await cluster.advance(10)
        await other.heartbeat()
    assert other.owned == everything(cluster, "t")


async def test_everything_survives_a_restart():
    cluster = await GroupCluster.start(t=5, u=3)
    members = [
        Kip848Consumer(cluster, topics=("t",), instance_id="a"),
        Kip848Consumer(cluster, topics=("t", "u")),
        Kip848Consumer(cluster, topics=None, regex="u.*"),
    ]
    for member in members:  # in the middle of the reconciliation
        await member.heartbeat()
    before = await describe(cluster)
    await cluster.crash_and_restart()
    assert await describe(cluster) == before
    await converge(*members)
    assert owned_by_all(*members) == sorted(everything(cluster, "t", "u"))
    await cluster.crash_and_restart()
    await cluster.advance(44)
    assert (await members[0].heartbeat()).error_code == ErrorCode.NONE
    await cluster.advance(2)
    assert len((await describe(cluster)).members) == 1


async def test_an_answer_waits_for_the_log_and_a_failed_write_changes_nothing():
    cluster = await GroupCluster.start(t=4)
    first, second = Kip848Consumer(cluster), Kip848Consumer(cluster)
    await first.heartbeat()
    before = await describe(cluster)
    cluster.log.fail_next = 1
    failed = await second.heartbeat()
    assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await describe(cluster) == before
    cluster.log.is_held = True
    joining = asyncio.ensure_future(second.heartbeat())
    await settle()
    assert not joining.done()
    assert await describe(cluster) == before
    assert (await first.heartbeat(acknowledges=False)).error_code == ErrorCode.NONE
    cluster.log.release()
    assert (await joining).error_code == ErrorCode.NONE
    await converge(first, second)


async def test_a_group_whose_first_write_failed_is_not_there():
    cluster = await GroupCluster.start()
    cluster.log.fail_next = 1
    failed = await Kip848Consumer(cluster).heartbeat()
    assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await describe(cluster)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await converge(Kip848Consumer(cluster), Kip848Consumer(cluster))


async def test_many_found_a_group_at_once():
    cluster = await GroupCluster.start(t=10)
    members = [Kip848Consumer(cluster) for _ in range(10)]
    cluster.log.is_held = True
    joining = [asyncio.ensure_future(member.heartbeat()) for member in members]
    await settle()
    cluster.log.release()
    assert {(await member).error_code for member in joining} == {ErrorCode.NONE}
    await converge(*members, rounds=30)
    assert {len(member.owned) for member in members} == {1}


async def test_a_connection_that_closes_during_a_write_leaves_the_member_in_the_group():
    cluster = await GroupCluster.start()
    member = Kip848Consumer(cluster)
    cluster.log.is_held = True
    joining = asyncio.ensure_future(member.heartbeat())
    await settle()
    joining.cancel()
    await settle()
    cluster.log.release()
    await settle()
    assert [m.member_id for m in (await describe(cluster)).members] == [member.member_id]
    assert (await member.heartbeat()).error_code == ErrorCode.NONE


async def test_a_fence_that_could_not_be_written_is_tried_again():
    cluster = await GroupCluster.start()
    await Kip848Consumer(cluster).heartbeat()
    cluster.log.fail_next = 1
    await cluster.advance(46)
    assert len((await describe(cluster)).members) == 1
    await cluster.advance(46)
    assert len((await describe(cluster)).members) == 0


# Offsets


async def test_members_commit_and_fetch_with_their_epoch():
    cluster = await GroupCluster.start()
    member = Kip848Consumer(cluster)
    await converge(member)
    me = {"member_id": member.member_id}
    key = ("t", 0)
    assert await cluster.commit("g", {key: 5}, generation=member.epoch, **me) == {
        key: ErrorCode.NONE
    }
    stale = await cluster.commit("g", {key: 6}, generation=member.epoch - 1, **me)
    assert stale == {key: ErrorCode.STALE_MEMBER_EPOCH}
    old = await cluster.commit("g", {key: 6}, generation=member.epoch, version=8, **me)
    assert old == {key: ErrorCode.UNSUPPORTED_VERSION}
    assert await cluster.commit("g", {key: 6}) == {key: ErrorCode.UNKNOWN_MEMBER_ID}
    assert await cluster.fetch("g", key, epoch=member.epoch, **me) == {key: 5}
    assert await cluster.fetch("g", key, epoch=9, **me) == ErrorCode.STALE_MEMBER_EPOCH
    assert await cluster.fetch("g", key, epoch=1, member_id="x") == ErrorCode.UNKNOWN_MEMBER_ID
    assert await cluster.fetch("g", key) == {key: 5}
    await member.leave()
    assert await cluster.commit("g", {key: 7}) == {key: ErrorCode.NONE}


# From one protocol to the other


async def test_an_empty_classic_group_goes_on_with_the_new_protocol_and_back():
    cluster = await GroupCluster.start()
    classic, modern = Consumer(cluster), Kip848Consumer(cluster)
    await stabilise(classic)
    await classic.commit(5)
    assert (await modern.heartbeat()).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert (await describe(cluster)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await classic.leave()

    await converge(modern)
    assert await cluster.fetch("g") == {("t", 0): 5}
    assert (await classic.join()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert await classic.heartbeat() == ErrorCode.UNKNOWN_MEMBER_ID
    assert await classic.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    await cluster.crash_and_restart()
    await converge(modern)
    await modern.leave()

    classic = Consumer(cluster)
    await stabilise(classic)
    assert await cluster.fetch("g") == {("t", 0): 5}
    assert (await describe(cluster)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    await cluster.crash_and_restart()
    assert await classic.heartbeat() == ErrorCode.NONE


async def test_a_failed_change_of_protocol_leaves_the_group_as_it_was():
    cluster = await GroupCluster.start()
    classic, modern = Consumer(cluster), Kip848Consumer(cluster)
    await stabilise(classic)
    await classic.leave()
    cluster.log.fail_next = 1
    assert (await modern.heartbeat()).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    classic.member_id = ""
    await stabilise(classic)
    assert classic.generation == 3
    await classic.leave()

    await converge(modern)
    await modern.leave()
    cluster.log.fail_next = 1
    failed = await Consumer(cluster).join()
    assert failed.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (await describe(cluster)).group_state == "Empty"
