"""AddOffsetsToTxn: a transaction is about to commit a group's offsets. Versions 0–4.

The partition of `__consumer_offsets` where the group lives joins the transaction. Clients of
KIP-890 do not need it: TxnOffsetCommit adds it.
"""

import asyncio

from headwater.broker.api.add_partitions_to_txn import older_fencing
from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import OFFSETS_TOPIC, Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)


@serves(AddOffsetsToTxnRequest, first=0, last=4)
async def add_offsets_to_txn(
    broker: Broker, request: AddOffsetsToTxnRequest, context: RequestContext
) -> AddOffsetsToTxnResponse:
    allows = broker.authorizer.allows
    transactional_id, group_id = request.transactional_id, request.group_id
    if not allows(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not allows(context, Operation.READ, ResourceType.GROUP, group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    try:
        added = broker.transactions.add_all(
            transactional_id,
            request.producer_id,
            request.producer_epoch,
            [(OFFSETS_TOPIC, broker.groups.offsets.partition_of(group_id))],
        )
        if added is not None:
            await asyncio.shield(added)  # others wait for it too
    except ApiError as error:
        return AddOffsetsToTxnResponse(error_code=older_fencing(error.code, context))
    return AddOffsetsToTxnResponse()
