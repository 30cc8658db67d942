"""DeleteGroups: deletes empty groups, their offsets and their queue state. Versions 0–2.

A group with members is refused with NON_EMPTY_GROUP. Answered when the tombstones are durable.
Needs DELETE on each group.
"""

import asyncio

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.delete_groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteGroupsResponseDeletableGroupResult,
)


@serves(DeleteGroupsRequest, first=0, last=2)
async def delete_groups(
    broker: Broker, request: DeleteGroupsRequest, context: RequestContext
) -> DeleteGroupsResponse:
    results = await asyncio.gather(
        *(_delete(broker, group_id, context) for group_id in request.groups_names)
    )
    return DeleteGroupsResponse(results=list(results))


async def _delete(
    broker: Broker, group_id: str, context: RequestContext
) -> DeleteGroupsResponseDeletableGroupResult:
    result = DeleteGroupsResponseDeletableGroupResult(group_id=group_id)
    try:
        broker.authorizer.require(context, Operation.DELETE, ResourceType.GROUP, group_id)
        await broker.groups.deletion.delete(group_id)
    except ApiError as error:
        result.error_code = error.code
    return result
