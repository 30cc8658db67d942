"""DescribeTopicPartitions: topics and partitions, page by page (KIP-966). Version 0.

Topics come sorted by name, those asked for or, with none named, all of them, beginning at the
cursor. An answer has at most `response_partition_limit` partitions, and never more than 2,000; if
there are more, `next_cursor` is where to go on. Topics that do not exist are
UNKNOWN_TOPIC_OR_PARTITION, names that cannot be one INVALID_TOPIC_EXCEPTION. A cursor on a topic
that is not among those asked for, or on a negative partition, is INVALID_REQUEST for each topic.

Needs DESCRIBE on each topic. One that is named and may not be seen is TOPIC_AUTHORIZATION_FAILED,
whether it exists or not, and comes behind the others; of all topics it is left out.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker, check_topic_name
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.log.catalog import Topic
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

PARTITIONS_MAX = 2000


@serves(DescribeTopicPartitionsRequest, first=0, last=0)
def describe_topic_partitions(
    broker: Broker, request: DescribeTopicPartitionsRequest, context: RequestContext
) -> DescribeTopicPartitionsResponse:
    cursor = request.cursor
    wanted = {topic.name for topic in request.topics}
    if cursor is not None and (
        cursor.partition_index < 0 or (wanted and cursor.topic_name not in wanted)
    ):
        return _refused(wanted)
    start = cursor.topic_name if cursor else ""
    ask = broker.authorizer.allows if wanted else broker.authorizer.sees
    names: list[str] = []
    denied: list[str] = []
    for name in sorted(wanted or broker.store.catalog.topics):
        if name >= start:
            is_allowed = ask(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
            (names if is_allowed else denied).append(name)
    response = DescribeTopicPartitionsResponse()
    room = max(1, min(request.response_partition_limit, PARTITIONS_MAX))
    for name in names:
        if room == 0:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(topic_name=name)
            break
        topic = broker.topic(name)
        if topic is None:
            if wanted:
                response.topics.append(_unknown(name))
            continue
        first = cursor.partition_index if cursor and name == start else 0
        end = min(topic.partitions, first + room)
        response.topics.append(_describe(broker, topic, range(first, end), context))
        room -= max(0, end - first)
        if end < topic.partitions:
            response.next_cursor = DescribeTopicPartitionsResponseCursor(
                topic_name=name, partition_index=end
            )
            break
    if wanted:
        response.topics += [
            DescribeTopicPartitionsResponseTopic(
                error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name
            )
            for name in denied
        ]
    return response


def _describe(
    broker: Broker, topic: Topic, indexes: range, context: RequestContext
) -> DescribeTopicPartitionsResponseTopic:
    here = [broker.node_id]
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                partition_index=index,
                leader_id=broker.node_id,
                leader_epoch=broker.store.leader_epoch,
                replica_nodes=here,
                isr_nodes=here,
                eligible_leader_replicas=[],
                last_known_elr=[],
            )
            for index in indexes
        ],
        topic_authorized_operations=broker.authorizer.operations(
            context, ResourceType.TOPIC, topic.name
        ),
    )


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    try:
        check_topic_name(name)
    except ApiError as error:
        code = error.code
    return DescribeTopicPartitionsResponseTopic(error_code=code, name=name)


def _refused(names: set[str]) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.INVALID_REQUEST, name=name)
            for name in sorted(names)
        ]
    )
