"""The latest value of each key of a topic, as a reader sees it who reads what is committed."""

import time
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from headwater.client.cluster import DEFAULT_PATIENCE_S, Cluster
from headwater.client.login import properties_of
from headwater.errors import BrokerUnreachable, RequestRefused
from headwater.settings import ClientSettings

_POLL_S: Final = 0.5


def read_committed_latest(
    bootstrap: str,
    login: ClientSettings,
    topic: str,
    *,
    patience_s: float = DEFAULT_PATIENCE_S,
) -> dict[bytes, bytes]:
    """All that was committed when this was called, up to the first transaction open then. Nothing
    if the topic does not exist. A tombstone removes its key; records without a key do not count.
    """
    cluster = Cluster(bootstrap, login, patience_s=patience_s)
    try:
        partitions = cluster.find_partitions(topic)
    finally:
        cluster.close()
    latest: dict[bytes, bytes] = {}
    if partitions is None:
        return latest
    consumer = Consumer(
        {
            **properties_of(login),
            "bootstrap.servers": bootstrap,
            "client.id": "headwater",
            "group.id": f"headwater-{uuid4()}",  # librdkafka wants one; nothing is committed to it
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    try:
        _read(consumer, topic, partitions, latest, patience_s)
    finally:
        consumer.close()
    return latest


def _read(
    consumer: Any, topic: str, partitions: int, latest: dict[bytes, bytes], patience_s: float
) -> None:
    """Up to the end that each partition has now. librdkafka tells of it at the last stable offset,
    also if only markers or nothing at all is in front of it; but only if a fetch comes back empty,
    and a topic that is written all the time gives no empty answer: there a record from behind the
    end tells.
    """
    ends = {}
    for each in range(partitions):
        at = TopicPartition(topic, each)
        try:
            _, ends[each] = consumer.get_watermark_offsets(at, timeout=patience_s)
        except KafkaException as failure:
            raise BrokerUnreachable(
                f"topic {topic} cannot be read", detail=failure.args[0].str()
            ) from failure
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in range(partitions)])
    unread = {each for each, end in ends.items() if end > 0}
    until_s = time.monotonic() + patience_s
    while unread:
        if time.monotonic() > until_s:
            raise BrokerUnreachable(
                f"topic {topic} is not read to its end", detail=f"nothing came in {patience_s:g} s"
            )
        message = consumer.poll(_POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            until_s = time.monotonic() + patience_s
            key, value = message.key(), message.value()
            if value is None:
                latest.pop(key, None)
            elif key is not None:
                latest[key] = value
            if message.offset() >= ends[message.partition()] - 1:
                unread.discard(message.partition())
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (librdkafka's own name)
            unread.discard(message.partition())
        elif not error.retriable() and error.code() >= 0:
            raise RequestRefused(f"topic {topic} cannot be read", detail=error.str())
