"""Records into one topic through librdkafka: idempotent, bounded by bytes, counted.

For sources that cannot be read again (datagrams, sockets): what was offered and is not acknowledged
is lost with the process.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from headwater.errors import ConfigError

_LOG = logging.getLogger(__name__)
_POLL_S: Final = 0.1
_WARN_EVERY_S: Final = 60.0


class TopicWriter:
    """`offer` never waits; `poll` serves acknowledgements. To be used by one thread. `cluster` has
    the properties of librdkafka that say where the brokers are and how to log in.
    """

    def __init__(
        self,
        cluster: Mapping[str, Any],
        topic: str,
        *,
        queue_bytes: int = 32 << 20,
        timeout_s: float = 120.0,
        compression: str = "lz4",
    ) -> None:
        self.topic = topic
        self.acknowledged = 0
        self.failed = 0
        self.last_error = ""
        self._warned_s = -_WARN_EVERY_S
        properties: dict[str, Any] = {
            "client.id": "headwater",
            "log_level": 0,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": compression,
            "linger.ms": 5,
            "message.max.bytes": 100_000_000,  # the broker decides
            "queue.buffering.max.kbytes": max(queue_bytes >> 10, 1),
            "queue.buffering.max.messages": 1_000_000,
            "message.timeout.ms": int(timeout_s * 1000),
            **cluster,
        }
        try:
            self._producer = Producer(properties)
        except KafkaException as error:
            raise ConfigError(
                f"there is no producer for {topic}", detail=error.args[0].str()
            ) from error

    def offer(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timestamp_ms: int = 0,
    ) -> bool:
        """False if there is no room now."""
        try:
            self._producer.produce(
                self.topic,
                value,
                key,
                on_delivery=self._delivered,
                headers=list(headers) or None,
                timestamp=timestamp_ms,
            )
        except BufferError:
            return False
        except KafkaException as error:
            self._fail(error.args[0])
        return True

    def poll(self, timeout_s: float = 0.0) -> None:
        self._producer.poll(timeout_s)

    def put(self, value: bytes | None, **options: Any) -> None:
        """As `offer`, and waits for room."""
        while not self.offer(value, **options):
            self.poll(_POLL_S)

    def close(self, limit_s: float) -> int:
        """Waits until all is acknowledged or has failed; how many are neither after `limit_s`."""
        deadline_s = time.monotonic() + limit_s
        while (left := self._producer.flush(_POLL_S)) and time.monotonic() < deadline_s:
            pass
        if left:
            self._producer.purge()
            self._producer.poll(0)
        return int(left)

    @property
    def waiting(self) -> int:
        """Offered and neither acknowledged nor failed."""
        return len(self._producer)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self._fail(error)

    def _fail(self, error: Any) -> None:
        self.failed += 1
        self.last_error = error.str()
        now_s = time.monotonic()
        if now_s - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = now_s
            _LOG.warning(
                "records could not be written to %s: %s (%d so far)",
                self.topic,
                self.last_error,
                self.failed,
            )
