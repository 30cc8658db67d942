"""EndTxn: commits or aborts a transaction. Versions 0–5.

The decision is durable in `__transaction_state` before a marker is written to the transaction's
partitions; a crash in between is made good at the next start. From version 5 on (KIP-890) each
end gives the producer a new epoch, and a new producer id when the epochs are used up; a
transaction to which nothing was added can be aborted. A request that is sent again gets the
answer of the first one; the opposite of what was decided is INVALID_TXN_STATE.

Deviations: answered when the markers are durable, so that the next transaction can begin at once
and the records can be read; Kafka answers after the decision, and the client's next request may
find CONCURRENT_TRANSACTIONS. If a disk refuses a marker, the answer comes after the decision here
too, and the marker is tried again until it is there.
"""

from headwater.broker.api.add_partitions_to_txn import older_fencing
from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

EPOCH_PER_TRANSACTION_SINCE = 5


@serves(EndTxnRequest, first=0, last=5)
async def end_txn(
    broker: Broker, request: EndTxnRequest, context: RequestContext
) -> EndTxnResponse:
    if not broker.authorizer.allows(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    try:
        identity = await broker.transactions.end(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            committed=request.committed,
            with_new_epoch=context.api_version >= EPOCH_PER_TRANSACTION_SINCE,
        )
    except ApiError as error:
        return EndTxnResponse(error_code=older_fencing(error.code, context))
    return EndTxnResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)
