"""The broker: what the APIs act upon, and the tasks that run beside them."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import UUID

from headwater.broker.admission.batch_checks import BatchChecks
from headwater.broker.admission.overload import Overload
from headwater.broker.admission.quotas import Quotas
from headwater.broker.admission.schema_ids import SchemaIds
from headwater.broker.api.registry import APIS, ClientConnection
from headwater.broker.background import Background
from headwater.broker.fetch_sessions import FetchSessions
from headwater.broker.groups import GroupCoordinator, GroupSettings
from headwater.broker.groups.configs import GroupConfigs
from headwater.broker.internal_topics.log import InternalLog
from headwater.broker.monitoring.lag import MEASURE_S, LagMeter
from headwater.broker.monitoring.lag_alerts import LagAlerts
from headwater.broker.monitoring.metrics import Metrics
from headwater.broker.queues import STATE_TOPIC, Queues
from headwater.broker.security.audit import AuditLog
from headwater.broker.security.authentication import Authentication
from headwater.broker.security.authorizer import Authorizer, unknown_topic_id
from headwater.broker.security.users import Users
from headwater.broker.transactions import TransactionCoordinator, TransactionSettings
from headwater.broker.transactions.markers import Markers
from headwater.clock import Clock, sleep
from headwater.log import retention
from headwater.log.catalog import Topic, is_topic_name
from headwater.log.compaction.compactor import CompactionLimits, Compactor
from headwater.log.erasure.eraser import Eraser
from headwater.log.partitions.partition import PartitionLog
from headwater.log.store import LogStore
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.api_versions import (
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
)
from headwater.protocol.records import INT64_MAX

log = logging.getLogger(__name__)

T = TypeVar("T")

OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 50  # Kafka's own default, so that its tools look in the right one
OFFSETS_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
TRANSACTIONS_TOPIC = "__transaction_state"
TRANSACTIONS_PARTITIONS = 50
TRANSACTIONS_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
# Only the coordinators write to these: their records are state that a client could forge.
COORDINATORS_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC, STATE_TOPIC))
CHECKPOINT_S = 60.0
COMPACTION_S = 15.0  # log.cleaner.backoff.ms
RETENTION_S = 300.0  # log.retention.check.interval.ms
ID_EXPIRY_S = 3600.0  # transaction.remove.expired.transaction.cleanup.interval.ms
RETENTION_PARTITIONS = 500  # looked at, and deleted from, at a time


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The settings of one broker."""

    node_id: int = 1
    auto_create_topics: bool = True
    default_partitions: int = 1
    producer_id_expiration_ms: int = 86_400_000
    authorization: bool = False
    super_users: frozenset[str] = frozenset()  # principals: User:admin
    groups: GroupSettings = field(default_factory=GroupSettings)
    group_defaults: Mapping[str, str] = field(default_factory=dict)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    compaction: CompactionLimits = field(default_factory=CompactionLimits)
    max_decompressed_bytes: int = 64 << 20  # by all checks of batches together
    lag_warning_percent: int = 80
    lag_webhook: str | None = None


class Broker:
    """Topics, groups and the log behind them. Lives on one event loop."""

    def __init__(
        self,
        store: LogStore,
        clock: Clock,
        options: BrokerOptions,
        audit: AuditLog | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self.options = options
        self.node_id = options.node_id
        self.advertised = ("127.0.0.1", 0)
        self.metrics = Metrics()
        self.audit = audit or AuditLog(None, clock)
        self.authorizer = Authorizer(
            store,
            enabled=options.authorization,
            super_users=options.super_users,
            audit=self.audit,
        )
        self.users = Users(store)
        # After passwords were removed, at the request of a client: who used them is no user now.
        self.when_users_removed: Callable[[ClientConnection], None] = lambda _: None
        self.authentication = Authentication(clock, self.users)  # clients need not authenticate
        self.fetch_sessions = FetchSessions(clock)
        self.group_configs = GroupConfigs(store, options.group_defaults)
        self.queues = Queues(self)
        self.groups = GroupCoordinator(
            InternalLog(store, OFFSETS_TOPIC, OFFSETS_PARTITIONS),
            _Topics(self),
            self.queues,
            clock,
            self.group_configs,
            options.groups,
        )
        self.authorizer.when_changed = self.groups.rights_changed
        self.markers = Markers(store, clock, OFFSETS_TOPIC, self.groups.offsets)
        self.transactions = TransactionCoordinator(
            InternalLog(store, TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS),
            store,
            self.markers,
            clock,
            self._create_transactions_topic,
            options.transactions,
        )
        self.compactor = Compactor(store, options.compaction)
        self.eraser = Eraser(store, self.compactor, bytes_per_s=options.compaction.bytes_per_s)
        self.quotas = Quotas(store, clock)
        self.schema_ids = SchemaIds(store)
        self.batch_checks = BatchChecks(self, options.max_decompressed_bytes)
        self.overload = Overload(self)
        self.groups.offsets.when_committed(self.overload.committed)
        self.lag = LagMeter(self)
        self.lag_alerts = LagAlerts(
            self,
            self.lag,
            warning_percent=options.lag_warning_percent,
            webhook=options.lag_webhook,
        )
        self._background = Background("what the broker does by itself")
        self._change_turn = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """The log is open; loads the ACLs and the groups, and begins the background work."""
        self.authorizer.load()
        if not self.store.has_topic(OFFSETS_TOPIC):
            await self.store.create_topic(OFFSETS_TOPIC, OFFSETS_PARTITIONS, OFFSETS_CONFIGS)
        self.quotas.load()
        self.eraser.load()
        if self.authentication.mode == "sasl":
            await self.users.start()
        await self._measure_disk()
        self._background.start(self._load_coordinators())
        self._background.start(self._load_queues())
        self._background.start(self._every(CHECKPOINT_S, self.store.checkpoints.write))
        self._background.start(self._every(RETENTION_S, self.retain))
        self._background.start(self._every(COMPACTION_S, self.compactor.run))
        self._background.start(self.eraser.run())
        self._background.start(self._every(1.0, self._measure_disk))
        self._background.start(self._every(1.0, self.store.probe))
        self._background.start(self._every(1.0, self.transactions.abort_timed_out))
        self._background.start(self._every(ID_EXPIRY_S, self.transactions.expire_ids))
        self._background.start(self._every(MEASURE_S, self.lag_alerts.run_round))
        self._background.start(self.lag_alerts.post())

    async def close(self) -> None:
        """Commits what was taken in and closes the log."""
        await self._background.stop()
        await self.overload.close()
        await self.batch_checks.close()
        await self.schema_ids.close()
        if self._changes:
            await asyncio.wait(self._changes)
        await self.transactions.close()
        await self.groups.close()
        await self.audit.close()
        self.users.close()
        await self.queues.close()
        await self.store.close()

    async def abandon(self) -> None:
        """Lets everything go as a crash would; for tests."""
        await self._background.stop()
        await self.batch_checks.close()
        await self.schema_ids.close()
        self.users.close()
        self.transactions.abandon()
        await self.queues.abandon()
        await self.audit.close()
        self.store.abandon()

    # ── topics ────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str) -> Topic | None:
        return self.store.catalog.topics.get(name)

    def partition(self, topic: str, index: int) -> PartitionLog:
        """Raises the error code for a partition that does not exist."""
        partition = self.store.partitions.get((topic, index))
        if partition is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no partition {topic}-{index}")
        return partition

    def topic_name(self, topic_id: UUID) -> str:
        """Raises the error code for an id that does not exist."""
        topic = self.store.catalog.by_id.get(topic_id)
        if topic is None:
            raise unknown_topic_id(topic_id)
        return topic.name

    def read_upto(self, group_id: str, partition: PartitionLog) -> int:
        """The offset at which a group goes on; where the log begins if it has not begun."""
        committed = self.groups.offsets.committed(group_id, partition.topic, partition.index)
        offset = None if committed is None else committed.offset
        topic = self.topic(partition.topic)
        if offset is None and topic is not None:  # a queue, perhaps
            offset = self.queues.start_offset(group_id, topic.id, partition.index)
        return max(-1 if offset is None else offset, partition.log_start_offset)

    def _needed_from(self, partition: PartitionLog) -> int:
        """Where what the topic's retention has to wait for begins."""
        groups = partition.config.retention_waits_for
        return min((self.read_upto(group, partition) for group in groups), default=INT64_MAX)

    async def to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        """What `change` returns. It runs alone, and goes on if the caller is cancelled.

        A change of topics looks, decides, and waits for the disk. Two at once could both decide on
        what they saw before the other was done, and a client that goes away in the middle must not
        leave half a change behind.
        """

        async def in_turn() -> T:
            async with self._change_turn:
                return await change

        return await self.in_any_case(in_turn())

    def in_any_case(self, work: Coroutine[Any, Any, T]) -> "asyncio.Future[T]":
        """`work` goes on if the caller is cancelled, and is done before the broker closes."""
        task = asyncio.create_task(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return asyncio.shield(task)

    async def create_topic(self, name: str, partitions: int, configs: dict[str, str]) -> Topic:
        """Raises the error code for a name that cannot be one."""
        check_topic_name(name)
        topic = await self.store.create_topic(name, partitions, configs)
        self.groups.topics_changed(name)
        log.info("topic created: %s, partitions: %d", name, partitions)
        return topic

    async def delete_topic(self, name: str) -> None:
        topic_id = self.store.catalog.topics[name].id
        await self.store.delete_topic(name)
        self.groups.topics_changed(name)
        self.queues.topic_deleted(topic_id)
        log.info("topic deleted: %s", name)

    async def add_partitions(self, name: str, count: int) -> None:
        await self.store.add_partitions(name, count)
        self.groups.topics_changed(name)

    def api_versions(self) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponseApiVersion(
                    key=api.key, min_version=api.advertised_from, max_version=api.last
                )
                for api in sorted(APIS.values(), key=lambda api: api.key)
            ]
        )

    async def _load_coordinators(self) -> None:
        try:
            await self.groups.load()
        except Exception:
            log.exception(
                "the groups could not be loaded; no client can join one or commit offsets"
            )
        try:
            has_topic = self.store.has_topic(TRANSACTIONS_TOPIC)
            await self.transactions.load(has_topic=has_topic)
        except Exception:
            log.exception("the transactions could not be loaded; no producer can begin one")

    async def _create_transactions_topic(self) -> None:
        """When the first transactional producer comes: few brokers ever see one."""
        if self.store.has_topic(TRANSACTIONS_TOPIC):
            return

        async def create() -> None:
            if not self.store.has_topic(TRANSACTIONS_TOPIC):
                await self.store.create_topic(
                    TRANSACTIONS_TOPIC, TRANSACTIONS_PARTITIONS, TRANSACTIONS_CONFIGS
                )

        try:
            await self.to_the_end(create())
        except OSError as error:
            log.warning("%s was not created: %s", TRANSACTIONS_TOPIC, error)
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from None

    async def _load_queues(self) -> None:
        try:
            await self.queues.load()
        except Exception:
            log.exception("the share groups could not be loaded; they get no records")

    # ── beside the APIs ───────────────────────────────────────────────────────────────────────

    async def retain(self) -> None:
        """Deletes what retention releases, and removes expired producers."""
        expired_ms = self.clock.now_ms() - self.options.producer_id_expiration_ms
        partitions = list(self.store.partitions.values())
        waited_for = {partition.topic for partition in self.store.retention_waits}
        for at in range(0, len(partitions), RETENTION_PARTITIONS):
            some = partitions[at : at + RETENTION_PARTITIONS]
            deleted = await retention.apply(self.store, some, self._needed_from)
            for partition, deleted_bytes in deleted.items():
                log.info(
                    "retention: %s-%d: %d bytes deleted, starts at %d",
                    partition.topic, partition.index, deleted_bytes, partition.log_start_offset,
                )  # fmt: skip
            await retention.apply_locally(self.store, some)
            for partition in some:
                partition.expire_producers(expired_ms)
            await asyncio.sleep(0)
        self._tell_waiting(waited_for)

    def _tell_waiting(self, waited_for: set[str]) -> None:
        """Says of which topics retention now waits for groups, and of which no longer."""
        waiting = {partition.topic for partition in self.store.retention_waits}
        for topic in waiting - waited_for:
            log.warning("retention of %s waits for groups that have not read what is due", topic)
        for topic in waited_for - waiting:
            log.info("retention of %s no longer waits for groups", topic)

    async def _measure_disk(self) -> None:
        free_bytes = await self.store.in_reader(
            self.store.storage.files.free_bytes, self.store.path
        )
        self.metrics.disk.measure(self.clock.monotonic_s(), free_bytes, self.store.bytes_written)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await sleep(self.clock, seconds)
            try:
                await work()
            except Exception:
                log.exception("background work failed; it is tried again")


def check_topic_name(name: str) -> None:
    if not is_topic_name(name):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "a topic's name has 1 to 249 characters of a-z A-Z 0-9 . _ -",
            detail=name[:300],
        )


class _Topics:
    """The topics as the groups see them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def partition_count(self, name: str) -> int | None:
        topic = self._broker.topic(name)
        return None if topic is None else topic.partitions

    def topic_id(self, name: str) -> UUID | None:
        topic = self._broker.topic(name)
        return None if topic is None else topic.id

    def name_of(self, topic_id: UUID) -> str | None:
        topic = self._broker.store.catalog.by_id.get(topic_id)
        return None if topic is None else topic.name

    def names(self) -> Iterable[str]:
        return list(self._broker.store.catalog.topics)
