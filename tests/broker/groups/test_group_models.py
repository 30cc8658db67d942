"""Random histories: what was acknowledged survives, and no partition has two readers."""

import asyncio

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.broker.group_clients import Consumer, Kip848Consumer, converge
from support.broker.group_harness import GroupCluster, settle
from tiers import examples

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headwater.protocol.messages.delete_groups import DeleteGroupsRequest
from headwater.protocol.messages.describe_groups import DescribeGroupsRequest

GROUPS = st.sampled_from(["a", "b", "c"])
PARTITIONS = st.integers(0, 2)


class Machine(RuleBasedStateMachine):
    """Runs coroutines on a loop of its own."""

    def __init__(self):
        super().__init__()
        self.loop = asyncio.new_event_loop()

    def run(self, coroutine):
        return self.loop.run_until_complete(coroutine)

    def teardown(self):
        async def end():
            self.cluster.log.release()
            await settle()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(end())
        self.loop.close()


class AcknowledgedOffsets(Machine):
    """Simple commits, members' commits, deletions, failing disks and crashes against a dict."""

    @initialize()
    def start(self):
        self.cluster = self.run(GroupCluster.start(t=3))
        self.acknowledged = {}
        self.members = {}

    def _took(self, group, partition, offset, error):
        if error == ErrorCode.NONE:
            self.acknowledged.setdefault(group, {})["t", partition] = offset

    @rule(group=GROUPS, partition=PARTITIONS, offset=st.integers(0, 9))
    def commit(self, group, partition, offset):
        errors = self.run(self.cluster.commit(group, {("t", partition): offset}))
        live = group in self.members
        assert errors["t", partition] == (ErrorCode.UNKNOWN_MEMBER_ID if live else ErrorCode.NONE)
        self._took(group, partition, offset, errors["t", partition])

    @rule(group=GROUPS, partition=PARTITIONS, offset=st.integers(0, 9))
    def commit_on_a_failing_disk(self, group, partition, offset):
        self.cluster.log.fail_next = 1
        errors = self.run(self.cluster.commit(group, {("t", partition): offset}))
        self.cluster.log.fail_next = 0
        assert errors["t", partition] != ErrorCode.NONE

    @rule(group=GROUPS)
    def join(self, group):
        if group in self.members:
            return
        member = Consumer(self.cluster, group=group)

        async def join():
            assert (await member.join()).error_code == ErrorCode.NONE
            assert (await member.sync_in_its_role()).error_code == ErrorCode.NONE

        self.run(join())
        self.members[group] = member

    @rule(group=GROUPS, partition=PARTITIONS, offset=st.integers(0, 9))
    def member_commits(self, group, partition, offset):
        if group in self.members:
            error = self.run(self.members[group].commit(offset, partition=partition))
            assert error == ErrorCode.NONE
            self._took(group, partition, offset, error)

    @rule(group=GROUPS)
    def leave(self, group):
        if group in self.members:
            assert self.run(self.members.pop(group).leave()) == ErrorCode.NONE

    @rule(group=GROUPS)
    def delete(self, group):
        request = DeleteGroupsRequest(groups_names=[group])
        (result,) = self.run(self.cluster.call(request)).results
        if group in self.members:
            assert result.error_code == ErrorCode.NON_EMPTY_GROUP
        else:
            self.acknowledged.pop(group, None)

    @rule()
    def crash(self):
        self.run(self.cluster.crash_and_restart())

    @rule(group=GROUPS, partition=PARTITIONS, offset=st.integers(0, 9))
    def crash_during_a_commit(self, group, partition, offset):
        """Nothing was answered, so afterwards it may be there or not; it is not, here."""
        if group in self.members:
            return

        async def crash():
            self.cluster.log.is_held = True
            committing = asyncio.ensure_future(
                self.cluster.commit(group, {("t", partition): offset})
            )
            await settle()
            self.cluster.log._held.clear()
            self.cluster.log.is_held = False
            committing.cancel()
            await self.cluster.crash_and_restart()

        self.run(crash())

    @invariant()
    def what_was_acknowledged_is_there(self):
        for group in ("a", "b", "c"):
            assert self.run(self.cluster.fetch(group)) == self.acknowledged.get(group, {})

    @invariant()
    def members_are_alive(self):
        for member in self.members.values():
            assert self.run(member.heartbeat()) == ErrorCode.NONE


class Reconciliation(Machine):
    """Members of a KIP-848 group come, go, crash, lag behind; topics change; the broker crashes."""

    @initialize(counts=st.lists(st.integers(1, 6), min_size=2, max_size=2))
    def start(self, counts):
        self.cluster = self.run(GroupCluster.start(t=counts[0], u=counts[1]))
        self.members = []

    @rule(
        topics=st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "missing")]),
        assignor=st.sampled_from([None, "uniform", "range"]),
    )
    def join(self, topics, assignor):
        if len(self.members) < 5:
            member = Kip848Consumer(self.cluster, topics=topics, assignor=assignor)
            self.members.append(member)
            assert self.run(member.heartbeat()).error_code == ErrorCode.NONE

    @rule(number=st.integers(0, 4), acknowledges=st.booleans())
    def heartbeat(self, number, acknowledges):
        if number < len(self.members):
            member = self.members[number]
            # To leave the partitions out is to say that nothing changed, so an owner may do so
            # only if it has not been assigned anything new.
            self.run(member.heartbeat(acknowledges=acknowledges or member.epoch == 0))

    @rule(number=st.integers(0, 4))
    def leave(self, number):
        if number < len(self.members):
            self.run(self.members.pop(number).leave())

    @rule(number=st.integers(0, 4))
    def is_killed_and_times_out(self, number):
        if number >= len(self.members):
            return
        self.members.pop(number)

        async def time_passes():
            for _ in range(6):
                await self.cluster.advance(9)
                for member in self.members:
                    await member.heartbeat()

        self.run(time_passes())

    @rule(number=st.integers(0, 4), topics=st.sampled_from([("t",), ("u",), ("t", "u")]))
    def subscribe(self, number, topics):
        if number < len(self.members):
            self.members[number].topics = topics
            self.run(self.members[number].heartbeat(full=True))

    @rule(topic=st.sampled_from(["t", "u"]))
    def grow(self, topic):
        count = self.cluster.topics.partition_count(topic)
        if count < 9:
            self.cluster.topics.grow(topic, count + 1)
            self.cluster.groups.topics_changed()

    @rule(topic=st.sampled_from(["t", "u"]), count=st.integers(1, 5))
    def recreate(self, topic, count):
        self.cluster.topics.delete(topic)
        self.cluster.groups.topics_changed()
        self.cluster.topics.create(topic, count)
        self.cluster.groups.topics_changed()

    @rule(number=st.integers(0, 4))
    def heartbeat_on_a_failing_disk(self, number):
        if number < len(self.members):
            self.cluster.log.fail_next = 1
            self.run(self.members[number].heartbeat())
            self.cluster.log.fail_next = 0

    @rule()
    def crash(self):
        before = self.run(self.described())
        self.run(self.cluster.crash_and_restart())
        assert self.run(self.described()) == before

    async def described(self):
        request = ConsumerGroupDescribeRequest(group_ids=["g"])
        (group,) = (await self.cluster.call(request)).groups
        group.members.sort(key=lambda member: member.member_id)
        return group

    @rule()
    def settles(self):
        self.run(converge(*self.members, rounds=40))
        topics = self.cluster.topics
        expected = {
            (topics.topic_id(name), p)
            for name in {name for member in self.members for name in member.topics}
            for p in range(topics.partition_count(name) or 0)
        }
        assert {partition for member in self.members for partition in member.owned} == expected

    @invariant()
    def no_partition_has_two_owners(self):
        owned = [partition for member in getattr(self, "members", ()) for partition in member.owned]
        assert len(owned) == len(set(owned))


_SETTINGS = settings(
    max_examples=examples(40),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestAcknowledgedOffsets = AcknowledgedOffsets.TestCase
TestAcknowledgedOffsets.settings = _SETTINGS
TestReconciliation = Reconciliation.TestCase
TestReconciliation.settings = _SETTINGS


async def test_a_group_that_is_loaded_twice_is_described_the_same():
    cluster = await GroupCluster.start()
    member = Consumer(cluster)
    await member.join()
    await member.sync_in_its_role()
    described = []
    for _ in range(3):
        await cluster.crash_and_restart()
        described.append(await cluster.call(DescribeGroupsRequest(groups=["g"])))
    assert described[0] == described[1] == described[2]
