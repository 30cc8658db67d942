import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
)


@pytest.mark.parametrize("version", range(3))
def test_no_election_is_needed(asked, version):
    asked.topic("orders", 2)
    topics = [
        ElectLeadersRequestTopicPartitions(topic="orders", partitions=[0, 2]),
        ElectLeadersRequestTopicPartitions(topic="nothing", partitions=[0]),
    ]
    response = asked.ask(ElectLeadersRequest(topic_partitions=topics), version)
    assert response.error_code == 0
    reported = {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }
    assert reported == {
        ("orders", 0): ErrorCode.ELECTION_NOT_NEEDED,
        ("orders", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nothing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }


@pytest.mark.parametrize("version", range(3))
def test_of_all_partitions_none_is_reported(asked, version):
    asked.topic("orders")
    response = asked.ask(ElectLeadersRequest(topic_partitions=None), version)
    assert (response.error_code, response.replica_election_results) == (0, [])


def test_an_unknown_kind_of_election(asked):
    asked.topic("orders")
    topics = [ElectLeadersRequestTopicPartitions(topic="orders", partitions=[0])]
    response = asked.ask(ElectLeadersRequest(election_type=2, topic_partitions=topics), 2)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    (partition,) = response.replica_election_results[0].partition_result
    assert partition.error_code == ErrorCode.INVALID_REQUEST
