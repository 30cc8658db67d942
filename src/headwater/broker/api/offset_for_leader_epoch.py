"""OffsetForLeaderEpoch: where the log of an epoch ended. Versions 2–4.

A consumer asks after a change of epoch whether what it has read is still the log (KIP-320).
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.leadership import check_epoch
from headwater.errors import ApiError
from headwater.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderEpochResponseOffsetForLeaderTopicResult,
)


@serves(OffsetForLeaderEpochRequest, first=2, last=4)
def offset_for_leader_epoch(
    broker: Broker, request: OffsetForLeaderEpochRequest, context: RequestContext
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_of(broker, topic.topic, wanted) for wanted in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of(
    broker: Broker, topic: str, wanted: OffsetForLeaderEpochRequestOffsetForLeaderPartition
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    answer = OffsetForLeaderEpochResponseEpochEndOffset(partition=wanted.partition)
    try:
        partition = broker.partition(topic, wanted.partition)
        check_epoch(broker, wanted.current_leader_epoch)
    except ApiError as error:
        answer.error_code = error.code
        return answer
    answer.leader_epoch, answer.end_offset = partition.epochs.end_of(
        wanted.leader_epoch, partition.high_watermark, broker.store.leader_epoch
    )
    return answer
