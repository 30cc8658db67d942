"""DeleteRecords: moves the start of a partition on. Versions 0–2.

The records before the offset are deleted, durably, when the answer comes; it has the offset where
the partition begins now. Offset -1 means the high watermark; an offset beyond it, or another
negative one, is OFFSET_OUT_OF_RANGE; one before the start changes nothing. As in Kafka, records of
`__consumer_offsets` are not deleted (INVALID_TOPIC_EXCEPTION), nor those of a topic that is
compacted only (POLICY_VIOLATION). Needs DELETE on the topics.

Deviations: bytes are given back segment by segment, when all of a segment lies before the start.
`timeout_ms` is not used.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import COORDINATORS_TOPICS, Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.log.partitions.partition import PartitionLog
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestDeleteRecordsTopic,
    DeleteRecordsResponse,
    DeleteRecordsResponseDeleteRecordsPartitionResult,
    DeleteRecordsResponseDeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1
NO_OFFSET = -1


@serves(DeleteRecordsRequest, first=0, last=2)
async def delete_records(
    broker: Broker, request: DeleteRecordsRequest, context: RequestContext
) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            await broker.to_the_end(_delete_in_topic(broker, topic, context))
            for topic in request.topics
        ]
    )


async def _delete_in_topic(
    broker: Broker, topic: DeleteRecordsRequestDeleteRecordsTopic, context: RequestContext
) -> DeleteRecordsResponseDeleteRecordsTopicResult:
    answer = DeleteRecordsResponseDeleteRecordsTopicResult(name=topic.name)
    changed: dict[PartitionLog, DeleteRecordsResponseDeleteRecordsPartitionResult] = {}
    offsets: dict[PartitionLog, int] = {}
    for wanted in topic.partitions:
        result = DeleteRecordsResponseDeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=NO_OFFSET
        )
        answer.partitions.append(result)
        try:
            broker.authorizer.require(context, Operation.DELETE, ResourceType.TOPIC, topic.name)
            partition = broker.partition(topic.name, wanted.partition_index)
            offsets[partition] = _checked_offset(partition, wanted.offset)
        except ApiError as error:
            result.error_code = error.code
        else:
            changed[partition] = result
    try:
        await broker.store.delete_records(offsets)
    except CHANGE_ERRORS as error:
        for result in changed.values():
            result.error_code, _ = refusal(error)
    else:
        for partition, result in changed.items():
            result.low_watermark = partition.log_start_offset
    return answer


def _checked_offset(partition: PartitionLog, offset: int) -> int:
    """Where the partition is to begin. Raises the error code if it may not."""
    if partition.topic in COORDINATORS_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, "a coordinator stores its state in this topic"
        )
    if "delete" not in partition.config.cleanup_policy:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "the topic is compacted, not deleted from")
    if offset == HIGH_WATERMARK:
        return partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    return offset
