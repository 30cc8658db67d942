"""DescribeGroups: the state and the members of classic groups. Versions 0–6.

A group that there is not, or that is not classic (ConsumerGroupDescribe and ShareGroupDescribe
show the others), is Dead; from version 6 on also GROUP_ID_NOT_FOUND with a message. Metadata and
assignments are shown in a stable group only, as in Kafka. Needs DESCRIBE on each group. Authorized
operations are reported on request.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.classic.group import ClassicGroup
from headwater.broker.groups.classic.rebalance import State
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.describe_groups import (
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeGroupsResponseDescribedGroup,
    DescribeGroupsResponseDescribedGroupMember,
)


@serves(DescribeGroupsRequest, first=0, last=6)
def describe_groups(
    broker: Broker, request: DescribeGroupsRequest, context: RequestContext
) -> DescribeGroupsResponse:
    response = DescribeGroupsResponse(
        groups=[_describe(broker, group_id, context) for group_id in request.groups]
    )
    if request.include_authorized_operations:
        for group in response.groups:
            if group.error_code == ErrorCode.NONE:
                group.authorized_operations = broker.authorizer.operations(
                    context, ResourceType.GROUP, group.group_id
                )
    return response


def _describe(
    broker: Broker, group_id: str, context: RequestContext
) -> DescribeGroupsResponseDescribedGroup:
    try:
        broker.authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        broker.groups.registry.verify_ready()
    except ApiError as error:
        return DescribeGroupsResponseDescribedGroup(group_id=group_id, error_code=error.code)
    group = broker.groups.registry.find(ClassicGroup, group_id)
    if group is None:
        unknown = DescribeGroupsResponseDescribedGroup(
            group_id=group_id, group_state=State.DEAD.value
        )
        if context.api_version >= 6:
            unknown.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            unknown.error_message = (
                f"group {group_id} not found"
                if broker.groups.registry.get(group_id) is None
                else f"group {group_id} is not classic"
            )
        return unknown
    is_stable = group.state is State.STABLE
    return DescribeGroupsResponseDescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if is_stable else "",
        members=[
            DescribeGroupsResponseDescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if is_stable else b"",
                member_assignment=member.assignment if is_stable else b"",
            )
            for member in group.roster
        ],
    )
