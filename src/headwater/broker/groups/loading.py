"""Loading of groups and offsets from `__consumer_offsets` when the broker starts."""

import asyncio
import contextlib
import logging
import struct
from collections.abc import Iterator
from typing import NamedTuple

from headwater.broker.groups.consumer.group import ConsumerGroup
from headwater.broker.groups.offsets.pending import PendingOffsets, Transaction
from headwater.broker.groups.offsets.store import CommittedOffset, OffsetKey, OffsetStore
from headwater.broker.groups.registry import GroupRegistry
from headwater.broker.groups.share.group import ShareGroup
from headwater.broker.internal_topics.coordinator_log import (
    CoordinatorLog,
    StoredMarker,
    StoredRecord,
)
from headwater.broker.internal_topics.records import Record, decode
from headwater.errors import MalformedMessage
from headwater.protocol.messages import internal as m

logger = logging.getLogger(__name__)

_RECORDS_PER_TURN = 1_000


class _Value(NamedTuple):
    value: bytes | None
    offset: int


async def load(
    log: CoordinatorLog, groups: GroupRegistry, offsets: OffsetStore, pending: PendingOffsets
) -> None:
    """Fills `groups`, `offsets` and `pending` with what the log has.

    Only the last value of each key counts (the topic is compacted), so a partition is first
    folded by key, undecoded: a million commits of a hundred offsets are a hundred decodes.
    """
    for partition in range(log.partition_count):
        folded = _Folded()
        async for batch in log.read(partition):
            for stored in batch:
                folded.take(stored)
        for count, (key, (value, offset)) in enumerate(folded.last.items()):
            if value is not None:
                with _reporting(partition):
                    record = decode(key, value)
                    if record is not None:
                        _apply(record, offset, groups, offsets)
            if count % _RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
        for producer_id, values in folded.open.items():
            for key, (value, offset) in values.items():
                if value is not None:
                    with _reporting(partition):
                        transaction = Transaction(partition, producer_id)
                        _apply_pending(decode(key, value), offset, transaction, pending)
    # Offsets without a group: a simple consumer committed them.
    for group_id in offsets.group_ids() + pending.group_ids():
        groups.ensure(group_id)


class _Folded:
    """The last value of each key, and what transactions that are still open would change."""

    def __init__(self) -> None:
        self.last: dict[bytes, _Value] = {}
        self.open: dict[int, dict[bytes, _Value]] = {}

    def take(self, stored: StoredRecord | StoredMarker) -> None:
        if isinstance(stored, StoredMarker):
            values = self.open.pop(stored.producer_id, {})
            if stored.committed:
                for key, value in values.items():
                    self._put(key, value)
            return
        value = _Value(stored.value, stored.offset)
        if stored.producer_id >= 0:
            self.open.setdefault(stored.producer_id, {})[stored.key] = value
        else:
            self._put(stored.key, value)

    def _put(self, key: bytes, value: _Value) -> None:
        # A tombstone stays until all is read: it lies behind what an open transaction holds.
        previous = self.last.get(key)
        if previous is None or previous.offset <= value.offset:
            self.last.pop(key, None)  # so that what remains is in the order of the log
            self.last[key] = value
            if value.value is None:
                for values in self.open.values():
                    values.pop(key, None)


@contextlib.contextmanager
def _reporting(partition: int) -> Iterator[None]:
    """One unreadable record must not prevent the others from being loaded."""
    try:
        yield
    except (MalformedMessage, struct.error, ValueError) as error:
        logger.error("a record of __consumer_offsets-%d is unreadable: %s", partition, error)


def _apply_pending(
    record: Record | None, log_offset: int, transaction: Transaction, pending: PendingOffsets
) -> None:
    match record:
        case (m.OffsetCommitKey() as key, m.OffsetCommitValue() as value):
            committed = CommittedOffset.from_record(value, log_offset)
            pending.put(transaction, key.group, OffsetKey(key.topic, key.partition), committed)


def _apply(record: Record, log_offset: int, groups: GroupRegistry, offsets: OffsetStore) -> None:
    match record:
        case (m.OffsetCommitKey() as key, m.OffsetCommitValue() as value):
            offsets.put(
                key.group,
                OffsetKey(key.topic, key.partition),
                CommittedOffset.from_record(value, log_offset),
            )
        case (m.GroupMetadataKey() as key, m.GroupMetadataValue() as value):
            classic = groups.new_classic(key.group)
            groups.put(classic)
            classic.restore(value)
        case (
            m.ConsumerGroupMetadataKey()
            | m.ConsumerGroupMemberMetadataKey()
            | m.ConsumerGroupTargetAssignmentMetadataKey()
            | m.ConsumerGroupTargetAssignmentMemberKey()
            | m.ConsumerGroupCurrentMemberAssignmentKey() as key,
            _,
        ):
            consumer = groups.find(ConsumerGroup, key.group_id) or ConsumerGroup(key.group_id)
            groups.put(consumer)
            consumer.replay(record)
        case (
            m.ShareGroupMetadataKey()
            | m.ShareGroupMemberMetadataKey()
            | m.ShareGroupTargetAssignmentMetadataKey()
            | m.ShareGroupTargetAssignmentMemberKey()
            | m.ShareGroupCurrentMemberAssignmentKey()
            | m.ShareGroupStatePartitionMetadataKey() as key,
            _,
        ):
            share = groups.find(ShareGroup, key.group_id) or ShareGroup(key.group_id)
            groups.put(share)
            share.replay(record)
