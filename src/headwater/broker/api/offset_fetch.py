"""OffsetFetch: how far a group has come. Versions 1–10.

Several groups at once from version 8 on; all offsets of a group when its topics are null
(version 2+); topics by id from version 10 on. A partition without an offset is -1, without an
error; so is every partition of a group that there is not. A member of a KIP-848 group that gives
its epoch (version 9+) is refused with STALE_MEMBER_EPOCH when it is another.

With `require_stable` (version 7+, KIP-447) a partition whose offset a transaction that has not
ended will move is UNSTABLE_OFFSET_COMMIT: the client asks again.

Needs DESCRIBE on each group and topic; of all topics, those that it is lacking for are left out.
"""

from collections.abc import Iterable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.offsets.store import CommittedOffset
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from headwater.protocol.primitives import NIL_UUID

_NO_OFFSET = CommittedOffset(offset=-1)


@serves(OffsetFetchRequest, first=1, last=10)
def offset_fetch(
    broker: Broker, request: OffsetFetchRequest, context: RequestContext
) -> OffsetFetchResponse:
    if context.api_version >= 8:
        return OffsetFetchResponse(
            groups=[
                _group(broker, group, context, stable=request.require_stable)
                for group in request.groups
            ]
        )
    asked = OffsetFetchRequestGroup(group_id=request.group_id, topics=_as_newer(request.topics))
    found = _group(broker, asked, context, stable=request.require_stable)
    return _as_older(found, asked, context.api_version)


def _group(
    broker: Broker, asked: OffsetFetchRequestGroup, context: RequestContext, *, stable: bool
) -> OffsetFetchResponseGroup:
    answer = OffsetFetchResponseGroup(group_id=asked.group_id)
    by_id = context.api_version >= 10
    try:
        broker.authorizer.require(context, Operation.DESCRIBE, ResourceType.GROUP, asked.group_id)
        broker.groups.offsets.verify_fetch(asked.group_id, asked.member_id, asked.member_epoch)
    except ApiError as error:
        answer.error_code = error.code
        return answer
    if asked.topics is None:
        answer.topics = _all(broker, asked.group_id, context, by_id=by_id)
    else:
        answer.topics = [
            _topic(broker, asked.group_id, topic, context, by_id=by_id) for topic in asked.topics
        ]
    if stable:
        _hide_unstable(broker, answer, by_id=by_id)
    return answer


def _hide_unstable(broker: Broker, answer: OffsetFetchResponseGroup, *, by_id: bool) -> None:
    for topic in answer.topics:
        name = broker.groups.topics.name_of(topic.topic_id) if by_id else topic.name
        for index, partition in enumerate(topic.partitions):
            if (
                not partition.error_code
                and name is not None
                and broker.groups.offsets.is_unstable(
                    answer.group_id, name, partition.partition_index
                )
            ):
                topic.partitions[index] = _partition(
                    partition.partition_index, _NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT
                )


def _topic(
    broker: Broker,
    group_id: str,
    topic: OffsetFetchRequestTopics,
    context: RequestContext,
    *,
    by_id: bool,
) -> OffsetFetchResponseTopics:
    name = broker.groups.topics.name_of(topic.topic_id) if by_id else topic.name
    if name is None or not broker.authorizer.allows(
        context, Operation.DESCRIBE, ResourceType.TOPIC, name
    ):
        # Nobody learns from the answer whether there is a topic that they may not see.
        code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partitions = [_partition(index, _NO_OFFSET, code) for index in topic.partition_indexes]
    else:
        partitions = [
            _partition(index, broker.groups.offsets.committed(group_id, name, index) or _NO_OFFSET)
            for index in topic.partition_indexes
        ]
    return OffsetFetchResponseTopics(
        name=topic.name, topic_id=topic.topic_id, partitions=partitions
    )


def _all(
    broker: Broker, group_id: str, context: RequestContext, *, by_id: bool
) -> list[OffsetFetchResponseTopics]:
    topics: dict[str, OffsetFetchResponseTopics] = {}
    for key, committed in broker.groups.offsets.committed_by(group_id):
        if key.topic not in topics:
            topic_id = broker.groups.topics.topic_id(key.topic)
            if by_id and topic_id is None:
                continue  # deleted a moment ago
            if not broker.authorizer.sees(
                context, Operation.DESCRIBE, ResourceType.TOPIC, key.topic
            ):
                continue
            topics[key.topic] = OffsetFetchResponseTopics(
                name=key.topic, topic_id=topic_id or NIL_UUID
            )
        topics[key.topic].partitions.append(_partition(key.partition, committed))
    return list(topics.values())


def _partition(
    index: int, committed: CommittedOffset, error_code: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error_code,
    )


def _as_newer(
    topics: Iterable[OffsetFetchRequestTopic] | None,
) -> list[OffsetFetchRequestTopics] | None:
    if topics is None:
        return None
    return [
        OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
        for topic in topics
    ]


def _as_older(
    group: OffsetFetchResponseGroup, asked: OffsetFetchRequestGroup, api_version: int
) -> OffsetFetchResponse:
    """One group at the top; version 1 has room for errors in the partitions only."""
    if api_version < 2 and group.error_code != ErrorCode.NONE:
        group.topics = [
            OffsetFetchResponseTopics(
                name=topic.name,
                partitions=[
                    _partition(index, _NO_OFFSET, ErrorCode(group.error_code))
                    for index in topic.partition_indexes
                ],
            )
            for topic in asked.topics or ()
        ]
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )
