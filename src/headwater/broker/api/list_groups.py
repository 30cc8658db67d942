"""ListGroups: all groups, or those in some states (version 4+) or of some types (5+).
Versions 0–5.

States and types are compared without regard to case. Types are `classic`, `consumer` and `share`.
Without DESCRIBE on the cluster, groups that the client may not DESCRIBE are left out.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.list_groups import (
    ListGroupsRequest,
    ListGroupsResponse,
    ListGroupsResponseListedGroup,
)


@serves(ListGroupsRequest, first=0, last=5)
def list_groups(
    broker: Broker, request: ListGroupsRequest, context: RequestContext
) -> ListGroupsResponse:
    try:
        broker.groups.registry.verify_ready()
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    states = {state.lower() for state in request.states_filter}
    types = {type_.lower() for type_ in request.types_filter}
    response = ListGroupsResponse()
    sees_all = broker.authorizer.sees(context, Operation.DESCRIBE, ResourceType.CLUSTER)
    for group in broker.groups.registry:
        if not sees_all and not broker.authorizer.sees(
            context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id
        ):
            continue
        listed = ListGroupsResponseListedGroup(
            group_id=group.group_id,
            protocol_type=group.listed_protocol_type,
            group_state=group.state_name,
            group_type=group.kind,
        )
        if (not states or listed.group_state.lower() in states) and (
            not types or listed.group_type in types
        ):
            response.groups.append(listed)
    return response
