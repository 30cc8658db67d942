"""A database behind one of Debezium's connectors, as a source of changes.

Drives the connector's task as Kafka Connect's worker does: starts it with the stored offset, polls
records, acknowledges what is durable. Every call of Java is made by the runner's thread.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from headwater.capture.contract import (
    Chunk,
    Event,
    Lag,
    LogPosition,
    Source,
    SourcePosition,
    Table,
)
from headwater.capture.debezium import jvm
from headwater.capture.debezium.properties import (
    HEARTBEAT_PREFIX,
    TRANSACTION_TOPIC,
    connector_class,
    properties,
    revealed,
)
from headwater.capture.debezium.records import BatchReader
from headwater.capture.debezium.transactions import (
    Offsets,
    Transactions,
    offsets_of,
    plain,
)
from headwater.capture.settings import CaptureSettings
from headwater.errors import HeadwaterError, SourceRefused, SourceUnreachable

ACKNOWLEDGE_S: Final = 1.0  # how often what is durable is acknowledged to the connector

_log = logging.getLogger(__name__)


class DebeziumSource(Source):
    """Exactly once if the connector promises that its offsets are exact (`exactlyOnceSupport`):
    those of PostgreSQL, MySQL, SQL Server, Oracle and MongoDB do. The others may repeat changes
    after a crash. The snapshot is the connector's: interrupted, it begins from the start.
    """

    snapshots_itself = True
    database = ""

    def __init__(self, settings: CaptureSettings, bootstrap: str | None = None) -> None:
        """`bootstrap`: where a connector that follows DDL stores its schema history."""
        self._settings = settings
        self._bootstrap = bootstrap
        self._class = connector_class(settings.source.reveal())
        self.connector = self._class.rpartition(".")[0].rpartition(".")[2]
        self._connector: Any = None
        self._task: Any = None
        self._stored = _StoredOffsets({})
        self._acknowledged: LogPosition | None = None
        self._told_s = 0.0

    def check(self) -> list[HeadwaterError]:
        """Debezium's own validation, which connects to the database."""
        try:
            connector = self._new_connector()
            with jvm.errors_as_ours(f"{self._settings.name}: the connector refuses its properties"):
                given = self._properties(connector, self._bootstrap or "not:looked-at")
                values = connector.validate(jvm.java_map(given))
        except HeadwaterError as error:
            return [error]
        return [
            SourceRefused(f"{self._settings.name}: {value.name()}", detail=str(message).strip())
            for value in values.configValues()
            for message in value.errorMessages()
        ]

    def open(self, after: SourcePosition | None, stored: Mapping[str, Table]) -> LogPosition:
        connector = self._new_connector()
        if not _is_exact(connector, self._properties(connector)):
            _log.warning(
                "%s: %s does not promise exact offsets; after a crash changes may be repeated",
                self._settings.name,
                self._class,
            )
        return after.at if after is not None else {"offsets": []}

    def tables(self) -> list[Table]:
        return []

    def changes(self, after: SourcePosition) -> Iterator[Event]:
        self._start(offsets_of(after.at))
        transaction_topic = f"{self._settings.name}.{TRANSACTION_TOPIC}"
        heartbeat_topic = f"{HEARTBEAT_PREFIX}.{self._settings.name}"
        untransformed = (transaction_topic, heartbeat_topic)
        reader = BatchReader(self._settings.schemas, self._transforms(), untransformed)
        transactions = Transactions(
            self._settings.name,
            after,
            transaction_topic=transaction_topic,
            heartbeat_topic=heartbeat_topic,
            are_published=self._settings.transactions,
            are_ended=_is_exact(self._connector, self._properties(self._connector)),
        )
        while True:
            with jvm.errors_as_ours(f"{self._settings.name}: the connector ended"):
                # Waits for poll.interval.ms if there are none.
                batch = reader.read(self._task.poll())
            yield from transactions.feed(batch, time.monotonic())
            yield None
            if time.monotonic() - self._told_s > ACKNOWLEDGE_S:
                self._tell_acknowledged()

    def acknowledge(self, position: LogPosition) -> None:
        self._acknowledged = position

    def read_chunk(self, table: Table, after: Any, limit_rows: int) -> Chunk:
        raise SourceRefused(
            "a snapshot through Debezium is the connector's own",
            hint="headwater capture reset NAME begins with a new one; for one table send Debezium"
            " the signal execute-snapshot (options signal.data.collection)",
        )

    def lag(self, acknowledged: LogPosition) -> Lag:
        return Lag()

    def close(self) -> None:
        if self._task is None:
            return
        for end in (self._tell_acknowledged, self._stop):
            try:
                end()
            except HeadwaterError as error:
                _log.warning("%s", error)

    def remove(self) -> None:
        """PostgreSQL's slot, which the connector drops when it ends. Of other databases Debezium
        removes nothing; what it needs there was made by hand.
        """
        if "slot.drop.on.stop" in _known(self._new_connector()):
            self._start({}, {"slot.drop.on.stop": "true", "snapshot.mode": "no_data"})
            with jvm.errors_as_ours(f"{self._settings.name}: the connector ended"):
                self._task.poll()
            self.close()

    def _new_connector(self) -> Any:
        options = revealed(self._settings)
        jvm.start(options)
        with jvm.errors_as_ours(f"{self._class} cannot be loaded"):
            connector = jvm.java(self._class)()
        if not isinstance(connector, jvm.java("org.apache.kafka.connect.source.SourceConnector")):
            raise SourceRefused(f"{self._class} is no source connector of Kafka Connect")
        return connector

    def _properties(self, connector: Any, bootstrap: str | None = None) -> dict[str, str]:
        return properties(self._settings, _known(connector), bootstrap or self._bootstrap)

    def _transforms(self) -> Any:
        """The transforms that the options name, or None."""
        if "transforms" not in self._settings.options:
            return None
        configuration = jvm.java("io.debezium.config.Configuration")
        with jvm.errors_as_ours(f"{self._settings.name}: the transforms cannot be made"):
            return jvm.java("io.debezium.embedded.Transformations")(
                configuration.from_(jvm.java_map(self._properties(self._connector)))
            )

    def _start(self, offsets: Offsets, instead: Mapping[str, str] | None = None) -> None:
        """As the worker of Kafka Connect does."""
        import jpype

        self.close()
        connector = self._connector = self._new_connector()
        self._stored = _StoredOffsets(offsets)
        given = {**self._properties(connector), **(instead or {})}
        context = _Context(given, self._stored)
        connect = "org.apache.kafka.connect.source"
        with jvm.errors_as_ours(f"{self._settings.name}: the connector does not start"):
            connector.initialize(jpype.JProxy(f"{connect}.SourceConnectorContext", inst=context))
            connector.start(context.configs())
            task = connector.taskClass().getDeclaredConstructor().newInstance()
            task.initialize(jpype.JProxy(f"{connect}.SourceTaskContext", inst=context))
            self._task = task
            task.start(connector.taskConfigs(1).get(0))
            if hasattr(task, "getTaskState") and str(task.getTaskState()) == "RESTARTING":
                # It has logged why, and would try again by itself.
                raise SourceUnreachable(f"{self._settings.name}: the connector does not start")

    def _stop(self) -> None:
        """The task acknowledges to the database, and ends its threads."""
        task, self._task = self._task, None
        with jvm.errors_as_ours(f"{self._settings.name}: the connector does not stop"):
            task.stop()
            self._connector.stop()

    def _tell_acknowledged(self) -> None:
        """Some connectors look into the store, others remember records; both at the next poll."""
        if self._acknowledged is None:
            return
        self._stored.acknowledged = offsets_of(self._acknowledged)
        record = jvm.java("org.apache.kafka.connect.source.SourceRecord")
        with jvm.errors_as_ours(f"{self._settings.name}: the connector ended"):
            for partition, offset in self._stored.acknowledged.values():
                done = record(jvm.java_map(partition), jvm.java_map(offset), "", None, None)
                self._task.commitRecord(done, None)
            self._task.commit()
        self._acknowledged = None
        self._told_s = time.monotonic()


class _Context:
    """What a connector and its task may ask of the worker. Java calls these methods."""

    def __init__(self, given: Mapping[str, str], stored: "_StoredOffsets") -> None:
        import jpype

        self._configs = jvm.java_map(given)
        self._reader = jpype.JProxy(
            "org.apache.kafka.connect.storage.OffsetStorageReader", inst=stored
        )

    def configs(self) -> Any:
        return self._configs

    def offsetStorageReader(self) -> Any:  # noqa: N802 (Java's)
        return self._reader

    def transactionContext(self) -> None:  # noqa: N802
        return None

    def pluginMetrics(self) -> None:  # noqa: N802
        return None

    def requestTaskReconfiguration(self) -> None:  # noqa: N802
        _log.debug("the connector asks for new tasks; there is one")

    def raiseError(self, error: Any) -> None:  # noqa: N802
        _log.error("%s", error.getMessage())


class _StoredOffsets:
    """Kafka Connect's store of offsets: what was acknowledged last."""

    def __init__(self, offsets: Offsets) -> None:
        self.acknowledged = offsets

    def offset(self, partition: Any) -> Any:
        asked = plain(partition)
        for stored, offset in self.acknowledged.values():
            if stored == asked:
                return jvm.java_map(offset)
        return None

    def offsets(self, partitions: Any) -> Any:
        found = jvm.java("java.util.HashMap")()
        for partition in partitions:
            found.put(partition, self.offset(partition))
        return found


def _known(connector: Any) -> set[str]:
    """The properties that it documents."""
    return {str(name) for name in connector.config().names()}


def _is_exact(connector: Any, given: Mapping[str, str]) -> bool:
    """Whether it declares its offsets exact. Those that do report every END, too."""
    return str(connector.exactlyOnceSupport(jvm.java_map(given))) == "SUPPORTED"
