"""Stored queries in their topic: what `headwater search` reads and writes, and `hw.search` follows.

    key                value (JSON)
    {"id": "storms"}   {"id", "owner", "query", "language", "target", "limit", "created"}

A tombstone removes a query. The topic that is created retains all versions of a query, so that a
replay of documents meets the queries as they were.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from headwater.errors import UsageError
from headwater.pipelines.definitions_topic import DefinitionsTopic
from headwater.settings import ClientSettings

# The columns of the topic, for flow.table.
SEARCHES: Final = (
    "id string, owner string, query string, language string, target string, `limit` bigint, "
    "created timestamp"
)
DEFAULT_TOPIC: Final = "searches"


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
        self.topic = topic
        self._definitions = DefinitionsTopic(bootstrap, login, topic, "search")

    def all(self) -> dict[str, StoredSearch]:
        """By id, sorted. Records that are no queries are left out."""
        values = self._definitions.values()
        found = [search for value in values if (search := _decoded(value)) is not None]
        return {search.id: search for search in sorted(found, key=lambda one: one.id)}

    def one(self, id_: str) -> StoredSearch:
        return self._definitions.existing(id_, self.all())

    def put(self, search: StoredSearch) -> bool:
        """Stores it; it is decided for documents that are written from now on. Returns whether it
        is new. Raises UsageError, NotReady.
        """
        self._definitions.check_id(search.id)
        if search.limit is not None and search.limit < 1:
            raise UsageError("a limit is at least one match in an hour", detail=str(search.limit))
        self._definitions.create()
        is_new = search.id not in self.all()
        self._definitions.write(search.id, search.to_json())
        return is_new

    def drop(self, id_: str) -> None:
        self.one(id_)
        self._definitions.write(id_, None)


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
