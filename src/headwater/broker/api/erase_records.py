"""EraseRecords: erases the contents of single records, for good. Version 0. Headwater's own.

The records at the offsets keep offset and timestamp; key, value and headers are removed from the
log's segments and from the archive (docs/erasure.md). The answer comes when the request is durable,
which is before anything is erased: DescribeErasure reports the progress. All partitions are
accepted or none. The same `erasure_id` again is no second erasure. Needs DELETE on the topics.

Errors, by partition: OFFSET_OUT_OF_RANGE for an offset that no record has had yet (one in front of
the log's start is already gone, and no error); INVALID_TOPIC_EXCEPTION for internal topics;
UNKNOWN_TOPIC_OR_PARTITION. Of the request: INVALID_REQUEST for an id that is none, no offset, or
more than 100,000; THROTTLING_QUOTA_EXCEEDED while too much waits; KAFKA_STORAGE_ERROR.
"""

import re

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import refusal
from headwater.log.erasure.erasures import ErasedPartition
from headwater.protocol.erasure_messages import (
    EraseRecordsRequest,
    EraseRecordsRequestPartition,
    EraseRecordsResponse,
    EraseRecordsResponsePartition,
    EraseRecordsResponseTopic,
)
from headwater.protocol.error_codes import ApiError, ErrorCode

MAX_OFFSETS = 100_000  # of one request
_ID = re.compile(r"[0-9a-f]{32}")


@serves(EraseRecordsRequest, first=0, last=0)
async def erase_records(
    broker: Broker, request: EraseRecordsRequest, context: RequestContext
) -> EraseRecordsResponse:
    answer = EraseRecordsResponse()
    offsets: dict[ErasedPartition, list[int]] = {}
    for topic in request.topics:
        refused = EraseRecordsResponseTopic(name=topic.name, partitions=[])
        for wanted in topic.partitions:
            try:
                broker.authorizer.require(context, Operation.DELETE, ResourceType.TOPIC, topic.name)
                key = _checked(broker, topic.name, wanted)
                offsets[key] = [*offsets.get(key, []), *wanted.offsets]
            except ApiError as error:
                refused.partitions.append(
                    EraseRecordsResponsePartition(
                        partition_index=wanted.partition_index,
                        error_code=error.code,
                        error_message=str(error),
                    )
                )
        if refused.partitions:
            answer.topics.append(refused)
            answer.error_code = refused.partitions[0].error_code
            answer.error_message = refused.partitions[0].error_message
    if not answer.error_code:
        try:
            _check_request(broker, request, sum(map(len, offsets.values())))
            await broker.eraser.add(request.erasure_id, offsets)
        except (ApiError, OSError) as error:
            answer.error_code, answer.error_message = refusal(error)
    return answer


def _check_request(broker: Broker, request: EraseRecordsRequest, offsets: int) -> None:
    if not _ID.fullmatch(request.erasure_id):
        raise ApiError(ErrorCode.INVALID_REQUEST, "an erasure id has 32 hexadecimal digits")
    if not 0 < offsets <= MAX_OFFSETS:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"a request erases 1 to {MAX_OFFSETS} records",
            detail=f"{offsets} offsets",
        )
    if broker.eraser.find(request.erasure_id) is None and not broker.eraser.has_room_for(offsets):
        raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many erasures are waiting")


def _checked(broker: Broker, topic: str, wanted: EraseRecordsRequestPartition) -> ErasedPartition:
    """Raises the error code if these records may not be erased."""
    partition = broker.partition(topic, wanted.partition_index)
    if topic.startswith("__"):
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "records of an internal topic are not erased"
        )
    end = partition.high_watermark
    for offset in (min(wanted.offsets, default=0), max(wanted.offsets, default=-1)):
        if not 0 <= offset < end and wanted.offsets:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                "the log has no such offset",
                detail=f"{topic}-{wanted.partition_index} ends at {end}, offset {offset}",
            )
    return ErasedPartition(topic, partition.topic_id, wanted.partition_index)
