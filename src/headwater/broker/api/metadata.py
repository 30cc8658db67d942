"""Metadata: brokers, topics and partitions. Versions 0–13.

Unknown topics that are asked for by name are created if both the client
(`allow_auto_topic_creation`, version 4+) and the broker (`auto_create_topics`) allow it; they are
in this answer already; those in which a coordinator stores its state are created only by the
broker. Topic ids from version 10 on, questions by id from version 12 on.
Authorized operations are reported on request.

Needs DESCRIBE on each topic, and to create one CREATE on it or on the cluster. A topic that is
named and may not be seen is TOPIC_AUTHORIZATION_FAILED, whether it exists or not; of all topics it
is left out.

Deviations: for an id whose topic the client may not see the answer is that of an unknown id,
where Kafka's is TOPIC_AUTHORIZATION_FAILED.
"""

import asyncio
from collections.abc import Iterable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import COORDINATORS_TOPICS, Broker, check_topic_name
from headwater.broker.security.audit import Change
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.log.catalog import Topic
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headwater.protocol.primitives import NIL_UUID

TOPICS_AT_ONCE = 500
TOPIC_AUTHORIZATION_FAILED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


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
            if topic.name is not None and topic.error_code != TOPIC_AUTHORIZATION_FAILED:
                topic.topic_authorized_operations = broker.authorizer.operations(
                    context, ResourceType.TOPIC, topic.name
                )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(broker, context)
    return response


def cluster_operations(broker: Broker, context: RequestContext) -> int:
    """None at all without DESCRIBE on the cluster."""
    if not broker.authorizer.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return broker.authorizer.operations(context, ResourceType.CLUSTER)


async def _topics(
    broker: Broker, request: MetadataRequest, context: RequestContext
) -> list[MetadataResponseTopic]:
    # Version 0 asks for all topics with an empty list, later ones with null.
    if request.topics is None or (context.api_version == 0 and not request.topics):
        return [
            describe(broker, topic)
            for topic in broker.store.catalog.topics.values()
            if broker.authorizer.sees(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        ]
    creates = request.allow_auto_topic_creation and broker.options.auto_create_topics
    answers = []
    for number, wanted in enumerate(request.topics, 1):
        answers.append(await _topic(broker, wanted, context, creates=creates))
        if number % TOPICS_AT_ONCE == 0:
            await asyncio.sleep(0)  # a long request lets others have their turn
    return answers


async def _topic(
    broker: Broker, wanted: MetadataRequestTopic, context: RequestContext, *, creates: bool
) -> MetadataResponseTopic:
    authorizer = broker.authorizer
    if wanted.topic_id != NIL_UUID:
        topic = broker.store.catalog.by_id.get(wanted.topic_id)
        if topic is None or not authorizer.allows(
            context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name
        ):
            return MetadataResponseTopic(
                error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=wanted.topic_id
            )
        return describe(broker, topic)
    name = wanted.name or ""
    try:
        authorizer.require(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
        topic = broker.topic(name)
        if topic is not None:
            return describe(broker, topic)
        if creates and not authorizer.sees(context, Operation.CREATE, ResourceType.CLUSTER):
            authorizer.require(context, Operation.CREATE, ResourceType.TOPIC, name)
        check_topic_name(name)
        if not creates or name in COORDINATORS_TOPICS:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partitions = broker.options.default_partitions
        topic = await broker.to_the_end(_create(broker, name, partitions, context))
    except ApiError as error:
        return MetadataResponseTopic(error_code=error.code, name=name)
    except OSError:
        return MetadataResponseTopic(error_code=ErrorCode.KAFKA_STORAGE_ERROR, name=name)
    return describe(broker, topic)


async def _create(broker: Broker, name: str, partitions: int, context: RequestContext) -> Topic:
    is_new = broker.topic(name) is None  # else another client was faster
    topic = await broker.create_topic(name, partitions, {})
    if is_new:
        broker.audit.changed(context, Change(Operation.CREATE, "TOPIC", name, ErrorCode.NONE))
    return topic


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
