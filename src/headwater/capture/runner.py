"""One run of a capture: from the stored position on, until it is stopped or something fails.

    fence the process before us ─▶ read the position ─▶ open the source ─▶ follow its changes

Capture is crash-only. Whatever goes wrong ends the run; the next one begins at the position that
was committed together with the last changes, so nothing is lost and nothing is written twice. The
source is acknowledged only what is durable in the topics.

Threads: this one reads the source, shapes and appends; the writer's sends and commits; those of the
snapshots read chunks; one measures the lag; one reads signals.
"""

import contextlib
import dataclasses
import logging
import math
import threading
import time
from typing import Final

from headwater.capture import positions
from headwater.capture.contract import (
    Begin,
    Change,
    Commit,
    Event,
    Message,
    PositionAdvanced,
    Record,
    SchemaChange,
    Source,
    SourcePosition,
    StorageChange,
    TableFailed,
)
from headwater.capture.metrics import CaptureState
from headwater.capture.positions import CapturePosition, Stored
from headwater.capture.publishing.cuts import TOPIC as CUTS_TOPIC
from headwater.capture.publishing.cuts import Cuts
from headwater.capture.publishing.publisher import Publisher, now_ms
from headwater.capture.publishing.topics import Topics
from headwater.capture.publishing.writer import Committed, Stopped, Writer
from headwater.capture.records.formats import shaper_of
from headwater.capture.records.shaping import Shaper
from headwater.capture.settings import CaptureSettings
from headwater.capture.signals import SignalReader
from headwater.capture.sources import source_of
from headwater.capture.tables.captured import CapturedTables
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.writing.batches import BatchBuilder
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import (
    ConfigError,
    Fenced,
    HeadwaterError,
    PositionLost,
    SubjectErased,
    TableRefused,
    TopicRefused,
)
from headwater.schemas.settings import SchemasSettings
from headwater.settings import ClientSettings
from headwater.subjects.access import PersonalTopics

log = logging.getLogger(__name__)

SPLIT_BYTES: Final = 1 << 30  # a source transaction larger than this becomes several of Kafka's
SPLIT_LOOK: Final = 1 << 10  # changes between two looks at that
# How often new tables are looked for. The stream stands still meanwhile, and a look at thousands of
# tables takes a while: it is then done more rarely.
TABLES_S: Final = 5.0
LONGEST_TABLES_S: Final = 30.0
LOOK_SHARE: Final = 0.01  # of the time
ASKED_S: Final = 1.0  # how long the position is stored as it moves, for who asked for it
LAG_S: Final = 2.0
END_S: Final = 5.0  # how long an orderly end waits for what is in flight
CLOSE_S: Final = 2.0


def run(
    settings: CaptureSettings,
    bootstrap: str,
    login: ClientSettings,
    state: CaptureState,
    stop: threading.Event,
    schemas: SchemasSettings | None = None,
    personal: PersonalTopics | None = None,
) -> None:
    """Follows the database until `stop`, then returns with everything committed. Raises what made
    it fail; SourceUnreachable and BrokerUnreachable are worth another try. `schemas` is where the
    schemas of Avro are registered, by default in the topic `_schemas`. Fields that `personal`
    names are encrypted; without their keys it fails.
    """
    registry = schemas or SchemasSettings()
    while True:
        try:
            if _run(settings, bootstrap, login, state, stop, registry, personal):
                return
            log.info("%s: goes on without the table that has failed", settings.name)
        except SubjectErased as error:  # between its first row and the commit of that
            log.info("%s: %s; its rows are read again", settings.name, error)


def _run(
    settings: CaptureSettings,
    bootstrap: str,
    login: ClientSettings,
    state: CaptureState,
    stop: threading.Event,
    schemas: SchemasSettings,
    personal: PersonalTopics | None,
) -> bool:
    """False: a table had to be given up, and the others are to be followed by another run."""
    with contextlib.ExitStack() as stack:
        source = source_of(settings, bootstrap)
        stack.callback(source.close)
        shaper = shaper_of(settings, source, schemas, bootstrap, login, stack, personal)
        topics = Topics(settings, bootstrap, login)
        stack.callback(topics.close)
        topics.ensure_internal()
        _stored(settings.name, bootstrap, login, state)  # before another process is fenced
        producer = TransactionalProducer(bootstrap, transactional_id(settings.name), login=login)
        stack.callback(producer.close)
        producer.fence()
        stored = _stored(settings.name, bootstrap, login, state)
        for problem in source.check():
            if not isinstance(problem, TableRefused):
                raise problem
        offset = stored.capture.signals if stored.capture is not None else None
        signals = SignalReader(settings.name, bootstrap, login, offset)
        stack.callback(signals.close)
        key = positions.key_of(settings.name)
        cuts = Cuts(settings.name, read_committed_latest(bootstrap, login, CUTS_TOPIC))
        writer = Writer(
            producer,
            key,
            cuts,
            lambda committed: _report(state, committed),
            stop,
            source.stay_connected,
            topics.batch_bytes,
            (lambda: None) if personal is None else personal.flush,
        )
        stack.callback(writer.close)
        try:
            capture = Capture(
                settings, source, shaper, topics, writer, signals, stored, state, personal
            )
        except PositionLost:
            if _stored(settings.name, bootstrap, login, state) != stored:
                raise _taken_over(settings.name) from None
            raise
        stack.callback(capture.close)
        try:
            capture.follow(stop)
        except TopicRefused as error:
            capture.close()
            writer.close()
            failed = capture.without(error.topic, error)
            if failed is None:
                raise
            # From the stored position on, so that it is not refused again and again.
            producer.abort()
            producer.send({(positions.TOPIC, 0): [failed]})
            producer.commit()
            return False
        return True


def _stored(capture: str, bootstrap: str, login: ClientSettings, state: CaptureState) -> Stored:
    """Where the capture stands. Raises Fenced if another process has continued from where
    this one was: a new run would fence it, and be fenced by its next run, and so on.
    """
    records = read_committed_latest(bootstrap, login, positions.TOPIC)
    stored = positions.decode(capture, records)
    if state.is_owner and (stored.capture is None or stored.capture.owner != state.owner):
        raise _taken_over(capture)
    return stored


def _taken_over(capture: str) -> Fenced:
    return Fenced(
        f"another process has taken over capture {capture}, or has reset it",
        hint="one process per capture; `headwater capture status` shows how far it is",
    )


def transactional_id(capture: str) -> str:
    """Every run of a capture writes under this id, so a new one fences the old."""
    return f"headwater-capture-{capture}"


def _report(state: CaptureState, committed: Committed) -> None:
    """(writer)"""
    state.committed(
        committed.transactions,
        committed.records,
        committed.size_bytes,
        committed.latency_s,
        committed.position.ts_ms if committed.transactions else None,
    )


class Capture:
    """Brings one source's events into the log."""

    def __init__(
        self,
        settings: CaptureSettings,
        source: Source,
        shaper: Shaper,
        topics: Topics,
        writer: Writer,
        signals: SignalReader,
        stored: Stored,
        state: CaptureState,
        personal: PersonalTopics | None = None,
    ) -> None:
        self._settings = settings
        self._personal = personal
        self._source = source
        self._writer = writer
        self._signals = signals
        self._state = state
        tables = {
            table_id: table.table for table_id, table in stored.tables.items() if not table.is_ahead
        }
        after = stored.capture.position if stored.capture is not None else None
        self._shaper = shaper
        # Before anything is made in the database: an unused slot retains its log indefinitely.
        self._check_rules(is_first=stored.capture is None)
        source.storages = {
            table_id: table.storage
            for table_id, table in stored.tables.items()
            if table.storage is not None
        }
        at = source.open(after, tables)
        start = CapturePosition(SourcePosition(at), now_ms(), signals=signals.offset)
        position = dataclasses.replace(stored.capture or start, owner=state.owner, has_ended=False)
        self._publisher = Publisher(settings.name, writer, topics, position)
        # The database retains its log for us from here on; a crash must not lose this position.
        # And the process that had the capture before must see that this one owns it now.
        self._publisher.store()
        self._tables = CapturedTables(
            settings, source, self._shaper, topics, self._publisher, stored.tables, state
        )
        self._acknowledged: CapturePosition | None = None
        self._is_closed = threading.Event()
        self._lag = threading.Thread(target=self._measure, name="lag", daemon=True)
        self._look_due_s = 0.0
        self._asked_s = -math.inf

    def close(self) -> None:
        self._is_closed.set()
        self._tables.close()
        if self._lag.ident is not None:
            self._lag.join(CLOSE_S)

    def without(self, topic: str, error: HeadwaterError) -> BatchBuilder | None:
        """The record that marks the table of this topic as failed; None if there is none."""
        failed = self._tables.failed_by(topic, error)
        if failed is None:
            return None
        key = positions.key_of(self._settings.name, failed.table.id)
        batch = BatchBuilder()
        batch.append(key, positions.encode_table(failed), (), now_ms())
        return batch

    def _check_rules(self, *, is_first: bool) -> None:
        """A rule for a column that does not exist is most likely misspelt, and what it should have
        hidden would be published: the first run refuses to. Later the column may have been dropped,
        and that must not stop anything.
        """
        if self._source.snapshots_itself:
            return
        tables = self._source.tables()
        if not tables:
            wanted = ", ".join(self._settings.tables)
            log.warning("%s: no table matches %s, until one is made", self._settings.name, wanted)
        for problem in self._shaper.check(tables):
            if isinstance(problem, ConfigError) and is_first:
                raise problem
            log.warning("%s", problem)

    def follow(self, stop: threading.Event) -> None:
        self._lag.start()
        with contextlib.suppress(Stopped):
            self._follow(stop)
        self._end_in_order()

    def _follow(self, stop: threading.Event) -> None:
        self._look()
        publisher, shape = self._publisher, self._shaper.change
        append, partitions = self._writer.append, publisher.partitions
        tables = self._tables.by_identity
        ts_ms = 0
        for event in self._source.changes(publisher.position.position):
            if isinstance(event, Change):
                if not event.ordinal % SPLIT_LOOK and self._writer.transaction_bytes > SPLIT_BYTES:
                    publisher.split(event.ordinal, self._shaper.counts)
                followed = tables.get(id(event.table)) or self._tables.follow(event.table)
                if followed.is_plain or self._tables.is_wanted(followed, event):
                    publisher.open()
                    try:
                        for topic, key, value, headers in shape(event):
                            append(topic, partitions[topic], key, value, headers, ts_ms)
                    except TableRefused as error:
                        self._tables.fail(event.table.id, error)
            elif isinstance(event, Begin):
                ts_ms = event.ts_ms
                self._begin(event)
            elif isinstance(event, Commit):
                self._end(event)
                self._between()
            else:
                self._rare(event)
            if stop.is_set():
                break
        publisher.store_end()

    def _begin(self, event: Begin) -> None:
        publisher = self._publisher
        publisher.transaction = event
        self._tables.recent.append(event)
        # A transaction that a split left half done goes on with what was counted before.
        goes_on = publisher.position.position.changes is not None
        self._shaper.begin(event, publisher.position.counts if goes_on else None)

    def _end(self, event: Commit) -> None:
        ended = self._shaper.commit(event)
        if ended:
            self._publisher.append(ended)
        self._publisher.end()

    def _rare(self, event: Event) -> None:
        publisher = self._publisher
        match event:
            case None:
                self._writer.check()
            case PositionAdvanced():
                publisher.moved(event.at)
            case Record():
                value = event.value
                if self._personal is not None:
                    value = self._personal.value(event.topic, value)
                publisher.append([(event.topic, event.key, value, tuple(event.headers))])
            case Message():
                publisher.append(self._shaper.message(event))
            case SchemaChange():
                self._tables.schema_changed(event)
            case StorageChange():
                self._tables.storage_changed(event)
            case TableFailed():
                self._tables.fail(event.table_id, event.error)
        if publisher.transaction is None:
            publisher.settle()
            self._between()

    def _between(self) -> None:
        """What is due while no source transaction is in progress."""
        self._writer.check()
        self._acknowledge()
        if time.monotonic() > self._look_due_s:
            self._look()
        for signal in self._signals.received():
            self._publisher.saw_signal(signal.offset)
            if signal.tables:
                self._tables.copy_again(signal.tables)
            else:
                self._asked_s = time.monotonic()
        position = self._publisher.position.position
        if position.changes is None:  # else the rest of that transaction comes first
            self._tables.publish_copies(position.at)
        is_asked = time.monotonic() - self._asked_s < ASKED_S
        if is_asked:
            self._source.is_awaited = True
        if (
            is_asked and self._publisher.has_moved
        ) or time.monotonic() - self._publisher.written_s > self._settings.heartbeat_s:
            # Nothing of ours happened, but the database's log went on: it need not be retained.
            self._publisher.store()

    def _look(self) -> None:
        began_s = time.monotonic()
        self._tables.look()
        ended_s = time.monotonic()
        pause_s = max(TABLES_S, min((ended_s - began_s) / LOOK_SHARE, LONGEST_TABLES_S))
        self._look_due_s = ended_s + pause_s

    def _acknowledge(self) -> None:
        durable = self._writer.durable
        if durable is not None and durable is not self._acknowledged:
            self._acknowledged = durable
            if durable.position.changes is None:
                self._source.acknowledge(durable.position.at)

    def _measure(self) -> None:
        """(lag) How far the database is ahead, now and then."""
        while not self._is_closed.wait(LAG_S):
            durable = self._writer.durable
            if durable is None:
                continue
            try:
                lag = self._source.lag(durable.position.at)
            except HeadwaterError as error:
                log.debug("%s: the lag cannot be measured: %s", self._settings.name, error)
            except Exception:
                log.exception("%s: the lag cannot be measured", self._settings.name)
            else:
                self._publisher.lag = lag
                self._state.lag(lag)

    def _end_in_order(self) -> None:
        if self._publisher.transaction is None and not self._writer.wait_until_durable(END_S):
            log.warning("%s: stopped before all of it was committed", self._settings.name)
        self._writer.check()
        self._acknowledge()
