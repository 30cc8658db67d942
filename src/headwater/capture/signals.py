"""Signals: requests to a running capture, through the topic `__headwater_signals`.

A signal is Debezium's, keyed by the capture's name:

    shop   {"id": "…", "type": "execute-snapshot",
            "data": {"data-collections": ["public.orders"], "type": "INCREMENTAL"}}

Only whole tables are copied, and while the stream goes on: a signal that wants a part of the rows
(`additional-conditions`), another key or a BLOCKING snapshot is refused rather than half obeyed.

Or it is of a type that Debezium does not have: "store-position", from a client that waits for the
capture to pass what the database has now. An idle capture stores its position every `heartbeat_s`
only.

The offset behind the last signal that was acted on is part of the capture's position, so each is
acted on once, also one that was sent while the capture did not run. The first run of a capture, and
the first after a reset, begin at the topic's end: they copy everything anyway.
"""

import contextlib
import logging
import queue
import threading
from dataclasses import dataclass
from typing import Any

import orjson

from headwater.capture.positions import SIGNALS_TOPIC
from headwater.client.login import properties_of
from headwater.errors import BrokerUnreachable, RequestRefused, UsageError
from headwater.settings import ClientSettings

log = logging.getLogger(__name__)

POLL_S = 0.2
END_TIMEOUT_S = 30.0
_ASK_TIMEOUT_S = 1.0
_INCREMENTAL = "INCREMENTAL"
_UNSUPPORTED = ("additional-conditions", "additional-condition", "surrogate-key")
_STORE = "store-position"
_STORE_POSITION = orjson.dumps({"type": _STORE})


@dataclass(frozen=True, slots=True)
class Signal:
    offset: int
    tables: list[str]  # to copy; none: the position is to be stored


class SignalReader:
    """Reads signals in a thread of its own, from `offset` on; from the end if that is None."""

    def __init__(
        self, capture: str, bootstrap: str, login: ClientSettings, offset: int | None
    ) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._capture = capture.encode()
        self._received: queue.SimpleQueue[Signal] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._consumer = Consumer(
            {
                **properties_of(login),
                "bootstrap.servers": bootstrap,
                "group.id": f"headwater-capture-{capture}",  # asked for, but nothing is committed
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,  # the producers report whether the broker answers
            }
        )
        if offset is None:
            offset = self._end()
        self.offset = offset
        self._consumer.assign([TopicPartition(SIGNALS_TOPIC, 0, offset)])
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()

    def _end(self) -> int:
        from confluent_kafka import KafkaException, TopicPartition

        partition = TopicPartition(SIGNALS_TOPIC, 0)
        try:
            _, end = self._consumer.get_watermark_offsets(partition, timeout=END_TIMEOUT_S)
        except KafkaException as error:
            self._consumer.close()
            reason, what = error.args[0], f"topic {SIGNALS_TOPIC} cannot be read"
            if reason.retriable() or reason.code() < 0:  # the client's own: no answer
                raise BrokerUnreachable(what, detail=reason.str()) from error
            hint = f"`headwater acl add USER --allow read --topic {SIGNALS_TOPIC}` grants it"
            raise RequestRefused(what, detail=reason.str(), hint=hint) from error
        return int(end)

    def received(self) -> list[Signal]:
        """What came since the last call."""
        signals = []
        while not self._received.empty():
            signals.append(self._received.get())
        return signals

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            record = self._consumer.poll(POLL_S)
            if record is None or record.error() or record.key() != self._capture:
                continue
            offset = record.offset()
            try:
                tables = _tables_of(record.value())
            except UsageError as refused:
                capture = self._capture.decode()
                log.error("%s: a signal is refused: %s; %s", capture, refused, refused.hint)
                continue
            if tables is None or offset is None:
                log.warning("a signal that is not understood: %.200r", record.value())
            else:
                self._received.put(Signal(offset, tables))


def encode(signal_id: str, table_ids: list[str]) -> bytes:
    """A request to copy these tables again."""
    data = {"data-collections": table_ids, "type": _INCREMENTAL}
    return orjson.dumps({"id": signal_id, "type": "execute-snapshot", "data": data})


def ask_for_position(capture: str, bootstrap: str, login: ClientSettings) -> None:
    """Asks a running capture to store its position while it comes to where its database is now.
    That it is asked is not certain: a waiting client asks again, and without this it only takes
    longer.
    """
    from confluent_kafka import KafkaException, Producer

    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    producer = Producer({**properties_of(login), **settings})
    with contextlib.suppress(KafkaException, BufferError):
        producer.produce(SIGNALS_TOPIC, key=capture.encode(), value=_STORE_POSITION, partition=0)
        producer.flush(_ASK_TIMEOUT_S)


def _tables_of(value: bytes | None) -> list[str] | None:
    """The tables to copy; None if that is not understood. Raises UsageError."""
    try:
        signal: Any = orjson.loads(value or b"")
        if signal["type"] == _STORE:
            return []
        data = signal["data"]
        tables = data["data-collections"]
        if signal["type"] == "execute-snapshot" and isinstance(tables, list):
            _check_wishes(data)
            return [str(table) for table in tables]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        pass
    return None


def _check_wishes(data: dict[str, Any]) -> None:
    """Raises UsageError for what would change the result and is not done here."""
    kind = data.get("type") or _INCREMENTAL
    if str(kind).upper() != _INCREMENTAL:
        raise UsageError(
            f"snapshots of the type {kind} are not made",
            hint=f"the type {_INCREMENTAL} copies while the stream goes on",
        )
    for name in _UNSUPPORTED:
        if data.get(name):
            raise UsageError(
                f"{name} is not supported",
                hint="without it all rows of the tables are copied; [capture.NAME.rows] selects "
                "rows for good",
            )
