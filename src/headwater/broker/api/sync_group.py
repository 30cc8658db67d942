"""SyncGroup: the leader brings the assignments, every member takes its own. Versions 0–5.

Parked until the leader's request is durable in `__consumer_offsets`. From version 5 on the
protocol type and name must be there and be the group's (KIP-559).
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


@serves(SyncGroupRequest, first=0, last=5)
async def sync_group(
    broker: Broker, request: SyncGroupRequest, context: RequestContext
) -> SyncGroupResponse:
    names_protocol = request.protocol_type is not None and request.protocol_name is not None
    if context.api_version >= 5 and not names_protocol:
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    try:
        broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
        return await broker.groups.membership.sync(request)
    except ApiError as error:
        return SyncGroupResponse(error_code=error.code)
