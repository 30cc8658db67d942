"""ConsumerGroupHeartbeat: a member of a KIP-848 group is alive, and learns what to read.
Versions 0–1.

Joining (epoch 0), leaving (-1, or -2 for a static member that will be back), and all between: the
member reports what it owns, the broker computes who should own what (assignors `uniform`, the
default, and `range`), has partitions given up first and hands them out when they are free.
Sessions last 45 s, heartbeats are due every 5 s. What the answer says is durable.

Needs READ on the group and DESCRIBE on the topics that the member names; a regular expression
matches only topics that the member may DESCRIBE.

From version 1 on the client chooses its member id, and may subscribe by a regular expression.

Deviations: regular expressions are Python's without back references, look-around and word
boundaries, matched in linear time like RE2's, never match internal topics, and are resolved at
once instead of in the background. A live classic group cannot be joined (GROUP_ID_NOT_FOUND), as
in a Kafka whose `group.consumer.migration.policy` is `disabled`; an empty one becomes a KIP-848
group. A member that joins again with epoch 0 is taken in whatever its epoch was.
"""

from collections.abc import Awaitable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


@serves(ConsumerGroupHeartbeatRequest, first=0, last=1)
def consumer_group_heartbeat(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    try:
        _require(broker, request, context)
        answer = broker.groups.membership.consumer_heartbeat(
            request,
            api_version=context.api_version,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",
            sees=broker.authorizer.topics_seen_by(context),
        )
    except ApiError as error:
        return _refusal(error)
    return answer if isinstance(answer, ConsumerGroupHeartbeatResponse) else _wait(answer)


def _require(
    broker: Broker, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> None:
    broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
    for topic in request.subscribed_topic_names or ():
        broker.authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)


async def _wait(
    answer: Awaitable[ConsumerGroupHeartbeatResponse],
) -> ConsumerGroupHeartbeatResponse:
    try:
        return await answer
    except ApiError as error:
        return _refusal(error)


def _refusal(error: ApiError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.what)
