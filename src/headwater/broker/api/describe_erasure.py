"""DescribeErasure: how far an erasure is, and what became of it. Version 0. Headwater's own.

An erasure has ended when nothing of its records is left on the broker's disk and in the archive;
`failure` then names what could not be erased because it is damaged. Before, it says why it waits,
if it does, and `old_files` counts the files that consumers or a backup still read. The result can
be asked for 24 hours. After a restart of the broker, records that were erased before it count as
already gone.

An id that is unknown, or of topics on which the client has no DELETE, is RESOURCE_NOT_FOUND.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.protocol.erasure_messages import (
    DescribeErasureRequest,
    DescribeErasureResponse,
    DescribeErasureResponsePartition,
)
from headwater.protocol.error_codes import ApiError, ErrorCode


@serves(DescribeErasureRequest, first=0, last=0)
def describe_erasure(
    broker: Broker, request: DescribeErasureRequest, context: RequestContext
) -> DescribeErasureResponse:
    erasure = broker.eraser.find(request.erasure_id)
    if erasure is None:
        return DescribeErasureResponse(error_code=ErrorCode.RESOURCE_NOT_FOUND)
    try:
        for topic in erasure.topics:
            broker.authorizer.require(context, Operation.DELETE, ResourceType.TOPIC, topic)
    except ApiError:
        return DescribeErasureResponse(error_code=ErrorCode.RESOURCE_NOT_FOUND)
    return DescribeErasureResponse(
        has_ended=erasure.has_ended,
        failure=erasure.error,
        segments=erasure.segments,
        segments_done=erasure.segments_done,
        old_files=len(erasure.leaving),
        partitions=[
            DescribeErasureResponsePartition(
                topic=topic, partition_index=index, erased=counts.erased, already_gone=counts.gone
            )
            for (topic, index), counts in erasure.counts.items()
        ],
    )
