"""Which work is this gateway's: gateways are members of a consumer group, and each does the work of
those partitions of a topic that the group gives it. For webhooks they are shards of definitions.

A gateway that dies is out of the group after six seconds, one that stops at once; then others, or
its successor, get its shards.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException

from headwater.client.login import properties_of
from headwater.inspect.kafka_cluster import KafkaCluster
from headwater.settings import ClientSettings

log = logging.getLogger(__name__)

_SESSION_TIMEOUT_MS: Final = 6_000  # the least that brokers grant
_POLL_S: Final = 0.2
_CLOSING_LIMIT_S: Final = 5.0


class Ownership:
    """A thread of its own. `owned` are shards; `revoked` is called with those that are lost, and
    returns when nothing of them is sent any more.
    """

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        group: str,
        topic: str,
        revoked: Callable[[set[int]], None],
    ) -> None:
        self._topic = topic
        self.owned: frozenset[int] = frozenset()
        self._revoked = revoked
        self._consumer: Any = KafkaCluster(bootstrap, properties_of(login)).consumer(
            {
                "group.id": group,
                "session.timeout.ms": _SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": 2000,
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "topic.metadata.refresh.interval.ms": 5000,
                "allow.auto.create.topics": False,
            }
        )
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-ownership", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leaves the group."""
        self._is_closed.set()
        self._thread.join(_CLOSING_LIMIT_S)

    def _run(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke
        )
        while not self._is_closed.is_set():
            try:
                self._consumer.poll(_POLL_S)
            except KafkaException as error:
                log.warning("group of gateways: %s", error)
        self._consumer.close()

    def _assign(self, consumer: Any, partitions: list[Any]) -> None:
        consumer.assign(partitions)
        consumer.pause(partitions)  # the topic is read elsewhere, all of it
        self.owned = frozenset(partition.partition for partition in partitions)

    def _revoke(self, consumer: Any, partitions: list[Any]) -> None:
        lost = {partition.partition for partition in partitions}
        self.owned = self.owned - lost
        self._revoked(lost)
