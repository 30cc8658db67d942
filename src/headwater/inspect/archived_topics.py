"""The archived part of a topic, as DescribeLogDirs and ListOffsets report it.

A broker with an archive describes it as a second log directory, named by its URL. Apache Kafka
reports nothing of the kind, so there is nothing to show.
"""

from collections.abc import Iterable
from typing import Any, Final

from headwater.client import broker_request
from headwater.errors import HeadwaterError
from headwater.inspect.kafka_cluster import KafkaCluster, Partition
from headwater.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestListOffsetsPartition,
    ListOffsetsRequestListOffsetsTopic,
    ListOffsetsResponse,
)
from headwater.terminal.output import count, say, size, table

_EARLIEST_LOCAL: Final = -4
_VERSION: Final = 9


def in_archive(cluster: KafkaCluster, brokers: Iterable[str]) -> dict[Partition, dict[str, Any]]:
    """Of each partition that is archived, wholly or in part: where, how much, and what is not."""
    found: dict[Partition, dict[str, Any]] = {}
    for address in brokers:
        try:
            directories = broker_request.log_dirs(address, cluster.properties).results
            for directory in directories:
                if "://" not in directory.log_dir:
                    continue
                here: dict[Partition, dict[str, Any]] = {
                    Partition(topic.name, partition.partition_index): {
                        "url": directory.log_dir,
                        "size_bytes": partition.partition_size,
                        "records_not_archived": partition.offset_lag,
                    }
                    for topic in directory.topics
                    for partition in topic.partitions
                }
                for partition, offset in _local_starts(cluster, address, here).items():
                    here[partition]["local_start_offset"] = offset
                found |= here
        except HeadwaterError:
            continue
    return found


def show(partitions: list[dict[str, Any]]) -> None:
    """A table of what lies where; nothing if nothing is archived."""
    archived = [partition for partition in partitions if partition["archive"] is not None]
    if not archived:
        return
    say()
    say(f"archived in {archived[0]['archive']['url']}")
    say()
    header = (">partition", ">archived", ">size", ">here", ">size", ">not archived")
    rows = []
    for partition in archived:
        archive = partition["archive"]
        end = partition["end_offset"] - archive["records_not_archived"]
        rows.append(
            (
                partition["partition"],
                f"{partition['start_offset']}..{end}",
                size(archive["size_bytes"]),
                f"{archive['local_start_offset']}..{partition['end_offset']}",
                size(partition["size_bytes"]),
                count(archive["records_not_archived"]),
            )
        )
    say(table(header, rows))


def _local_starts(
    cluster: KafkaCluster, address: str, partitions: Iterable[Partition]
) -> dict[Partition, int]:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequestListOffsetsTopic(
                name=name,
                partitions=[
                    ListOffsetsRequestListOffsetsPartition(
                        partition_index=number, current_leader_epoch=-1, timestamp=_EARLIEST_LOCAL
                    )
                    for number in numbers
                ],
            )
            for name, numbers in by_topic.items()
        ],
    )
    answer = broker_request.ask(
        address, request, ListOffsetsResponse, _VERSION, properties=cluster.properties
    )
    return {
        Partition(topic.name, partition.partition_index): partition.offset
        for topic in answer.topics
        for partition in topic.partitions
    }
