"""PUB and PUSH: records of a topic to peers.

PUSH goes on from the offsets of its consumer group. A record's offset is committed when so many
have been sent behind it that it cannot be in our queues any more (high-water mark × peers), or when
the socket was closed in time. So a record whose gateway was killed is sent again: at least once, up
to the peer's connection. ZeroMQ does not say whether a peer has got it.

PUB begins with what is new, and stores nothing: at most once. A record that a slow subscriber's
queue has no room for is dropped for that subscriber, and counted.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

import zmq
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from headwater.direct.settings import PUSH, ZeroMqSettings
from headwater.direct.zeromq.peers import PeerSocket

_LOG = logging.getLogger(__name__)
_WAKE_S: Final = 0.2
_AT_ONCE: Final = 500
_COMMIT_EVERY_S: Final = 1.0
_LINGER_S: Final = 3.0
_PARTITIONS_EVERY_S: Final = 30.0
_WARN_EVERY_S: Final = 60.0


class Outbound:
    def __init__(self, settings: ZeroMqSettings, cluster: Mapping[str, Any]) -> None:
        self.peer = PeerSocket(settings)
        self.messages = 0
        self.drops = 0  # messages that at least one subscriber has not got
        self._settings = settings
        self._cluster = cluster
        self._is_push = settings.socket == PUSH
        self._sent: deque[tuple[int, int]] = deque()  # partition and offset, not committed
        self._safe: dict[int, int] = {}  # offsets to be committed, by partition
        self._committed_s = self._looked_s = self._warned_s = float("-inf")
        self._partitions: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"zeromq-{settings.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self, limit_s: float) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(limit_s)
        else:
            self.peer.close()

    @property
    def counts(self) -> dict[str, int]:
        return {
            "messages": self.messages,
            "drops": self.drops,
            "disconnects": self.peer.disconnects,
        }

    @property
    def group(self) -> str:
        return self._settings.group or f"zeromq-{self._settings.name}"

    def _run(self) -> None:
        consumer: Any = Consumer(
            {
                "client.id": "headwater",
                "log_level": 0,
                "group.id": self.group,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "queued.max.messages.kbytes": 16 << 10,
                # A peer that is not there makes us wait, without end; that is no reason to leave.
                "max.poll.interval.ms": 86_400_000,
                **self._cluster,
            }
        )
        is_closed = False
        try:
            if self._is_push:
                consumer.subscribe([self._settings.topic], on_revoke=self._revoked)
            while not self._stop.is_set():
                self._step(consumer)
            began_s = time.monotonic()
            self.peer.close(_LINGER_S if self._is_push else 0)
            is_closed = True
            if time.monotonic() - began_s < _LINGER_S * 0.9:  # all of it has left
                self._take_as_safe(0)
            self._commit(consumer)
        except Exception:
            _LOG.exception("gateway.zeromq.%s has ended", self._settings.name)
        finally:
            if not is_closed:
                self.peer.close()
            consumer.close()

    def _step(self, consumer: Any) -> None:
        try:
            if not self._is_push:
                self._follow_partitions(consumer)
            for message in consumer.consume(_AT_ONCE, _WAKE_S):
                if message.error() is not None:
                    self._warn(message.error())
                elif not self._send(message):
                    break  # it stops
            self.peer.watch()
            if self._is_push and time.monotonic() - self._committed_s >= _COMMIT_EVERY_S:
                self._take_as_safe(self._settings.high_water_mark * self.peer.most_peers)
                self._commit(consumer)
        except KafkaException as error:
            self._warn(error.args[0])
            self._stop.wait(_WAKE_S)

    def _follow_partitions(self, consumer: Any) -> None:
        """From their ends on; those that are added later, from their beginnings would be right,
        too, but nobody is promised anything.
        """
        if time.monotonic() - self._looked_s < _PARTITIONS_EVERY_S and self._partitions:
            return
        self._looked_s = time.monotonic()
        found = consumer.list_topics(self._settings.topic, timeout=10).topics[self._settings.topic]
        new = set(found.partitions) - self._partitions
        if new:
            consumer.incremental_assign(
                [TopicPartition(self._settings.topic, number, OFFSET_END) for number in new]
            )
            self._partitions |= new

    def _send(self, message: Any) -> bool:
        frames = [message.value() or b""]
        if self._settings.with_key:
            frames.insert(0, message.key() or b"")
        if self._is_push:
            while not self._try_to_send(frames):
                self.peer.watch()
                if self._stop.is_set():
                    return False
                self.peer.socket.poll(int(_WAKE_S * 1000), zmq.POLLOUT)
            self._sent.append((message.partition(), message.offset()))
        elif not self._try_to_send(frames):
            self.drops += 1
            self.peer.socket.set(zmq.XPUB_NODROP, 0)  # the others get it
            self._try_to_send(frames)
            self.peer.socket.set(zmq.XPUB_NODROP, 1)
        self.messages += 1
        return True

    def _try_to_send(self, frames: list[bytes]) -> bool:
        try:
            self.peer.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    # Positions

    def _take_as_safe(self, under_way: int) -> None:
        """All but the last `under_way` messages have left our queues."""
        while len(self._sent) > under_way:
            partition, offset = self._sent.popleft()
            self._safe[partition] = offset + 1

    def _commit(self, consumer: Any) -> None:
        self._committed_s = time.monotonic()
        if not self._safe:
            return
        offsets = [
            TopicPartition(self._settings.topic, partition, offset)
            for partition, offset in self._safe.items()
        ]
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
            self._safe.clear()
        except KafkaException as error:
            self._warn(error.args[0])

    def _revoked(self, consumer: Any, partitions: list[Any]) -> None:
        """Their next owner begins at what is committed, and sends some of it again."""
        self._commit(consumer)
        gone = {partition.partition for partition in partitions}
        self._sent = deque(entry for entry in self._sent if entry[0] not in gone)
        self._safe = {n: offset for n, offset in self._safe.items() if n not in gone}

    def _warn(self, error: KafkaError) -> None:
        if time.monotonic() - self._warned_s >= _WARN_EVERY_S:
            self._warned_s = time.monotonic()
            _LOG.warning("gateway.zeromq.%s: %s", self._settings.name, error.str())
