"""Stored queries in their topic: what `headwater search` reads and writes, and `hw.search` follows.

    key                value (JSON)
    {"id": "storms"}   {"id", "owner", "query", "language", "target", "limit", "created"}

A tombstone removes a query. The topic that is created retains all versions of a query, so that a
replay of documents meets the queries as they were.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder, partition_of
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import Fenced, NotReady, RequestRefused, UsageError
from headwater.settings import ClientSettings
from headwater.spelling import nearest

# The columns of the topic, for flow.table.
SEARCHES: Final = (
    "id string, owner string, query string, language string, target string, `limit` bigint, "
    "created timestamp"
)
DEFAULT_TOPIC: Final = "searches"
_CONFIGS: Final = {"cleanup.policy": "delete", "retention.ms": "-1"}
_ID: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}")
_TRANSACTIONAL_ID: Final = "headwater-searches"
_ATTEMPTS: Final = 5
_PATIENCE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class StoredSearch:
    id: str
    query: str
    owner: str = ""
    language: str = ""
    target: str = ""
    limit: int | None = None  # matches in an hour
    created: str = ""  # ISO 8601

    def to_json(self) -> bytes:
        """Without what is not set."""
        fields = asdict(self)
        return orjson.dumps(
            {name: value for name, value in fields.items() if value not in ("", None)}
        )


class StoredSearches:
    """Of one topic. All methods raise BrokerUnreachable and RequestRefused."""

    def __init__(self, bootstrap: str, login: ClientSettings, topic: str = DEFAULT_TOPIC) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self.topic = topic

    def all(self) -> dict[str, StoredSearch]:
        """By id, sorted. Records that are no queries are left out."""
        latest = read_committed_latest(
            self._bootstrap, self._login, self.topic, patience_s=_PATIENCE_S
        )
        found = [search for value in latest.values() if (search := _decoded(value)) is not None]
        return {search.id: search for search in sorted(found, key=lambda one: one.id)}

    def one(self, id_: str) -> StoredSearch:
        return _existing(self.all(), id_, self.topic)

    def put(self, search: StoredSearch) -> bool:
        """Stores it; it is decided for documents that are written from now on. Returns whether it
        is new. Raises UsageError, NotReady.
        """
        if _ID.fullmatch(search.id) is None:
            raise UsageError(
                "the id of a search has letters, digits, -, _ and ., 100 at most",
                detail=search.id[:120],
            )
        if search.limit is not None and search.limit < 1:
            raise UsageError("a limit is at least one match in an hour", detail=str(search.limit))
        ensure_topics(self._bootstrap, self._login, [NewTopic(self.topic, 1, _CONFIGS)])
        is_new = search.id not in self.all()
        self._write(search.id, search.to_json())
        return is_new

    def drop(self, id_: str) -> None:
        self.one(id_)
        self._write(id_, None)

    def _write(self, id_: str, value: bytes | None) -> None:
        key = orjson.dumps({"id": id_})
        for _ in range(_ATTEMPTS):
            with TransactionalProducer(
                self._bootstrap, f"{_TRANSACTIONAL_ID}-{self.topic}", login=self._login
            ) as producer:
                try:
                    producer.fence()
                    batch = BatchBuilder()
                    batch.append(key, value, (), time.time_ns() // 1_000_000)
                    partition = partition_of(key, producer.partitions(self.topic))
                    producer.send({(self.topic, partition): [batch]})
                    producer.commit()
                except Fenced:
                    continue
                return
        raise NotReady("others change searches at the same time", hint="try again")


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _decoded(value: bytes) -> StoredSearch | None:
    try:
        fields: Any = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, Mapping) or not isinstance(fields.get("query"), str):
        return None
    texts = {
        name: str(fields.get(name) or "")
        for name in ("id", "query", "owner", "language", "target", "created")
    }
    limit = fields.get("limit")
    return StoredSearch(**texts, limit=limit if isinstance(limit, int) else None)


def _existing(present: Mapping[str, StoredSearch], id_: str, topic: str) -> StoredSearch:
    if id_ in present:
        return present[id_]
    meant = nearest(id_, list(present))
    raise RequestRefused(
        f"there is no search {id_} in {topic}",
        hint=f"did you mean {meant}?" if meant else "headwater search list shows what there is",
    )
