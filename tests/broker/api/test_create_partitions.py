import pytest

from headwater.broker.topic_changes import MAX_PARTITIONS_PER_REQUEST
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsRequestCreatePartitionsAssignment,
    CreatePartitionsRequestCreatePartitionsTopic,
)


def wanted(name, count, assignments=None):
    return CreatePartitionsRequestCreatePartitionsTopic(
        name=name,
        count=count,
        assignments=None
        if assignments is None
        else [
            CreatePartitionsRequestCreatePartitionsAssignment(broker_ids=ids) for ids in assignments
        ],
    )


def grow(asked, *topics, version=3, validate_only=False):
    request = CreatePartitionsRequest(topics=list(topics), validate_only=validate_only)
    return asked.ask(request, version).results


def code_of(asked, *args, **options):
    (result,) = grow(asked, wanted(*args), **options)
    return ErrorCode(result.error_code)


@pytest.mark.parametrize("version", range(4))
def test_a_topic_grows(asked, version):
    asked.topic("orders", 2)
    (result,) = grow(asked, wanted("orders", 5), version=version)
    assert (result.name, result.error_code, result.error_message) == ("orders", 0, None)
    assert asked.broker.topic("orders").partitions == 5
    asked.append("orders", 1, partition=4)
    asked.reopen()
    assert asked.store.partitions["orders", 4].high_watermark == 1


def test_validate_only_changes_nothing(asked):
    asked.topic("orders")
    assert code_of(asked, "orders", 2, validate_only=True) is ErrorCode.NONE
    assert code_of(asked, "orders", 1, validate_only=True) is ErrorCode.INVALID_PARTITIONS
    assert asked.broker.topic("orders").partitions == 1


@pytest.mark.parametrize("count", [2, 1, 0, -1])
def test_what_is_no_increase(asked, count):
    asked.topic("orders", 2)
    (result,) = grow(asked, wanted("orders", count))
    assert result.error_code == ErrorCode.INVALID_PARTITIONS
    assert "2 partitions already" in result.error_message


def test_topics_that_cannot_grow(asked):
    assert code_of(asked, "nothing", 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code_of(asked, "__consumer_offsets", 51) is ErrorCode.INVALID_REQUEST


def test_a_topic_named_twice_stays(asked):
    asked.topic("orders")
    (result,) = grow(asked, wanted("orders", 2), wanted("orders", 3))
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert asked.broker.topic("orders").partitions == 1


def test_assignments(asked):
    asked.topic("orders")
    for wrong in ([[1]], [[1], [2]], [[1], []], [[1], [1, 2]], []):
        code = code_of(asked, "orders", 3, wrong)
        assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT, wrong
    assert code_of(asked, "orders", 3, [[1], [1]]) is ErrorCode.NONE


def test_no_request_can_exhaust_the_broker(asked):
    asked.topic("orders")
    asked.topic("more")
    assert code_of(asked, "orders", 2**31 - 1) is ErrorCode.INVALID_PARTITIONS
    bound = MAX_PARTITIONS_PER_REQUEST
    topics = [wanted("orders", bound), wanted("more", 3)]
    results = grow(asked, *topics, validate_only=True)
    codes = [result.error_code for result in results]
    assert codes == [0, ErrorCode.INVALID_PARTITIONS]


def test_of_two_increases_the_greater_one_stays(asked):
    asked.topic("orders")
    requests = [CreatePartitionsRequest(topics=[wanted("orders", count)]) for count in (5, 3)]
    answers = asked.ask_at_once(*requests, version=3)
    codes = [answer.results[0].error_code for answer in answers]
    assert codes == [0, ErrorCode.INVALID_PARTITIONS]
    assert asked.broker.topic("orders").partitions == 5


def test_a_full_disk_is_a_storage_error(asked):
    asked.topic("orders")
    asked.files.is_full = True
    assert code_of(asked, "orders", 2) is ErrorCode.KAFKA_STORAGE_ERROR
    asked.files.is_full = False
    assert asked.broker.topic("orders").partitions == 1
