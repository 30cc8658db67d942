"""ListTransactions: the transactional ids, by state, producer id, duration or name. Versions 0–2.

Filters by duration from version 1 on, by a regular expression (KIP-1152) from version 2 on. Ids
that the client may not DESCRIBE are left out.

Deviations: an expression is matched over the characters of a topic's name, and in linear time;
what cannot be (back references, look-around), is longer than 4,096 characters or takes too many
states is INVALID_REGULAR_EXPRESSION, as with RE2 in Kafka.
"""

from collections.abc import Callable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.groups.consumer_protocol.topic_regex import compile_topic_regex
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.transactions import State, Transaction
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)

_STATES = {state.kafka_name: state for state in State}


@serves(ListTransactionsRequest, first=0, last=2)
def list_transactions(
    broker: Broker, request: ListTransactionsRequest, context: RequestContext
) -> ListTransactionsResponse:
    try:
        broker.transactions.verify_ready()
        is_wanted = _filter(broker, request)
        listed = [
            ListTransactionsResponseTransactionState(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                transaction_state=transaction.state.kafka_name,
            )
            for transaction in broker.transactions.transactions()
            # First what the client may see: the time that matching takes reveals nothing of others.
            if broker.authorizer.sees(
                context,
                Operation.DESCRIBE,
                ResourceType.TRANSACTIONAL_ID,
                transaction.transactional_id,
            )
            and is_wanted(transaction)
        ]
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in request.state_filters if name not in _STATES],
        transaction_states=listed,
    )


def _filter(broker: Broker, request: ListTransactionsRequest) -> Callable[[Transaction], bool]:
    states = {_STATES.get(name) for name in request.state_filters}
    producer_ids = set(request.producer_id_filters)
    now_ms = broker.clock.now_ms()
    matches = None
    if request.transactional_id_pattern:
        matches = compile_topic_regex(request.transactional_id_pattern)

    def is_wanted(transaction: Transaction) -> bool:
        return (
            (not states or transaction.state in states)
            and (not producer_ids or transaction.producer_id in producer_ids)
            and (
                request.duration_filter < 0
                or now_ms - transaction.started_ms > request.duration_filter
            )
            and (matches is None or matches(transaction.transactional_id))
        )

    return is_wanted
