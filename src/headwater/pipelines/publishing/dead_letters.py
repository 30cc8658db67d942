"""Dead letters: undecodable records go to `<topic>.dlq`, exactly once, with the cause.

idempotent_publisher.py explains what makes it exactly once.

    transactional id    <pipeline>.dlq.<topic>.<partition>
    key of the position /dlq/<pipeline>/<topic>/<partition>

Headers that are added to the record's own, named as broker/queues/dead_letters.py names them:
`headwater.dlq.cause`, `.topic`, `.partition`, `.offset`, `.timestamp`, and `.pipeline`.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from headwater.client.writing.sending import TopicPartition
from headwater.pipelines.decoding.contract import Rejected
from headwater.pipelines.publishing.idempotent_publisher import (
    IdempotentPublisher,
    Record,
    Stream,
    count_in,
)
from headwater.settings import ClientSettings
from headwater.sinks.contract import Log
from headwater.sinks.topic.transactional_positions import read_positions

SUFFIX: Final = ".dlq"
PREFIX: Final = "headwater.dlq."


class DeadLetters:
    """The dead letters of one pipeline in one process. Thread-safe."""

    def __init__(self, bootstrap: str, login: ClientSettings, name: str) -> None:
        self._name = name
        self._published = IdempotentPublisher(Log(bootstrap, login))

    def close(self) -> None:
        self._published.close()

    def write(self, topic: str, partition: int, rejected: Sequence[Rejected]) -> int:
        """Writes those that are not written yet, and returns their number. When this returns, all
        are durable. Raises StoreUnreachable, after which a retry writes the missing ones, and
        StoreRefused.
        """
        stream = Stream(
            f"{self._name}{SUFFIX}.{topic}.{partition}",
            _key(self._name, topic, partition),
            topic,
            partition,
            topic + SUFFIX,
        )
        return self._published.write(
            stream, [self._letter(topic, partition, record) for record in rejected]
        )

    def _letter(self, topic: str, partition: int, rejected: Rejected) -> Record:
        about = {
            "cause": rejected.cause,
            "topic": topic,
            "partition": str(partition),
            "offset": str(rejected.offset),
            "pipeline": self._name,
            "timestamp": str(rejected.timestamp_ms),
        }
        added = [(PREFIX + name, value.encode()) for name, value in about.items()]
        return Record(
            rejected.offset,
            rejected.key,
            rejected.value,
            [*rejected.headers, *added],
            rejected.timestamp_ms,
        )


def counts(bootstrap: str, login: ClientSettings, name: str) -> dict[TopicPartition, int]:
    """How many dead letters the pipeline has written, by topic and partition."""
    return counts_in(read_positions(Log(bootstrap, login)), name)


def counts_in(positions: Mapping[bytes, bytes], name: str) -> dict[TopicPartition, int]:
    prefix = _key(name)
    found: dict[TopicPartition, int] = {}
    for key, position in positions.items():
        if key.startswith(prefix):
            topic, _, partition = key.removeprefix(prefix).decode().rpartition("/")
            found[topic, int(partition)] = count_in(position, key)
    return found


@lru_cache(maxsize=64)
def of_process(bootstrap: str, login: ClientSettings, name: str) -> DeadLetters:
    """The pipeline's dead letters in this worker process, shared by the tasks that it runs
    one after the other.
    """
    return DeadLetters(bootstrap, login, name)


def _key(name: str, topic: str = "", partition: int | None = None) -> bytes:
    return f"/dlq/{name}/{topic}/{partition}".encode() if topic else f"/dlq/{name}/".encode()
