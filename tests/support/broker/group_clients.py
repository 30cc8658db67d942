"""Members of groups as clients are: classic (JoinGroup), KIP-848, and KIP-932."""

import asyncio
import itertools
from dataclasses import dataclass, field

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages import internal
from headwater.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)
from headwater.protocol.messages.heartbeat import HeartbeatRequest
from headwater.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headwater.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupRequestMemberIdentity,
)
from headwater.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from headwater.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from support.broker.group_harness import GroupCluster, settle


def subscription(*topics):
    body = internal.ConsumerProtocolSubscription(topics=list(topics)).encode(0)
    return b"\x00\x00" + bytes(body)


@dataclass
class Consumer:
    """A client of the classic protocol, one request at a time."""

    cluster: GroupCluster
    group: str = "g"
    instance_id: str | None = None
    protocols: tuple = ("range",)
    topics: tuple = ("t",)
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 60_000
    version: int = 9
    protocol_type: str = "consumer"
    member_id: str = ""
    generation: int = -1
    joined: JoinGroupResponse | None = None
    assignment: bytes = b""

    async def join_once(self):
        response = await self.cluster.call(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.session_timeout_ms,
                rebalance_timeout_ms=self.rebalance_timeout_ms,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type=self.protocol_type,
                protocols=[
                    JoinGroupRequestProtocol(name=name, metadata=subscription(*self.topics))
                    for name in self.protocols
                ],
            ),
            self.version,
        )
        if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = response.member_id
        if response.error_code == ErrorCode.NONE:
            self.generation = response.generation_id
            self.joined = response
        return response

    async def join(self):
        response = await self.join_once()
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            response = await self.join_once()
        return response

    async def join_once_at_a_rebalance(self):
        """Joins when the heartbeat says that there is a rebalance."""
        while await self.heartbeat() != ErrorCode.REBALANCE_IN_PROGRESS:
            await asyncio.sleep(0)
        return await self.join_once()

    def joining(self):
        return asyncio.ensure_future(self.join())

    @property
    def leads(self):
        return self.joined is not None and self.joined.leader == self.member_id

    async def sync(self, assignments=None):
        response = await self.cluster.call(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type=self.protocol_type,
                protocol_name=self.joined.protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                    for member_id, assignment in (assignments or {}).items()
                ],
            ),
            min(self.version, 5),
        )
        if response.error_code == ErrorCode.NONE:
            self.assignment = bytes(response.assignment)
        return response

    async def sync_in_its_role(self):
        """The leader gives every member its own id as the assignment."""
        members = self.joined.members if self.leads else []
        return await self.sync({m.member_id: m.member_id.encode() for m in members})

    async def heartbeat(self):
        response = await self.cluster.call(
            HeartbeatRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
        )
        return ErrorCode(response.error_code)

    async def leave(self):
        response = await self.cluster.call(
            LeaveGroupRequest(
                group_id=self.group,
                members=[
                    LeaveGroupRequestMemberIdentity(
                        member_id=self.member_id, group_instance_id=self.instance_id
                    )
                ],
            )
        )
        return ErrorCode(response.members[0].error_code)

    async def commit(self, offset, topic="t", partition=0, version=9):
        errors = await self.cluster.commit(
            self.group,
            {(topic, partition): offset},
            member_id=self.member_id,
            generation=self.generation,
            instance_id=self.instance_id,
            version=version,
        )
        return errors[topic, partition]


async def stabilise(*consumers):
    """Has all of them join, sync and heartbeat, as clients do, until all are in one generation."""
    synced = {}

    async def live(number, consumer):
        while True:
            response = await consumer.join()
            assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code)
            if (await consumer.sync_in_its_role()).error_code == ErrorCode.NONE:
                synced[number] = consumer.generation
                while await consumer.heartbeat() == ErrorCode.NONE:
                    await settle()
            synced.pop(number, None)

    clients = [asyncio.ensure_future(live(*numbered)) for numbered in enumerate(consumers)]
    for _ in range(1_000):
        await settle()
        if len(synced) == len(consumers) and len(set(synced.values())) == 1:
            break
        failed = [other for other in clients if other.done()]
        if failed:
            failed[0].result()
    else:
        raise AssertionError("the group does not become stable")
    for other in clients:
        other.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


_ids = itertools.count()


@dataclass
class Kip848Consumer:
    """A client of KIP-848: owns its assignment, gives up at once what is no longer in it."""

    cluster: GroupCluster
    group: str = "g"
    topics: tuple | None = ("t",)
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 30_000
    member_id: str = field(default_factory=lambda: f"member-{next(_ids)}")
    epoch: int = 0
    owned: frozenset = frozenset()

    async def heartbeat(self, *, acknowledges=True, full=False, **changes):
        joining = self.epoch == 0
        everything = joining or full
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=self.rebalance_timeout_ms if everything else -1,
            subscribed_topic_names=(
                list(self.topics) if everything and self.topics is not None else None
            ),
            subscribed_topic_regex=self.regex if everything else None,
            server_assignor=self.assignor if everything else None,
            topic_partitions=self._owned() if acknowledges else None,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        response = await self.cluster.call(request)
        if response.error_code == ErrorCode.NONE and request.member_epoch >= 0:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = frozenset(
                    (topic_partition.topic_id, p)
                    for topic_partition in response.assignment.topic_partitions
                    for p in topic_partition.partitions
                )
        elif response.error_code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned = 0, frozenset()
        return response

    def _owned(self):
        topics = {}
        for topic_id, partition in sorted(self.owned):
            topics.setdefault(topic_id, []).append(partition)
        return [
            ConsumerGroupHeartbeatRequestTopicPartitions(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ]

    async def leave(self, epoch=-1):
        response = await self.heartbeat(member_epoch=epoch)
        self.epoch, self.owned = 0, frozenset()
        return response


async def converge(*consumers, rounds=10):
    """Heartbeats until nothing moves any more; no partition may be owned twice on the way."""
    for _ in range(rounds):
        before = [(consumer.epoch, consumer.owned) for consumer in consumers]
        for consumer in consumers:
            await consumer.heartbeat()
            owned = [partition for c in consumers for partition in c.owned]
            assert len(owned) == len(set(owned)), "a partition with two owners"
        if before == [(consumer.epoch, consumer.owned) for consumer in consumers]:
            return
    raise AssertionError("the group does not converge")


@dataclass
class ShareConsumer:
    """A client of KIP-932: has what it is assigned."""

    cluster: GroupCluster
    group: str = "s"
    topics: tuple = ("t",)
    rack_id: str | None = None
    member_id: str = field(default_factory=lambda: f"sharer-{next(_ids)}")
    epoch: int = 0
    assigned: frozenset = frozenset()

    async def heartbeat(self, **changes):
        joining = self.epoch == 0
        request = ShareGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rack_id=self.rack_id if joining else None,
            subscribed_topic_names=list(self.topics) if joining else None,
        )
        for name, value in changes.items():
            setattr(request, name, value)
        response = await self.cluster.call(request)
        if response.error_code == ErrorCode.NONE and request.member_epoch >= 0:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.assigned = frozenset(
                    (topic_partition.topic_id, p)
                    for topic_partition in response.assignment.topic_partitions
                    for p in topic_partition.partitions
                )
        return response

    @property
    def partitions(self):
        """Of the one topic that it reads."""
        return sorted(partition for _, partition in self.assigned)

    async def leave(self):
        response = await self.heartbeat(member_epoch=-1)
        self.epoch, self.assigned = 0, frozenset()
        return response


async def share(*consumers):
    """Two rounds: in the first all join, in the second all have their part."""
    for _ in range(2):
        for consumer in consumers:
            response = await consumer.heartbeat()
            assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code)
