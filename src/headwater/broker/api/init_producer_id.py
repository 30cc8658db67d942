"""InitProducerId: an id for an idempotent producer. Versions 0–5.

An id is never given out twice, also not across crashes. A producer that sends its id and epoch
(version 3+) after an error of its own gets a new id with epoch 0, which needs no memory of the
old one; Kafka does the same for producers without a transactional id when their epoch is used up.

Needs WRITE on some topic, or IDEMPOTENT_WRITE on the cluster (KIP-679).

Deviations: a transactional id is refused (INVALID_REQUEST): transactions are not supported yet.
"""

from collections.abc import Awaitable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)


@serves(InitProducerIdRequest, first=0, last=5)
def init_producer_id(
    broker: Broker, request: InitProducerIdRequest, context: RequestContext
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not broker.authorizer.allows_idempotent_writes(context):
        return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return _allocate(broker)


async def _allocate(broker: Broker) -> InitProducerIdResponse:
    try:
        producer_id = await broker.store.next_producer_id()
    except OSError:
        # Retriable, unlike KAFKA_STORAGE_ERROR, which clients do not expect here.
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
