"""Changes of a topic that exists: its configs, its number of partitions, the start of its log."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from confluent_kafka import TopicPartition
from confluent_kafka import admin as kafka_admin

from headwater.inspect.kafka_cluster import REQUEST_TIMEOUT_S, KafkaCluster, Partition, settled

_api: Final[Any] = kafka_admin  # confluent_kafka's annotations leave names out
_Operation: Final = _api.AlterConfigOpType


def alter_configs(
    cluster: KafkaCluster, topic: str, to_set: Mapping[str, str], unset: Iterable[str] = ()
) -> None:
    """Those that are not named stay as they are. Raises RequestRefused, BrokerUnreachable."""
    entries = [
        _api.ConfigEntry(name, value, incremental_operation=_Operation.SET)
        for name, value in to_set.items()
    ]
    entries += [
        _api.ConfigEntry(name, None, incremental_operation=_Operation.DELETE) for name in unset
    ]
    resource = _api.ConfigResource(
        _api.ConfigResource.Type.TOPIC, topic, incremental_configs=entries
    )
    futures = cluster.admin.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
    settled({topic: futures[resource]}, "alter")


def add_partitions(cluster: KafkaCluster, topic: str, total: int) -> None:
    """Up to `total`. Raises RequestRefused, BrokerUnreachable."""
    more = [_api.NewPartitions(topic, total)]
    settled(
        cluster.admin.create_partitions(more, request_timeout=REQUEST_TIMEOUT_S),
        "add partitions to",
    )


def trim(cluster: KafkaCluster, before: Mapping[Partition, int]) -> dict[Partition, int]:
    """Deletes the records in front of an offset, in each partition; where each begins now. Raises
    RequestRefused, BrokerUnreachable.
    """
    wanted = [
        TopicPartition(partition.topic, partition.number, offset)
        for partition, offset in before.items()
    ]
    futures = cluster.admin.delete_records(wanted, request_timeout=REQUEST_TIMEOUT_S)
    results = settled(
        {Partition(one.topic, one.partition): future for one, future in futures.items()},
        "delete records of",
    )
    return {partition: result.low_watermark for partition, result in results.items()}
