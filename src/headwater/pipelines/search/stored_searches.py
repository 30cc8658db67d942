"""Stored queries in their topic: what `headwater search` and the console read and write, and
`hw.search` follows.

    key                value (JSON)
    {"id": "storms"}   {"id", "owner", "query", "language", "target", "limit", "created"}

A tombstone removes a query. The topic that is created retains all versions of a query, so that a
replay of documents meets the queries as they were.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from headwater.errors import SearchRefused, UsageError
from headwater.pipelines.definitions_topic import DefinitionsTopic
from headwater.pipelines.search.query_parser import parse_query
from headwater.settings import ClientSettings

# The columns of the topic, for flow.table.
SEARCHES: Final = (
    "id string, owner string, query string, language string, target string, `limit` bigint, "
    "created timestamp"
)
DEFAULT_TOPIC: Final = "searches"
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
        if self.limit is not None and self.limit < 1:
            raise UsageError("a limit is at least one match in an hour", detail=str(self.limit))
        self._parse()

    def _parse(self) -> None:
        parse_query(self.query, (_ANY_FIELD,), language=self.language)


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
        is new. Raises UsageError, SearchRefused, NotReady.
        """
        self._definitions.check_id(search.id)
        search.check()
        return self._definitions.put(search.id, search.to_json())

    def drop(self, id_: str) -> None:
        self.one(id_)
        self._definitions.drop(id_)


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
