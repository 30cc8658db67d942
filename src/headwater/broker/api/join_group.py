"""JoinGroup: a member enters the next generation of a classic group. Versions 0–9.

Parked until all members have joined or the rebalance timeout is over. From version 4 on a new
dynamic member first gets its id with MEMBER_ID_REQUIRED (KIP-394); static members from version 5
(KIP-345); a restarted static leader is asked to skip the assignment from version 9 (KIP-814).
In version 0 the rebalance timeout is the session timeout.

Deviations: a live KIP-848 group is refused with INCONSISTENT_GROUP_PROTOCOL, as by a Kafka whose
`group.consumer.migration.policy` is `disabled`; an empty one becomes a classic group.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse


@serves(JoinGroupRequest, first=0, last=9)
async def join_group(
    broker: Broker, request: JoinGroupRequest, context: RequestContext
) -> JoinGroupResponse:
    if context.api_version == 0:
        request.rebalance_timeout_ms = request.session_timeout_ms
    try:
        broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
        response = await broker.groups.membership.join(
            request,
            api_version=context.api_version,
            client_id=context.client_id or "",
            client_host=f"/{context.client_host}",  # as Java prints an address, and tools expect
        )
    except ApiError as error:
        response = JoinGroupResponse(error_code=error.code, member_id=request.member_id)
    if response.protocol_name is None and context.api_version < 7:
        response.protocol_name = ""  # may be null from version 7 on
    return response
