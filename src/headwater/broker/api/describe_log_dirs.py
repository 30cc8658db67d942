"""DescribeLogDirs: how many bytes each partition takes, and how many the disk has. Versions 1–5.

There is one log directory, the broker's data directory. Null topics means all of them; partitions
that do not exist are left out. A partition's size is that of its segments. From version 4 on the
answer has the size of the file system and what is left of it; if it cannot be asked, the
directory's error is KAFKA_STORAGE_ERROR. Needs DESCRIBE on the cluster; before version 3 a client
without it gets an empty answer.

Deviations: none; a lag is always 0, for no partition moves between directories.
"""

import asyncio
from collections.abc import Iterable

from headwater.broker.api.registry import RequestContext, serves
from headwater.broker.broker import Broker
from headwater.broker.security.authorizer import Operation, ResourceType
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
    described = 0
    for name, indexes in _wanted(broker, request).items():
        topic = _describe(broker, name, indexes)
        if topic.partitions:
            result.topics.append(topic)
        described += len(topic.partitions)
        if described >= PARTITIONS_AT_ONCE:
            described = 0
            await asyncio.sleep(0)
    return DescribeLogDirsResponse(results=[result])


def _wanted(broker: Broker, request: DescribeLogDirsRequest) -> dict[str, Iterable[int]]:
    """The partitions asked for, each once."""
    if request.topics is None:
        topics = list(broker.store.catalog.topics.values())
        return {topic.name: range(topic.partitions) for topic in topics}
    wanted: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        wanted.setdefault(topic.topic, {}).update(dict.fromkeys(topic.partitions))
    return {name: indexes.keys() for name, indexes in wanted.items()}


def _describe(
    broker: Broker, name: str, indexes: Iterable[int]
) -> DescribeLogDirsResponseDescribeLogDirsTopic:
    topic = DescribeLogDirsResponseDescribeLogDirsTopic(name=name)
    for index in indexes:
        partition = broker.store.partitions.get((name, index))
        if partition is not None:
            topic.partitions.append(
                DescribeLogDirsResponseDescribeLogDirsPartition(
                    partition_index=index, partition_size=partition.size_bytes
                )
            )
    return topic
