"""The records of `__consumer_offsets`, in Kafka's own format.

    key    int16 record type   body of the key, in its only version
    value  int16 version       body of the value in that version;  null deletes the key

| type | key                                     | value                                        |
|------|-----------------------------------------|----------------------------------------------|
| 0, 1 | OffsetCommitKey                         | OffsetCommitValue                            |
| 2    | GroupMetadataKey                        | GroupMetadataValue: a classic group          |
| 3    | ConsumerGroupMetadataKey                | group epoch                                  |
| 5    | ConsumerGroupMemberMetadataKey          | what a member subscribes to                  |
| 6    | ConsumerGroupTargetAssignmentMetadata   | epoch of the target assignment               |
| 7    | ConsumerGroupTargetAssignmentMember     | what a member should own                     |
| 8    | ConsumerGroupCurrentMemberAssignment    | what a member owns and gives up              |
| 10   | ShareGroupMemberMetadataKey             | what a member of a share group subscribes to |
| 11   | ShareGroupMetadataKey                   | epoch of a share group                       |
| 12   | ShareGroupTargetAssignmentMetadata      | as 6                                         |
| 13   | ShareGroupTargetAssignmentMember        | as 7                                         |
| 14   | ShareGroupCurrentMemberAssignment       | what a member has                            |
| 15   | ShareGroupStatePartitionMetadata        | which partitions have queue state            |

Other types (streams groups, resolved regular expressions) are skipped when read.
"""

import struct
from typing import Final, NamedTuple

from headwater.protocol.messages import internal as m
from headwater.protocol.schema import Message

_INT16 = struct.Struct(">h")


class Record(NamedTuple):
    """A key with its value; None is a tombstone."""

    key: Message
    value: Message | None


_TYPES: Final[dict[int, tuple[type[Message], type[Message]]]] = {
    0: (m.OffsetCommitKey, m.OffsetCommitValue),
    1: (m.OffsetCommitKey, m.OffsetCommitValue),
    2: (m.GroupMetadataKey, m.GroupMetadataValue),
    3: (m.ConsumerGroupMetadataKey, m.ConsumerGroupMetadataValue),
    5: (m.ConsumerGroupMemberMetadataKey, m.ConsumerGroupMemberMetadataValue),
    6: (
        m.ConsumerGroupTargetAssignmentMetadataKey,
        m.ConsumerGroupTargetAssignmentMetadataValue,
    ),
    7: (m.ConsumerGroupTargetAssignmentMemberKey, m.ConsumerGroupTargetAssignmentMemberValue),
    8: (m.ConsumerGroupCurrentMemberAssignmentKey, m.ConsumerGroupCurrentMemberAssignmentValue),
    10: (m.ShareGroupMemberMetadataKey, m.ShareGroupMemberMetadataValue),
    11: (m.ShareGroupMetadataKey, m.ShareGroupMetadataValue),
    12: (m.ShareGroupTargetAssignmentMetadataKey, m.ShareGroupTargetAssignmentMetadataValue),
    13: (m.ShareGroupTargetAssignmentMemberKey, m.ShareGroupTargetAssignmentMemberValue),
    14: (m.ShareGroupCurrentMemberAssignmentKey, m.ShareGroupCurrentMemberAssignmentValue),
    15: (m.ShareGroupStatePartitionMetadataKey, m.ShareGroupStatePartitionMetadataValue),
}
_GROUP_METADATA_VERSION: Final = 3
_OFFSET_COMMIT_VERSION: Final = 4
# The only version that has room for an expiry of its own (OffsetCommit before version 5).
_OFFSET_COMMIT_WITH_EXPIRY_VERSION: Final = 1


# Of `__transaction_state`: the first version with room for transactions' second version.
_TRANSACTION_LOG_VERSION: Final = 1


def _version(value: Message) -> int:
    if isinstance(value, m.TransactionLogValue):
        return _TRANSACTION_LOG_VERSION
    if isinstance(value, m.OffsetCommitValue):
        if value.expire_timestamp >= 0:
            return _OFFSET_COMMIT_WITH_EXPIRY_VERSION
        return _OFFSET_COMMIT_VERSION
    return _GROUP_METADATA_VERSION if isinstance(value, m.GroupMetadataValue) else 0


def encode(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    key_bytes = _INT16.pack(key.api_key) + key.encode(0)
    if value is None:
        return key_bytes, None
    version = _version(value)
    return key_bytes, _INT16.pack(version) + value.encode(version)


def decode(key: bytes, value: bytes) -> Record | None:
    """The record, or None when it is of a type that this broker does not use."""
    types = _TYPES.get(_INT16.unpack_from(key)[0])
    if types is None:
        return None
    key_type, value_type = types
    (version,) = _INT16.unpack_from(value)
    return Record(
        key_type.decode(memoryview(key)[2:], 0), value_type.decode(memoryview(value)[2:], version)
    )


def partition_for(group_id: str, partition_count: int) -> int:
    """Where a group lives: the absolute value of Java's String.hashCode, modulo the partitions."""
    hash_code = 0
    utf16 = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(utf16[::2], utf16[1::2], strict=True):
        hash_code = (31 * hash_code + (high << 8 | low)) & 0xFFFFFFFF
    if hash_code >= 1 << 31:
        hash_code = (1 << 32) - hash_code
    # The one number without an absolute value in Java counts as 0 in Kafka.
    return hash_code % (1 << 31) % partition_count
