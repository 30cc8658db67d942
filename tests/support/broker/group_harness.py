"""A coordinator on an in-memory log and a fake clock, driven through the API handlers.

Every request and every response goes through its bytes in the version that is asked for, so what
a test sees is what a client would.
"""

import asyncio
from types import SimpleNamespace
from uuid import UUID, uuid4

from headwater.broker import api
from headwater.broker.api.registry import APIS, RequestContext
from headwater.broker.groups import GroupCoordinator, GroupSettings
from headwater.broker.groups.configs import GroupConfigs
from headwater.broker.internal_topics.coordinator_log import StoredRecord
from headwater.broker.security.audit import AuditLog
from headwater.broker.security.authorizer import Authorizer
from headwater.errors import StorageFailed
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headwater.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headwater.testing.clock import FakeClock
from support.wire import LoneConnection

api.load_all()


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
        return next((n for n, (other_id, _) in self._topics.items() if other_id == topic_id), None)

    def names(self):
        return list(self._topics)


class FakeStore:
    """Keeps documents, as the catalog of a store does."""

    def __init__(self):
        self.catalog = SimpleNamespace(documents={})

    async def put_documents(self, kind, changes):
        documents = {**self.catalog.documents.get(kind, {}), **changes}
        self.catalog.documents[kind] = {k: v for k, v in documents.items() if v is not None}


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
        deleted = [
            k for k in self.offsets if k[0] == group_id and (topic_ids is None or k[1] in topic_ids)
        ]
        for key in deleted:
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


class GroupCluster:
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
            audit=AuditLog(None, self.clock),
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
