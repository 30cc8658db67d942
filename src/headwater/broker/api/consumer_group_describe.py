"""ConsumerGroupDescribe: the state and the members of KIP-848 groups. Versions 0–1.

A group that there is not, or that is classic, is GROUP_ID_NOT_FOUND. Every member is reported as
one of the new protocol (version 1), because a group is never mixed. Needs DESCRIBE on each group
and on all topics that its members subscribe to or read (else TOPIC_AUTHORIZATION_FAILED, and no
member is reported). Authorized operations are reported on request.
"""

from collections.abc import Iterator

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.consumer.group import ConsumerGroup
from headwater.broker.groups.consumer_protocol.assignment import NOTHING, Assignment, by_topic
from headwater.broker.groups.consumer_protocol.member import Member
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupDescribeResponseAssignment,
    ConsumerGroupDescribeResponseDescribedGroup,
    ConsumerGroupDescribeResponseMember,
    ConsumerGroupDescribeResponseTopicPartitions,
)

_NEW_PROTOCOL = 1


@serves(ConsumerGroupDescribeRequest, first=0, last=1)
def consumer_group_describe(
    broker: Broker, request: ConsumerGroupDescribeRequest, context: RequestContext
) -> ConsumerGroupDescribeResponse:
    response = ConsumerGroupDescribeResponse(
        groups=[_describe(broker, group_id, context) for group_id in request.group_ids]
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
) -> ConsumerGroupDescribeResponseDescribedGroup:
    try:
        broker.authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        broker.groups.registry.verify_ready(group_id)
        group = broker.groups.registry.find(ConsumerGroup, group_id)
        if group is None:
            other = broker.groups.registry.get(group_id)
            raise ApiError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"group {group_id} " + ("not found" if other is None else "is no consumer group"),
            )
    except ApiError as error:
        return ConsumerGroupDescribeResponseDescribedGroup(
            group_id=group_id, error_code=error.code, error_message=error.what
        )
    members = [_member(broker, group, member) for member in group.members.values()]
    if not all(
        broker.authorizer.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)
        for topic in {topic for member in members for topic in _topics_of(member)}
    ):
        return ConsumerGroupDescribeResponseDescribedGroup(
            group_id=group_id,
            error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            error_message="the group has topics that the client may not describe",
        )
    return ConsumerGroupDescribeResponseDescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.preferred_assignor(),
        members=members,
    )


def _topics_of(member: ConsumerGroupDescribeResponseMember) -> Iterator[str]:
    yield from member.subscribed_topic_names
    for assignment in (member.assignment, member.target_assignment):
        yield from (
            topic_partition.topic_name
            for topic_partition in assignment.topic_partitions
            if topic_partition.topic_name
        )


def _member(
    broker: Broker, group: ConsumerGroup, member: Member
) -> ConsumerGroupDescribeResponseMember:
    subscription = member.subscription
    return ConsumerGroupDescribeResponseMember(
        member_id=member.member_id,
        instance_id=subscription.instance_id,
        rack_id=subscription.rack_id,
        member_epoch=member.current.epoch,
        client_id=subscription.client_id,
        client_host=subscription.client_host,
        subscribed_topic_names=sorted(subscription.topic_names),
        subscribed_topic_regex=subscription.topic_regex or None,
        assignment=_assignment(broker, member.current.assigned),
        target_assignment=_assignment(broker, group.targets.get(member.member_id, NOTHING)),
        member_type=_NEW_PROTOCOL,
    )


def _assignment(broker: Broker, assignment: Assignment) -> ConsumerGroupDescribeResponseAssignment:
    return ConsumerGroupDescribeResponseAssignment(
        topic_partitions=[
            ConsumerGroupDescribeResponseTopicPartitions(
                topic_id=topic_id,
                topic_name=broker.groups.topics.name_of(topic_id) or "",
                partitions=partitions,
            )
            for topic_id, partitions in by_topic(assignment).items()
        ]
    )
