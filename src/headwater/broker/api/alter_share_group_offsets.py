"""AlterShareGroupOffsets: an empty share group reads on from other offsets (KIP-932). Version 0.

A group with members is NON_EMPTY_GROUP, one of another type GROUP_ID_NOT_FOUND; a group that there
is not is made, as in Kafka. A partition that the group has not read so far begins there, too. What
was with consumers is forgotten: all from the new offset on is delivered again. Durable when the
answer comes.

Reading the group and each topic must be allowed (READ).

Deviations: a negative offset is INVALID_REQUEST, where Kafka stores it.
"""

from typing import TYPE_CHECKING

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)

if TYPE_CHECKING:
    from uuid import UUID


@serves(AlterShareGroupOffsetsRequest, first=0, last=0)
async def alter_share_group_offsets(
    broker: Broker, request: AlterShareGroupOffsetsRequest, context: RequestContext
) -> AlterShareGroupOffsetsResponse:
    offsets: dict[tuple[UUID, int], int] = {}
    names: dict[UUID, str] = {}
    response = AlterShareGroupOffsetsResponse()
    allows, topics = broker.authorizer.allows, broker.groups.topics
    try:
        broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
        for asked in request.topics:
            answer = AlterShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            response.responses.append(answer)
            topic_id, count = topics.topic_id(asked.topic_name), 0
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not allows(context, Operation.READ, ResourceType.TOPIC, asked.topic_name):
                unknown = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic_id is not None:
                answer.topic_id, names[topic_id] = topic_id, asked.topic_name
                count = topics.partition_count(asked.topic_name) or 0
            for partition in asked.partitions:
                result = _checked(partition, count, unknown)
                answer.partitions.append(result)
                if topic_id is not None and result.error_code == ErrorCode.NONE:
                    offsets[topic_id, partition.partition_index] = partition.start_offset
        await broker.groups.membership.alter_share_offsets(request.group_id, offsets, names)
    except ApiError as error:
        return AlterShareGroupOffsetsResponse(error_code=error.code, error_message=error.what)
    return response


def _checked(
    partition: AlterShareGroupOffsetsRequestPartition, count: int, unknown: ErrorCode
) -> AlterShareGroupOffsetsResponsePartition:
    result = AlterShareGroupOffsetsResponsePartition(partition_index=partition.partition_index)
    if not 0 <= partition.partition_index < count:
        result.error_code = unknown
        result.error_message = unknown.name.lower().replace("_", " ")
    elif partition.start_offset < 0:
        result.error_code = ErrorCode.INVALID_REQUEST
        result.error_message = "an offset cannot be negative"
    return result
