"""A capture in a thread, and its topics as a consumer sees them."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from headwater.capture import positions
from headwater.capture.metrics import CaptureState
from headwater.capture.runner import run
from headwater.capture.settings import CaptureSettings
from headwater.client.reading.compacted import read_committed_latest
from headwater.schemas.settings import SchemasSettings
from headwater.settings import ClientSettings, Secret
from headwater.subjects.access import PersonalTopics
from support.wire import wait_until

TIMEOUT_S = 240  # Debezium starts a JVM


@dataclass
class Seen:
    """A record."""

    topic: str
    partition: int
    offset: int
    key: Any
    value: Any
    headers: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def op(self) -> str | None:
        return None if self.value is None else self.value["op"]


class Running:
    """A capture that runs in a thread; what it raised is raised by `stop`."""

    def __init__(
        self,
        settings: CaptureSettings,
        bootstrap: str,
        schemas: SchemasSettings | None = None,
        personal: PersonalTopics | None = None,
    ) -> None:
        self.settings = settings
        self._schemas = schemas
        self._personal = personal
        self.bootstrap = bootstrap
        self.state = CaptureState(settings.name)
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            login = ClientSettings()
            run(
                self.settings, self.bootstrap, login, self.state, self._stop, self._schemas,
                self._personal,
            )  # fmt: skip
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def wait_until(self, condition, what: str = "the condition") -> None:
        """Fails at once if the capture does."""

        def holds() -> bool:
            if self.failure is not None:
                raise self.failure
            return condition()

        wait_until(holds, TIMEOUT_S, what)

    def stored(self) -> positions.Stored:
        records = read_committed_latest(self.bootstrap, ClientSettings(), positions.TOPIC)
        return positions.decode(self.settings.name, records)

    def wait_for_copies(self, *table_ids: str) -> None:
        def are_done() -> bool:
            copies = self.state.snapshots  # of this run; they are durable a little later
            if not all(table_id in copies and copies[table_id].is_done for table_id in table_ids):
                return False
            tables = self.stored().tables
            return all(
                table_id in tables
                and tables[table_id].snapshot is not None
                and tables[table_id].snapshot.is_done
                for table_id in table_ids
            )

        self.wait_until(are_done, f"the copy of {table_ids}")


@contextlib.contextmanager
def running(
    bootstrap: str,
    source: str,
    name: str = "shop",
    personal: PersonalTopics | None = None,
    *,
    registry: SchemasSettings | None = None,
    **settings: Any,
) -> Iterator[Running]:
    chosen = CaptureSettings(name=name, source=Secret(source), **settings)
    capture = Running(chosen, bootstrap, registry, personal)
    try:
        yield capture
    finally:
        capture.stop()


def read(
    bootstrap: str,
    topic: str,
    isolation: str = "read_committed",
    decode: Callable[[bytes | None], Any] | None = None,
) -> list[Seen]:
    """All of a topic, partition by partition; [] if there is none. Keys and values are JSON, or
    what `decode` reads.
    """
    decode = decode or _json
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "harness",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end is reported when a fetch comes back empty
            "auto.offset.reset": "earliest",
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        if found.error is not None or not found.partitions:
            return []
        consumer.assign([TopicPartition(topic, partition, 0) for partition in found.partitions])
        records, ended = [], set()
        while len(ended) < len(found.partitions):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{topic} cannot be read to its end"
            if message.error() is not None:
                assert message.error().code() == -191, message.error()  # the end of the partition
                ended.add(message.partition())
                continue
            records.append(
                Seen(
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    decode(message.key()),
                    decode(message.value()),
                    message.headers() or [],
                )
            )
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def replayed(records: list[Seen]) -> dict[str, Any]:
    """The table that the topic gives: the key as JSON text, to the row."""
    table: dict[str, Any] = {}
    for record in records:
        key = json.dumps(record.key)
        if record.value is None:
            assert key not in table, "a tombstone without its delete"
        elif record.op == "t":
            table.clear()
        elif record.op == "d":
            table.pop(key, None)
        else:
            table[key] = record.value["after"]
    return table


def _json(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except ValueError:
        return data.decode()  # the key of an outbox's event
