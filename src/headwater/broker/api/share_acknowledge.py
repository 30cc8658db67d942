"""ShareAcknowledge: what became of records that ShareFetch gave to a member. Versions 1–2.

Accept, release (again, perhaps to another member), reject (never again), gap (there is no record);
with version 2 and `is_renew_ack` also renew, which restarts the lock's time. Answered when durable
in `__share_group_state`. For each partition all acknowledgements of the request count or none: with
INVALID_RECORD_STATE for records that the member does not hold (any more), INVALID_REQUEST for
overlaps, unknown kinds and records that were never delivered. Epoch -1 ends the session and gives
back what the member still holds.

Beyond Kafka: rejected records, and those that have come to the group's delivery limit, go to
`<topic>.dlq`; see docs/queues.md.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.queues.requests import acknowledgements, identify
from headwater.broker.queues.sessions import FINAL_EPOCH, INITIAL_EPOCH
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeResponseLeaderIdAndEpoch,
    ShareAcknowledgeResponsePartitionData,
    ShareAcknowledgeResponseShareAcknowledgeTopicResponse,
)


@serves(ShareAcknowledgeRequest, first=1, last=2)
async def share_acknowledge(
    broker: Broker, request: ShareAcknowledgeRequest, context: RequestContext
) -> ShareAcknowledgeResponse:
    queues, epoch = broker.queues, request.share_session_epoch
    try:
        group_id, member_id = identify(broker, request, context)
        await queues.loaded(group_id)
        if epoch == INITIAL_EPOCH:  # ShareFetch begins sessions
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        if epoch == FINAL_EPOCH:
            queues.sessions.get(group_id, member_id)
        else:
            queues.sessions.go_on(group_id, member_id, epoch, context.connection)
    except ApiError as error:
        return ShareAcknowledgeResponse(error_code=error.code, error_message=error.what)
    valid, codes_by_partition = acknowledgements(
        broker, context, group_id, request.topics, is_renewal=request.is_renew_ack
    )
    codes, durable = queues.acknowledge(group_id, member_id, valid)
    codes_by_partition |= codes
    if epoch == FINAL_EPOCH:
        queues.sessions.end(group_id, member_id)
        queues.release(group_id, member_id)
    if durable is not None:
        try:
            await durable
        except ApiError as error:
            for key in valid:
                codes_by_partition[key] = codes_by_partition[key] or error.code
    response = ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=broker.group_configs.share(group_id).record_lock_duration_ms
    )
    for topic in request.topics:
        answers = ShareAcknowledgeResponseShareAcknowledgeTopicResponse(topic_id=topic.topic_id)
        response.responses.append(answers)
        for partition in topic.partitions:
            code = codes_by_partition.get(
                (topic.topic_id, partition.partition_index), ErrorCode.NONE
            )
            answers.partitions.append(
                ShareAcknowledgeResponsePartitionData(
                    partition_index=partition.partition_index,
                    error_code=code,
                    current_leader=ShareAcknowledgeResponseLeaderIdAndEpoch(
                        leader_id=-1, leader_epoch=-1
                    ),
                )
            )
    return response
