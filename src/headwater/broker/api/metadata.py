"""Metadata: brokers, topics and partitions. Versions 0–13.

Unknown topics that are asked for by name are created if both the client
(`allow_auto_topic_creation`, version 4+) and the broker (`auto_create_topics`) allow it; they are
in this answer already. Topic ids from version 10 on, questions by id from version 12 on.

Deviations: authorized operations are told as all that exist, for there is no authorizer.
"""

from collections.abc import Iterable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker, check_topic_name
from headwater.errors import ApiError
from headwater.log.catalog import Topic
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headwater.protocol.primitives import NIL_UUID

# Bits of Kafka's AclOperation: READ 3, WRITE 4, CREATE 5, DELETE 6, ALTER 7, DESCRIBE 8,
# CLUSTER_ACTION 9, DESCRIBE_CONFIGS 10, ALTER_CONFIGS 11, IDEMPOTENT_WRITE 12.
TOPIC_OPERATIONS = sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12))


@serves(MetadataRequest, first=0, last=13)
async def metadata(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> MetadataResponse:
    host, port = broker.advertised
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=broker.node_id, host=host, port=port)],
        cluster_id=broker.store.catalog.cluster_id,
        controller_id=broker.node_id,
        topics=await _topics(broker, request, context),
    )
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


async def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> list[MetadataResponseTopic]:
    # Version 0 asks for all topics with an empty list, later ones with null.
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return [describe(broker, topic) for topic in broker.store.catalog.topics.values()]
    may_create = request.allow_auto_topic_creation
    return [await _topic(broker, wanted, may_create=may_create) for wanted in request.topics]


async def _topic(
    broker: Broker, wanted: MetadataRequestTopic, *, may_create: bool
) -> MetadataResponseTopic:
    if wanted.topic_id != NIL_UUID:
        topic = broker.store.catalog.by_id.get(wanted.topic_id)
        if topic is None:
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=wanted.topic_id
            )
        return describe(broker, topic)
    name = wanted.name or ""
    topic = broker.topic(name)
    if topic is not None:
        return describe(broker, topic)
    try:
        check_topic_name(name)
        if not (may_create and broker.options.auto_create_topics):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = broker.options.default_partitions
        topic = await broker.to_the_end(broker.create_topic(name, partitions, {}))
    except ApiError as error:
        return MetadataResponseTopic(error_code=error.code, name=name)
    except OSError:
        return MetadataResponseTopic(error_code=ErrorCode.KAFKA_STORAGE_ERROR, name=name)
    return describe(broker, topic)


def describe(broker: Broker, topic: Topic) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=_partitions(broker, range(topic.partitions)),
    )


def _partitions(broker: Broker, indexes: Iterable[int]) -> list[MetadataResponsePartition]:
    here = [broker.node_id]
    return [
        MetadataResponsePartition(
            partition_index=index,
            leader_id=broker.node_id,
            leader_epoch=broker.store.leader_epoch,
            replica_nodes=here,
            isr_nodes=here,
        )
        for index in indexes
    ]
