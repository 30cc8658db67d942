"""OffsetForLeaderEpoch: where the log of an epoch ended. Versions 2–4.

A consumer asks after a change of epoch whether what it has read is still the log (KIP-320).
Needs DESCRIBE on the topics, or CLUSTER_ACTION on the cluster.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.leadership import check_epoch
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
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
    sees_all = broker.authorizer.sees(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderEpochResponseOffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _end_of(broker, topic.topic, wanted, is_allowed=is_allowed)
                    for wanted in topic.partitions
                ],
            )
            for topic in request.topics
            for is_allowed in (
                sees_all
                or broker.authorizer.allows(
                    context, Operation.DESCRIBE, ResourceType.TOPIC, topic.topic
                ),
            )
        ]
    )


def _end_of(
    broker: Broker,
    topic: str,
    wanted: OffsetForLeaderEpochRequestOffsetForLeaderPartition,
    *,
    is_allowed: bool,
) -> OffsetForLeaderEpochResponseEpochEndOffset:
    answer = OffsetForLeaderEpochResponseEpochEndOffset(partition=wanted.partition)
    if not is_allowed:
        answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return answer
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
