"""The writer: groups source transactions into Kafka transactions.

The runner's thread appends the records of whole source transactions; a second thread sends and
commits them. While one Kafka transaction is in flight, all that the source commits meanwhile
gathers and forms the next one: a quiet source has its change in the topic after one round, a busy
one pays for few rounds. A Kafka transaction never ends within a source transaction, unless the
runner calls `commit` there.

Memory is bounded by bytes. When GROUP_BYTES have gathered while as much is in flight, `commit`
waits, and so the source is read no faster than the broker writes. A source transaction of more than
PART_BYTES is sent in parts of one open Kafka transaction.

The first failure of the sending thread is raised by every later call: what was not committed is
read again from the source by the next run. Once the run is to stop, a broker that does not answer
is not waited for: `Stopped` is raised instead. A waiting thread calls `while_waiting` now and then.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from headwater.capture.positions import TOPIC, CapturePosition, encode_capture
from headwater.capture.publishing import cuts
from headwater.capture.publishing.cuts import Cuts
from headwater.client.writing.batches import BatchBuilder, partition_of
from headwater.errors import HeadwaterError, RequestRefused

GROUP_BYTES: Final = 8 << 20
PART_BYTES: Final = 8 << 20
CLOSE_S: Final = 2.0
WAIT_S: Final = 0.25  # how often `while_waiting` is called
STOP_S: Final = 3.0  # how long a stop waits for room
BATCH_BYTES: Final = 1_000_000  # below Kafka's default for max.message.bytes

Batches = Mapping[tuple[str, int], list[BatchBuilder]]


class Stopped(Exception):
    """The run is to stop; what is not committed is left to the next one."""


class Producer(Protocol):
    """What the writer needs of client.transactions.TransactionalProducer."""

    def send(self, batches: Batches, /) -> Mapping[tuple[str, int], int]: ...
    def commit(self) -> None: ...
    def abort(self) -> None: ...


@dataclass(slots=True)
class _Group:
    """Records that are sent in one Kafka transaction, or a part of it."""

    batches: dict[tuple[str, int], list[BatchBuilder]] = field(default_factory=dict)
    states: dict[bytes, bytes | None] = field(default_factory=dict)
    size_bytes: int = 0
    records: int = 0
    transactions: int = 0
    began_s: float = 0.0  # when the first of its transactions was whole
    position: CapturePosition | None = None  # None: a part of a transaction


@dataclass(frozen=True, slots=True)
class Committed:
    """One Kafka transaction that is durable."""

    position: CapturePosition
    transactions: int
    records: int
    size_bytes: int
    latency_s: float


class Writer:
    """Appends records and commits positions, in Kafka transactions."""

    def __init__(
        self,
        producer: Producer,
        capture_key: bytes,
        cuts: Cuts,
        on_committed: Callable[[Committed], None],
        stop: threading.Event | None = None,
        while_waiting: Callable[[], None] = lambda: None,
        batch_bytes: int = BATCH_BYTES,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_commit` is called by the sending thread before records become visible; what it
        raises prevents that.
        """
        self._producer = producer
        self._batch_bytes = batch_bytes
        self._before_commit = before_commit
        self._while_waiting = while_waiting
        self._stop = stop or threading.Event()
        self._capture_key = capture_key
        self._cuts = cuts
        self._on_committed = on_committed
        self._changed = threading.Condition()
        self._group = _Group()
        self._is_whole = True  # no source transaction is half in the group
        self._inbox: _Group | None = None
        self._is_closed = False
        self._failure: BaseException | None = None
        self._builders: dict[tuple[str, int], BatchBuilder] = {}
        self._sent_bytes = 0  # parts of the Kafka transaction in progress
        self._sent_records = 0
        self.durable: CapturePosition | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """What is appended from now on belongs together, until `commit`."""
        with self._changed:
            self._raise_failure()
            self._is_whole = False

    def append(
        self,
        topic: str,
        partitions: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        """Adds one record. Waits while too much is in flight."""
        partition_key = (topic, partition_of(key, partitions) if partitions > 1 else 0)
        builder = self._builders.get(partition_key)
        if builder is None or not builder.append(key, value, headers, timestamp_ms):
            self._new_builder(partition_key).append(key, value, headers, timestamp_ms)
        group = self._group
        group.records += 1
        # 100 for a usual key and what Python needs.
        group.size_bytes += 100 if value is None else len(value) + 100
        if headers or (key is not None and len(key) > 100):
            group.size_bytes += _more_bytes(key, headers)
        if group.size_bytes >= PART_BYTES:
            self._hand_over_part()

    def state(self, key: bytes, value: bytes | None) -> None:
        """A state that becomes true with the transaction in progress; the latest counts."""
        self._group.states[key] = value

    def commit(self, position: CapturePosition, transactions: int = 1) -> None:
        """All that was appended belongs to `position`, and may be committed with it."""
        with self._changed:
            self._raise_failure()
            group = self._group
            group.began_s = group.began_s or time.monotonic()
            group.position = position
            group.transactions += transactions
            self._is_whole = True
            if group.size_bytes >= GROUP_BYTES or self._sent_bytes:
                # The sender may take it by itself; then what comes next can gather.
                self._wait(lambda: self._inbox is None or self._group is not group)
            # Handed over here, because the sender finds no moment between two transactions of a
            # source that is never idle.
            if self._inbox is None and self._group is group:
                self._hand_over_whole()

    def wait_until_durable(self, timeout_s: float) -> bool:
        """Whether everything that was committed is in the log. For an orderly end."""
        with self._changed:
            # What gathered in front of a transaction that is not whole is not sent any more.
            self._changed.wait_for(
                lambda: (
                    self._failure is not None
                    or (self._inbox is None and not (self._is_whole and self._group.position))
                ),
                timeout_s,
            )
            return self._inbox is None and self._group.position is None

    def check(self) -> None:
        """Raises what made the sending thread fail."""
        self._raise_failure()

    def close(self) -> None:
        """Ends the thread. What was not committed is not in the log: a transaction that was sent
        in part is aborted, so that no reader waits for its end.
        """
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)  # it may be waiting for a broker that is down

    def _new_builder(self, partition_key: tuple[str, int]) -> BatchBuilder:
        builder = BatchBuilder(self._batch_bytes)
        self._builders[partition_key] = builder
        self._group.batches.setdefault(partition_key, []).append(builder)
        return builder

    def _wait(self, is_possible: Callable[[], bool]) -> None:
        """(runner) With the lock held, which is free meanwhile."""
        stopped_s: float | None = None
        while not self._changed.wait_for(
            lambda: self._failure is not None or is_possible(), WAIT_S
        ):
            self._while_waiting()
            if self._stop.is_set():
                stopped_s = stopped_s or time.monotonic()
                if time.monotonic() - stopped_s > STOP_S:
                    raise Stopped
        self._raise_failure()

    def _hand_over_part(self) -> None:
        """(runner) In the midst of a transaction: what goes before it is committed with it."""
        with self._changed:
            self._wait(lambda: self._inbox is None)
            if self._stop.is_set():
                raise Stopped  # it would be aborted anyway
            part = self._group
            self._group = _Group(
                states=part.states, transactions=part.transactions, began_s=part.began_s
            )
            self._sent_bytes += part.size_bytes
            self._sent_records += part.records
            self._hand_over(_Group(part.batches))

    def _hand_over_whole(self) -> None:
        """(runner, sender) Between transactions, with the lock held."""
        group, self._group = self._group, _Group()
        group.size_bytes += self._sent_bytes
        group.records += self._sent_records
        self._sent_bytes = self._sent_records = 0
        self._hand_over(group)

    def _hand_over(self, group: _Group) -> None:
        self._builders = {}
        self._inbox = group
        self._changed.notify_all()

    @property
    def transaction_bytes(self) -> int:
        """How much of the Kafka transaction in progress has been sent already."""
        return self._sent_bytes

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while (group := self._next()) is not None:
                self._send(group)
                with self._changed:
                    self._inbox = None
                    self._changed.notify_all()
            self._producer.abort()
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            if isinstance(error, RequestRefused):
                # The broker answers: readers need not wait for the end of what was sent before.
                with contextlib.suppress(HeadwaterError):
                    self._producer.abort()

    def _next(self) -> _Group | None:
        """(sender) What was handed over, else the whole transactions that have gathered."""
        with self._changed:
            while not self._is_closed:
                if self._inbox is None and self._is_whole and self._group.position is not None:
                    self._hand_over_whole()
                if self._inbox is not None:
                    return self._inbox
                self._changed.wait()
        return None

    def _send(self, group: _Group) -> None:
        if group.batches:
            ends = self._producer.send(group.batches)
            self._cuts.sent(
                ends, {one: sum(b.count for b in sent) for one, sent in group.batches.items()}
            )
        if group.position is None:
            return
        # In a request of their own, because a cut has the offsets of what was sent.
        written_ms = time.time_ns() // 1_000_000
        position = dataclasses.replace(group.position, written_ms=written_ms)
        states = [*group.states.items(), (self._capture_key, encode_capture(position))]
        last = {(TOPIC, 0): _batches(states, written_ms)}
        is_within = position.position.changes is not None  # a transaction of the source
        if not is_within and (records := self._cuts.records(written_ms)):
            last[cuts.TOPIC, 0] = _batches(records, written_ms)
        self._producer.send(last)
        self._before_commit()
        self._producer.commit()
        self.durable = position
        self._on_committed(
            Committed(
                position,
                group.transactions,
                group.records,
                group.size_bytes,
                time.monotonic() - group.began_s,
            )
        )


def _batches(
    records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int
) -> list[BatchBuilder]:
    batches = [BatchBuilder(BATCH_BYTES)]
    for key, value in records:
        if not batches[-1].append(key, value, (), timestamp_ms):
            batches.append(BatchBuilder(BATCH_BYTES))
            batches[-1].append(key, value, (), timestamp_ms)
    return batches


def _more_bytes(key: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    return len(key or b"") + sum(len(name) + len(value or b"") + 100 for name, value in headers)
