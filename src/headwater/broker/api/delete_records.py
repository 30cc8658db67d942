"""DeleteRecords: moves the start of a partition on. Versions 0–2.

The records before the offset are gone, durably, when the answer comes; it tells where the
partition begins now. Offset -1 means the high watermark; an offset beyond it, or another negative
one, is OFFSET_OUT_OF_RANGE; one before the start changes nothing. As in Kafka, records of
`__consumer_offsets` are not deleted (INVALID_TOPIC_EXCEPTION), nor those of a topic that is
compacted only (POLICY_VIOLATION).

Deviations: bytes are given back segment by segment, when all of a segment lies before the start.
`timeout_ms` is not used.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import OFFSETS_TOPIC, Broker
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.errors import ApiError
from headwater.protocol.error_codes import ErrorCode
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
            await broker.to_the_end(_delete_in_topic(broker, topic)) for topic in request.topics
        ]
    )


async def _delete_in_topic(
    broker: Broker, topic: DeleteRecordsRequestDeleteRecordsTopic
) -> DeleteRecordsResponseDeleteRecordsTopicResult:
    results = []
    for wanted in topic.partitions:
        result = DeleteRecordsResponseDeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=NO_OFFSET
        )
        results.append(result)
        try:
            result.low_watermark = await _delete_before(
                broker, topic.name, wanted.partition_index, wanted.offset
            )
        except CHANGE_ERRORS as error:
            result.error_code, _ = refusal(error)
    return DeleteRecordsResponseDeleteRecordsTopicResult(name=topic.name, partitions=results)


async def _delete_before(broker: Broker, topic: str, index: int, offset: int) -> int:
    """Where the partition begins afterwards."""
    partition = broker.partition(topic, index)
    if topic == OFFSETS_TOPIC:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the groups live in this topic")
    if "delete" not in partition.config.cleanup_policy:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "the topic is compacted, not deleted from")
    if offset == HIGH_WATERMARK:
        offset = partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset > partition.log_start_offset:
        await broker.store.delete_records(partition, offset)
    return partition.log_start_offset
