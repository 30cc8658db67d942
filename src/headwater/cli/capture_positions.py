"""How far captures are, as any machine can read it from the log: `__headwater_positions`."""

import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, TopicPartition

from headwater.capture import positions
from headwater.capture.positions import Stored
from headwater.cli.cluster import Cluster, Partition, all_partitions, refused
from headwater.errors import NotReady

_POLL_S: Final = 0.5
_SILENCE_S: Final = 15.0


def read_positions(cluster: Cluster) -> Mapping[bytes, bytes]:
    """The latest committed record of every key. Empty if no capture ever ran."""
    topic = cluster.topics().get(positions.TOPIC)
    if topic is None:
        return {}
    bounds = cluster.bounds(all_partitions({positions.TOPIC: topic}), committed_only=True)
    left = {each: end for each, (begin, end) in bounds.items() if begin < end}
    consumer = cluster.consumer(
        {
            "group.id": "headwater-capture-status",  # librdkafka wants one; nothing is committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    try:
        consumer.assign([TopicPartition(*each, bounds[each][0]) for each in left])
        return _latest(consumer, left)
    finally:
        consumer.close()


def _latest(consumer: Any, left: dict[Partition, int]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    heard_s = time.monotonic()
    while left:
        record = consumer.poll(_POLL_S)
        if record is None:
            if time.monotonic() - heard_s > _SILENCE_S:
                raise NotReady(f"{positions.TOPIC} cannot be read", detail="the broker is silent")
            continue
        heard_s = time.monotonic()
        partition = Partition(record.topic(), record.partition())
        error = record.error()
        if error is None:
            if record.value() is None:
                found.pop(record.key(), None)
            else:
                found[record.key()] = record.value()
        elif error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001
            raise refused(error, f"cannot read {positions.TOPIC}")
        # The last offset may be a marker of a transaction, which is never given out.
        if error is not None or record.offset() + 1 >= left.get(partition, 0):
            left.pop(partition, None)
    return found


def stored_of(cluster: Cluster, name: str) -> Stored:
    return positions.decode(name, read_positions(cluster))
