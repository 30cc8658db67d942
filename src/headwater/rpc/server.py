"""A server: takes requests of a service, runs their handler, and replies.

Servers of a service are a consumer group, so each request goes to one of them. A request is done
when its reply is durable, and only then its offset is committed: what a server had taken when it
was killed is taken by another one, some seconds later. So a handler may run twice for one request,
and the caller gets one reply. A request whose deadline is over, or that was cancelled before it
began, is not run.
"""

import logging
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

from confluent_kafka import KafkaException, TopicPartition

from headwater.client.login import properties_of
from headwater.client.reading.fetching import Fetcher
from headwater.client.topics import NewTopic, ensure_topics
from headwater.errors import CallFailed, HeadwaterError, UsageError
from headwater.inspect.kafka_cluster import KafkaCluster
from headwater.rpc import messages
from headwater.rpc.assignments import Assigned, Assignments
from headwater.rpc.messages import ASK, CALL, CANCEL, ERROR, REPLY, Request, Unreadable
from headwater.rpc.owned_rows import OwnedRows
from headwater.rpc.work import Handler
from headwater.settings import ClientSettings

log = logging.getLogger(__name__)

DEFAULT_CONCURRENCY: Final = 8
DEFAULT_PARTITIONS: Final = 16
_SESSION_MS: Final = 6000  # after which the requests of a killed server go to others
_POLL_S: Final = 0.1
_READ_AHEAD: Final = 16  # requests for each thread
_READ_AHEAD_BYTES: Final = 32 << 20
_REPLIES_BYTES: Final = 8 << 20  # that are remembered, for requests that come again
_OVERHEAD_BYTES: Final = 300
_CLOSING_S: Final = 10.0


class Server:
    """Serves from `start` to `close`."""

    def __init__(
        self,
        bootstrap: str,
        login: ClientSettings,
        name: str,
        handler: Handler,
        *,
        concurrency: int = DEFAULT_CONCURRENCY,
        partitions: int = DEFAULT_PARTITIONS,
        rows: OwnedRows | None = None,
    ) -> None:
        self.name = name
        self.topic = messages.topic_of(name)
        self.executed = 0
        self.skipped = 0  # expired or cancelled before they began
        self.unreadable = 0
        self.is_ready = threading.Event()  # partitions have been assigned
        self._handler = handler
        self._rows = rows
        if rows is not None:
            partitions = rows.count()
        ensure_topics(
            bootstrap,
            login,
            [
                NewTopic(
                    self.topic, partitions, {"retention.ms": str(messages.REQUEST_RETENTION_MS)}
                ),
                messages.NEW_REPLIES,
            ],
        )
        cluster = KafkaCluster(bootstrap, properties_of(login))
        self._check_partitions(bootstrap, login, partitions)
        self._producer: Any = cluster.producer(
            {"acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
        )
        self._consumer: Any = cluster.consumer(
            {
                "group.id": self.topic,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": _SESSION_MS,
                "heartbeat.interval.ms": _SESSION_MS // 4,
                "partition.assignment.strategy": "cooperative-sticky",
                "fetch.wait.max.ms": 500,
                "fetch.error.backoff.ms": 50,
                "isolation.level": "read_committed",
                "allow.auto.create.topics": False,
            }
        )
        self._assignments = Assignments()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix=f"rpc-{name}")
        self._most_waiting = concurrency * _READ_AHEAD
        self._lock = threading.Lock()
        self._waiting: dict[str, list[_Taken]] = {}  # queued or running, by identity
        self._waiting_bytes = 0
        self._replies: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._replies_bytes = 0
        self._is_paused = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"rpc-{name}", daemon=True)

    def _check_partitions(self, bootstrap: str, login: ClientSettings, partitions: int) -> None:
        if self._rows is None:
            return
        with Fetcher(bootstrap, login) as fetcher:
            found = fetcher.partitions(self.topic)
        if found != partitions:
            raise UsageError(
                f"topic {self.topic} has {found} partitions, and {self._rows.topic} {partitions}",
                hint="a question goes to every partition; serve it under another name",
            )

    def start(self) -> "Server":
        self._consumer.subscribe(
            [self.topic],
            on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost,
        )  # fmt: skip
        self._thread.start()
        return self

    def close(self) -> None:
        """Requests that run are finished, those that wait go to other servers."""
        self._is_closing.set()
        self._thread.join(_CLOSING_S * 2)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def partitions(self) -> list[int]:
        """That this server has at the moment."""
        return self._assignments.partitions()

    # Partitions

    def _assigned(self, _: Any, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._assignments.assign(one.partition)
        self.is_ready.set()

    def _revoked(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        done = {one.partition: self._assignments.revoke(one.partition) for one in partitions}
        self._commit({number: at for number, at in done.items() if at is not None}, wait=True)
        self._keep_rows()

    def _lost(self, _: Any, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._assignments.lose(one.partition)
        self._keep_rows()

    def _keep_rows(self) -> None:
        if self._rows is not None:
            self._rows.keep(self._assignments.partitions())

    def _commit(self, offsets: dict[int, int], *, wait: bool = False) -> None:
        if not offsets:
            return
        found = [TopicPartition(self.topic, number, at) for number, at in offsets.items()]
        try:
            self._consumer.commit(offsets=found, asynchronous=not wait)
        except KafkaException as error:  # they are done again by another server
            log.warning("rpc %s: offsets are not committed: %s", self.name, error)

    # Requests

    def _run(self) -> None:
        while not self._is_closing.is_set():
            try:
                self._producer.poll(0)
                message = self._consumer.poll(0 if self._is_paused else _POLL_S)
                if self._is_paused:
                    self._producer.poll(0.005)
                if message is not None and message.error() is None:
                    self._take(message)
                elif message is not None:
                    log.debug("rpc %s: %s", self.name, message.error())
                self._commit(self._assignments.to_commit())
                self._pause_or_resume()
            except Exception:
                log.exception("rpc %s", self.name)
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._producer.flush(_CLOSING_S)
        self._commit(self._assignments.to_commit(), wait=True)
        self._consumer.close()
        if self._rows is not None:
            self._rows.close()

    def _pause_or_resume(self) -> None:
        with self._lock:
            is_full = (
                len(self._waiting) > self._most_waiting or self._waiting_bytes > _READ_AHEAD_BYTES
            )
        if is_full != self._is_paused:
            (self._consumer.pause if is_full else self._consumer.resume)(
                self._consumer.assignment()
            )
            self._is_paused = is_full

    def _take(self, message: Any) -> None:
        assigned = self._assignments.begin(message.partition(), message.offset())
        try:
            kind, request = messages.read_request(self.name, message)
        except Unreadable as error:
            self.unreadable += 1
            log.warning(
                "rpc %s: the record at %d:%d is no request: %s",
                self.name, message.partition(), message.offset(), error,
            )  # fmt: skip
            self._assignments.done(assigned, message.offset())
            return
        taken = _Taken(request, assigned, message.offset(), len(message.value() or b""))
        if kind == (CALL if self._rows is not None else ASK):
            self._reply(taken, ERROR, self._wrong_kind())
            return
        identity = _identity(request)
        with self._lock:
            same = list(self._waiting.get(identity, ()))
            answered = self._replies.get(identity) if kind != CANCEL else None
            if kind != CANCEL and answered is None:
                self._waiting.setdefault(identity, []).append(taken)
                self._waiting_bytes += taken.size_bytes
        if kind == CANCEL:
            for one in same[:1]:
                one.request.cancelled.set()
            self._assignments.done(assigned, message.offset())
        elif answered is not None:
            self._reply(taken, *answered)
        elif not same:  # else it gets the reply of the one that is under way
            self._pool.submit(self._execute, taken)

    def _wrong_kind(self) -> bytes:
        """One partition's answer to a question is none, and a call to all would run everywhere."""
        if self._rows is not None:
            return _error(
                f"{self.name} answers questions to all partitions of {self._rows.topic}",
                hint=f"`headwater rpc ask {self.name}`, hw.rpc.ask, POST /rpc/{self.name}/ask",
            )
        return _error(
            f"{self.name} takes calls, each of which one server executes",
            hint=f"`headwater rpc call {self.name}`, hw.rpc.call, POST /rpc/{self.name}",
        )

    def _execute(self, taken: "_Taken") -> None:
        """In a thread of the pool."""
        request = taken.request
        if self._is_closing.is_set():  # not done: another server takes it
            self._forget(taken)
            return
        is_unwanted = request.cancelled.is_set() or request.left_s <= 0
        if is_unwanted or not taken.assigned.is_current:  # or another server has it now
            self.skipped += is_unwanted
            others = self._forget(taken)
            self._assignments.done(taken.assigned, taken.offset)
            if others:
                self._pool.submit(self._execute, others[0])
            return
        self.executed += 1
        try:
            kind, body = REPLY, messages.encoded(self._handler(request))
        except HeadwaterError as error:
            kind, body = ERROR, _error(error.what, error.detail, error.hint)
        except Exception as error:
            log.warning("rpc %s: the handler failed", self.name, exc_info=True)
            kind, body = ERROR, _error(f"{type(error).__name__}: {error}"[:2000])
        for one in self._finish(taken, kind, body):
            self._reply(one, kind, body)

    def _finish(self, taken: "_Taken", kind: str, body: bytes) -> "list[_Taken]":
        """All requests with this id, which get the same reply."""
        identity = _identity(taken.request)
        with self._lock:
            self._replies[identity] = (kind, body)
            self._replies_bytes += len(body) + _OVERHEAD_BYTES
            while self._replies_bytes > _REPLIES_BYTES:
                _, (_, old) = self._replies.popitem(last=False)
                self._replies_bytes -= len(old) + _OVERHEAD_BYTES
            found = self._waiting.pop(identity, [taken])
            self._waiting_bytes -= sum(one.size_bytes for one in found)
            return found

    def _forget(self, taken: "_Taken") -> "list[_Taken]":
        """Others with the same id."""
        identity = _identity(taken.request)
        with self._lock:
            found = self._waiting.pop(identity, [])
            self._waiting_bytes -= taken.size_bytes
            others = [one for one in found if one is not taken]
            if others:
                self._waiting[identity] = others
            return others

    def _reply(self, taken: "_Taken", kind: str, body: bytes) -> None:
        def delivered(error: Any, _: Any) -> None:
            if error is not None:
                log.warning("rpc %s: a reply is not written: %s", self.name, error)
            self._assignments.done(taken.assigned, taken.offset)

        def send(kind: str, body: bytes) -> None:
            self._producer.produce(
                messages.REPLIES, body, None, taken.request.reply_to, delivered,
                headers=messages.reply_headers(taken.request.id, kind),
            )  # fmt: skip

        try:
            send(kind, body)
        except (KafkaException, BufferError) as error:
            send(ERROR, _error("the reply cannot be sent", str(error)))


@dataclass(slots=True, eq=False)
class _Taken:
    """A request, and where it was taken from."""

    request: Request
    assigned: Assigned
    offset: int
    size_bytes: int


def _identity(request: Request) -> str:
    """A question has the same id in all partitions."""
    return f"{request.partition}:{request.id}"


def _error(what: str, detail: str = "", hint: str = "") -> bytes:
    return messages.encoded({"error": what, "detail": detail, "hint": hint})


def failed(body: Any) -> CallFailed:
    """The error of a handler, at the caller."""
    fields = body if isinstance(body, dict) else {"error": str(body)}
    return CallFailed(
        str(fields.get("error", "")),
        detail=str(fields.get("detail", "")),
        hint=str(fields.get("hint", "")),
    )
