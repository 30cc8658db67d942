"""DescribeShareGroupOffsets: how far share groups have come (KIP-932). Versions 0–1.

Per partition: the start offset, in front of which everything is settled; -1 if the group has none
yet, or begins where its settings say once a member reads. From version 1 on also how many records
are not settled (KIP-1226); -1 if that is not loaded. Without topics in the request: all partitions
that the group has. Two tagged fields of Headwater, which other clients skip: 10000, how many
records are with consumers, and 10001, for how many milliseconds the oldest of them has been.

Describing the group and each topic must be allowed; a topic that is asked for and must not be
described is TOPIC_AUTHORIZATION_FAILED, one that is not asked for by name is left out. A share
group that there is not has no offsets, which is no error, as in Kafka.

Deviations: unknown partitions are UNKNOWN_TOPIC_OR_PARTITION, where Kafka 4.3 does not answer.
"""

from collections.abc import Iterator, Mapping

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.share.group import ShareGroup
from headwater.broker.queues import PartitionStatus
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)

_UNKNOWN = -1


@serves(DescribeShareGroupOffsetsRequest, first=0, last=1)
def describe_share_group_offsets(
    broker: Broker, request: DescribeShareGroupOffsetsRequest, context: RequestContext
) -> DescribeShareGroupOffsetsResponse:
    return DescribeShareGroupOffsetsResponse(
        groups=[_group(broker, group, context) for group in request.groups]
    )


def _group(
    broker: Broker, request: DescribeShareGroupOffsetsRequestGroup, context: RequestContext
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = request.group_id
    described = DescribeShareGroupOffsetsResponseGroup(group_id=group_id)
    try:
        broker.authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        broker.groups.registry.verify_ready(group_id)
    except ApiError as error:
        described.error_code, described.error_message = error.code, error.what
        return described
    statuses = {
        (status.topic, status.partition): status for status in broker.queues.describe(group_id)
    }
    for topic in _all_topics(broker, group_id) if request.topics is None else request.topics:
        may = broker.authorizer.sees if request.topics is None else broker.authorizer.allows
        if may(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.topic_name):
            described.topics.append(_topic(broker, group_id, topic, statuses))
        elif request.topics is not None:
            described.topics.append(_refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    return described


def _all_topics(broker: Broker, group_id: str) -> Iterator[DescribeShareGroupOffsetsRequestTopic]:
    group = broker.groups.registry.find(ShareGroup, group_id)
    if group is None:
        return
    for topic_id, state_topic in group.state_topics.items():
        name = broker.groups.topics.name_of(topic_id)
        if name is not None:  # else it was deleted a moment ago
            yield DescribeShareGroupOffsetsRequestTopic(
                topic_name=name, partitions=sorted(state_topic.partitions)
            )


def _topic(
    broker: Broker,
    group_id: str,
    request: DescribeShareGroupOffsetsRequestTopic,
    statuses: Mapping[tuple[str, int], PartitionStatus],
) -> DescribeShareGroupOffsetsResponseTopic:
    topics, name = broker.groups.topics, request.topic_name
    topic_id, count = topics.topic_id(name), topics.partition_count(name)
    if topic_id is None or count is None:
        return _refused(request, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    described = DescribeShareGroupOffsetsResponseTopic(topic_name=name, topic_id=topic_id)
    for index in request.partitions:
        partition = DescribeShareGroupOffsetsResponsePartition(
            partition_index=index, start_offset=_UNKNOWN
        )
        status = statuses.get((name, index))
        if not 0 <= index < count:
            partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif status is not None:
            partition.start_offset = status.start_offset
            partition.lag = broker.queues.lag(group_id, topic_id, index)
            partition.in_flight = status.in_flight
            if status.oldest_lock_age_s is not None:
                partition.oldest_lock_age_ms = max(0, round(status.oldest_lock_age_s * 1000))
        described.partitions.append(partition)
    return described


def _refused(
    request: DescribeShareGroupOffsetsRequestTopic, code: ErrorCode
) -> DescribeShareGroupOffsetsResponseTopic:
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=request.topic_name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=index,
                start_offset=_UNKNOWN,
                error_code=code,
                error_message=code.name.lower().replace("_", " "),
            )
            for index in request.partitions
        ],
    )
