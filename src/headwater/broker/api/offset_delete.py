"""OffsetDelete: deletes offsets of a group. Version 0.

Topics that a member subscribes to are refused with GROUP_SUBSCRIBED_TO_TOPIC; a live group whose
members are no consumers, with NON_EMPTY_GROUP. An offset that does not exist counts as deleted.
Answered when the tombstones are durable. Needs DELETE on the group and READ on the topics.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.offsets.store import OffsetKey
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)


@serves(OffsetDeleteRequest, first=0, last=0)
async def offset_delete(
    broker: Broker, request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    offsets, group_id = broker.groups.offsets, request.group_id
    response = OffsetDeleteResponse()
    try:
        broker.authorizer.require(context, Operation.DELETE, ResourceType.GROUP, group_id)
        offsets.verify_delete(group_id)
        keys = []
        for topic in request.topics:
            error = ErrorCode.NONE
            if not broker.authorizer.allows(
                context, Operation.READ, ResourceType.TOPIC, topic.name
            ):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif broker.groups.topics.partition_count(topic.name) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif offsets.is_subscribed(group_id, topic.name):
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                keys += [
                    OffsetKey(topic.name, partition.partition_index)
                    for partition in topic.partitions
                    if offsets.committed(group_id, topic.name, partition.partition_index)
                    is not None
                ]
            response.topics.append(
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=partition.partition_index, error_code=error
                        )
                        for partition in topic.partitions
                    ],
                )
            )
        if keys:
            await offsets.delete(group_id, keys)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return response
