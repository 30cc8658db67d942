import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestDeleteRecordsPartition,
    DeleteRecordsRequestDeleteRecordsTopic,
)


def delete(asked, topic, *offsets, version=2):
    """(low watermark, error code) for each (partition, offset)."""
    partitions = [
        DeleteRecordsRequestDeleteRecordsPartition(partition_index=index, offset=offset)
        for index, offset in offsets
    ]
    topics = [DeleteRecordsRequestDeleteRecordsTopic(name=topic, partitions=partitions)]
    (result,) = asked.ask(DeleteRecordsRequest(topics=topics), version).topics
    assert result.name == topic
    assert [partition.partition_index for partition in result.partitions] == [
        offset[0] for offset in offsets
    ]
    return [
        (partition.low_watermark, ErrorCode(partition.error_code))
        for partition in result.partitions
    ]


@pytest.mark.parametrize("version", range(3))
def test_moves_the_start(asked, version):
    asked.topic("orders", 2)
    asked.append("orders", 10)
    assert delete(asked, "orders", (0, 4), (1, 0), version=version) == [
        (4, ErrorCode.NONE),
        (0, ErrorCode.NONE),
    ]
    assert asked.store.partitions["orders", 0].log_start_offset == 4


def test_minus_one_is_the_high_watermark(asked):
    asked.topic("orders")
    asked.append("orders", 10)
    assert delete(asked, "orders", (0, -1)) == [(10, ErrorCode.NONE)]
    asked.append("orders", 1)
    assert asked.store.partitions["orders", 0].high_watermark == 11


def test_an_offset_before_the_start_changes_nothing(asked):
    asked.topic("orders")
    asked.append("orders", 10)
    delete(asked, "orders", (0, 7))
    assert delete(asked, "orders", (0, 3)) == [(7, ErrorCode.NONE)]


@pytest.mark.parametrize("offset", [11, -2, 2**63 - 1])
def test_offsets_that_are_not_in_the_log(asked, offset):
    asked.topic("orders")
    asked.append("orders", 10)
    assert delete(asked, "orders", (0, offset)) == [(-1, ErrorCode.OFFSET_OUT_OF_RANGE)]
    assert asked.store.partitions["orders", 0].log_start_offset == 0


def test_records_do_not_come_back(asked):
    asked.topic("orders")
    asked.append("orders", 10)
    delete(asked, "orders", (0, 6))
    asked.reopen()
    partition = asked.store.partitions["orders", 0]
    assert (partition.log_start_offset, partition.high_watermark) == (6, 10)


def test_partitions_that_do_not_exist(asked):
    asked.topic("orders")
    unknown = (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert delete(asked, "orders", (1, 0), (-1, 0)) == [unknown, unknown]
    assert delete(asked, "nothing", (0, 0)) == [unknown]


def test_what_is_not_deleted_from(asked):
    asked.topic("table", cleanup_policy="compact")
    asked.append("table", 1)
    assert delete(asked, "table", (0, 1)) == [(-1, ErrorCode.POLICY_VIOLATION)]
    refused = [(-1, ErrorCode.INVALID_TOPIC_EXCEPTION)]
    assert delete(asked, "__consumer_offsets", (0, 0)) == refused


def test_a_full_disk_is_a_storage_error(asked):
    asked.topic("orders")
    asked.append("orders", 10)
    asked.files.is_full = True
    assert delete(asked, "orders", (0, 5)) == [(-1, ErrorCode.KAFKA_STORAGE_ERROR)]
    asked.files.is_full = False
