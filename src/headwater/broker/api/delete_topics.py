"""DeleteTopics: deletes topics, by name, or from version 6 on by id. Versions 1–6.

A topic is gone durably when the answer comes; its files go in the background, and a topic of the
same name can be made at once. Unknown names are UNKNOWN_TOPIC_OR_PARTITION, unknown ids
UNKNOWN_TOPIC_ID. A topic that stands twice in a request, or with both its name and an id, is
refused and stays.

Deviations: `__consumer_offsets` cannot be deleted (INVALID_REQUEST), for the groups live in it;
other topics that begin with `__` can. `timeout_ms` is not used.
"""

from collections import Counter
from uuid import UUID

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import OFFSETS_TOPIC, Broker
from headwater.broker.topic_changes import CHANGE_ERRORS, refusal
from headwater.errors import ApiError
from headwater.protocol.error_codes import ErrorCode
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
    return DeleteTopicsResponse(responses=await broker.to_the_end(_delete_all(broker, wanted)))


async def _delete_all(
    broker: Broker, wanted: list[DeleteTopicsRequestDeleteTopicState]
) -> list[DeleteTopicsResponseDeletableTopicResult]:
    times_meant = Counter(_key(broker, each) for each in wanted)
    results = []
    for key, each in {_key(broker, each): each for each in wanted}.items():
        result = DeleteTopicsResponseDeletableTopicResult(name=each.name, topic_id=each.topic_id)
        results.append(result)
        try:
            if times_meant[key] > 1:
                raise ApiError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            name = _resolve(broker, each)
            result.name, result.topic_id = name, broker.store.catalog.topics[name].id
            await broker.delete_topic(name)
        except CHANGE_ERRORS as error:
            result.error_code, result.error_message = refusal(error)
    return results


def _key(broker: Broker, wanted: DeleteTopicsRequestDeleteTopicState) -> str | UUID:
    """What two mentions of one topic have in common, whether by name or by id."""
    if wanted.name is not None:
        return wanted.name
    topic = broker.store.catalog.by_id.get(wanted.topic_id)
    return wanted.topic_id if topic is None else topic.name


def _resolve(broker: Broker, wanted: DeleteTopicsRequestDeleteTopicState) -> str:
    if (wanted.name is None) == (wanted.topic_id == NIL_UUID):
        raise ApiError(ErrorCode.INVALID_REQUEST, "either a topic's name or its id must be given")
    name = broker.topic_name(wanted.topic_id) if wanted.name is None else wanted.name
    if broker.topic(name) is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such topic", detail=name)
    if name == OFFSETS_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the groups live in this topic", detail=name)
    return name
