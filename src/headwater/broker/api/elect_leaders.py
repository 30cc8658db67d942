"""ElectLeaders: never needed, for every partition has its one leader. Versions 0–2.

A partition that is named is ELECTION_NOT_NEEDED, or UNKNOWN_TOPIC_OR_PARTITION. Null (all
partitions) is answered with an empty list: as in Kafka, only partitions that needed an election
are told then. An unknown kind of election is INVALID_REQUEST.

Deviations: none.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartitionResult,
    ElectLeadersResponseReplicaElectionResult,
)

PREFERRED, UNCLEAN = range(2)


@serves(ElectLeadersRequest, first=0, last=2)
def elect_leaders(
    broker: Broker, request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    is_known = request.election_type in (PREFERRED, UNCLEAN)
    return ElectLeadersResponse(
        error_code=ErrorCode.NONE if is_known else ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ElectLeadersResponseReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    _result(broker, topic.topic, index, is_known_election=is_known)
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _result(
    broker: Broker, topic: str, index: int, *, is_known_election: bool
) -> ElectLeadersResponsePartitionResult:
    if not is_known_election:
        code, message = ErrorCode.INVALID_REQUEST, "unknown kind of election"
    elif (topic, index) in broker.store.partitions:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "the partition has its only leader"
    else:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition"
    return ElectLeadersResponsePartitionResult(
        partition_id=index, error_code=code, error_message=message
    )
