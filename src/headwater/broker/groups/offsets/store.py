"""The store of committed offsets: the durable ones of all groups, in memory."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from headwater.broker.internal_topics.records import Record
from headwater.protocol.messages.internal import OffsetCommitKey, OffsetCommitValue
from headwater.protocol.primitives import NIL_UUID


class CommittedOffset(NamedTuple):
    """Where a group continues to read a partition, and the metadata of its commit."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int = 0
    # OffsetCommit before version 5 could ask for a retention of its own; -1: it did not.
    expires_at_ms: int = -1
    topic_id: UUID = NIL_UUID
    # Where the commit lies in `__consumer_offsets`: between a plain commit and one whose
    # transaction ended later, the one further back in the log wins.
    log_offset: int = -1

    @classmethod
    def from_record(cls, value: OffsetCommitValue, log_offset: int = -1) -> "CommittedOffset":
        return cls(
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            committed_at_ms=value.commit_timestamp,
            expires_at_ms=value.expire_timestamp,
            topic_id=value.topic_id,
            log_offset=log_offset,
        )


class OffsetKey(NamedTuple):
    """A partition of which a group commits its position."""

    topic: str
    partition: int


def commit_record(group_id: str, key: OffsetKey, committed: CommittedOffset) -> Record:
    return Record(
        OffsetCommitKey(group=group_id, topic=key.topic, partition=key.partition),
        OffsetCommitValue(
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            commit_timestamp=committed.committed_at_ms,
            expire_timestamp=committed.expires_at_ms,
            topic_id=committed.topic_id,
        ),
    )


def tombstone(group_id: str, key: OffsetKey) -> Record:
    return Record(OffsetCommitKey(group=group_id, topic=key.topic, partition=key.partition), None)


class UnderWay:
    """Which keys of which groups are being written; one may be, several times over."""

    def __init__(self) -> None:
        self._by_group: dict[str, Counter[OffsetKey]] = {}

    def begin(self, group_id: str, keys: Iterable[OffsetKey]) -> None:
        self._by_group.setdefault(group_id, Counter()).update(keys)

    def end(self, group_id: str, keys: Iterable[OffsetKey]) -> None:
        counts = self._by_group[group_id]
        for key in keys:
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        if not counts:
            del self._by_group[group_id]

    def keys(self, group_id: str) -> Collection[OffsetKey]:
        return self._by_group.get(group_id, ())


class OffsetStore:
    """The durable offsets of all groups, and which ones are on their way into the log.

    A commit is `under_way` from when it is appended until it is durable. Until then the
    store shows the offset before it; but a deletion of the group must also delete what is on its
    way, or it would come back (`keys` has both).
    """

    def __init__(self) -> None:
        self._by_group: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._groups_by_topic: dict[str, set[str]] = {}
        self.under_way = UnderWay()
        self.when_put: Callable[[str, OffsetKey], None] | None = None

    def put(self, group_id: str, key: OffsetKey, committed: CommittedOffset) -> None:
        """Takes the commit in, unless one with a later position in the log is stored."""
        topics = self._by_group.setdefault(group_id, {})
        partitions = topics.get(key.topic)
        if partitions is None:
            partitions = topics[key.topic] = {}
            self._groups_by_topic.setdefault(key.topic, set()).add(group_id)
        existing = partitions.get(key.partition)
        if existing is None or existing.log_offset <= committed.log_offset:
            partitions[key.partition] = committed
        if self.when_put is not None:
            self.when_put(group_id, key)

    def remove(self, group_id: str, key: OffsetKey) -> None:
        topics = self._by_group.get(group_id, {})
        partitions = topics.get(key.topic, {})
        if partitions.pop(key.partition, None) is None or partitions:
            return
        del topics[key.topic]
        self._groups_by_topic[key.topic].discard(group_id)
        if not self._groups_by_topic[key.topic]:
            del self._groups_by_topic[key.topic]
        if not topics:
            del self._by_group[group_id]

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition)

    def of_group(self, group_id: str) -> Iterator[tuple[OffsetKey, CommittedOffset]]:
        """May be iterated while others commit."""
        for topic, partitions in tuple(self._by_group.get(group_id, {}).items()):
            for partition, committed in tuple(partitions.items()):
                yield OffsetKey(topic, partition), committed

    def keys(self, group_id: str) -> set[OffsetKey]:
        """Every key that the group has in the log, or will have in a moment."""
        return {key for key, _ in self.of_group(group_id)}.union(self.under_way.keys(group_id))

    def topics(self) -> list[str]:
        return list(self._groups_by_topic)

    def of_other_topic(self, topic: str, topic_id: UUID | None) -> dict[str, list[OffsetKey]]:
        """What groups committed to an earlier topic of that name; None: there is none now."""

        def is_other(committed: CommittedOffset) -> bool:
            return topic_id is None or committed.topic_id not in (NIL_UUID, topic_id)

        found = {
            group_id: [
                OffsetKey(topic, partition)
                for partition, committed in self._by_group[group_id][topic].items()
                if is_other(committed)
            ]
            for group_id in self._groups_by_topic.get(topic, ())
        }
        return {group_id: keys for group_id, keys in found.items() if keys}

    def group_ids(self) -> list[str]:
        return list(self._by_group)

    def expired(
        self,
        group_id: str,
        *,
        now_ms: int,
        retention_ms: int,
        base_ms: Callable[[CommittedOffset], int],
        in_use: Callable[[str], bool],
    ) -> list[OffsetKey]:
        """The keys that were not used for the retention time, counted from `base_ms`.

        A topic that is in use (the group subscribes to it) retains its offsets however old.
        """
        return [
            key
            for key, committed in self.of_group(group_id)
            if not in_use(key.topic)
            and now_ms
            >= (
                committed.expires_at_ms
                if committed.expires_at_ms >= 0
                else base_ms(committed) + retention_ms
            )
        ]
