"""ShareGroupDescribe: the state and the members of share groups (KIP-932). Version 1.

A group that there is not, or that is of another type, is GROUP_ID_NOT_FOUND. Describing the group
and each topic that its members read must be allowed; if one topic is not, no member is reported
(TOPIC_AUTHORIZATION_FAILED), as in Kafka.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.consumer_protocol.assignment import by_topic
from headwater.broker.groups.consumer_protocol.member import Member
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareGroupDescribeResponseAssignment,
    ShareGroupDescribeResponseDescribedGroup,
    ShareGroupDescribeResponseMember,
    ShareGroupDescribeResponseTopicPartitions,
)

_ASSIGNOR = "simple"


@serves(ShareGroupDescribeRequest, first=1, last=1)
def share_group_describe(
    broker: Broker, request: ShareGroupDescribeRequest, context: RequestContext
) -> ShareGroupDescribeResponse:
    response = ShareGroupDescribeResponse()
    for group_id in request.group_ids:
        try:
            group = _describe(broker, group_id, context)
        except ApiError as error:
            group = ShareGroupDescribeResponseDescribedGroup(
                group_id=group_id, error_code=error.code, error_message=error.what
            )
        else:
            if request.include_authorized_operations:
                group.authorized_operations = broker.authorizer.operations(
                    context, ResourceType.GROUP, group_id
                )
        response.groups.append(group)
    return response


def _describe(
    broker: Broker, group_id: str, context: RequestContext
) -> ShareGroupDescribeResponseDescribedGroup:
    allows = broker.authorizer.allows
    broker.authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
    group = broker.groups.membership.share_group(group_id)
    topics = {name for member in group.members.values() for name in member.subscription.topic_names}
    if not all(allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name) for name in topics):
        raise ApiError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "the group reads topics that the client may not describe",
        )
    return ShareGroupDescribeResponseDescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=_ASSIGNOR,
        members=[_member(broker, member) for member in group.members.values()],
    )


def _member(broker: Broker, member: Member) -> ShareGroupDescribeResponseMember:
    return ShareGroupDescribeResponseMember(
        member_id=member.member_id,
        rack_id=member.subscription.rack_id,
        member_epoch=member.current.epoch,
        client_id=member.subscription.client_id,
        client_host=member.subscription.client_host,
        subscribed_topic_names=sorted(member.subscription.topic_names),
        assignment=ShareGroupDescribeResponseAssignment(
            topic_partitions=[
                ShareGroupDescribeResponseTopicPartitions(
                    topic_id=topic_id, topic_name=name, partitions=partitions
                )
                for topic_id, partitions in by_topic(member.current.assigned).items()
                if (name := broker.groups.topics.name_of(topic_id)) is not None
            ]
        ),
    )
