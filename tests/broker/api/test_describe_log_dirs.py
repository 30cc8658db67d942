import os

import pytest

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsRequestDescribableLogDirTopic,
)


def describe(asked, topics, version=5):
    wanted = None
    if topics is not None:
        wanted = [
            DescribeLogDirsRequestDescribableLogDirTopic(topic=name, partitions=partitions)
            for name, partitions in topics
        ]
    response = asked.ask(DescribeLogDirsRequest(topics=wanted), version)
    assert response.error_code == 0
    (result,) = response.results
    return result


def sizes(result):
    return {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_sizes_of_all_partitions_and_of_the_disk(asked, version):
    asked.topic("orders", 2)
    asked.append("orders", 5)
    result = describe(asked, None, version)
    assert (result.error_code, result.log_dir) == (0, asked.store.path)
    log_file = os.path.join(asked.store.path, "orders-0", "00000000000000000000.log")
    reported = sizes(result)
    assert reported["orders", 0] == os.path.getsize(log_file) > 0
    assert reported["orders", 1] == 0
    assert len([key for key in reported if key[0] == "__consumer_offsets"]) == 50
    partitions = [partition for topic in result.topics for partition in topic.partitions]
    assert {(partition.offset_lag, partition.is_future_key) for partition in partitions} == {
        (0, False)
    }
    if version >= 4:
        assert 0 < result.usable_bytes <= result.total_bytes
    assert not result.is_cordoned


def test_only_what_is_asked_for_and_exists(asked):
    asked.topic("orders", 3)
    asked.topic("other")
    topics = [("orders", [2, 0, 9]), ("nothing", [0]), ("orders", [2])]
    assert list(sizes(describe(asked, topics))) == [("orders", 2), ("orders", 0)]
    assert describe(asked, []).topics == []


def test_a_disk_that_does_not_answer(asked, monkeypatch):
    def fail(path):
        raise OSError(5, "Input/output error")

    asked.topic("orders")
    monkeypatch.setattr(asked.files, "free_bytes", fail)
    result = describe(asked, [("orders", [0])])
    assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert result.usable_bytes == -1
