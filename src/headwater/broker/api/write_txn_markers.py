"""WriteTxnMarkers: ends a producer's transaction in the named partitions. Versions 1–2.

Administrators abort with it a transaction that no producer ends (`kafka-transactions.sh abort`);
Kafka's brokers also ask each other with it, which has no meaning here. It needs ALTER or
CLUSTER_ACTION on the cluster. What the coordinator knows of the transactional id is not changed.
NOT_LEADER_OR_FOLLOWER until the coordinators are loaded: a group being read would miss the marker,
and its offsets stay pending.
"""

import asyncio

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.broker.transactions.markers import Marker
from headwater.protocol.error_codes import ApiError, ErrorCode
from headwater.protocol.messages.write_txn_markers import (
    WriteTxnMarkersRequest,
    WriteTxnMarkersRequestWritableTxnMarker,
    WriteTxnMarkersResponse,
    WriteTxnMarkersResponseWritableTxnMarkerPartitionResult,
    WriteTxnMarkersResponseWritableTxnMarkerResult,
    WriteTxnMarkersResponseWritableTxnMarkerTopicResult,
)


@serves(WriteTxnMarkersRequest, first=1, last=2)
async def write_txn_markers(
    broker: Broker, request: WriteTxnMarkersRequest, context: RequestContext
) -> WriteTxnMarkersResponse:
    authorizer = broker.authorizer
    is_allowed = authorizer.sees(
        context, Operation.ALTER, ResourceType.CLUSTER
    ) or authorizer.allows(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    refusal = ErrorCode.NONE if is_allowed else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    if not refusal:
        try:
            broker.transactions.verify_ready()
        except ApiError:
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER  # which the tool tries again
    return WriteTxnMarkersResponse(
        markers=[await _write(broker, wanted, refusal) for wanted in request.markers]
    )


async def _write(
    broker: Broker, wanted: WriteTxnMarkersRequestWritableTxnMarker, refusal: ErrorCode
) -> WriteTxnMarkersResponseWritableTxnMarkerResult:
    marker = Marker(
        wanted.producer_id,
        wanted.producer_epoch,
        wanted.transaction_result,
        wanted.coordinator_epoch,
    )
    result = WriteTxnMarkersResponseWritableTxnMarkerResult(producer_id=wanted.producer_id)
    for topic in wanted.topics:
        outcomes: list[BaseException | None]
        if refusal:
            outcomes = [ApiError(refusal) for _ in topic.partition_indexes]
        else:
            outcomes = await asyncio.gather(
                *(
                    broker.markers.append(marker, topic.name, index)
                    for index in topic.partition_indexes
                ),
                return_exceptions=True,
            )
        result.topics.append(
            WriteTxnMarkersResponseWritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=[
                    WriteTxnMarkersResponseWritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=_code(outcome)
                    )
                    for index, outcome in zip(topic.partition_indexes, outcomes, strict=True)
                ],
            )
        )
    return result


def _code(outcome: BaseException | None) -> ErrorCode:
    if outcome is None:
        return ErrorCode.NONE
    return outcome.code if isinstance(outcome, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
