"""ElectLeaders: never needed, for every partition has its one leader. Versions 0–2.

A partition that is named is ELECTION_NOT_NEEDED, or UNKNOWN_TOPIC_OR_PARTITION. Null (all
partitions) is answered with an empty list: as in Kafka, only partitions that needed an election
are reported then. An unknown kind of election is INVALID_REQUEST. Needs ALTER on the cluster.

Deviations: none.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
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
    refusal = (ErrorCode.NONE, "")
    if not broker.authorizer.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        refusal = (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "cluster authorization failed")
    elif request.election_type not in (PREFERRED, UNCLEAN):
        refusal = (ErrorCode.INVALID_REQUEST, "unknown kind of election")
    return ElectLeadersResponse(
        error_code=refusal[0],
        replica_election_results=[
            ElectLeadersResponseReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    _result(broker, topic.topic, index, refusal) for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _result(
    broker: Broker, topic: str, index: int, refusal: tuple[ErrorCode, str]
) -> ElectLeadersResponsePartitionResult:
    code, message = refusal
    if code != ErrorCode.NONE:
        pass
    elif (topic, index) in broker.store.partitions:
        code, message = ErrorCode.ELECTION_NOT_NEEDED, "the partition has its only leader"
    else:
        code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no such partition"
    return ElectLeadersResponsePartitionResult(
        partition_id=index, error_code=code, error_message=message
    )
