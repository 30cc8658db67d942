"""DescribeLogDirs: how many bytes each partition takes, and how many the disk has. Versions 1–5.

There is one log directory, the broker's data directory. If the broker has an archive that is
reported as a second one, by its URL and without the size of a disk: the bytes of each partition
that are in it (of topics that are to be archived, also none), and as its lag the records that are
not. What is in both is counted in both. Null topics means all of them; partitions that do not exist
are left out. A partition's size is that of its segments. From version 4 on the answer has the size
of the file system and what is left of it; if it cannot be asked, the directory's error is
KAFKA_STORAGE_ERROR. Needs DESCRIBE on the cluster; before version 3 a client without it gets an
empty answer.

Deviations: the archive (Kafka does not report its own). In the data directory a lag is always 0,
for no partition moves between directories.
"""

import asyncio
from collections.abc import Iterable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
from headwater.log.partitions.partition import PartitionLog
from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponseDescribeLogDirsPartition,
    DescribeLogDirsResponseDescribeLogDirsResult,
    DescribeLogDirsResponseDescribeLogDirsTopic,
)

PARTITIONS_AT_ONCE = 1000  # then others have their turn


@serves(DescribeLogDirsRequest, first=1, last=5)
async def describe_log_dirs(
    broker: Broker, request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    if not broker.authorizer.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    store = broker.store
    result = DescribeLogDirsResponseDescribeLogDirsResult(log_dir=store.path)
    try:
        files = store.storage.files
        result.total_bytes = await store.in_reader(files.total_bytes, store.path)
        result.usable_bytes = await store.in_reader(files.free_bytes, store.path)
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    results = [result]
    archive = DescribeLogDirsResponseDescribeLogDirsResult()
    if store.archive is not None:
        archive.log_dir = store.archive.url
        results.append(archive)
    described = 0
    for name, indexes in _wanted(broker, request).items():
        partitions = [store.partitions[name, i] for i in indexes if (name, i) in store.partitions]
        if partitions:
            result.topics.append(_described(name, [_local(partition) for partition in partitions]))
        archived = [
            _archived(partition)
            for partition in partitions
            if partition.archived or (store.archive is not None and partition.config.remote_storage)
        ]
        if archived:
            archive.topics.append(_described(name, archived))
        described += len(partitions)
        if described >= PARTITIONS_AT_ONCE:
            described = 0
            await asyncio.sleep(0)
    return DescribeLogDirsResponse(results=results)


def _wanted(broker: Broker, request: DescribeLogDirsRequest) -> dict[str, Iterable[int]]:
    """The partitions asked for, each once."""
    if request.topics is None:
        topics = list(broker.store.catalog.topics.values())
        return {topic.name: range(topic.partitions) for topic in topics}
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return {name: indexes.keys() for name, indexes in wanted.items()}


def _described(
    name: str, partitions: list[DescribeLogDirsResponseDescribeLogDirsPartition]
) -> DescribeLogDirsResponseDescribeLogDirsTopic:
    return DescribeLogDirsResponseDescribeLogDirsTopic(name=name, partitions=partitions)


def _local(partition: PartitionLog) -> DescribeLogDirsResponseDescribeLogDirsPartition:
    return DescribeLogDirsResponseDescribeLogDirsPartition(
        partition_index=partition.index, partition_size=partition.size_bytes
    )


def _archived(partition: PartitionLog) -> DescribeLogDirsResponseDescribeLogDirsPartition:
    return DescribeLogDirsResponseDescribeLogDirsPartition(
        partition_index=partition.index,
        partition_size=sum(segment.size_bytes for segment in partition.archived),
        offset_lag=max(partition.high_watermark - partition.archived_end, 0),
    )
