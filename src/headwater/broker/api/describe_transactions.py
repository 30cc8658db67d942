"""DescribeTransactions: the state of transactional ids. Version 0.

An id that there is not is TRANSACTIONAL_ID_NOT_FOUND. It needs DESCRIBE on the transactional id;
topics that the client may not see are left out.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTopicData,
    DescribeTransactionsResponseTransactionState,
)


@serves(DescribeTransactionsRequest, first=0, last=0)
def describe_transactions(
    broker: Broker, request: DescribeTransactionsRequest, context: RequestContext
) -> DescribeTransactionsResponse:
    states = []
    for transactional_id in request.transactional_ids:
        try:
            states.append(_state(broker, transactional_id, context))
        except ApiError as error:
            states.append(
                DescribeTransactionsResponseTransactionState(
                    transactional_id=transactional_id, error_code=error.code
                )
            )
    return DescribeTransactionsResponse(transaction_states=states)


def _state(
    broker: Broker, transactional_id: str, context: RequestContext
) -> DescribeTransactionsResponseTransactionState:
    authorizer = broker.authorizer
    if not authorizer.allows(
        context, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
    ):
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    broker.transactions.verify_ready()
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST)
    transaction = broker.transactions.transaction(transactional_id)
    if transaction is None:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        topics.setdefault(topic, []).append(index)
    return DescribeTransactionsResponseTransactionState(
        transactional_id=transactional_id,
        transaction_state=transaction.state.kafka_name,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_start_time_ms=transaction.started_ms,
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        topics=[
            DescribeTransactionsResponseTopicData(topic=topic, partitions=indexes)
            for topic, indexes in topics.items()
            if authorizer.sees(context, Operation.DESCRIBE, ResourceType.TOPIC, topic)
        ],
    )
