"""DeleteShareGroupOffsets: an empty share group forgets what it has read of topics (KIP-932).
Version 0.

If it reads such a topic again, it begins where its settings say. A group with members is
NON_EMPTY_GROUP, a group that there is not GROUP_ID_NOT_FOUND; a topic that does not exist, or of
which the group has nothing, is UNKNOWN_TOPIC_OR_PARTITION. Durable when the answer comes.

Deleting the group (DELETE) and reading each topic (READ) must be allowed.
"""

from typing import TYPE_CHECKING

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)

if TYPE_CHECKING:
    from uuid import UUID


@serves(DeleteShareGroupOffsetsRequest, first=0, last=0)
async def delete_share_group_offsets(
    broker: Broker, request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> DeleteShareGroupOffsetsResponse:
    allows = broker.authorizer.allows
    response = DeleteShareGroupOffsetsResponse()
    topic_ids: set[UUID] = set()
    try:
        broker.authorizer.require(context, Operation.DELETE, ResourceType.GROUP, request.group_id)
        group = broker.groups.membership.share_group(request.group_id)
        for asked in request.topics:
            answer = DeleteShareGroupOffsetsResponseTopic(topic_name=asked.topic_name)
            response.responses.append(answer)
            topic_id = broker.groups.topics.topic_id(asked.topic_name)
            if not allows(context, Operation.READ, ResourceType.TOPIC, asked.topic_name):
                answer.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif topic_id is None or topic_id not in group.state_topics:
                answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                answer.error_message = "there is nothing to delete"
            else:
                answer.topic_id = topic_id
                topic_ids.add(topic_id)
        await broker.groups.membership.delete_share_offsets(request.group_id, topic_ids)
    except ApiError as error:
        return DeleteShareGroupOffsetsResponse(error_code=error.code, error_message=error.what)
    return response
