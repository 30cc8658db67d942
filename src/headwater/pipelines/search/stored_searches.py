"""Stored queries in their topic: what `headwater search` and the console read and write, and
`hw.search` follows.

    key                value (JSON)
    {"id": "storms"}   {"id", "owner", "query", "language", "target", "limit", "created"}

A tombstone removes a query. The topic that is created retains all versions of a query, so that a
replay of documents meets the queries as they were.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from headwater.client.cluster import Cluster
from headwater.client.reading.compacted import read_committed_latest
from headwater.client.topics import NewTopic, ensure_topics
from headwater.client.writing.batches import BatchBuilder, partition_of
from headwater.client.writing.transactions import TransactionalProducer
from headwater.errors import Fenced, NotReady, RequestRefused, SearchRefused, UsageError
from headwater.pipelines.search.query_parser import parse_query
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
_ANY_FIELD: Final = "text"  # stands for the text fields, which only a pipeline names


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

    def as_json(self) -> dict[str, Any]:
        """All of it, and why it matches nothing. Raises as `error`."""
        return {**asdict(self), "error": self.error()}

    def without_check(self) -> dict[str, Any]:
        """The same with an `error` that is not determined."""
        return {**asdict(self), "error": ""}

    def error(self) -> str:
        """Empty if it can be parsed. Only a pipeline knows whether documents have its fields.
        Raises MissingExtra for a language without the extra.
        """
        try:
            self._parse()
        except SearchRefused as error:
            return error.what
        return ""

    def check(self) -> None:
        """Raises UsageError and SearchRefused if it must not be stored."""
        if _ID.fullmatch(self.id) is None:
            raise UsageError(
                "the id of a search has letters, digits, -, _ and ., 100 at most",
                detail=self.id[:120],
            )
        if self.limit is not None and self.limit < 1:
            raise UsageError("a limit is at least one match in an hour", detail=str(self.limit))
        self._parse()

    def _parse(self) -> None:
        parse_query(self.query, (_ANY_FIELD,), language=self.language)


class StoredSearches:
    """Of one topic. All methods raise BrokerUnreachable and RequestRefused."""

    def __init__(self, bootstrap: str, login: ClientSettings, topic: str = DEFAULT_TOPIC) -> None:
        self._bootstrap = bootstrap
        self._login = login
        self.topic = topic

    def all(self) -> dict[str, StoredSearch]:
        """By id, sorted. Records that are no queries are left out."""
        found = self._by_key().values()
        return {search.id: search for search in sorted(found, key=lambda one: one.id)}

    def one(self, id_: str) -> StoredSearch:
        found = self.all()
        if id_ not in found:
            raise _missing(id_, found, self.topic)
        return found[id_]

    def put(self, search: StoredSearch) -> bool:
        """Stores it; it is decided for documents that are written from now on. Returns whether it
        is new. Raises UsageError, SearchRefused, NotReady.
        """
        search.check()
        self._ensure_topic()
        keys = self._keys_of(search.id)
        self._write(keys or [orjson.dumps({"id": search.id})], search.to_json())
        return not keys

    def drop(self, id_: str) -> None:
        keys = self._keys_of(id_)
        if not keys:
            raise _missing(id_, self.all(), self.topic)
        self._write(keys, None)

    def _keys_of(self, id_: str) -> list[bytes]:
        """Other producers may write the same JSON in other bytes; a tombstone needs the same."""
        return [key for key, search in self._by_key().items() if search.id == id_]

    def _by_key(self) -> dict[bytes, StoredSearch]:
        latest = read_committed_latest(
            self._bootstrap, self._login, self.topic, patience_s=_PATIENCE_S
        )
        return {
            key: search for key, value in latest.items() if (search := _decoded(value)) is not None
        }

    def _ensure_topic(self) -> None:
        """Created only where it is missing: who may write to it need not be able to create it."""
        cluster = Cluster(self._bootstrap, self._login, patience_s=_PATIENCE_S)
        try:
            exists = cluster.find_partitions(self.topic) is not None
        finally:
            cluster.close()
        if not exists:
            ensure_topics(self._bootstrap, self._login, [NewTopic(self.topic, 1, _CONFIGS)])

    def _write(self, keys: Sequence[bytes], value: bytes | None) -> None:
        for _ in range(_ATTEMPTS):
            with TransactionalProducer(
                self._bootstrap, f"{_TRANSACTIONAL_ID}-{self.topic}", login=self._login
            ) as producer:
                try:
                    producer.fence()
                    batches: dict[tuple[str, int], list[BatchBuilder]] = {}
                    for key in keys:
                        batch = BatchBuilder()
                        batch.append(key, value, (), time.time_ns() // 1_000_000)
                        partition = partition_of(key, producer.partitions(self.topic))
                        batches.setdefault((self.topic, partition), []).append(batch)
                    producer.send(batches)
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
    if not isinstance(fields, Mapping) or not fields.get("id"):
        return None
    if not isinstance(fields.get("query"), str):
        return None
    texts = {
        name: str(fields.get(name) or "")
        for name in ("id", "query", "owner", "language", "target", "created")
    }
    limit = fields.get("limit")
    return StoredSearch(**texts, limit=limit if isinstance(limit, int) else None)


def _missing(id_: str, present: Iterable[str], topic: str) -> RequestRefused:
    meant = nearest(id_, list(present))
    return RequestRefused(
        f"there is no search {id_} in {topic}",
        hint=f"did you mean {meant}?" if meant else "headwater search list shows what there is",
    )
