"""LeaveGroup: members go, and the others need not wait for their sessions. Versions 0–5.

Several at once from version 3 on, also static members by their instance id alone (KIP-345); the
reason of version 5 is not stored.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeaveGroupResponseMemberResponse,
)


@serves(LeaveGroupRequest, first=0, last=5)
async def leave_group(
    broker: Broker, request: LeaveGroupRequest, context: RequestContext
) -> LeaveGroupResponse:
    leaving = [(member.member_id, member.group_instance_id) for member in request.members]
    if context.api_version < 3:
        leaving = [(request.member_id, None)]
    try:
        broker.authorizer.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
        errors = await broker.groups.membership.leave(request.group_id, leaving)
    except ApiError as error:
        return LeaveGroupResponse(error_code=error.code)
    if context.api_version < 3:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        members=[
            LeaveGroupResponseMemberResponse(
                member_id=member_id, group_instance_id=instance_id, error_code=error_code
            )
            for (member_id, instance_id), error_code in zip(leaving, errors, strict=True)
        ]
    )
