"""Ids of the schemas of subjects, as the topic `_schemas` of this broker has them.

A schema registry (the gateway's, or Confluent's on this broker) stores versions of subjects there.
The broker follows the topic in its own log, without a client and without HTTP: when a producer
writes to a topic with headwater.schema.validation, and `_schemas` has moved on since it was last
read, the request waits for the rest of it. So an id is valid for producers from the moment at which
the registry has answered. Only committed records count, as for every reader. What the schemas say
is not looked at.
"""

import logging
from typing import TYPE_CHECKING, Final

from headwater.broker.api.registry import Held
from headwater.broker.background import Background
from headwater.broker.internal_topics.coordinator_log import StoredMarker, StoredRecord
from headwater.broker.internal_topics.log import read_some
from headwater.errors import CorruptLog, MalformedMessage
from headwater.log.partitions.partition import PartitionLog
from headwater.log.segment import Segment
from headwater.log.store import LogStore
from headwater.protocol.schema_id_scan import SchemaIdRule
from headwater.schema_records import (
    CLEAR_SUBJECT,
    DELETE_SUBJECT,
    SCHEMA,
    TOPIC,
    Malformed,
    read_key,
    read_object,
)

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger(__name__)

_NONE: Final[frozenset[int]] = frozenset()


class SubjectIds:
    """Ids by subject, as the records of `_schemas` make them, in their order."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[int, int]] = {}  # subject: version: id
        self._sets: dict[str, frozenset[int]] = {}

    def of(self, subject: str) -> frozenset[int]:
        """Of all versions that are not deleted."""
        found = self._sets.get(subject)
        if found is None:
            versions = self._versions.get(subject)
            if not versions:
                return _NONE
            found = self._sets[subject] = frozenset(versions.values())
        return found

    def apply(self, key: bytes, value: bytes | None) -> None:
        """One record. What is none of the registry's changes nothing."""
        try:
            read = read_key(key)
            if read is None or read.subject is None:
                return
            versions = self._versions.setdefault(read.subject, {})
            if read.kind == SCHEMA:
                schema = {} if value is None else read_object(value)
                schema_id = schema.get("id")
                if isinstance(schema_id, int) and schema.get("deleted") is not True:
                    versions[read.version] = schema_id
                else:
                    versions.pop(read.version, None)
            elif read.kind == CLEAR_SUBJECT and value is not None:
                versions.clear()
            elif read.kind == DELETE_SUBJECT and value is not None:
                upto = read_object(value).get("version")
                for version in [v for v in versions if isinstance(upto, int) and v <= upto]:
                    del versions[version]
            self._sets.pop(read.subject, None)
        except Malformed:
            return


class SchemaIds:
    """Follows `_schemas`. Lives on the event loop."""

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._ids = SubjectIds()
        self._log: PartitionLog | None = None  # that was read
        self._read_to = -1  # its last stable offset then
        self._place: tuple[Segment, int] | None = None  # where the next batch begins
        self._open: dict[int, list[StoredRecord]] = {}  # records of transactions, by producer
        self._loading: asyncio.Task[None] | None = None
        self._background = Background("the ids of schemas")

    async def close(self) -> None:
        await self._background.stop()

    def rule(self, topic: str, parts: str) -> SchemaIdRule:
        """What keys and values of a topic have to begin with. Raises Held while `_schemas` has
        records that were not read yet.
        """
        current = self._store.partitions.get((TOPIC, 0))
        if current is None:
            self._forget(None)
        elif current is not self._log or current.last_stable_offset != self._read_to:
            if self._loading is None or self._loading.done():
                self._loading = self._background.start(self._load(current))
            raise Held(self._loading)
        return SchemaIdRule(
            topic,
            self._ids.of(f"{topic}-key") if parts in ("key", "both") else None,
            self._ids.of(f"{topic}-value") if parts in ("value", "both") else None,
        )

    def _forget(self, current: PartitionLog | None) -> None:
        self._ids, self._log, self._read_to = SubjectIds(), current, -1
        self._place, self._open = None, {}

    async def _load(self, current: PartitionLog) -> None:
        end = current.last_stable_offset
        held = list(current.segments)
        numbers = {id(segment): number for number, segment in enumerate(held)}
        if current is not self._log or self._place is None or id(self._place[0]) not in numbers:
            self._forget(current)  # for the first time, or compaction has replaced the segment
        first, position = (held[0], 0) if self._place is None else self._place
        for segment in held:  # compaction must not take them away on the way
            segment.pins += 1
        try:
            for segment in held[numbers[id(first)] :]:
                await self._read(current, segment, position if segment is first else 0)
        finally:
            for segment in held:
                current.unpin(segment)
        self._read_to = end

    async def _read(self, current: PartitionLog, segment: Segment, position: int) -> None:
        while position < segment.size_bytes:
            try:
                stored, position = await self._store.in_reader(
                    read_some, self._store.storage, segment, position
                )
            except (CorruptLog, MalformedMessage, OSError) as error:
                current.out_of_service(segment, error)
                log.warning("schemas of %s cannot be read; their ids are refused", segment.log_path)
                return
            for entry in stored:
                self._apply(entry)
            self._place = (segment, position)

    def _apply(self, entry: StoredRecord | StoredMarker) -> None:
        if isinstance(entry, StoredMarker):
            records = self._open.pop(entry.producer_id, [])
            for record in records if entry.committed else ():
                self._ids.apply(record.key, record.value)
        elif entry.producer_id >= 0:
            self._open.setdefault(entry.producer_id, []).append(entry)
        else:
            self._ids.apply(entry.key, entry.value)
