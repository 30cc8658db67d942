"""The catalog: topics with their settings, the broker's counters, and documents of other parts.

The documents are users, ACLs, quotas and settings of groups.

A journal of JSON lines, appended and synced before a change takes effect, read whole at start. A
last line that a crash tore is dropped: its change was never answered. When most lines are history
the file is written again.
"""

import logging
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import orjson

from headwater.errors import CorruptLog
from headwater.log.disk.files import Files

log = logging.getLogger(__name__)

NAME = "catalog.jsonl"
PRODUCER_ID_BLOCK = 1000
# What a restore skips, so that it gives out nothing that the original may have given out since:
# an epoch for every crash, a producer id for every producer.
RESTORED_EPOCHS = 1000
RESTORED_PRODUCER_IDS = 1 << 40
MAX_PARTITIONS = 1_000_000  # of a topic
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Kafka's rule. Directories are named by topics: no other name may come from a file either."""
    return bool(_LEGAL_NAME.fullmatch(name)) and name not in (".", "..")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it was asked for."""

    name: str
    id: UUID
    partitions: int
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def is_internal(self) -> bool:
        return self.name.startswith("__")


class Catalog:
    """Topics by name and by id. Changes are durable when the method returns; it may block."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._path = f"{directory}/{NAME}"
        self._size_bytes = 0
        self._lines = 0
        self.cluster_id = ""
        self.leader_epoch = 0
        # Replaced, never changed: a thread writes the catalog while the event loop walks them.
        self.topics: dict[str, Topic] = {}
        self.by_id: dict[UUID, Topic] = {}
        self.documents: dict[str, dict[str, Any]] = {}  # by kind, then by key
        self._next_producer_id = 0  # not handed out yet
        self._producer_ids_reserved = 0  # durable; a crash skips the rest of the block

    def open(self) -> None:
        if os.path.exists(self._path):
            os.chmod(self._path, 0o600)  # it may hold what is stored of passwords
            self._load()
        if not self.cluster_id:
            self._append({"cluster": uuid4().hex[:22]})
        documents = sum(len(stored) for stored in self.documents.values())
        if self._lines > 2 * (len(self.topics) + documents) + 100:
            self._rewrite()

    def create(self, name: str, partitions: int, configs: dict[str, str]) -> Topic:
        topic = _checked(Topic(name, uuid4(), partitions, dict(configs)))
        self._append(
            {"topic": name, "id": topic.id.hex, "partitions": partitions, "configs": configs}
        )
        return topic

    def change(self, topic: Topic, **changes: Any) -> Topic:
        changed = _checked(replace(topic, **changes))
        self._append(_line_of(changed))
        return changed

    def delete(self, name: str) -> None:
        self._append({"deleted": name})

    def put(self, kind: str, changes: dict[str, Any]) -> None:
        """Stores documents, all of them or none; None deletes one."""
        self._append({"documents": kind, "changes": changes})

    def next_leader_epoch(self) -> None:
        self._append({"leader_epoch": self.leader_epoch + 1})

    def begin_restored(self) -> None:
        """The catalog is a copy, and the original may have gone on: clients have to be able to
        tell the two apart, by leader epochs and producer ids that the original never uses.
        """
        self._append({"leader_epoch": self.leader_epoch + RESTORED_EPOCHS})
        self._append({"producer_ids": self._producer_ids_reserved + RESTORED_PRODUCER_IDS})
        self._next_producer_id = self._producer_ids_reserved

    def next_producer_id(self) -> int:
        """An id that was never given out before, also not before a crash."""
        if self._next_producer_id >= self._producer_ids_reserved:
            self._append({"producer_ids": self._next_producer_id + PRODUCER_ID_BLOCK})
        producer_id = self._next_producer_id
        self._next_producer_id += 1
        return producer_id

    def has_producer_id(self) -> bool:
        """Whether the next producer id can be had without waiting for the disk."""
        return self._next_producer_id < self._producer_ids_reserved

    def _append(self, line: dict[str, Any]) -> None:
        data = orjson.dumps(line) + b"\n"
        fd = self._files.open(self._path, create=True)
        try:
            # Whatever a failed write left behind the last whole line is overwritten.
            self._files.truncate(fd, self._size_bytes)
            self._files.pwrite(fd, data, self._size_bytes)
            self._files.fdatasync(fd)
        finally:
            self._files.close(fd)
        if self._size_bytes == 0:
            self._files.sync_directory(os.path.dirname(self._path))
        self._size_bytes += len(data)
        self._lines += 1
        topics, by_id = dict(self.topics), dict(self.by_id)
        self._apply(line, topics, by_id)
        self.topics, self.by_id = topics, by_id

    def _apply(
        self, line: dict[str, Any], topics: dict[str, Topic], by_id: dict[UUID, Topic]
    ) -> None:
        match line:
            case {"topic": name, "id": topic_id, "partitions": partitions, "configs": configs}:
                topic = _checked(Topic(name, UUID(topic_id), partitions, configs))
                topics[name] = by_id[topic.id] = topic
            case {"deleted": name}:
                topic = topics.pop(name)
                del by_id[topic.id]
            case {"documents": kind, "changes": changes}:
                stored = {**self.documents.get(kind, {}), **changes}
                stored = {key: value for key, value in stored.items() if value is not None}
                self.documents = {**self.documents, kind: stored}
            case {"producer_ids": int(reserved)}:
                self._producer_ids_reserved = reserved
            case {"leader_epoch": int(epoch)}:
                self.leader_epoch = epoch
            case {"cluster": str(cluster_id)} if _LEGAL_NAME.fullmatch(cluster_id):
                self.cluster_id = cluster_id
            case _:
                raise CorruptLog("the catalog holds a line of a later version", detail=str(line))

    def _load(self) -> None:
        data = self._files.read(self._path)
        bad: Exception | None = None
        for number, text in enumerate(data.splitlines(keepends=True), 1):
            try:
                line = orjson.loads(text if text.endswith(b"\n") else b"")
                if bad is None:
                    self._apply(line, self.topics, self.by_id)
                    self._lines += 1
                    self._size_bytes += len(text)
                    continue
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                bad = bad or error
                continue
            # Torn is only what nothing follows; a whole line behind it was answered once.
            raise CorruptLog(
                "the catalog is damaged",
                detail=f"{self._path} before line {number}: {bad}",
                hint="restore it from a backup; the topics' own files are untouched",
            )
        if bad is not None:
            log.warning("a torn line at the end of the catalog is dropped")
        self._next_producer_id = self._producer_ids_reserved

    def _rewrite(self) -> None:
        lines: list[dict[str, Any]] = [
            {"cluster": self.cluster_id},
            {"leader_epoch": self.leader_epoch},
            {"producer_ids": self._producer_ids_reserved},
            *(_line_of(topic) for topic in self.topics.values()),
            *({"documents": kind, "changes": stored} for kind, stored in self.documents.items()),
        ]
        data = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        self._files.write_atomically(self._path, data)
        self._size_bytes, self._lines = len(data), len(lines)


def _checked(topic: Topic) -> Topic:
    """Before it is written, and when it is read: the file may be of a backup from elsewhere."""
    name, partitions, configs = topic.name, topic.partitions, topic.configs
    if (
        not isinstance(name, str)
        or not is_topic_name(name)
        or type(partitions) is not int
        or not 1 <= partitions <= MAX_PARTITIONS
        or not isinstance(configs, dict)
        or not all(isinstance(value, str) for value in configs.values())
    ):
        raise CorruptLog(
            "the catalog names a topic that cannot be one", detail=f"{name!r:.300}, {partitions!r}"
        )
    return topic


def _line_of(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": topic.id.hex,
        "partitions": topic.partitions,
        "configs": topic.configs,
    }
