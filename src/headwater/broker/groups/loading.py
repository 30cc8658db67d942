"""From `__consumer_offsets` to groups, when the broker starts."""

import asyncio
import logging
import struct
from collections.abc import Callable, MutableMapping

from headwater.broker.groups.classic import ClassicGroup
from headwater.broker.groups.consumer import ConsumerGroup
from headwater.broker.groups.offsets import CommittedOffset, OffsetKey, OffsetStore
from headwater.broker.groups.ports import GroupLog
from headwater.broker.groups.records import Record, decode
from headwater.errors import MalformedMessage
from headwater.protocol.messages import internal as m

logger = logging.getLogger(__name__)

_RECORDS_PER_TURN = 1_000

Groups = MutableMapping[str, ClassicGroup | ConsumerGroup]


async def load(
    log: GroupLog,
    groups: Groups,
    offsets: OffsetStore,
    new_classic: Callable[[str], ClassicGroup],
) -> None:
    """Fills `groups` and `offsets` with what the log has.

    Only the last value of each key counts (the topic is compacted), so a partition is first
    folded by key, undecoded: a million commits of a hundred offsets are a hundred decodes.
    """
    for partition in range(log.partition_count):
        last: dict[bytes, bytes] = {}
        async for batch in log.read(partition):
            for key, value, _ in batch:
                last.pop(key, None)  # so that what remains is in the order of the log
                if value is not None:
                    last[key] = value
        for count, (key, value) in enumerate(last.items()):
            try:
                record = decode(key, value)
                if record is not None:
                    _apply(record, groups, offsets, new_classic)
            except (MalformedMessage, struct.error, ValueError) as error:
                logger.error(
                    "a record of __consumer_offsets-%d is unreadable: %s", partition, error
                )
            if count % _RECORDS_PER_TURN == 0:
                await asyncio.sleep(0)
    # Offsets without a group: a simple consumer committed them.
    for group_id in offsets.group_ids():
        if group_id not in groups:
            groups[group_id] = new_classic(group_id)


def _apply(
    record: Record,
    groups: Groups,
    offsets: OffsetStore,
    new_classic: Callable[[str], ClassicGroup],
) -> None:
    match record:
        case (m.OffsetCommitKey() as key, m.OffsetCommitValue() as value):
            offsets.put(
                key.group,
                OffsetKey(key.topic, key.partition),
                CommittedOffset.from_record(value),
            )
        case (m.GroupMetadataKey() as key, m.GroupMetadataValue() as value):
            group = groups[key.group] = new_classic(key.group)
            group.restore(value)
        case (
            m.ConsumerGroupMetadataKey()
            | m.ConsumerGroupMemberMetadataKey()
            | m.ConsumerGroupTargetAssignmentMetadataKey()
            | m.ConsumerGroupTargetAssignmentMemberKey()
            | m.ConsumerGroupCurrentMemberAssignmentKey() as key,
            _,
        ):
            consumer = groups.get(key.group_id)
            if not isinstance(consumer, ConsumerGroup):
                consumer = groups[key.group_id] = ConsumerGroup(key.group_id)
            consumer.replay(record)
