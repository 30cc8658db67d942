"""A caller: sends requests, and hands each the first reply that comes.

One producer, and one reader of one partition of replies, for all calls of a process. A caller that
no longer waits (its time is over, or it was cancelled) says so in the partition of its request; a
server that has not begun with it leaves it out.
"""

import logging
import secrets
import threading
import time
import uuid
import zlib
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from headwater.client.login import properties_of
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.client.topics import ensure_topics
from headwater.errors import CallTimedOut, NotReady, RequestRefused
from headwater.inspect.kafka_cluster import KafkaCluster, refused
from headwater.rpc import messages
from headwater.rpc.messages import ASK, CALL, CANCEL, ERROR, Unreadable
from headwater.rpc.server import failed
from headwater.settings import ClientSettings

log = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S: Final = 30.0
_MOST_CALLS: Final = 10_000  # at the same time
_MOST_BYTES: Final = 64 << 20
_POLL_S: Final = 0.1
_TOPIC_AGE_S: Final = 30.0
_CLOSING_S: Final = 5.0


@dataclass(slots=True, eq=False)
class Call:
    """One request under way. `future` gets the body of the reply, or raises CallFailed."""

    id: str
    name: str
    partition: int
    deadline_ms: int
    future: "Future[Any]"
    size_bytes: int


class Caller:
    """For all calls of a process to one cluster. Thread-safe; to be closed."""

    def __init__(self, bootstrap: str, login: ClientSettings) -> None:
        ensure_topics(bootstrap, login, [messages.NEW_REPLIES])
        self._cluster = KafkaCluster(bootstrap, properties_of(login))
        self._producer: Any = self._cluster.producer(
            {"acks": "all", "enable.idempotence": True, "linger.ms": 0}
        )
        self._consumer: Any = self._cluster.consumer(
            {
                "group.id": "headwater-rpc-caller",  # never joined: the partition is assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",  # only if retention has passed us
                "fetch.wait.max.ms": 500,
                "fetch.error.backoff.ms": 50,
                "isolation.level": "read_committed",
            }
        )
        self._reply_to = secrets.randbelow(messages.REPLY_PARTITIONS)
        self._follow_replies(bootstrap, login)
        self._calls: dict[str, list[Call]] = {}  # by id: some may wait for the same reply
        self._bytes = 0
        self._lock = threading.Lock()
        self._partitions: dict[str, tuple[int, float]] = {}  # of services, and when looked up
        self._is_closed = threading.Event()
        self._threads = [
            threading.Thread(target=target, name="rpc-caller", daemon=True)
            for target in (self._read_replies, self._collect_reports)
        ]
        for thread in self._threads:
            thread.start()

    def _follow_replies(self, bootstrap: str, login: ClientSettings) -> None:
        """From the end as it is now: no request of ours has been sent yet. Asks by our own client,
        which waits for a topic that was created a moment ago.
        """
        partition = (messages.REPLIES, self._reply_to)
        with Fetcher(bootstrap, login, isolation="read_uncommitted") as fetcher:
            end = fetcher.offsets([partition], LATEST)[partition]
        self._consumer.assign([TopicPartition(messages.REPLIES, self._reply_to, end)])

    def close(self) -> None:
        """Calls under way fail."""
        self._is_closed.set()
        for thread in self._threads:
            thread.join(_CLOSING_S)
        self._consumer.close()
        with self._lock:
            left = [call for calls in self._calls.values() for call in calls]
            self._calls = {}
        for call in left:
            call.future.set_exception(NotReady("the caller was closed"))

    # Calls

    def partitions(self, name: str) -> int:
        """Of the topic of requests. Raises RequestRefused if nobody has ever served it."""
        found, looked_s = self._partitions.get(name, (0, float("-inf")))
        if time.monotonic() - looked_s > _TOPIC_AGE_S:
            topic = messages.topic_of(name)
            topics = self._cluster.topics()
            if topic not in topics:
                raise RequestRefused(
                    f"there is no service {name}",
                    detail=f"there is no topic {topic}",
                    hint=f"`headwater rpc serve {name} …`, or @hw.rpc.serve({name!r})",
                )
            found = len(topics[topic].partitions)
            self._partitions[name] = (found, time.monotonic())
        return found

    def submit(
        self,
        name: str,
        body: Any,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        request_id: str | None = None,
        partition: int | None = None,
        kind: str = CALL,
    ) -> Call:
        """Sends a request. Raises UsageError, RequestRefused, NotReady if too much is under way."""
        data = messages.encoded(body)
        if partition is None:
            count = self.partitions(name)
            # The same id goes to the same partition: a server that has answered it knows it.
            partition = (
                secrets.randbelow(count) if request_id is None else _stable(request_id) % count
            )
        identity = uuid.uuid4().hex if request_id is None else messages.check_id(request_id)
        deadline_ms = int((time.time() + timeout_s) * 1000)
        call = Call(identity, name, partition, deadline_ms, Future(), len(data))
        with self._lock:
            if len(self._calls) >= _MOST_CALLS or self._bytes + len(data) > _MOST_BYTES:
                raise NotReady(f"{len(self._calls)} calls are under way", hint="wait for some")
            self._calls.setdefault(identity, []).append(call)
            self._bytes += len(data)
        self._send(call, kind, data)
        return call

    def submit_to_all(self, name: str, question: Any, *, timeout_s: float) -> list[Call]:
        """Sends a question to all partitions. Raises as `submit`, and then has sent none."""
        calls: list[Call] = []
        try:
            for partition in range(self.partitions(name)):
                calls += [
                    self.submit(name, question, timeout_s=timeout_s, partition=partition, kind=ASK)
                ]
        except BaseException:
            for call in calls:
                self.cancel(call)
            raise
        return calls

    def cancel(self, call: Call) -> None:
        """Nobody waits for the reply any more."""
        if self._forget(call):
            call.future.cancel()
            with self._lock:
                others_wait = call.id in self._calls
            if not others_wait:
                self._send(call, CANCEL, b"")

    def call(
        self,
        name: str,
        body: Any = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        request_id: str | None = None,
    ) -> Any:
        """The reply. Raises CallTimedOut, CallFailed with the error of the handler."""
        call = self.submit(name, body, timeout_s=timeout_s, request_id=request_id)
        try:
            return call.future.result(timeout_s)
        except TimeoutError:
            raise timed_out(name, timeout_s) from None
        finally:
            self.cancel(call)

    def ask(
        self,
        name: str,
        question: Any = None,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        merge: Callable[[list[Any]], Any] | None = None,
    ) -> Any:
        """The answers of all partitions, in their order; or what `merge` makes of them. Raises
        CallTimedOut that names the partitions without an answer, CallFailed if one has failed.
        """
        calls = self.submit_to_all(name, question, timeout_s=timeout_s)
        try:
            futures.wait([call.future for call in calls], timeout_s, futures.FIRST_EXCEPTION)
            answers = answers_of(calls, timeout_s)
        finally:
            for call in calls:
                self.cancel(call)
        return answers if merge is None else merge(answers)

    # Records

    def _send(self, call: Call, kind: str, data: bytes) -> None:
        def delivered(error: Any, _: Any) -> None:
            if error is not None and kind != CANCEL and self._forget(call):
                call.future.set_exception(refused(error, f"the request to {call.name} is not sent"))

        headers = messages.request_headers(call.id, kind, self._reply_to, call.deadline_ms)
        try:
            self._producer.produce(
                messages.topic_of(call.name), data, None, call.partition, delivered, headers=headers
            )
        except (KafkaException, BufferError) as error:
            if kind == CANCEL:  # the deadline ends it, too
                return
            self._forget(call)
            if isinstance(error, BufferError):
                raise NotReady("too many requests wait to be sent") from None
            raise refused(error, f"the request to {call.name} is not sent") from error

    def _forget(self, call: Call) -> bool:
        """Whether it was under way."""
        with self._lock:
            calls = self._calls.get(call.id, [])
            if call not in calls:
                return False
            calls.remove(call)
            if not calls:
                del self._calls[call.id]
            self._bytes -= call.size_bytes
            return True

    def _collect_reports(self) -> None:
        while not self._is_closed.is_set():
            self._producer.poll(_POLL_S)
        self._producer.flush(_CLOSING_S)

    def _read_replies(self) -> None:
        while not self._is_closed.is_set():
            message = self._consumer.poll(_POLL_S)
            if message is None:
                continue
            if message.error() is not None:
                log.debug("replies: %s", message.error())
                continue
            try:
                self._settle(*messages.read_reply(message))
            except Unreadable as error:
                log.warning("a record among the replies is none: %s", error)
            except Exception:
                log.exception("a reply")

    def _settle(self, identity: str, kind: str, body: Any) -> None:
        """All that wait for this id: replies of other callers, and second ones, find nobody."""
        with self._lock:
            calls = self._calls.pop(identity, [])
            self._bytes -= sum(call.size_bytes for call in calls)
        for call in calls:
            if not call.future.set_running_or_notify_cancel():
                continue
            if kind == ERROR:
                call.future.set_exception(failed(body))
            else:
                call.future.set_result(body)


def timed_out(name: str, timeout_s: float) -> CallTimedOut:
    return CallTimedOut(
        f"{name} has not replied in {timeout_s:g} s",
        hint=f"`headwater group describe rpc.{name}` shows whether a server runs",
    )


def answers_of(calls: list[Call], timeout_s: float) -> list[Any]:
    """Of a question to all partitions, in their order. Raises CallFailed if one has failed,
    CallTimedOut that names those without an answer.
    """
    answered = [call for call in calls if call.future.done()]
    answers = [call.future.result() for call in answered]
    missing = [str(call.partition) for call in calls if call not in answered]
    if missing:
        raise CallTimedOut(
            f"not all partitions of {calls[0].name} have answered in {timeout_s:g} s",
            detail=f"{len(answers)} of {len(calls)} have; missing: {', '.join(missing)}",
            hint=f"`headwater group describe rpc.{calls[0].name}` shows which servers there are",
        )
    return answers


def _stable(text: str) -> int:
    return zlib.crc32(text.encode())
