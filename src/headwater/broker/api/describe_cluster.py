"""DescribeCluster: the broker and the cluster's id (KIP-700). Versions 0–2.

There is one broker, which is the controller too. From version 1 on a client says whether it asks a
broker or a controller (KIP-919): this is a broker, so a question to a controller is
MISMATCHED_ENDPOINT_TYPE, any other UNSUPPORTED_ENDPOINT_TYPE. Authorized operations are reported
when asked for; without DESCRIBE on the cluster there are none.

Deviations: no broker is ever fenced.
"""

from headwater.broker.api.metadata import cluster_operations
from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeClusterResponseDescribeClusterBroker,
)

BROKERS, CONTROLLERS = 1, 2


@serves(DescribeClusterRequest, first=0, last=2)
def describe_cluster(
    broker: Broker, request: DescribeClusterRequest, context: RequestContext
) -> DescribeClusterResponse:
    if request.endpoint_type == CONTROLLERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="this is a broker, not a controller",
        )
    if request.endpoint_type != BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message=f"unknown type of endpoint: {request.endpoint_type}",
        )
    host, port = broker.advertised
    response = DescribeClusterResponse(
        cluster_id=broker.store.catalog.cluster_id,
        controller_id=broker.node_id,
        brokers=[
            DescribeClusterResponseDescribeClusterBroker(
                broker_id=broker.node_id, host=host, port=port
            )
        ],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(broker, context)
    return response
