"""InitProducerId: an id for an idempotent or transactional producer. Versions 0–5.

An id is never given out twice, also not across crashes. A producer without a transactional id
that sends its id and epoch (version 3+) after an error of its own gets a new id with epoch 0,
which needs no memory of the old one; Kafka does the same when their epoch is used up.

A transactional id retains its producer id; its epoch goes up with each request, which fences all
earlier producers (PRODUCER_FENCED; INVALID_PRODUCER_EPOCH before version 4). When the epochs are
used up it gets a new producer id. A producer that names its own id and epoch (KIP-360) is refused
if it is not the last one; asking again gives the same answer.

Needs WRITE on the transactional id; without one WRITE on some topic, or IDEMPOTENT_WRITE on the
cluster (KIP-679).

Deviations: an open transaction of an earlier producer is aborted first, and the request answered
when that is done; Kafka answers CONCURRENT_TRANSACTIONS and waits to be asked again.
"""

from collections.abc import Awaitable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID, Identity
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_FENCED_SINCE = 4


@serves(InitProducerIdRequest, first=0, last=5)
def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    if request.transactional_id is None:
        if not broker.authorizer.allows_idempotent_writes(context):
            return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return _allocate(broker)
    if not broker.authorizer.allows(
        context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
    ):
        return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    return _init(broker, request, request.transactional_id, context)


async def _init(
    broker: Broker, request: InitProducerIdRequest, transactional_id: str, context: RequestContext
) -> InitProducerIdResponse:
    expected = None
    if request.producer_id != NO_PRODUCER_ID:
        expected = Identity(request.producer_id, request.producer_epoch)
    try:
        identity = await broker.transactions.init(
            transactional_id, request.transaction_timeout_ms, expected
        )
    except ApiError as error:
        code = error.code
        if code is ErrorCode.PRODUCER_FENCED and context.api_version < _FENCED_SINCE:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return InitProducerIdResponse(error_code=code)
    return InitProducerIdResponse(producer_id=identity.producer_id, producer_epoch=identity.epoch)


async def _allocate(broker: Broker) -> InitProducerIdResponse:
    try:
        producer_id = await broker.store.next_producer_id()
    except OSError:
        # Retriable, unlike KAFKA_STORAGE_ERROR, which clients do not expect here.
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
