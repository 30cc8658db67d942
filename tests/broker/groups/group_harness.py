"""A coordinator on an in-memory log and a fake clock, driven through the API handlers.

Every request and every response goes through its bytes in the version that is asked for, so what
a test sees is what a client would.
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from uuid import UUID, uuid4

from wire import LoneConnection

from headwater.broker.api import (  # noqa: F401  (they register themselves)
    alter_share_group_offsets,
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    delete_share_group_offsets,
    describe_groups,
    describe_share_group_offsets,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    share_group_describe,
    share_group_heartbeat,
    sync_group,
)
from headwater.broker.api.registry import APIS, RequestContext
from headwater.broker.group_configs import GroupConfigs
from headwater.broker.groups import GroupCoordinator, GroupSettings, StoredRecord
from headwater.broker.security.authorizer import Authorizer
from headwater.errors import StorageFailed
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages import internal
from headwater.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerGroupHeartbeatResponse,
)
from headwater.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headwater.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from headwater.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupRequestMemberIdentity,
    LeaveGroupResponse,
)
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headwater.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from headwater.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from headwater.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from headwater.testing.clock import FakeClock

RESPONSES = {
    request.api_key: response
    for request, response in [
        (JoinGroupRequest, JoinGroupResponse),
        (SyncGroupRequest, SyncGroupResponse),
        (HeartbeatRequest, HeartbeatResponse),
        (LeaveGroupRequest, LeaveGroupResponse),
        (OffsetCommitRequest, OffsetCommitResponse),
        (OffsetFetchRequest, OffsetFetchResponse),
        (ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
    ]
}


async def settle():
    """Lets everything run that can run without time passing."""
    for _ in range(30):
        await asyncio.sleep(0)


class InMemoryLog:
    """`__consumer_offsets` in lists. Appends become durable in the next turn of the loop."""

    partition_count = 3

    def __init__(self):
        self.durable = [[] for _ in range(self.partition_count)]
        self.fail_next = 0
        self.is_held = False
        self.appends = 0
        self._held = []

    def append(self, partition, records, producer=None):
        assert records, "an empty batch"
        self.appends += 1
        future = asyncio.get_running_loop().create_future()
        fails, self.fail_next = self.fail_next > 0, max(0, self.fail_next - 1)

        def finish():
            if future.done():
                return
            if fails:
                future.set_exception(StorageFailed("no space left on device"))
            else:
                offset = len(self.durable[partition])
                producer_id = -1 if producer is None else producer[0]
                self.durable[partition] += [
                    StoredRecord(k, v, 0, offset, producer_id) for k, v in records
                ]
                future.set_result(offset)

        if self.is_held:
            self._held.append(finish)
        else:
            asyncio.get_running_loop().call_soon(finish)
        return future

    def release(self):
        self.is_held = False
        for finish in self._held:
            finish()
        self._held.clear()

    async def read(self, partition):
        records = self.durable[partition]
        for start in range(0, len(records), 7):
            yield records[start : start + 7]

    def all_records(self):
        return [record for partition in self.durable for record in partition]


class FakeTopics:
    def __init__(self, **partition_counts):
        self._topics = {}
        for name, count in partition_counts.items():
            self.create(name, count)

    def create(self, name, count):
        self._topics[name] = (uuid4(), count)

    def grow(self, name, count):
        self._topics[name] = (self._topics[name][0], count)

    def delete(self, name):
        del self._topics[name]

    def partition_count(self, name):
        return self._topics.get(name, (None, None))[1]

    def topic_id(self, name) -> UUID | None:
        return self._topics.get(name, (None, None))[0]

    def name_of(self, topic_id):
        return next((n for n, (each, _) in self._topics.items() if each == topic_id), None)

    def names(self):
        return list(self._topics)


class FakeStore:
    """Keeps documents, as the catalog of a store does."""

    def __init__(self):
        self.catalog = SimpleNamespace(documents={})

    async def put_documents(self, kind, changes):
        kept = {**self.catalog.documents.get(kind, {}), **changes}
        self.catalog.documents[kind] = {k: v for k, v in kept.items() if v is not None}


class FakeQueues:
    """Where each share group is in which partition; `refuses`: why it takes no writes."""

    def __init__(self, topics):
        self._topics = topics
        self.offsets = {}
        self.left = []
        self.refuses = None

    async def initialize(self, group_id, offsets):
        await self._write()
        for key, offset in offsets.items():
            self.offsets.setdefault((group_id, *key), offset)

    async def alter(self, group_id, offsets):
        await self._write()
        self.offsets.update({(group_id, *key): offset for key, offset in offsets.items()})

    async def delete(self, group_id, topic_ids):
        await self._write()
        gone = [
            k for k in self.offsets if k[0] == group_id and (topic_ids is None or k[1] in topic_ids)
        ]
        for key in gone:
            del self.offsets[key]

    def member_left(self, group_id, member_id):
        self.left.append((group_id, member_id))

    def describe(self, group_id):
        return [
            SimpleNamespace(
                topic=self._topics.name_of(topic_id),
                partition=partition,
                start_offset=offset,
                in_flight=0,
                oldest_lock_age_s=None,
            )
            for (group, topic_id, partition), offset in self.offsets.items()
            if group == group_id
        ]

    def lag(self, group_id, topic_id, partition):
        return -1

    async def _write(self):
        await asyncio.sleep(0)
        if self.refuses:
            raise self.refuses


class Cluster:
    """One broker as far as groups can see it."""

    def __init__(self, settings=None, **partition_counts):
        self.log = InMemoryLog()
        self.topics = FakeTopics(**(partition_counts or {"t": 4}))
        self.clock = FakeClock()
        self.settings = settings or GroupSettings()
        self.store = FakeStore()
        self.configs = GroupConfigs(self.store)
        self.queues = FakeQueues(self.topics)
        self._boot()

    def _boot(self):
        self.groups = GroupCoordinator(
            self.log, self.topics, self.queues, self.clock, self.configs, self.settings
        )
        self.broker = SimpleNamespace(
            groups=self.groups,
            queues=self.queues,
            authorizer=Authorizer(self.store),
            audit=SimpleNamespace(changed=lambda context, change: None, dropped=0),
            in_any_case=lambda work: work,
            clock=self.clock,
            node_id=1,
            advertised=("localhost", 9092),
        )

    @classmethod
    async def start(cls, settings=None, **partition_counts):
        cluster = cls(settings, **partition_counts)
        await cluster.groups.load()
        return cluster

    async def crash_and_restart(self):
        """The old coordinator is forgotten as it is; only the log remains."""
        self.clock._timers.clear()
        self._boot()
        await self.groups.load()

    async def call(self, request, version=None, client_id="client"):
        api = APIS[request.api_key]
        version = api.last if version is None else version
        assert api.first <= version <= api.last
        request = type(request).decode(bytes(request.encode(version)), version)
        context = RequestContext(version, 1, client_id, "10.0.0.1", LoneConnection())
        answer = api.handle(self.broker, request, context)
        if asyncio.iscoroutine(answer) or asyncio.isfuture(answer):
            answer = await answer
        return type(answer).decode(bytes(answer.encode(version)), version)

    async def advance(self, seconds):
        self.clock.advance(seconds)
        await settle()

    async def commit(
        self, group, offsets, member_id="", generation=-1, instance_id=None, version=9, metadata=""
    ):
        """{(topic, partition): offset} → {(topic, partition): error}"""
        topics = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                OffsetCommitRequestPartition(
                    partition_index=partition,
                    committed_offset=offset,
                    committed_metadata=metadata,
                )
            )
        response = await self.call(
            OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=generation,
                member_id=member_id,
                group_instance_id=instance_id,
                topics=[
                    OffsetCommitRequestTopic(
                        name=name,
                        topic_id=self.topics.topic_id(name) or UUID(int=1),
                        partitions=partitions,
                    )
                    for name, partitions in topics.items()
                ],
            ),
            version,
        )
        return {
            (topic.name or self.topics.name_of(topic.topic_id), p.partition_index): ErrorCode(
                p.error_code
            )
            for topic in response.topics
            for p in topic.partitions
        }

    async def fetch(self, group, *keys, member_id=None, epoch=-1):
        """{(topic, partition): offset}; without keys: all that the group has."""
        topics = None
        if keys:
            topics = [
                OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
                for topic, partition in keys
            ]
        response = await self.call(
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id=group, member_id=member_id, member_epoch=epoch, topics=topics
                    )
                ]
            ),
            9,
        )
        (answer,) = response.groups
        if answer.error_code:
            return ErrorCode(answer.error_code)
        return {
            (topic.name, p.partition_index): p.committed_offset
            for topic in answer.topics
            for p in topic.partitions
        }


def subscription(*topics):
    body = internal.ConsumerProtocolSubscription(topics=list(topics)).encode(0)
    return b"\x00\x00" + bytes(body)


@dataclass
class Consumer:
    """A client of the classic protocol, one request at a time."""

    cluster: Cluster
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

    async def join_once_when_told(self):
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

    async def sync_as_told(self):
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
            if (await consumer.sync_as_told()).error_code == ErrorCode.NONE:
                synced[number] = consumer.generation
                while await consumer.heartbeat() == ErrorCode.NONE:
                    await settle()
            synced.pop(number, None)

    clients = [asyncio.ensure_future(live(*each)) for each in enumerate(consumers)]
    for _ in range(1_000):
        await settle()
        if len(synced) == len(consumers) and len(set(synced.values())) == 1:
            break
        failed = [each for each in clients if each.done()]
        if failed:
            failed[0].result()
    else:
        raise AssertionError("the group does not become stable")
    for each in clients:
        each.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


_ids = itertools.count()


@dataclass
class ModernConsumer:
    """A client of KIP-848: owns what it is told, gives up at once what it is no longer told."""

    cluster: Cluster
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
                    (each.topic_id, p)
                    for each in response.assignment.topic_partitions
                    for p in each.partitions
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
        before = [(each.epoch, each.owned) for each in consumers]
        for each in consumers:
            await each.heartbeat()
            owned = [partition for c in consumers for partition in c.owned]
            assert len(owned) == len(set(owned)), "a partition with two owners"
        if before == [(each.epoch, each.owned) for each in consumers]:
            return
    raise AssertionError("the group does not converge")


@dataclass
class ShareConsumer:
    """A client of KIP-932: has what it is told."""

    cluster: Cluster
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
                    (each.topic_id, p)
                    for each in response.assignment.topic_partitions
                    for p in each.partitions
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
    """Two rounds: in the first all are known, in the second all have their part."""
    for _ in range(2):
        for each in consumers:
            response = await each.heartbeat()
            assert response.error_code == ErrorCode.NONE, ErrorCode(response.error_code)
