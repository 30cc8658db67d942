"""The group coordinator: one door for everything that concerns groups and their offsets.

All of it runs on the event loop. What must survive a crash is in `__consumer_offsets` before
memory changes and before anyone is told (see `journal`). A method that refuses raises ApiError;
its code is the answer.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from uuid import UUID

from headwater.broker.background import Background
from headwater.broker.group_configs import GroupConfigs
from headwater.broker.groups import consumer_records, share_records
from headwater.broker.groups.classic import ClassicGroup
from headwater.broker.groups.consumer import ConsumerGroup
from headwater.broker.groups.consumer_protocol import Answer as HeartbeatAnswer
from headwater.broker.groups.consumer_protocol import ConsumerProtocol, is_leaving
from headwater.broker.groups.deadline import Deadline
from headwater.broker.groups.journal import Journal
from headwater.broker.groups.loading import load
from headwater.broker.groups.modern import JOINING_EPOCH, LEAVING_EPOCH, ModernGroup
from headwater.broker.groups.offsets import (
    CommittedOffset,
    OffsetKey,
    OffsetStore,
    commit_record,
    tombstone,
)
from headwater.broker.groups.pending import PendingOffsets, Transaction
from headwater.broker.groups.ports import GroupLog, Queues, StartOffsets, Topics
from headwater.broker.groups.records import partition_for
from headwater.broker.groups.settings import GroupSettings
from headwater.broker.groups.share import ShareGroup
from headwater.broker.groups.share_protocol import Answer as ShareHeartbeatAnswer
from headwater.broker.groups.share_protocol import ShareProtocol
from headwater.broker.groups.share_protocol import verify as verify_share_heartbeat
from headwater.broker.groups.subscriptions import Sees, Subscriptions
from headwater.clock import Clock
from headwater.errors import StorageFailed
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
)
from headwater.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headwater.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
)
from headwater.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

logger = logging.getLogger(__name__)

_FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND = 9

Group = ClassicGroup | ConsumerGroup | ShareGroup
T = TypeVar("T")


class GroupCounts(NamedTuple):
    """For metrics: how many groups there are by (type, state), and members in all."""

    groups: Counter[tuple[str, str]]
    members: int


@dataclass(slots=True)
class _Founding:
    """A KIP-848 or share group whose first records are on their way into the log.

    It takes its place among the groups when they are there. Until then nothing has changed,
    except that an empty classic group of that id refuses everyone.
    """

    group: ConsumerGroup | ShareGroup
    classic: ClassicGroup | None = None
    founders: int = 0


class GroupCoordinator:
    """Serves groups once `load` has read them; `close` ends its timers and waits for its writes."""

    def __init__(
        self,
        log: GroupLog,
        topics: Topics,
        queues: Queues,
        clock: Clock,
        configs: GroupConfigs,
        settings: GroupSettings | None = None,
    ) -> None:
        self.topics = topics
        self.settings = settings or GroupSettings()
        self._log = log
        self._clock = clock
        self._journal = Journal(log)
        self._offsets = OffsetStore()
        self._pending = PendingOffsets()
        self._groups: dict[str, Group] = {}
        self._founding: dict[str, _Founding] = {}
        self._subscriptions = Subscriptions(topics)
        self._background = Background("a group's change")
        self._consumers = ConsumerProtocol(
            journal=self._journal,
            subscriptions=self._subscriptions,
            clock=clock,
            settings=self.settings,
            configs=configs,
            spawn=self._background.start,
        )
        self._queues = queues
        self._configs = configs
        self._shares = ShareProtocol(
            journal=self._journal,
            subscriptions=self._subscriptions,
            queues=queues,
            clock=clock,
            settings=self.settings,
            configs=configs,
            spawn=self._background.start,
        )
        self._refusal: ErrorCode | None = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._expiry = Deadline(clock, self._begin_expiry)

    # Life

    async def load(self) -> None:
        """Reads the groups from the log. Until it is done, clients are told to wait.

        The topics must be known by now: offsets of topics that are gone are removed.
        """
        await load(self._log, self._groups, self._offsets, self._pending, self._new_classic)
        for group in self._groups.values():
            if isinstance(group, ConsumerGroup):
                self._consumers.watch(group)
            elif isinstance(group, ShareGroup):
                self._shares.watch(group)
        self._refusal = None
        self._expiry.push(self.settings.offsets_retention_check_ms)
        self._forget_deleted_topics(self._offsets.topics())
        self._forget_queues_of_deleted_topics()
        if self._groups:
            logger.info("groups loaded: %d", len(self._groups))

    async def close(self) -> None:
        self._refusal = ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._expiry.cancel()
        self._consumers.close()
        self._shares.close()
        for group in self._groups.values():
            if isinstance(group, ClassicGroup):
                group.close()
        await self._background.wait()
        await self._journal.drain()

    def topics_changed(self, *names: str) -> None:
        """To be called after topics were created, deleted or given more partitions.

        `names`: which; if that is not said, the offsets of all topics are looked at.
        """
        self._consumers.topics_changed()
        self._shares.topics_changed()
        if self._refusal is None:
            self._forget_deleted_topics(names or self._offsets.topics())
            if not names or any(self.topics.topic_id(name) is None for name in names):
                self._forget_queues_of_deleted_topics()

    def rights_changed(self) -> None:
        """To be called when somebody may see other topics than before."""
        self._consumers.topics_changed()

    def verify_ready(self, group_id: str | None = None) -> None:
        """Raises what every API answers while loading or closing, or without a group id."""
        if self._refusal is not None:
            raise ApiError(self._refusal)
        if group_id == "":
            raise ApiError(ErrorCode.INVALID_GROUP_ID)

    # Classic groups

    async def join(
        self, request: JoinGroupRequest, *, api_version: int, client_id: str, client_host: str
    ) -> JoinGroupResponse:
        self.verify_ready(request.group_id)
        limits = self.settings
        timeout_ms = request.session_timeout_ms
        if not limits.min_session_timeout_ms <= timeout_ms <= limits.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if request.group_id in self._founding:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        group = self._groups.get(request.group_id)
        if isinstance(group, ShareGroup):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if isinstance(group, ConsumerGroup):
            group = await asyncio.shield(self._background.start(self._make_classic(group)))
        if group is None:
            if request.member_id:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
            group = self._new_classic(request.group_id)
        answer = group.join(
            request, api_version=api_version, client_id=client_id, client_host=client_host
        )
        self._groups[request.group_id] = group  # a new one only if it took the member
        return answer if isinstance(answer, JoinGroupResponse) else await answer

    async def sync(self, request: SyncGroupRequest) -> SyncGroupResponse:
        self.verify_ready(request.group_id)
        answer = self._classic(request.group_id).sync(request)
        return answer if isinstance(answer, SyncGroupResponse) else await answer

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        if self._refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return  # as Kafka: better than to have all members rejoin
        self.verify_ready(group_id)
        self._classic(group_id).heartbeat(member_id, instance_id, generation)

    async def leave(
        self, group_id: str, leaving: Sequence[tuple[str, str | None]]
    ) -> list[ErrorCode]:
        """Takes the (member id, instance id) out of the group; an error code for each."""
        self.verify_ready(group_id)
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            return [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)
        errors, emptied = group.leave(leaving)
        if emptied is not None:
            # Empty it is, stored or not: at worst its last members time out after a restart.
            with contextlib.suppress(ApiError):
                await emptied
        return errors

    def _classic(self, group_id: str) -> ClassicGroup:
        group = self._groups.get(group_id)
        if not isinstance(group, ClassicGroup):
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _new_classic(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(
            group_id, clock=self._clock, settings=self.settings, journal=self._journal
        )

    async def _make_classic(self, group: ConsumerGroup) -> ClassicGroup:
        """An empty KIP-848 group may go on as a classic one; a live one cannot."""
        async with group.changing:
            current = self._groups.get(group.group_id)
            if isinstance(current, ClassicGroup):
                return current  # someone else was first
            if not group.is_empty:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if current is not group:
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            classic = self._new_classic(group.group_id)

            def replace_it() -> None:
                group.is_dead = True
                self._groups[group.group_id] = classic

            records = consumer_records.group_tombstones(group.group_id)
            await self._journal.write(group.group_id, records, replace_it)
            return classic

    # KIP-848 groups

    def consumer_heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        *,
        api_version: int,
        client_id: str,
        client_host: str,
        sees: Sees | None = None,
    ) -> HeartbeatAnswer:
        """`sees`: which topics the member's pattern may match, if not all."""
        self.verify_ready()
        self._consumers.verify(request, api_version)
        group = self._groups.get(request.group_id)
        if isinstance(group, ConsumerGroup):
            if is_leaving(request):
                return self._consumers.leave(group, request)
            return self._consumers.heartbeat(
                group, request, client_id=client_id, client_host=client_host, sees=sees
            )
        founding = self._founding.get(request.group_id)
        if founding is None and group is not None and group.is_dead:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        is_shared = isinstance(founding.group if founding else group, ShareGroup)
        if (
            request.member_epoch != JOINING_EPOCH
            or is_shared
            or not (founding is not None or group is None or group.is_empty)
        ):
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"group {request.group_id} is no consumer group"
            )
        assert not isinstance(group, ShareGroup)
        if founding is None:
            founding = _Founding(ConsumerGroup(request.group_id), group)
            self._founding[request.group_id] = founding
            if group is not None:
                group.begin_deletion()
        classic, founded = founding.classic, founding.group
        assert isinstance(founded, ConsumerGroup)
        return self._found(
            founding,
            lambda: self._consumers.heartbeat(
                founded,
                request,
                client_id=client_id,
                client_host=client_host,
                sees=sees,
                before=() if classic is None else (classic.tombstone(),),
            ),
        )

    def _found(
        self, founding: "_Founding", heartbeat: Callable[[], T | Awaitable[T]]
    ) -> Awaitable[T]:
        """The heartbeat of one of the first members of a group."""
        founding.founders += 1
        return asyncio.shield(self._background.start(self._found_with(founding, heartbeat)))

    async def _found_with(
        self, founding: "_Founding", heartbeat: Callable[[], T | Awaitable[T]]
    ) -> T:
        """An empty classic group makes room for the new one."""
        group, classic = founding.group, founding.classic
        try:
            answer = heartbeat()
            return await answer if isinstance(answer, Awaitable) else answer
        finally:
            founding.founders -= 1
            is_pending = self._founding.get(group.group_id) is founding
            if is_pending and (group.epoch or not founding.founders):
                del self._founding[group.group_id]
                if group.epoch:
                    self._groups[group.group_id] = group
                    if classic is not None:
                        classic.close()
                elif classic is not None:
                    classic.survive()

    # Share groups

    def share_heartbeat(
        self, request: ShareGroupHeartbeatRequest, *, client_id: str, client_host: str
    ) -> ShareHeartbeatAnswer:
        self.verify_ready()
        verify_share_heartbeat(request)
        group = self._groups.get(request.group_id)
        if isinstance(group, ShareGroup):
            if request.member_epoch == LEAVING_EPOCH:
                return self._shares.leave(group, request)
            return self._shares.heartbeat(
                group, request, client_id=client_id, client_host=client_host
            )
        founding = self._founding.get(request.group_id)
        if request.member_epoch != JOINING_EPOCH or group is not None:
            raise _no_share_group(request.group_id, group)
        if founding is None:
            founding = self._founding[request.group_id] = _Founding(ShareGroup(request.group_id))
        founded = founding.group
        if not isinstance(founded, ShareGroup):
            raise _no_share_group(request.group_id, founded)
        return self._found(
            founding,
            lambda: self._shares.heartbeat(
                founded, request, client_id=client_id, client_host=client_host
            ),
        )

    def share_group(self, group_id: str) -> ShareGroup:
        """Raises GROUP_ID_NOT_FOUND for any other."""
        self.verify_ready(group_id)
        group = self._groups.get(group_id)
        if not isinstance(group, ShareGroup):
            raise _no_share_group(group_id, group)
        return group

    async def alter_share_offsets(
        self, group_id: str, offsets: StartOffsets, names: Mapping[UUID, str]
    ) -> None:
        """Where an empty share group reads on; `names` are those of the topics.

        One that there is not is made, as in Kafka: so is said where its first member begins.
        """
        self.verify_ready(group_id)
        group = self._groups.get(group_id)
        if group is not None or not offsets:
            await self._shares.alter(self.share_group(group_id), offsets, names)
            return
        founding = self._founding.setdefault(group_id, _Founding(ShareGroup(group_id)))
        founded = founding.group
        if not isinstance(founded, ShareGroup):
            raise _no_share_group(group_id, founded)

        def alter() -> Awaitable[None] | None:
            return self._shares.alter(founded, offsets, names)

        await self._found(founding, alter)

    async def delete_share_offsets(self, group_id: str, topic_ids: Collection[UUID]) -> None:
        """An empty share group forgets what it has read of these topics."""
        await self._shares.forget(self.share_group(group_id), topic_ids)

    def _forget_queues_of_deleted_topics(self) -> None:
        for group in self._groups.values():
            if isinstance(group, ShareGroup):
                gone = {each for each in group.state_topics if self.topics.name_of(each) is None}
                if gone:
                    self._background.start(self._shares.forget(group, gone, is_used=True))

    # Offsets

    def commit(
        self,
        group_id: str,
        offsets: Sequence[tuple[OffsetKey, CommittedOffset]],
        *,
        member_id: str,
        instance_id: str | None,
        generation_or_epoch: int,
        api_version: int,
    ) -> Awaitable[None]:
        """Stores the offsets; what it returns resolves when they are durable and can be fetched."""
        self.verify_ready()
        group = self._groups.get(group_id)
        if group is None:
            if generation_or_epoch >= 0:
                raise ApiError(
                    ErrorCode.GROUP_ID_NOT_FOUND
                    if api_version >= _FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND
                    else ErrorCode.ILLEGAL_GENERATION
                )
        elif isinstance(group, ClassicGroup):
            group.verify_commit(member_id, instance_id, generation_or_epoch)
        elif isinstance(group, ShareGroup):
            group.refuse_offsets()
        else:
            group.verify_commit(member_id, generation_or_epoch, api_version)
        if not offsets:
            return asyncio.sleep(0)
        keys = [key for key, _ in offsets]
        self._offsets.under_way.begin(group_id, keys)

        def durable(log_offset: int) -> None:
            self._offsets.under_way.end(group_id, keys)
            self._put_offsets(
                group_id,
                ((key, each._replace(log_offset=log_offset)) for key, each in offsets),
            )

        return self._journal.write_at(
            group_id,
            [commit_record(group_id, key, committed) for key, committed in offsets],
            durable,
            lambda: self._offsets.under_way.end(group_id, keys),
        )

    def _put_offsets(
        self, group_id: str, offsets: Iterable[tuple[OffsetKey, CommittedOffset]]
    ) -> None:
        for key, committed in offsets:
            self._offsets.put(group_id, key, committed)
        if group_id not in self._groups:
            self._groups[group_id] = self._new_classic(group_id)

    # Offsets in transactions

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` where the group lives."""
        return partition_for(group_id, self._log.partition_count)

    def verify_transactional_commit(
        self, group_id: str, *, member_id: str, instance_id: str | None, generation_or_epoch: int
    ) -> None:
        """Whether these may commit offsets in a transaction (KIP-447)."""
        self.verify_ready(group_id)
        group = self._groups.get(group_id)
        if group is None:
            if generation_or_epoch >= 0:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        elif isinstance(group, ClassicGroup):
            group.verify_transactional_commit(member_id, instance_id, generation_or_epoch)
        elif isinstance(group, ShareGroup):
            group.refuse_offsets()
        else:
            group.verify_transactional_commit(member_id, instance_id, generation_or_epoch)

    def commit_in_transaction(
        self,
        group_id: str,
        offsets: Sequence[tuple[OffsetKey, CommittedOffset]],
        *,
        producer_id: int,
        producer_epoch: int,
    ) -> Awaitable[None]:
        """Appends the offsets to the producer's transaction; they count when it commits.

        The caller has verified the member and that the transaction holds the group's partition.
        """
        transaction = Transaction(self.partition_of(group_id), producer_id)
        keys = [key for key, _ in offsets]
        self._offsets.under_way.begin(group_id, keys)
        self._pending.under_way.begin(group_id, keys)

        def finish() -> None:
            self._offsets.under_way.end(group_id, keys)
            self._pending.under_way.end(group_id, keys)

        def durable(log_offset: int) -> None:
            finish()
            for key, committed in offsets:
                placed = committed._replace(log_offset=log_offset)
                self._pending.put(transaction, group_id, key, placed)
            if group_id not in self._groups:
                self._groups[group_id] = self._new_classic(group_id)

        return self._journal.write_at(
            group_id,
            [commit_record(group_id, key, committed) for key, committed in offsets],
            durable,
            finish,
            producer=(producer_id, producer_epoch),
        )

    def transaction_ended(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """To be called when the marker in that partition of `__consumer_offsets` is durable."""
        for group_id, offsets in self._pending.end(Transaction(partition, producer_id)).items():
            if committed:
                self._put_offsets(group_id, offsets.items())

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended will move this offset."""
        return self._pending.is_pending(group_id, OffsetKey(topic, partition))

    def verify_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        self.verify_ready()
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.verify_fetch(member_id, epoch)
        elif isinstance(group, ShareGroup):
            group.refuse_offsets()

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._offsets.get(group_id, topic, partition)

    def when_committed(self, callback: Callable[[str, OffsetKey], None]) -> None:
        """`callback` is told whenever a group's offset can be fetched."""
        self._offsets.when_put = callback

    def committed_by(self, group_id: str) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        return self._offsets.of_group(group_id)

    def verify_offset_delete(self, group_id: str) -> None:
        self.verify_ready()
        group = self._groups.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        if isinstance(group, ClassicGroup):
            group.verify_offset_delete()
        elif isinstance(group, ShareGroup):
            group.refuse_offsets()

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        group = self._groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return group.is_subscribed_to(topic, self._subscriptions.matches)
        return group is not None and group.is_subscribed_to(topic)

    def delete_offsets(self, group_id: str, keys: Sequence[OffsetKey]) -> Awaitable[None]:
        return self._journal.write(
            group_id,
            [tombstone(group_id, key) for key in keys],
            lambda: self._forget_offsets(group_id, keys),
        )

    def _forget_offsets(self, group_id: str, keys: Iterable[OffsetKey]) -> None:
        for key in keys:
            self._offsets.remove(group_id, key)
            self._pending.discard(group_id, key)

    # Groups as administrators see them

    def groups(self) -> Iterator[Group]:
        yield from self._groups.values()

    def group(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    async def delete(self, group_id: str) -> None:
        """Deletes an empty group and its offsets."""
        self.verify_ready()
        group = self.group(group_id)
        if group is None or group.is_dead:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        await asyncio.shield(self._background.start(self._delete(group)))

    async def _delete(self, group: Group) -> None:
        if isinstance(group, ModernGroup):
            async with group.changing:
                await self._delete_exclusively(group)
        else:
            await self._delete_exclusively(group)

    async def _delete_exclusively(self, group: Group) -> None:
        if not group.is_empty or self._groups.get(group.group_id) is not group:
            raise ApiError(ErrorCode.NON_EMPTY_GROUP)
        group_id = group.group_id
        keys = self._offsets.keys(group_id) | self._pending.keys(group_id)
        records = [tombstone(group_id, key) for key in keys]
        if isinstance(group, ClassicGroup):
            records.append(group.tombstone())
        elif isinstance(group, ShareGroup):
            records += share_records.group_tombstones(group_id)
        else:
            records += consumer_records.group_tombstones(group_id)
        group.begin_deletion()
        if isinstance(group, ShareGroup):
            try:
                await self._queues.delete(group_id, None)
            except (ApiError, StorageFailed) as error:
                group.survive()
                raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE) from error

        def forget() -> None:
            self._forget_offsets(group_id, keys)
            del self._groups[group_id]
            if isinstance(group, ClassicGroup):
                group.close()

        await self._journal.write(group_id, records, forget, group.survive)

    # What is no longer needed

    def _begin_expiry(self) -> None:
        self._background.start(self._expire())

    async def _expire(self) -> None:
        """Removes offsets that are too old, and empty groups that have none (KIP-211)."""
        now_ms = self._clock.now_ms()
        for group in list(self.groups()):
            await asyncio.sleep(0)  # thousands of groups must not hold up the others
            if isinstance(group, ShareGroup):
                await self._expire_share(group, now_ms)
                continue
            base_ms = group.offsets_age_from()
            if base_ms is None or self._offsets.under_way.keys(group.group_id):
                continue
            if self._pending.has(group.group_id):
                continue
            expired = self._offsets.expired(
                group.group_id,
                now_ms=now_ms,
                retention_ms=self.settings.offsets_retention_ms,
                base_ms=base_ms,
                in_use=lambda topic, group_id=group.group_id: self.is_subscribed(group_id, topic),  # type: ignore[misc]
            )
            try:
                if group.is_empty and len(expired) == len(self._offsets.keys(group.group_id)):
                    await self._delete(group)
                elif expired:
                    await self.delete_offsets(group.group_id, expired)
            except ApiError as error:
                logger.warning("group %s: offsets not expired: %s", group.group_id, error)
        if self._refusal is None:
            self._expiry.push(self.settings.offsets_retention_check_ms)

    async def _expire_share(self, group: ShareGroup, now_ms: int) -> None:
        """Removes a share group that nobody has come back to, with its queue state."""
        group.assigned_at_ms = group.assigned_at_ms or now_ms
        expire_ms = self._configs.share(group.group_id).expire_ms
        if group.is_empty and not group.is_dead and now_ms - group.assigned_at_ms >= expire_ms:
            try:
                await self._delete(group)
                logger.info("group %s: expired", group.group_id)
            except ApiError as error:
                logger.warning("group %s: not expired: %s", group.group_id, error)

    def _forget_deleted_topics(self, names: Sequence[str]) -> None:
        for topic in names:
            topic_id = self.topics.topic_id(topic)
            for group_id, keys in self._offsets.of_other_topic(topic, topic_id).items():
                self.delete_offsets(group_id, keys)
            if topic_id is None:
                for group_id, keys in self._pending.of_topic(topic).items():
                    self.delete_offsets(group_id, keys)

    # Metrics

    def counts(self) -> GroupCounts:
        groups: Counter[tuple[str, str]] = Counter()
        members = 0
        for group in self.groups():
            if isinstance(group, ClassicGroup):
                groups["classic", group.state.value] += 1
                members += len(group.roster)
            else:
                kind = "share" if isinstance(group, ShareGroup) else "consumer"
                groups[kind, group.state.value] += 1
                members += len(group.members)
        return GroupCounts(groups, members)

    def committed_offsets(self) -> Iterator[tuple[str, OffsetKey, CommittedOffset]]:
        """Every committed offset of every group: what lag is computed from."""
        for group_id in self._offsets.group_ids():
            for key, committed in self._offsets.of_group(group_id):
                yield group_id, key, committed


def _no_share_group(group_id: str, group: Group | None) -> ApiError:
    what = f"group {group_id} " + ("not found" if group is None else "is not a share group")
    return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, what)
