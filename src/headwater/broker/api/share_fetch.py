"""ShareFetch: records for a member of a share group, locked for it. Versions 1–2.

Acknowledgements that come with the request are taken in first; the answer says so when they are
durable. Then the member gets records of the session's partitions: those that were given back
first, then new ones. Whole batches are sent, `acquired_records` says which records are the
member's. `max_records` bounds them: softly, by whole batches, in the batch-optimised mode, exactly
with a record limit (`share_acquire_mode`, version 2). `max_bytes` bounds what is sent, softly too,
but 0 means that nothing is wanted, as in Kafka. With nothing to give, or less than `min_bytes`, the
answer waits up to `max_wait_ms`.

Sessions: epoch 0 begins one, the next requests count on, -1 ends it and gives back what the member
holds. So does the end of the connection. A request that renews locks (`is_renew_ack`, version 2)
fetches nothing. `share.isolation.level = read_committed` delivers up to the last stable offset and
passes over what was aborted.

Beyond Kafka: dead letters, rests between deliveries and order by key; see docs/queues.md.
Membership is not asked for here, as in Kafka: assignment is the client's affair.
"""

from collections.abc import Awaitable, Iterable
from functools import partial

from headwater.broker.admission.quotas import CONSUMER_BYTES
from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.queues.delivering import Taken
from headwater.broker.queues.fetching import ShareFetching
from headwater.broker.queues.requests import acknowledgements, identify, refusal
from headwater.broker.queues.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession
from headwater.broker.queues.share_partition import Key
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.share_fetch import (
    ShareFetchRequest,
    ShareFetchResponse,
    ShareFetchResponseAcquiredRecords,
    ShareFetchResponseLeaderIdAndEpoch,
    ShareFetchResponsePartitionData,
    ShareFetchResponseShareFetchableTopicResponse,
)


@serves(ShareFetchRequest, first=1, last=2)
async def share_fetch(
    broker: Broker, request: ShareFetchRequest, context: RequestContext
) -> ShareFetchResponse:
    try:
        group_id, member_id = identify(broker, request, context)
        _check_renewal(request)
        await broker.queues.loaded(group_id)
        session = _session(broker, request, context, group_id, member_id)
    except ApiError as error:
        return ShareFetchResponse(error_code=error.code, error_message=error.what)
    valid, codes_by_partition = acknowledgements(
        broker, context, group_id, request.topics, is_renewal=request.is_renew_ack
    )
    codes, durable = broker.queues.acknowledge(group_id, member_id, valid)
    codes_by_partition |= codes
    if request.share_session_epoch == FINAL_EPOCH:
        broker.queues.sessions.end(group_id, member_id)
        broker.queues.release(group_id, member_id)
        await _settled(durable, codes_by_partition, valid)
        return _response(broker, group_id, {}, {}, codes_by_partition)
    refusals = partial(_refused, broker, context, session)
    work = ShareFetching(broker, session, request, refusals(), refusals)
    try:
        if not request.is_renew_ack:
            await work.collect()
        await _settled(durable, codes_by_partition, valid)
    except BaseException:  # the connection is closed
        work.let_go()
        raise
    broker.quotas.charge_bytes(context, CONSUMER_BYTES, work.size_bytes)
    return _response(broker, group_id, work.taken, work.refused, codes_by_partition)


def _check_renewal(request: ShareFetchRequest) -> None:
    """KIP-1222: who renews locks fetches nothing, for that might outlast them."""
    if request.is_renew_ack and (
        request.max_bytes
        or request.min_bytes
        or request.max_records
        or request.max_wait_ms
        or not all(
            partition.acknowledgement_batches
            for topic in request.topics
            for partition in topic.partitions
        )
    ):
        raise ApiError(ErrorCode.INVALID_REQUEST, "a request that renews locks fetches nothing")


def _session(
    broker: Broker,
    request: ShareFetchRequest,
    context: RequestContext,
    group_id: str,
    member_id: str,
) -> ShareSession:
    sessions, epoch = broker.queues.sessions, request.share_session_epoch
    wanted = [
        (topic.topic_id, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    ]
    if epoch == FINAL_EPOCH:
        return sessions.get(group_id, member_id)
    if epoch == INITIAL_EPOCH:
        if any(
            partition.acknowledgement_batches
            for topic in request.topics
            for partition in topic.partitions
        ):
            raise ApiError(ErrorCode.INVALID_REQUEST, "a new session has nothing to acknowledge")
        return sessions.begin(group_id, member_id, wanted, context.connection)
    forgotten = [
        (topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    return sessions.go_on(group_id, member_id, epoch, context.connection, wanted, forgotten)


def _refused(
    broker: Broker, context: RequestContext, session: ShareSession
) -> dict[Key, ErrorCode]:
    codes = ((key, refusal(broker, context, key)) for key in session.partitions)
    return {key: code for key, code in codes if code is not None}


async def _settled(
    durable: Awaitable[None] | None,
    codes_by_partition: dict[Key, ErrorCode],
    acknowledged: Iterable[Key],
) -> None:
    """Waits for the disk; if that refuses, the acknowledgements do not count."""
    if durable is None:
        return
    try:
        await durable
    except ApiError as error:
        for key in acknowledged:
            codes_by_partition[key] = codes_by_partition[key] or error.code


def _response(
    broker: Broker,
    group_id: str,
    taken: dict[Key, Taken],
    refused: dict[Key, ErrorCode],
    acknowledged: dict[Key, ErrorCode],
) -> ShareFetchResponse:
    topics: dict[object, ShareFetchResponseShareFetchableTopicResponse] = {}
    for key in {**taken, **refused, **acknowledged}:
        topic_id, index = key
        data = ShareFetchResponsePartitionData(
            partition_index=index,
            error_code=refused.get(key, ErrorCode.NONE),
            acknowledge_error_code=acknowledged.get(key, ErrorCode.NONE),
            current_leader=ShareFetchResponseLeaderIdAndEpoch(leader_id=-1, leader_epoch=-1),
        )
        given = taken.get(key)
        if given is not None:
            data.records = given.part
            data.acquired_records = [
                ShareFetchResponseAcquiredRecords(
                    first_offset=span.first, last_offset=span.last, delivery_count=span.deliveries
                )
                for span in given.acquired
            ]
        topic = topics.get(topic_id)
        if topic is None:
            topic = ShareFetchResponseShareFetchableTopicResponse(topic_id=topic_id)
            topics[topic_id] = topic
        topic.partitions.append(data)
    lock_ms = broker.group_configs.share(group_id).record_lock_duration_ms
    return ShareFetchResponse(acquisition_lock_timeout_ms=lock_ms, responses=list(topics.values()))
