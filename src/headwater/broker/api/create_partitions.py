"""CreatePartitions: gives topics more partitions. Versions 0–3.

`count` is the number that the topic has afterwards; what is no increase is INVALID_PARTITIONS.
The new partitions are there, durably, when the answer comes. Replicas may be assigned, one list
for each new partition. `validate_only` checks and changes nothing. Needs ALTER on the topics.

Deviations: replicas can only be placed on this broker. One request makes at most 100,000
partitions. `__consumer_offsets` does not grow (INVALID_REQUEST): a group's partition follows from
their number. `timeout_ms` is not used.
"""

from collections import Counter

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import COORDINATORS_TOPICS, Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import (
    CHANGE_ERRORS,
    check_partition_count,
    check_replicas,
    refusal,
)
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsTopic,
    CreatePartitionsResponse,
    CreatePartitionsResponseCreatePartitionsTopicResult,
)


@serves(CreatePartitionsRequest, first=0, last=3)
async def create_partitions(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> CreatePartitionsResponse:
    change = _add_all(broker, request, context)
    return CreatePartitionsResponse(results=await broker.to_the_end(change))


async def _add_all(
    broker: Broker, request: CreatePartitionsRequest, context: RequestContext
) -> list[CreatePartitionsResponseCreatePartitionsTopicResult]:
    times_named = Counter(topic.name for topic in request.topics)
    added_so_far = 0
    results = []
    for wanted in {topic.name: topic for topic in request.topics}.values():
        result = CreatePartitionsResponseCreatePartitionsTopicResult(name=wanted.name)
        results.append(result)
        try:
            if times_named[wanted.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            broker.authorizer.require(context, Operation.ALTER, ResourceType.TOPIC, wanted.name)
            added = _check(broker, wanted)
            check_partition_count(added_so_far + added)
            if not request.validate_only:
                await broker.add_partitions(wanted.name, wanted.count)
            added_so_far += added
        except CHANGE_ERRORS as error:
            result.error_code, result.error_message = refusal(error)
    return results


def _check(broker: Broker, wanted: CreatePartitionsRequestCreatePartitionsTopic) -> int:
    """How many partitions are to be added; raises the error code if they cannot be."""
    topic = broker.topic(wanted.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic", detail=wanted.name)
    if topic.name in COORDINATORS_TOPICS:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a coordinator stores its state in this topic")
    added = wanted.count - topic.partitions
    if added <= 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"the topic has {topic.partitions} partitions already",
            detail=f"{wanted.count} would be no increase",
        )
    if wanted.assignments is not None:
        if len(wanted.assignments) != added:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{len(wanted.assignments)} assignments for {added} new partitions",
            )
        for index, assignment in enumerate(wanted.assignments, topic.partitions):
            check_replicas(broker, index, assignment.broker_ids)
    return added
