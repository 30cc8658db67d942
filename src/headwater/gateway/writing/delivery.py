"""Records to the broker, acknowledged when they are durable (acks = all).

One producer of librdkafka for each login: the records of many requests go out together, and those
of one partition stay in the order in which they were given. A thread collects the reports.
"""

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaException

from headwater.client.login import properties_of
from headwater.errors import BrokerUnreachable, HeadwaterError
from headwater.gateway.access import Access
from headwater.inspect.kafka_cluster import KafkaCluster, refused
from headwater.inspect.record_json import Record
from headwater.settings import ClientSettings

_POLL_S: Final = 0.1
_QUEUE_KIBIBYTES: Final = 1 << 20  # what requests hold is bounded before (bodies.Budget)
_DELIVERY_TIMEOUT_MS: Final = 30_000
_CLOSING_LIMIT_S: Final = 2.0
_UNSURE: Final = (
    "_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_PURGE_INFLIGHT",
    "_PURGE_QUEUE", "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND", "KAFKA_STORAGE_ERROR",
)  # fmt: skip


@dataclass(slots=True)
class Stretch:
    """What was written to one partition."""

    records: int = 0
    first: int = -1
    last: int = -1

    def add(self, offset: int) -> None:
        self.records += 1
        self.first = offset if self.first < 0 else min(self.first, offset)
        self.last = max(self.last, offset)


@dataclass(slots=True)
class Delivered:
    """What became of the records of one request."""

    stretches: dict[int, Stretch] = field(default_factory=dict)  # by partition
    positions: list[tuple[int, int]] = field(default_factory=list)  # of each record, in order
    error: HeadwaterError | None = None  # why the first that failed was not written

    @property
    def written(self) -> int:
        return sum(stretch.records for stretch in self.stretches.values())

    def merge(self, other: "Delivered") -> None:
        """Adds counts; positions of single records are not gathered."""
        self.error = self.error or other.error
        for partition, stretch in other.stretches.items():
            mine = self.stretches.setdefault(partition, Stretch())
            mine.add(stretch.first)
            mine.add(stretch.last)
            mine.records += stretch.records - 2

    def token(self, topic: str) -> str:
        """For Headwater-Position and `headwater wait`."""
        return ",".join(
            f"{topic}:{partition}:{stretch.last}"
            for partition, stretch in sorted(self.stretches.items())
        )


class Delivery:
    """The producer of one login."""

    def __init__(self, bootstrap: str, login: ClientSettings, max_record_bytes: int) -> None:
        cluster = KafkaCluster(bootstrap, properties_of(login))
        self._producer: Any = cluster.producer(
            {
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": "murmur2_random",  # as Kafka's own clients
                "compression.type": "lz4",
                "linger.ms": 1,
                "batch.size": 1_000_000,
                "message.max.bytes": max(max_record_bytes + 10_000, 1_000_000),
                "queue.buffering.max.kbytes": _QUEUE_KIBIBYTES,
                "queue.buffering.max.messages": 10_000_000,
                "message.timeout.ms": _DELIVERY_TIMEOUT_MS,
                "allow.auto.create.topics": False,
            }
        )
        self._is_closed = threading.Event()
        self._reports = threading.Thread(target=self._collect, name="gateway-delivery", daemon=True)
        self._reports.start()

    def stop(self) -> None:
        """Requests under way get their answers."""

    def close(self) -> None:
        self._is_closed.set()
        self._reports.join(_CLOSING_LIMIT_S)

    def send(self, topic: str, records: Sequence[Record]) -> "asyncio.Future[Delivered]":
        """Hands all records over; on the event loop. The future ends when each is written or has
        failed, and raises nothing.
        """
        writing = _Writing(asyncio.get_running_loop(), len(records))
        if not records:
            writing.future.set_result(Delivered())
        for number, record in enumerate(records):
            self._produce(topic, number, record, writing)
        return writing.future

    def _produce(self, topic: str, number: int, record: Record, writing: "_Writing") -> None:
        key, value, headers, partition, timestamp_ms = record
        options: dict[str, Any] = {}
        if timestamp_ms is not None:
            options["timestamp"] = timestamp_ms
        if headers:
            options["headers"] = list(headers)

        def report(error: Any, message: Any) -> None:
            writing.settle(number, error, message)

        try:
            self._producer.produce(
                topic, value, key, -1 if partition is None else partition, report, **options
            )
        except (BufferError, KafkaException) as error:
            writing.settle(number, error, None)

    def _collect(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(_POLL_S)


def delivery_of(access: Access, max_record_bytes: int) -> Delivery:
    """That of a login, made when it is first needed."""
    return access.part(Delivery, lambda: Delivery(access.bootstrap, access.login, max_record_bytes))


class _Writing:
    """The records of one request, until all have been settled."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.future: asyncio.Future[Delivered] = loop.create_future()
        self._loop = loop
        self._lock = threading.Lock()  # `produce` may fail at once, reports come in a thread
        self._left = count
        self._failed = count  # number of the first record that failed
        self._delivered = Delivered(positions=[(-1, -1)] * count)

    def settle(self, number: int, error: Any, message: Any) -> None:
        delivered = self._delivered
        with self._lock:
            if error is None:
                partition, offset = message.partition(), message.offset()
                delivered.positions[number] = (partition, offset)
                delivered.stretches.setdefault(partition, Stretch()).add(offset)
            elif number < self._failed:
                self._failed = number
                delivered.error = _failure(error)
            self._left -= 1
            is_done = self._left == 0
        if is_done:
            try:
                self._loop.call_soon_threadsafe(self._end)
            except RuntimeError:
                return  # the loop has ended: nobody waits

    def _end(self) -> None:
        if not self.future.done():
            self.future.set_result(self._delivered)


def _failure(error: Any) -> HeadwaterError:
    if isinstance(error, BufferError):
        return HeadwaterError("the queue to the broker is full", hint="try again in a moment")
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if cause.name() in _UNSURE:
        return BrokerUnreachable(
            "the broker has not acknowledged the records in time",
            detail=f"{cause.str()} ({cause.name().lstrip('_')}); they may have been written",
            hint="a request with an Idempotency-Key can be repeated without harm",
        )
    return refused(error, "the records were not written")
