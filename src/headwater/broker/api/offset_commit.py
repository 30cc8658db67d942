"""OffsetCommit: stores the offsets of a group. Versions 2–10.

Answered when the offsets are durable in `__consumer_offsets`. Versions 2–4 may ask for a
retention of their own; topics are named by id from version 10 on. Members of KIP-848 groups
commit with their member epoch from version 9 on; another epoch is STALE_MEMBER_EPOCH. Without
member and generation only an empty group can be committed to; the audit log then says who did it,
for that is how a group is moved. Needs READ on the group and on the topics.

Deviations: a partition that its topic does not have is UNKNOWN_TOPIC_OR_PARTITION; Kafka stores
its offset.
"""

from uuid import UUID

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.offsets.store import CommittedOffset, OffsetKey
from headwater.broker.security.audited_moves import audit_moves, offsets_before
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headwater.protocol.primitives import NIL_UUID


@serves(OffsetCommitRequest, first=2, last=10)
async def offset_commit(
    broker: Broker, request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    if not broker.authorizer.allows(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return _refused(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    response = OffsetCommitResponse()
    offsets: list[tuple[OffsetKey, CommittedOffset]] = []
    answers: list[OffsetCommitResponsePartition] = []  # to those that go into `offsets`
    topics, now_ms = broker.groups.topics, broker.clock.now_ms()
    retention_ms = request.retention_time_ms
    expires_at_ms = -1 if retention_ms < 0 else now_ms + retention_ms
    for topic in request.topics:
        named = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(named)
        by_id = context.api_version >= 10
        name = topics.name_of(topic.topic_id) if by_id else topic.name
        refusal = _refusal(broker, name, topic.topic_id if by_id else None, context)
        partition_count = topics.partition_count(name) if name is not None else None
        topic_id = topics.topic_id(name) if name is not None else None
        for partition in topic.partitions:
            answer = OffsetCommitResponsePartition(partition_index=partition.partition_index)
            named.partitions.append(answer)
            answer.error_code = refusal or _error(broker, partition, partition_count)
            if name is not None and answer.error_code == ErrorCode.NONE:
                answers.append(answer)
                offsets.append(
                    (
                        OffsetKey(name, partition.partition_index),
                        CommittedOffset(
                            offset=partition.committed_offset,
                            leader_epoch=partition.committed_leader_epoch,
                            metadata=partition.committed_metadata or "",
                            committed_at_ms=now_ms,
                            expires_at_ms=expires_at_ms,
                            topic_id=topic_id or NIL_UUID,
                        ),
                    )
                )
    before = offsets_before(
        broker,
        request.group_id,
        offsets,
        member_id=request.member_id,
        generation_or_epoch=request.generation_id_or_member_epoch,
    )
    try:
        await broker.groups.offsets.commit(
            request.group_id,
            offsets,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation_or_epoch=request.generation_id_or_member_epoch,
            api_version=context.api_version,
        )
    except ApiError as error:
        for answer in answers:
            answer.error_code = error.code
    else:
        audit_moves(broker, context, request.group_id, before, offsets)
    return response


def _refused(request: OffsetCommitRequest, code: ErrorCode) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=code
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _refusal(
    broker: Broker, name: str | None, topic_id: UUID | None, context: RequestContext
) -> ErrorCode:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    try:
        broker.authorizer.require(
            context, Operation.READ, ResourceType.TOPIC, name, topic_id=topic_id
        )
    except ApiError as error:
        return error.code
    return ErrorCode.NONE


def _error(
    broker: Broker, partition: OffsetCommitRequestPartition, partition_count: int | None
) -> ErrorCode:
    if partition_count is None or not 0 <= partition.partition_index < partition_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(partition.committed_metadata or "") > broker.groups.settings.offset_metadata_max_chars:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE
