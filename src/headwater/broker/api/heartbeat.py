"""Heartbeat: a member of a classic group is alive. Versions 0–4.

REBALANCE_IN_PROGRESS asks it to join again. While the groups are being loaded every heartbeat is
taken as good, as in Kafka.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@serves(HeartbeatRequest, first=0, last=4)
def heartbeat(
    broker: Broker, request: HeartbeatRequest, context: RequestContext
) -> HeartbeatResponse:
    try:
        broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
        broker.groups.membership.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
    except ApiError as error:
        return HeartbeatResponse(error_code=error.code)
    return HeartbeatResponse()
