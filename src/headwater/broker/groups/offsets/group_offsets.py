"""Committed offsets of groups: commits, plain and in transactions, fetches and deletions."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

from headwater.broker.groups.group import MatchesPattern
from headwater.broker.groups.offsets.pending import PendingOffsets, Transaction
from headwater.broker.groups.offsets.store import (
    CommittedOffset,
    OffsetKey,
    OffsetStore,
    commit_record,
    tombstone,
)
from headwater.broker.groups.ports import Topics
from headwater.broker.groups.registry import GroupRegistry
from headwater.broker.internal_topics.coordinator_log import CoordinatorLog
from headwater.broker.internal_topics.journal import Journal
from headwater.broker.internal_topics.records import partition_for
from headwater.protocol.error_codes import ApiError, ErrorCode

_FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND = 9


class GroupOffsets:
    """The offsets of all groups: durable ones, and those of transactions that have not ended."""

    def __init__(
        self,
        *,
        registry: GroupRegistry,
        journal: Journal,
        topics: Topics,
        log: CoordinatorLog,
        matches: MatchesPattern,
    ) -> None:
        self.store = OffsetStore()
        self.pending = PendingOffsets()
        self._registry = registry
        self._journal = journal
        self._topics = topics
        self._log = log
        self._matches = matches

    # Commits

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
        self._registry.verify_ready()
        group = self._registry.get(group_id)
        if group is not None:
            group.verify_commit(member_id, instance_id, generation_or_epoch, api_version)
        elif generation_or_epoch >= 0:
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND
                if api_version >= _FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND
                else ErrorCode.ILLEGAL_GENERATION
            )
        if not offsets:
            return asyncio.sleep(0)
        keys = [key for key, _ in offsets]
        self.store.under_way.begin(group_id, keys)

        def durable(log_offset: int) -> None:
            self.store.under_way.end(group_id, keys)
            self._put(
                group_id,
                ((key, committed._replace(log_offset=log_offset)) for key, committed in offsets),
            )

        return self._journal.write_at(
            group_id,
            [commit_record(group_id, key, committed) for key, committed in offsets],
            durable,
            lambda: self.store.under_way.end(group_id, keys),
        )

    def _put(self, group_id: str, offsets: Iterable[tuple[OffsetKey, CommittedOffset]]) -> None:
        for key, committed in offsets:
            self.store.put(group_id, key, committed)
        self._registry.ensure(group_id)

    # Commits in transactions

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that stores the group."""
        return partition_for(group_id, self._log.partition_count)

    def verify_transactional_commit(
        self, group_id: str, *, member_id: str, instance_id: str | None, generation_or_epoch: int
    ) -> None:
        """Raises unless these may commit offsets in a transaction (KIP-447)."""
        self._registry.verify_ready(group_id)
        group = self._registry.get(group_id)
        if group is not None:
            group.verify_transactional_commit(member_id, instance_id, generation_or_epoch)
        elif generation_or_epoch >= 0:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)

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
        self.store.under_way.begin(group_id, keys)
        self.pending.under_way.begin(group_id, keys)

        def finish() -> None:
            self.store.under_way.end(group_id, keys)
            self.pending.under_way.end(group_id, keys)

        def durable(log_offset: int) -> None:
            finish()
            for key, committed in offsets:
                positioned = committed._replace(log_offset=log_offset)
                self.pending.put(transaction, group_id, key, positioned)
            self._registry.ensure(group_id)

        return self._journal.write_at(
            group_id,
            [commit_record(group_id, key, committed) for key, committed in offsets],
            durable,
            finish,
            producer=(producer_id, producer_epoch),
        )

    def transaction_ended(self, partition: int, producer_id: int, *, committed: bool) -> None:
        """To be called when the marker in that partition of `__consumer_offsets` is durable."""
        for group_id, offsets in self.pending.end(Transaction(partition, producer_id)).items():
            if committed:
                self._put(group_id, offsets.items())

    # Fetches

    def verify_fetch(self, group_id: str, member_id: str | None, epoch: int) -> None:
        self._registry.verify_ready()
        group = self._registry.get(group_id)
        if group is not None:
            group.verify_fetch(member_id, epoch)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a transaction that has not ended will move this offset."""
        return self.pending.is_pending(group_id, OffsetKey(topic, partition))

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.store.get(group_id, topic, partition)

    def committed_by(self, group_id: str) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        return self.store.of_group(group_id)

    def all_committed(self) -> Iterator[tuple[str, OffsetKey, CommittedOffset]]:
        """Every committed offset of every group: what lag is computed from."""
        for group_id in self.store.group_ids():
            for key, committed in self.store.of_group(group_id):
                yield group_id, key, committed

    def when_committed(self, callback: Callable[[str, OffsetKey], None]) -> None:
        """`callback` is called whenever a new offset of a group can be fetched."""
        self.store.when_put = callback

    # Deletions

    def verify_delete(self, group_id: str) -> None:
        self._registry.verify_ready()
        group = self._registry.get(group_id)
        if group is None:
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND)
        group.verify_offset_delete()

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        group = self._registry.get(group_id)
        return group is not None and group.is_subscribed_to(topic, self._matches)

    def delete(self, group_id: str, keys: Sequence[OffsetKey]) -> Awaitable[None]:
        """What it returns resolves when the tombstones are durable."""
        return self._journal.write(
            group_id,
            [tombstone(group_id, key) for key in keys],
            lambda: self.forget(group_id, keys),
        )

    def keys(self, group_id: str) -> set[OffsetKey]:
        """All keys that the group has in the log, pending ones too."""
        return self.store.keys(group_id) | self.pending.keys(group_id)

    def forget(self, group_id: str, keys: Iterable[OffsetKey]) -> None:
        """Removes from memory what is deleted from the log."""
        for key in keys:
            self.store.remove(group_id, key)
            self.pending.discard(group_id, key)

    def delete_of_missing_topics(self, names: Sequence[str] = ()) -> None:
        """Deletes offsets of topics that no longer exist: of these, or of all that have offsets."""
        for topic in names or self.store.topics():
            topic_id = self._topics.topic_id(topic)
            for group_id, keys in self.store.of_other_topic(topic, topic_id).items():
                self.delete(group_id, keys)
            if topic_id is None:
                for group_id, keys in self.pending.of_topic(topic).items():
                    self.delete(group_id, keys)
