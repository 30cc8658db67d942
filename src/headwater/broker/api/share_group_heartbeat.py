"""ShareGroupHeartbeat: a member of a share group is alive, and learns what to read (KIP-932).
Version 1.

Joining (epoch 0), leaving (-1), and all between. The broker shares out the partitions of the
subscribed topics (assignor `simple`): each member has some, and where members outnumber partitions
several read one. Where a group begins to read a partition is durable before a member learns of
it, and so is everything else the answer says. Heartbeats are due, and sessions last, as the
group's settings say (`share.heartbeat.interval.ms`, `share.session.timeout.ms`).

A group of another type with this id is GROUP_ID_NOT_FOUND, even an empty one. Reading the group
(READ) and describing each subscribed topic (DESCRIBE) must be allowed.

Deviations: partitions are shared out at the next heartbeat, not at intervals. A member that missed
an answer gets its assignment again. A partition added to a topic which the group reads begins
at offset 0, whatever `share.auto.offset.reset` says. A group has up to 1000 members (Kafka's
`group.share.max.size` is 200, and 1000 at most).
"""

from collections.abc import Awaitable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)


@serves(ShareGroupHeartbeatRequest, first=1, last=1)
def share_group_heartbeat(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> ShareGroupHeartbeatResponse | Awaitable[ShareGroupHeartbeatResponse]:
    try:
        _authorize(broker, request, context)
        answer = broker.groups.membership.share_heartbeat(
            request,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
        )
    except ApiError as error:
        return _refusal(error)
    return answer if isinstance(answer, ShareGroupHeartbeatResponse) else _wait(answer)


def _authorize(
    broker: Broker, request: ShareGroupHeartbeatRequest, context: RequestContext
) -> None:
    require = broker.authorizer.require
    require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    for name in request.subscribed_topic_names or ():
        require(context, Operation.DESCRIBE, ResourceType.TOPIC, name)


async def _wait(answer: Awaitable[ShareGroupHeartbeatResponse]) -> ShareGroupHeartbeatResponse:
    try:
        return await answer
    except ApiError as error:
        return _refusal(error)


def _refusal(error: ApiError) -> ShareGroupHeartbeatResponse:
    return ShareGroupHeartbeatResponse(error_code=error.code, error_message=error.what)
