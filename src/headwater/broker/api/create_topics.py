"""CreateTopics: makes topics. Versions 2–7.

A topic exists durably when the answer comes. Names are checked as Kafka does, with `.` and `_`
taken for the same character; -1 partitions means the broker's default; settings are checked, and
a wrong one is named (INVALID_CONFIG). A name that stands twice in a request is refused, a topic
that exists is TOPIC_ALREADY_EXISTS. `validate_only` checks and makes nothing. From version 5 on
the answer has the settings of the topic, from 7 on its id. A disk that refuses is
KAFKA_STORAGE_ERROR for the topics it refused.

Needs CREATE on the cluster, or on each topic; and for the settings in the answer DESCRIBE_CONFIGS
on the topic (else `topic_config_error_code` is TOPIC_AUTHORIZATION_FAILED).

Deviations: the replication factor is 1 (or -1), replicas can only be placed on this broker. One
request makes at most 100,000 partitions; what goes beyond is refused with INVALID_PARTITIONS.
Names that differ in `.` and `_` only also collide within one request. `timeout_ms` is not used.
With `validate_only` no topic id is made up. The topics in which coordinators store their state are
INVALID_REQUEST: the broker makes them.
"""

import asyncio
from collections import Counter

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import COORDINATORS_TOPICS, Broker, check_topic_name
from headwater.broker.configs.resources import topic_entries
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import (
    CHANGE_ERRORS,
    check_partition_count,
    check_replicas,
    refusal,
)
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.create_topics import (
    CreateTopicsRequest,
    CreateTopicsRequestCreatableTopic,
    CreateTopicsResponse,
    CreateTopicsResponseCreatableTopicConfigs,
    CreateTopicsResponseCreatableTopicResult,
)
from headwater.protocol.primitives import NIL_UUID


@serves(CreateTopicsRequest, first=2, last=7)
async def create_topics(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> CreateTopicsResponse:
    results = await broker.to_the_end(_create_all(broker, request, context))
    return CreateTopicsResponse(topics=results)


async def _create_all(
    broker: Broker, request: CreateTopicsRequest, context: RequestContext
) -> list[CreateTopicsResponseCreatableTopicResult]:
    times_named = Counter(topic.name for topic in request.topics)
    alike = {_without_dots(name): name for name in list(broker.store.catalog.topics)}
    creates_any = broker.authorizer.sees(context, Operation.CREATE, ResourceType.CLUSTER)
    partitions_so_far = 0
    results = []
    for wanted in {topic.name: topic for topic in request.topics}.values():
        try:
            if times_named[wanted.name] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            if not creates_any:
                broker.authorizer.require(
                    context, Operation.CREATE, ResourceType.TOPIC, wanted.name
                )
            _check_name(broker, wanted.name, alike)
            configs = _configs(broker, wanted)
            partitions = _partition_count(broker, wanted)
            check_partition_count(partitions_so_far + partitions)
            result = await _create(
                broker, wanted.name, partitions, configs, validate_only=request.validate_only
            )
            if not broker.authorizer.sees(
                context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, wanted.name
            ):
                _hide_configs(result)
            partitions_so_far += partitions
            alike[_without_dots(wanted.name)] = wanted.name
        except CHANGE_ERRORS as error:
            code, message = refusal(error)
            result = CreateTopicsResponseCreatableTopicResult(
                name=wanted.name, error_code=code, error_message=message
            )
        results.append(result)
    return results


def _hide_configs(result: CreateTopicsResponseCreatableTopicResult) -> None:
    result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    result.num_partitions = result.replication_factor = -1
    result.configs = []


def _check_name(broker: Broker, name: str, alike: dict[str, str]) -> None:
    if broker.topic(name) is not None:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, "the topic exists already", detail=name)
    check_topic_name(name)
    if name in COORDINATORS_TOPICS:
        # With another number of partitions the coordinator would not find its state.
        raise ApiError(ErrorCode.INVALID_REQUEST, "a coordinator makes this topic itself")
    twin = alike.get(_without_dots(name))
    if twin is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            "the name differs from another topic's in '.' and '_' only",
            detail=f"{name} and {twin}",
        )


def _without_dots(name: str) -> str:
    """Names that are equal so would share their metrics' names."""
    return name.replace(".", "_")


def _configs(broker: Broker, wanted: CreateTopicsRequestCreatableTopic) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in wanted.configs:
        if config.value is None:
            raise ApiError(ErrorCode.INVALID_CONFIG, "a setting has no value", detail=config.name)
        configs[config.name] = config.value
    broker.store.checked_config(configs)
    return configs


def _partition_count(broker: Broker, wanted: CreateTopicsRequestCreatableTopic) -> int:
    if wanted.assignments:
        return _assigned_partition_count(broker, wanted)
    if wanted.replication_factor not in (-1, 1):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "there is one broker, so the replication factor can only be 1",
            detail=str(wanted.replication_factor),
        )
    if wanted.num_partitions == -1:
        return broker.options.default_partitions
    if wanted.num_partitions <= 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            "a topic has at least one partition",
            detail=f"{wanted.num_partitions} were asked for",
        )
    return wanted.num_partitions


def _assigned_partition_count(broker: Broker, wanted: CreateTopicsRequestCreatableTopic) -> int:
    if wanted.num_partitions != -1 or wanted.replication_factor != -1:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            "with assignments, the number of partitions and the replication factor must be -1",
        )
    for assignment in wanted.assignments:
        check_replicas(broker, assignment.partition_index, assignment.broker_ids)
    count = len(wanted.assignments)
    if {assignment.partition_index for assignment in wanted.assignments} != set(range(count)):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{count} assignments must be those of the partitions 0 to {count - 1}",
        )
    return count


async def _create(
    broker: Broker, name: str, partitions: int, configs: dict[str, str], *, validate_only: bool
) -> CreateTopicsResponseCreatableTopicResult:
    topic_id = NIL_UUID
    if validate_only:
        await asyncio.sleep(0)  # a long request lets others have their turn
    else:
        topic = await broker.create_topic(name, partitions, configs)
        if (topic.partitions, topic.configs) != (partitions, configs):
            # A client that only mentioned the topic was faster (auto-creation).
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, "the topic exists already", detail=name)
        topic_id = topic.id
    return CreateTopicsResponseCreatableTopicResult(
        name=name,
        topic_id=topic_id,
        error_message=None,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreateTopicsResponseCreatableTopicConfigs(
                name=entry.name, value=entry.value, config_source=entry.source
            )
            for entry in topic_entries(broker, configs)
        ],
    )
