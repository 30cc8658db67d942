"""DescribeProducers: the producers that a partition knows, and their open transactions. Version 0.

For each: its epoch, the sequence of its last record (-1 if it has sent none in this epoch), when
it last wrote, the epoch of the coordinator that ended its last transaction (-1: none yet), and
where its open transaction begins (-1: none is open). Needs READ on the topics, as in Kafka.

Deviations: the time is the broker's, not that of the producer's last record. What is not durable
yet is reported too.
"""

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker, check_topic_name
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.log.partitions.producers import Producer
from headwater.protocol.error_codes import ApiError
from headwater.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartitionResponse,
    DescribeProducersResponseProducerState,
    DescribeProducersResponseTopicResponse,
)


@serves(DescribeProducersRequest, first=0, last=0)
def describe_producers(
    broker: Broker, request: DescribeProducersRequest, context: RequestContext
) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            DescribeProducersResponseTopicResponse(
                name=topic.name,
                partitions=[
                    _describe(broker, context, topic.name, index)
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _describe(
    broker: Broker, context: RequestContext, topic: str, index: int
) -> DescribeProducersResponsePartitionResponse:
    answer = DescribeProducersResponsePartitionResponse(partition_index=index)
    try:
        check_topic_name(topic)
        broker.authorizer.require(context, Operation.READ, ResourceType.TOPIC, topic)
        partition = broker.partition(topic, index)
    except ApiError as error:
        answer.error_code = error.code
        answer.error_message = str(error)
        return answer
    answer.active_producers = [
        _state(producer_id, producer) for producer_id, producer in partition.producers.by_id.items()
    ]
    return answer


def _state(producer_id: int, producer: Producer) -> DescribeProducersResponseProducerState:
    return DescribeProducersResponseProducerState(
        producer_id=producer_id,
        producer_epoch=producer.epoch,
        last_sequence=producer.batches[-1].last_sequence if producer.batches else -1,
        last_timestamp=producer.seen_ms,
        coordinator_epoch=producer.coordinator_epoch,
        current_txn_start_offset=producer.first_offset,
    )
