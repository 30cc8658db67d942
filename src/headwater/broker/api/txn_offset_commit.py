"""TxnOffsetCommit: stores the offsets of a group in a transaction. Versions 0–5.

The offsets are durable in `__consumer_offsets` when it is answered, and count when the
transaction commits. From version 3 on the member and its generation or epoch are verified, if
they are named (KIP-447): UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION. From version
5 on the group joins the transaction with this request (KIP-890); before, AddOffsetsToTxn must
have added it: else TRANSACTION_ABORTABLE (4) or INVALID_TXN_STATE.
"""

import asyncio

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import OFFSETS_TOPIC, Broker
from headwater.broker.groups.offsets.store import CommittedOffset, OffsetKey
from headwater.broker.security.audited_moves import audit_moves, offsets_before
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from headwater.protocol.primitives import NIL_UUID

_LOADING_SINCE = 2
_ABORTABLE_SINCE = 4
_JOINS_SINCE = 5


@serves(TxnOffsetCommitRequest, first=0, last=5)
async def txn_offset_commit(
    broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext
) -> TxnOffsetCommitResponse:
    refusal = _refusal(broker, request, context)
    response = TxnOffsetCommitResponse()
    offsets: list[tuple[OffsetKey, CommittedOffset]] = []
    answers: list[TxnOffsetCommitResponsePartition] = []  # to those that go into `offsets`
    now_ms = broker.clock.now_ms()
    for topic in request.topics:
        named = TxnOffsetCommitResponseTopic(name=topic.name)
        response.topics.append(named)
        code = refusal
        if not refusal and not broker.authorizer.allows(
            context, Operation.READ, ResourceType.TOPIC, topic.name
        ):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        topic_id = broker.groups.topics.topic_id(topic.name)
        for partition in topic.partitions:
            index = partition.partition_index
            answer = TxnOffsetCommitResponsePartition(
                partition_index=index, error_code=code or _error(broker, topic.name, partition)
            )
            named.partitions.append(answer)
            if not answer.error_code:
                answers.append(answer)
                offsets.append(
                    (
                        OffsetKey(topic.name, index),
                        CommittedOffset(
                            offset=partition.committed_offset,
                            leader_epoch=partition.committed_leader_epoch,
                            metadata=partition.committed_metadata or "",
                            committed_at_ms=now_ms,
                            topic_id=topic_id or NIL_UUID,
                        ),
                    )
                )
    if offsets:
        before = offsets_before(
            broker,
            request.group_id,
            offsets,
            member_id=request.member_id,
            generation_or_epoch=request.generation_id,
        )
        try:
            await _commit(broker, request, offsets, context)
        except ApiError as error:
            for answer in answers:
                answer.error_code = _as_clients_know_it(error.code, context)
        else:
            audit_moves(broker, context, request.group_id, before, offsets)
    return response


def _refusal(broker: Broker, request: TxnOffsetCommitRequest, context: RequestContext) -> ErrorCode:
    allows = broker.authorizer.allows
    if not allows(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if not allows(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return ErrorCode.NONE


def _error(broker: Broker, topic: str, partition: TxnOffsetCommitRequestPartition) -> ErrorCode:
    if (topic, partition.partition_index) not in broker.store.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if len(partition.committed_metadata or "") > broker.groups.settings.offset_metadata_max_chars:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE
    return ErrorCode.NONE


async def _commit(
    broker: Broker,
    request: TxnOffsetCommitRequest,
    offsets: list[tuple[OffsetKey, CommittedOffset]],
    context: RequestContext,
) -> None:
    group_id = request.group_id
    broker.groups.offsets.verify_transactional_commit(
        group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation_or_epoch=request.generation_id,
    )
    joining = broker.transactions.add(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        OFFSETS_TOPIC,
        broker.groups.offsets.partition_of(group_id),
        implicit=context.api_version >= _JOINS_SINCE,
    )
    written = broker.groups.offsets.commit_in_transaction(
        group_id,
        offsets,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    if joining is None:
        await written
    else:
        await asyncio.gather(written, asyncio.shield(joining))  # others wait for it too


def _as_clients_know_it(code: ErrorCode, context: RequestContext) -> ErrorCode:
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and context.api_version < _ABORTABLE_SINCE:
        return ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < _LOADING_SINCE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
