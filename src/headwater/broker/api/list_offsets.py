"""ListOffsets: the start, the end, or the first record at or after a time. Versions 1–11.

Times below zero are questions: -1 end, -2 start, -3 the record with the largest timestamp
(version 7+, KIP-734), -4 start of what is on this machine (8+), -5 the last offset that is in
the archive (9+), -6 the first that is not (11+). Where nothing is archived -4 and -6 are -2, and
-5 has no answer (offset -1). A time that leads into the archive waits for the archive; if that
cannot be read the error is KAFKA_STORAGE_ERROR.

A time behind the last record has no answer either: offset -1, timestamp -1, no error. With
`isolation_level` 1 (read_committed) the log ends at the last stable offset. Needs DESCRIBE on the
topics.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.leadership import check_epoch
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.errors import ArchiveUnavailable, CorruptLog, MalformedMessage
from headwater.log.partitions import timestamps
from headwater.log.partitions.partition import PartitionLog
from headwater.log.partitions.timestamps import TimedOffset
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsResponse,
    ListOffsetsResponseListOffsetsPartitionResponse,
    ListOffsetsResponseListOffsetsTopicResponse,
)

READ_COMMITTED = 1
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = range(-1, -7, -1)
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}


@serves(ListOffsetsRequest, first=1, last=11)
async def list_offsets(
    broker: Broker, request: ListOffsetsRequest, context: RequestContext
) -> ListOffsetsResponse:
    response = ListOffsetsResponse()
    for topic in request.topics:
        answers = ListOffsetsResponseListOffsetsTopicResponse(name=topic.name)
        response.topics.append(answers)
        for wanted in topic.partitions:
            committed_only = request.isolation_level == READ_COMMITTED
            answers.partitions.append(
                await _answer(broker, topic.name, wanted, context, committed_only)
            )
    return response


async def _answer(
    broker: Broker,
    topic: str,
    wanted: ListOffsetsRequestListOffsetsPartition,
    context: RequestContext,
    committed_only: bool,
) -> ListOffsetsResponseListOffsetsPartitionResponse:
    answer = ListOffsetsResponseListOffsetsPartitionResponse(partition_index=wanted.partition_index)
    try:
        broker.authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)
        partition = broker.partition(topic, wanted.partition_index)
        check_epoch(broker, wanted.current_leader_epoch)
        found = await _find(
            broker, partition, wanted.timestamp, context.api_version, committed_only
        )
    except ApiError as error:
        answer.error_code = error.code
    except (ArchiveUnavailable, CorruptLog, MalformedMessage, OSError):
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    else:
        if found is not None:
            answer.timestamp, answer.offset = found
            answer.leader_epoch = broker.store.leader_epoch
    return answer


async def _find(
    broker: Broker,
    partition: PartitionLog,
    timestamp_ms: int,
    version: int,
    committed_only: bool,
) -> TimedOffset | None:
    if timestamp_ms < EARLIEST_PENDING or version < _SINCE.get(timestamp_ms, 0):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, f"timestamp {timestamp_ms}")
    end = partition.last_stable_offset if committed_only else partition.high_watermark
    if timestamp_ms == LATEST:
        return TimedOffset(-1, end)
    if timestamp_ms == EARLIEST:
        return TimedOffset(-1, partition.log_start_offset)
    if timestamp_ms == EARLIEST_LOCAL:
        return TimedOffset(-1, partition.local_start_offset)
    if timestamp_ms == LATEST_TIERED:
        return TimedOffset(-1, partition.archived_end - 1) if partition.archived else None
    if timestamp_ms == EARLIEST_PENDING:
        return TimedOffset(-1, max(partition.archived_end, partition.log_start_offset))
    find = broker.store.in_reader_and_archive
    if timestamp_ms == MAX_TIMESTAMP:
        found = await find(timestamps.latest_timestamp, partition)
    else:
        found = await find(timestamps.first_at_or_after, partition, timestamp_ms)
    # As in Kafka: if the first one is not stable, none is reported, also if a later one were.
    return found if found is not None and found.offset < end else None
