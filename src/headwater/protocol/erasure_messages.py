"""EraseRecords and DescribeErasure: requests that Headwater's broker has and Kafka does not.

Their keys are far from those that Kafka gives out. Clients that do not have them skip them in the
answer of ApiVersions, and a client of Apache Kafka sees there that they are not served.
"""

from typing import ClassVar

from headwater.protocol.schema import Message, boolean, int16, int32, int64, string


class EraseRecordsRequestPartition(Message):
    """An element of `partitions`."""

    partition_index: int32 = 0
    offsets: list[int64] = []


class EraseRecordsRequestTopic(Message):
    """An element of `topics`."""

    name: string = ""
    partitions: list[EraseRecordsRequestPartition] = []


class EraseRecordsRequest(Message):
    """Request of EraseRecords, version 0. The client chooses the id: 32 hexadecimal digits."""

    api_key: ClassVar[int] = 10001
    flexible: ClassVar[int] = 0

    erasure_id: string = ""
    topics: list[EraseRecordsRequestTopic] = []


class EraseRecordsResponsePartition(Message):
    """An element of `partitions`."""

    partition_index: int32 = 0
    error_code: int16 = 0
    error_message: string | None = None


class EraseRecordsResponseTopic(Message):
    """An element of `topics`."""

    name: string = ""
    partitions: list[EraseRecordsResponsePartition] = []


class EraseRecordsResponse(Message):
    """Response of EraseRecords, version 0. `topics` has the partitions that stand in the way."""

    api_key: ClassVar[int] = 10001
    flexible: ClassVar[int] = 0

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    error_message: string | None = None
    topics: list[EraseRecordsResponseTopic] = []


class DescribeErasureRequest(Message):
    """Request of DescribeErasure, version 0."""

    api_key: ClassVar[int] = 10002
    flexible: ClassVar[int] = 0

    erasure_id: string = ""


class DescribeErasureResponsePartition(Message):
    """An element of `partitions`."""

    topic: string = ""
    partition_index: int32 = 0
    erased: int64 = 0
    already_gone: int64 = 0


class DescribeErasureResponse(Message):
    """Response of DescribeErasure, version 0."""

    api_key: ClassVar[int] = 10002
    flexible: ClassVar[int] = 0

    throttle_time_ms: int32 = 0
    error_code: int16 = 0
    has_ended: boolean = False
    failure: string = ""  # when it has ended: what could not be erased; before: why it waits
    segments: int32 = 0
    segments_done: int32 = 0
    old_files: int32 = 0  # that readers, or a backup, still hold
    partitions: list[DescribeErasureResponsePartition] = []
