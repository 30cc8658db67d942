"""DeleteTopics: deletes topics, by name, or from version 6 on by id. Versions 1–6.

A topic is deleted durably when the answer comes; its files go in the background, and a topic of the
same name can be made at once. Unknown names are UNKNOWN_TOPIC_OR_PARTITION, unknown ids
UNKNOWN_TOPIC_ID. A topic that stands twice in a request, or with both its name and an id, is
refused and stays. Needs DELETE on the cluster, or on each topic; a topic that the client may not
see is TOPIC_AUTHORIZATION_FAILED by name, whether it exists or not.

Deviations: `__consumer_offsets` cannot be deleted (INVALID_REQUEST), for the groups live in it;
other topics that begin with `__` can. `timeout_ms` is not used. By id, a topic that the client may
not see is UNKNOWN_TOPIC_ID, where Kafka says TOPIC_AUTHORIZATION_FAILED.
"""

from collections import Counter
from uuid import UUID

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import COORDINATORS_TOPICS, Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.delete_topics import (
    DeleteTopicsRequest,
    DeleteTopicsRequestDeleteTopicState,
    DeleteTopicsResponse,
    DeleteTopicsResponseDeletableTopicResult,
)
from headwater.protocol.primitives import NIL_UUID


@serves(DeleteTopicsRequest, first=1, last=6)
async def delete_topics(
    broker: Broker, request: DeleteTopicsRequest, context: RequestContext
) -> DeleteTopicsResponse:
    wanted = request.topics or [
        DeleteTopicsRequestDeleteTopicState(name=name) for name in request.topic_names
    ]
    change = _delete_all(broker, wanted, context)
    return DeleteTopicsResponse(responses=await broker.to_the_end(change))


async def _delete_all(
    broker: Broker, wanted: list[DeleteTopicsRequestDeleteTopicState], context: RequestContext
) -> list[DeleteTopicsResponseDeletableTopicResult]:
    deletes_any = broker.authorizer.sees(context, Operation.DELETE, ResourceType.CLUSTER)
    keys = [_key(broker, topic, context, sees_all=deletes_any) for topic in wanted]
    times_meant = Counter(keys)
    results = []
    for key, topic in dict(zip(keys, wanted, strict=True)).items():
        result = DeleteTopicsResponseDeletableTopicResult(name=topic.name, topic_id=topic.topic_id)
        results.append(result)
        try:
            if times_meant[key] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            name = _named(broker, topic)
            if not deletes_any:
                _require(broker, name, topic, context)
            _check_deletable(broker, name)
            result.name, result.topic_id = name, broker.store.catalog.topics[name].id
            await broker.delete_topic(name)
        except CHANGE_ERRORS as error:
            result.error_code, result.error_message = refusal(error)
    return results


def _key(
    broker: Broker,
    wanted: DeleteTopicsRequestDeleteTopicState,
    context: RequestContext,
    *,
    sees_all: bool,
) -> str | UUID:
    """What two mentions of one topic have in common, whether by name or by id.

    Who may not see the topic does not learn which name has which id.
    """
    if wanted.name is not None:
        return wanted.name
    topic = broker.store.catalog.by_id.get(wanted.topic_id)
    if topic is None or not (
        sees_all
        or broker.authorizer.sees(context, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
    ):
        return wanted.topic_id
    return topic.name


def _named(broker: Broker, wanted: DeleteTopicsRequestDeleteTopicState) -> str:
    if (wanted.name is None) == (wanted.topic_id == NIL_UUID):
        raise ApiError(ErrorCode.INVALID_REQUEST, "either a topic's name or its id must be given")
    return broker.topic_name(wanted.topic_id) if wanted.name is None else wanted.name


def _require(
    broker: Broker,
    name: str,
    wanted: DeleteTopicsRequestDeleteTopicState,
    context: RequestContext,
) -> None:
    """A client that may see a topic learns that it does not exist; any other does not."""
    if (
        wanted.name is not None
        and broker.topic(name) is None
        and broker.authorizer.sees(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
    ):
        return
    topic_id = wanted.topic_id if wanted.name is None else None
    broker.authorizer.require(
        context, Operation.DELETE, ResourceType.TOPIC, name, topic_id=topic_id
    )


def _check_deletable(broker: Broker, name: str) -> None:
    if broker.topic(name) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic", detail=name)
    if name in COORDINATORS_TOPICS:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, "a coordinator stores its state in this topic", detail=name
        )
