"""AddPartitionsToTxn: partitions that a transaction is about to write to. Versions 0–3.

All of them or none: if one is unknown or refused, the others are OPERATION_NOT_ATTEMPTED. Clients
of KIP-890 do not need it: Produce adds the partition.

Deviations: versions 4 and 5, with which Kafka's brokers ask each other, are not served.
"""

import asyncio

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import COORDINATORS_TOPICS, Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult,
)

FENCED_SINCE = 2


@serves(AddPartitionsToTxnRequest, first=0, last=3)
async def add_partitions_to_txn(
    broker: Broker, request: AddPartitionsToTxnRequest, context: RequestContext
) -> AddPartitionsToTxnResponse:
    transactional_id = request.v3_and_below_transactional_id
    wanted = [
        (topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions
    ]
    if not broker.authorizer.allows(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        failed = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        return _response(request, dict.fromkeys(wanted, failed))
    errors = {partition: _error(broker, *partition, context) for partition in wanted}
    if any(errors.values()):
        return _response(
            request,
            {
                partition: code or ErrorCode.OPERATION_NOT_ATTEMPTED
                for partition, code in errors.items()
            },
        )
    try:
        added = broker.transactions.add_all(
            transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            wanted,
        )
        if added is not None:
            await asyncio.shield(added)  # others wait for it too
    except ApiError as error:
        return _response(request, dict.fromkeys(wanted, older_fencing(error.code, context)))
    return _response(request, errors)


def older_fencing(code: ErrorCode, context: RequestContext) -> ErrorCode:
    """PRODUCER_FENCED in the words of clients from before it (KIP-588)."""
    if code is ErrorCode.PRODUCER_FENCED and context.api_version < FENCED_SINCE:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code


def _error(broker: Broker, topic: str, index: int, context: RequestContext) -> ErrorCode:
    # What the coordinators write in a transaction, they add themselves (AddOffsetsToTxn).
    if topic in COORDINATORS_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if not broker.authorizer.allows(context, Operation.WRITE, ResourceType.TOPIC, topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if (topic, index) not in broker.store.partitions:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE


def _response(
    request: AddPartitionsToTxnRequest, errors: dict[tuple[str, int], ErrorCode]
) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[
            AddPartitionsToTxnResponseAddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnResponseAddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=errors[topic.name, index]
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
    )
