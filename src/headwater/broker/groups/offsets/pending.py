"""Pending offsets: committed in transactions that have not ended; durable, but not visible."""

from collections.abc import Mapping
from typing import NamedTuple

from headwater.broker.groups.offsets.store import CommittedOffset, OffsetKey, UnderWay


class Transaction(NamedTuple):
    """A producer's open transaction in one partition of `__consumer_offsets`."""

    partition: int
    producer_id: int


class PendingOffsets:
    """What each open transaction will commit, by group.

    An offset counts as pending from the moment it is appended (`under_way`): a consumer that takes
    over must not go on from the offset before it (KIP-447).
    """

    def __init__(self) -> None:
        self._by_transaction: dict[Transaction, dict[str, dict[OffsetKey, CommittedOffset]]] = {}
        self._by_group: dict[str, dict[OffsetKey, set[Transaction]]] = {}
        self.under_way = UnderWay()

    def put(
        self, transaction: Transaction, group_id: str, key: OffsetKey, committed: CommittedOffset
    ) -> None:
        groups = self._by_transaction.setdefault(transaction, {})
        groups.setdefault(group_id, {})[key] = committed
        self._by_group.setdefault(group_id, {}).setdefault(key, set()).add(transaction)

    def end(self, transaction: Transaction) -> Mapping[str, Mapping[OffsetKey, CommittedOffset]]:
        """Takes out, by group, what the transaction has committed."""
        groups = self._by_transaction.pop(transaction, {})
        for group_id, offsets in groups.items():
            for key in offsets:
                self._unlink(transaction, group_id, key)
        return groups

    def discard(self, group_id: str, key: OffsetKey) -> None:
        """The key is deleted: what was pending for it before does not come back."""
        for transaction in tuple(self._by_group.get(group_id, {}).get(key, ())):
            groups = self._by_transaction[transaction]
            del groups[group_id][key]
            if not groups[group_id]:
                del groups[group_id]
            if not groups:
                del self._by_transaction[transaction]
            self._unlink(transaction, group_id, key)

    def is_pending(self, group_id: str, key: OffsetKey) -> bool:
        return key in self._by_group.get(group_id, ()) or key in self.under_way.keys(group_id)

    def has(self, group_id: str) -> bool:
        return group_id in self._by_group or bool(self.under_way.keys(group_id))

    def keys(self, group_id: str) -> set[OffsetKey]:
        return set(self._by_group.get(group_id, ())).union(self.under_way.keys(group_id))

    def group_ids(self) -> list[str]:
        return list(self._by_group)

    def of_topic(self, topic: str) -> dict[str, list[OffsetKey]]:
        """The groups that have something pending for the topic."""
        found = {
            group_id: [key for key in keys if key.topic == topic]
            for group_id, keys in self._by_group.items()
        }
        return {group_id: keys for group_id, keys in found.items() if keys}

    def _unlink(self, transaction: Transaction, group_id: str, key: OffsetKey) -> None:
        keys = self._by_group[group_id]
        keys[key].discard(transaction)
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._by_group[group_id]
