"""OffsetDelete: forgets offsets of a group. Version 0.

Topics that a member subscribes to are refused with GROUP_SUBSCRIBED_TO_TOPIC; a live group whose
members are no consumers, with NON_EMPTY_GROUP. An offset that is not there is deleted gladly.
Answered when the tombstones are durable. Needs DELETE on the group and READ on the topics.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.offsets import OffsetKey
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
    groups, group_id = broker.groups, request.group_id
    response = OffsetDeleteResponse()
    try:
        broker.authorizer.require(context, Operation.DELETE, ResourceType.GROUP, group_id)
        groups.verify_offset_delete(group_id)
        keys = []
        for topic in request.topics:
            error = ErrorCode.NONE
            if not broker.authorizer.allows(
                context, Operation.READ, ResourceType.TOPIC, topic.name
            ):
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif groups.topics.partition_count(topic.name) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif groups.is_subscribed(group_id, topic.name):
                error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            else:
                keys += [
                    OffsetKey(topic.name, each.partition_index)
                    for each in topic.partitions
                    if groups.committed(group_id, topic.name, each.partition_index) is not None
                ]
            response.topics.append(
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=each.partition_index, error_code=error
                        )
                        for each in topic.partitions
                    ],
                )
            )
        if keys:
            await groups.delete_offsets(group_id, keys)
    except ApiError as error:
        return OffsetDeleteResponse(error_code=error.code)
    return response
