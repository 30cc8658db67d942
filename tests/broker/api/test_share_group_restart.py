"""Share groups and their queues together: what a crash and a restart leave of them."""

import asyncio

import pytest
from support.broker.asked_broker import AskedBroker

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from headwater.protocol.messages.delete_groups import DeleteGroupsRequest
from headwater.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from headwater.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from headwater.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest


def heartbeat(asked: AskedBroker, epoch=0, *, member="m", group="jobs", topics=("orders",)):
    request = ShareGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=epoch,
        subscribed_topic_names=list(topics) if epoch == 0 else None,
    )
    return asked.ask(request, 1)


def offsets(asked, group="jobs"):
    """{partition: start offset} of the one topic."""
    groups = [DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
    (described,) = asked.ask(DescribeShareGroupOffsetsRequest(groups=groups), 1).groups
    assert described.error_code == 0
    return {
        partition.partition_index: partition.start_offset
        for topic in described.topics
        for partition in topic.partitions
    }


def alter(asked, partition, offset, group="jobs"):
    topic = AlterShareGroupOffsetsRequestTopic(
        topic_name="orders",
        partitions=[
            AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
        ],
    )
    return asked.ask(AlterShareGroupOffsetsRequest(group_id=group, topics=[topic]), 0).error_code


def described(asked, group="jobs"):
    (answer,) = asked.ask(ShareGroupDescribeRequest(group_ids=[group]), 1).groups
    return answer


def crash(asked):
    asked.runner.run(asked.broker.abandon())
    asked.open()
    wait_for_groups(asked)


def wait_for_groups(asked):
    async def loaded() -> None:
        while True:
            try:
                asked.broker.groups.registry.verify_ready()
            except Exception:
                await asyncio.sleep(0.01)
            else:
                return

    asked.runner.run(loaded())


@pytest.fixture
def jobs(asked):
    """A group of one member that reads a topic of two partitions."""
    wait_for_groups(asked)
    asked.topic("orders", 2)
    assert heartbeat(asked).error_code == 0
    return asked


@pytest.mark.parametrize("again", [AskedBroker.reopen, crash])
def test_members_and_where_they_begin_survive(jobs, again):
    before = described(jobs)
    assert before.group_state == "Stable"
    again(jobs)
    wait_for_groups(jobs)
    assert described(jobs) == before
    assert offsets(jobs) == {0: -1, 1: -1}
    assert heartbeat(jobs, before.members[0].member_epoch).error_code == 0


@pytest.mark.parametrize("again", [AskedBroker.reopen, crash])
def test_altered_offsets_survive(jobs, again):
    heartbeat(jobs, -1)
    assert alter(jobs, 1, 7) == 0
    assert alter(jobs, 0, 3, group="new") == 0  # before its first member
    again(jobs)
    wait_for_groups(jobs)
    assert offsets(jobs) == {0: -1, 1: 7}
    assert offsets(jobs, "new") == {0: 3, 1: -1}


@pytest.mark.parametrize("again", [AskedBroker.reopen, crash])
def test_a_deleted_group_is_gone_with_its_queues(jobs, again):
    heartbeat(jobs, -1)
    alter(jobs, 0, 5)
    (deleted,) = jobs.ask(DeleteGroupsRequest(groups_names=["jobs"]), 2).results
    assert deleted.error_code == 0
    again(jobs)
    wait_for_groups(jobs)
    assert described(jobs).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert heartbeat(jobs).error_code == 0
    assert offsets(jobs) == {0: -1, 1: -1}  # it begins again


def test_a_full_disk_gives_no_member_any_records(jobs):
    jobs.files.is_full = True
    answer = heartbeat(jobs, group="other")
    assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert described(jobs, "other").error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_topic(jobs):
    jobs.runner.run(jobs.broker.delete_topic("orders"))

    async def forgotten() -> None:
        while jobs.broker.groups.membership.share_group("jobs").state_topics:
            await asyncio.sleep(0.01)

    jobs.runner.run(forgotten())
    assert offsets(jobs) == {}
    answer = heartbeat(jobs, 1)
    assert (answer.error_code, answer.assignment.topic_partitions) == (0, [])
