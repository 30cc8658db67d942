"""The versions of a target as topics: each batch is one Kafka transaction, with its position.

A table shows the newest state, a topic the changelog: every row of a batch is a record, in order,
also those that a later row of the same batch changes. `read` folds the topic to the rows of a
table.

The state of a version (version_state.py) is stored in the same transaction as its records.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.client.cluster import Cluster
from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher, Isolation
from headwater.client.topics import NewTopic, delete_topic, ensure_topics
from headwater.errors import ConfigError, NotStaged, RowRefused, StoreRefused
from headwater.sinks.contract import (
    OP,
    TRUNCATE,
    Batch,
    Contents,
    Log,
    Position,
    Refuse,
    StagingWriter,
    Store,
    Target,
    Version,
    is_applied,
)
from headwater.sinks.rows.schema_evolution import evolved, plain
from headwater.sinks.settings import SinkSettings
from headwater.sinks.topic import history
from headwater.sinks.topic.history import Moment
from headwater.sinks.topic.records import (
    AVRO,
    REGISTRY_OPTIONS,
    RecordBuilder,
    compression_of,
    find_topic,
    form_of,
    last_by_key,
)
from headwater.sinks.topic.staging import TopicStaging, batches_of, fitted_with_ops
from headwater.sinks.topic.transactional_positions import (
    Ends,
    TransactionalPositions,
    as_sink_errors,
)
from headwater.sinks.topic.version_state import (
    VersionState,
    key_of,
    stored_versions,
    topic_of,
)

# Of the topic, when it is created.
_CONFIGS: Final = (
    "cleanup.policy", "max.message.bytes", "min.insync.replicas", "retention.bytes",
    "retention.ms", "segment.bytes",
)  # fmt: skip
OPTIONS: Final = ()
TARGET_OPTIONS: Final = ("value", "partitions", "compression", *REGISTRY_OPTIONS, *_CONFIGS)

_PATIENCE_S: Final = 10.0  # the pipeline retries, and reports it meanwhile
_FOLDED_ROWS: Final = (
    1 << 20
)  # of a partition, buffered before they are reduced to the last of each key


class TopicStore(Store):
    """One target's topics, one for each version."""

    can_promote = False

    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        self.target = target
        self.log = log
        self.form = form_of(target, log)
        options = target.options
        self.compression = compression_of(options)
        partitions = options.get("partitions", "1")
        if not partitions.isdigit() or not int(partitions):
            raise ConfigError(f"topic {target.name}: partitions is a number from 1 on")
        self._partitions = int(partitions)
        self._configs = {
            **({"cleanup.policy": "compact"} if target.key else {"retention.ms": "-1"}),
            **{name: options[name] for name in _CONFIGS if name in options},
        }

    def close(self) -> None:
        self.form.close()

    def check(self) -> None:
        for version, state in {1: None, **self._states()}.items():
            self._check(version, state)

    def versions(self) -> list[Version]:
        return [
            Version(number, number == 1, state.position, state.fields)
            for number, state in sorted(self._states().items())
            if state.owner == self.target.owner
        ]

    def writer(self, version: int, fields: pa.Schema) -> "TopicWriter":
        self._check(version, self._states().get(version))  # before the earlier writer is fenced
        self.form.check(fields)
        topic = self.topic(version)
        with as_sink_errors():
            created = NewTopic(topic, self._partitions, self._configs)
            ensure_topics(self.log.bootstrap, self.log.login, [created], patience_s=_PATIENCE_S)
        return TopicWriter(self, version, plain(fields))

    def promote(self, version: int) -> None:
        self._stored(version)
        if version != 1:
            raise StoreRefused(
                f"topic {self.topic(version)} cannot be given the name {self.target.name}",
                detail="Kafka's topics have one name, which is never changed",
                hint=f"point the consumers to {self.topic(version)}",
            )

    def drop(self, version: int) -> None:
        self._stored(version)
        if version == 1:
            raise StoreRefused(f"topic {self.target.name} is live", hint="it is not dropped")
        topic = self.topic(version)
        transactions = TransactionalPositions(self.log, *names_of(topic), patience_s=_PATIENCE_S)
        try:
            transactions.commit({}, lambda _: None)
        finally:
            transactions.close()
        with as_sink_errors():
            delete_topic(self.log.bootstrap, self.log.login, topic, patience_s=_PATIENCE_S)

    @contextmanager
    def read(self, version: int) -> Iterator[Contents]:
        state = self._stored(version)
        with as_sink_errors(), self.fetcher() as fetcher:
            yield Contents(state.position, self._rows(fetcher, state))

    @contextmanager
    def read_as_of(self, version: int, at: Moment) -> Iterator[Contents]:
        """The rows that the topic had after its last batch up to that moment; without a position.
        Raises StoreRefused if the topic no longer has its whole history.
        """
        state = self._stored(version)
        with as_sink_errors(), self.fetcher() as fetcher:
            ends = history.ends_at(fetcher, self.log, self.topic(version), state.ends, at)
            yield Contents(None, self._rows(fetcher, dataclasses.replace(state, ends=ends)))

    def _stored(self, version: int) -> VersionState:
        state = self._states().get(version)
        if state is None or state.owner != self.target.owner:
            raise StoreRefused(f"{self.target.name} has no version {version}")
        return state

    def _rows(self, fetcher: Fetcher, state: VersionState) -> Iterator[pa.RecordBatch]:
        columns = ["key", *self.form.record_columns(state.fields)]
        for records in self.records(fetcher, state.version, state.ends, columns):
            rows = records.filter(pc.is_valid(records["value"])) if self.target.key else records
            yield from self.form.rows(rows, state.fields)

    def records(
        self, fetcher: Fetcher, version: int, ends: Mapping[int, int], columns: list[str]
    ) -> Iterator[pa.Table]:
        """All records before `ends`; with a key the last of each key, tombstones included."""
        topic = self.topic(version)
        starts = fetcher.offsets([(topic, partition) for partition in ends], EARLIEST)
        for partition, end in ends.items():
            start = min(starts[topic, partition], end)
            gathered: list[pa.RecordBatch] = []
            rows = 0
            for batch in fetcher.read(topic, partition, start, end, columns=columns):
                gathered.append(batch)
                rows += len(batch)
                if rows >= _FOLDED_ROWS:
                    table = pa.Table.from_batches(gathered)
                    if self.target.key:
                        gathered = last_by_key(table).to_batches()
                        # If most keys are different, the next reduction comes later.
                        rows = min(_FOLDED_ROWS // 2, sum(map(len, gathered)))
                    else:
                        yield table
                        gathered, rows = [], 0
            if gathered:
                table = pa.Table.from_batches(gathered)
                yield last_by_key(table) if self.target.key else table

    def fetcher(self, isolation: Isolation = "read_committed") -> Fetcher:
        return Fetcher(
            self.log.bootstrap, self.log.login, isolation=isolation, patience_s=_PATIENCE_S
        )

    def topic(self, version: int) -> str:
        return topic_of(self.target.name, version)

    def _states(self) -> dict[int, VersionState]:
        """Of this target's versions, of any owner."""
        states = stored_versions(self.log, patience_s=_PATIENCE_S)
        return {state.version: state for state in states if state.target == self.target.name}

    def _check(self, version: int, state: VersionState | None) -> None:
        """Raises StoreRefused if the topic has another owner or format."""
        topic = self.topic(version)
        if state is None:
            if self._has_records(topic):
                raise StoreRefused(
                    f"topic {topic} has records that no version of {self.target.name} has written",
                    hint="choose another topic, or delete this one",
                )
            return
        if state.owner != self.target.owner:
            raise StoreRefused(f"topic {topic} belongs to {state.owner}", hint="choose another one")
        if (state.key, state.value) != (self.target.key, self.form.name):
            raise StoreRefused(
                f"topic {topic} was written in another format",
                detail=f"key {list(state.key)}, value {state.value};"
                f" now key {list(self.target.key)}, value {self.form.name}",
                hint="a rebuild writes a new version of it",
            )

    def _has_records(self, topic: str) -> bool:
        with as_sink_errors():
            cluster = Cluster(self.log.bootstrap, self.log.login, patience_s=_PATIENCE_S)
            try:
                partitions = cluster.find_partitions(topic)
            finally:
                cluster.close()
            if partitions is None:
                return False
            with self.fetcher("read_uncommitted") as fetcher:
                all_partitions = [(topic, partition) for partition in range(partitions)]
                return any(fetcher.offsets(all_partitions, LATEST).values())


def names_of(topic: str) -> tuple[str, bytes]:
    """The transactional id of the topic's writer, and the key of its stored state."""
    return f"headwater-topic-{topic}", key_of(topic)


class TopicWriter(StagingWriter):
    def __init__(self, store: TopicStore, version: int, fields: pa.Schema) -> None:
        self._store = store
        self._topic = store.topic(version)
        self._form = store.form.of_topic(self._topic)
        self._transactions = TransactionalPositions(
            store.log, *names_of(self._topic), patience_s=_PATIENCE_S
        )
        try:
            stored = self._transactions.position
            if stored is None:
                target = store.target
                self._state = VersionState(
                    target.owner, target.name, version, target.key, self._form.name, fields
                )
                self._commit({}, None, fields)
            else:
                self._state = VersionState.from_json(stored)
                if (self._state.target, self._state.version) != (store.target.name, version):
                    raise StoreRefused(
                        f"topic {self._topic} is version {self._state.version} of"
                        f" {self._state.target}, by {self._state.owner}",
                        hint="choose another name",
                    )
            with as_sink_errors():
                topic = find_topic(store.log, self._topic, _PATIENCE_S)
            self._fields = self._evolved(self._state.fields, fields)
            self._found = topic
            self._builder = RecordBuilder(self._form, topic, store.target.key, store.compression)
        except BaseException:
            self.close()
            raise
        self.position = self._state.position

    def close(self) -> None:
        self._transactions.close()

    def apply(self, batch: Batch, refuse: Refuse | None = None) -> None:
        self._transactions.check()
        if is_applied(self.position, batch):
            return
        fields = self._fields_with(batch.rows)
        rows = fitted_with_ops(batch.rows, fields)
        refused: list[RowRefused] = []
        encoder = self._builder.encoder()
        with as_sink_errors():
            for records in self._records(rows, None if refuse is None else refused):
                encoder.add(records)
        if refuse is not None and refused:
            refuse(refused)
        batches = {(self._topic, at): given for at, given in encoder.finish().items()}
        self._commit(batches, batch.position(), fields)

    def staging(self, batch: Batch) -> TopicStaging:
        if self._form.name == AVRO:
            raise NotStaged("one process registers the schemas of a topic")
        if self._found.partitions == 1 or not self._form.decisive_columns:
            raise NotStaged("the records are of one partition, whose order one process has to know")
        return TopicStaging(
            self._form,
            self._found,
            self._store.target.key,
            self._store.compression,
            self._fields_with(batch.rows),
        )

    def commit(self, batch: Batch, tokens: Sequence[bytes]) -> None:
        self._transactions.check()
        if is_applied(self.position, batch):
            return
        batches = batches_of(self._topic, tokens)
        self._commit(batches, batch.position(), self._fields_with(batch.rows))

    def _fields_with(self, rows: pa.Table) -> pa.Schema:
        """The columns that the version has with these rows."""
        given = pa.schema([field for field in rows.schema if field.name != OP])
        return self._evolved(self._fields, given)

    def _evolved(self, stored: pa.Schema, given: pa.Schema) -> pa.Schema:
        change = evolved(stored, given)
        for field in change.widened:
            # 1.5 and 1.50 would be two keys; an integer has one text.
            if field.name in self._store.target.key and not pa.types.is_integer(field.type):
                raise StoreRefused(
                    f"column {field.name} is part of the key, and its type has changed",
                    detail=f"it was {stored.field(field.name).type} and is {field.type} now",
                    hint="cast it to what it was, or rebuild into a new version",
                )
        self._form.check(change.fields)
        return change.fields

    def _commit(self, batches: Any, position: Position | None, fields: pa.Schema) -> None:
        stored = self._state

        def position_of(ends: Ends) -> bytes:
            nonlocal stored
            moved = {partition: end for (_, partition), end in ends.items()}
            stored = dataclasses.replace(
                self._state, position=position, fields=fields, ends={**self._state.ends, **moved}
            )
            return stored.to_json()

        self._transactions.commit(batches, position_of)
        self._state, self._fields, self.position = stored, fields, position

    def _records(
        self, rows: pa.Table, refused: list[RowRefused] | None
    ) -> Iterator[pa.RecordBatch]:
        """Of all rows in their order; where all rows are gone, a deletion of each key."""
        begin = 0
        truncated: list[int] = []
        if OP in rows.column_names:
            truncated = np.flatnonzero(
                pc.fill_null(pc.equal(rows[OP], TRUNCATE), fill_value=False).to_numpy()
            ).tolist()
        written: list[pa.RecordBatch] = []
        for at in [*truncated, len(rows)]:
            for records in self._builder.records(rows.slice(begin, at - begin), refused):
                if truncated:
                    written.append(records.select(["key", "value"]))
                yield records
            if at < len(rows):
                yield self._form.deletions(self._keys_before(written))
                written = []
            begin = at + 1

    def _keys_before(self, written: list[pa.RecordBatch]) -> list[bytes]:
        """The keys that have a value, of the topic and of what this batch has added to it."""
        store, state = self._store, self._state
        with store.fetcher() as fetcher:
            live: dict[bytes, bool] = {}
            earlier = store.records(fetcher, state.version, state.ends, ["key", "value"])
            for records in (*earlier, *map(pa.Table.from_batches, ([batch] for batch in written))):
                has_value = pc.is_valid(records["value"]).to_pylist()
                live.update(zip(records["key"].to_pylist(), has_value, strict=True))
        return [key for key, is_live in live.items() if is_live]
