"""What a query would have found in the last records of a topic, decided here and without Spark."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from headwater.pipelines.recent_records import recent_records
from headwater.pipelines.search import highlights
from headwater.pipelines.search.conditions import Condition
from headwater.pipelines.search.documents import Document, path_of
from headwater.schemas.settings import SchemasSettings
from headwater.settings import ClientSettings

_FRAGMENTS: Final = 3


@dataclass(frozen=True, slots=True)
class RecentMatch:
    partition: int
    offset: int
    at: datetime
    score: float
    highlights: list[str]
    document: Any

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.offset,
            "at": self.at.isoformat(),
            "score": self.score,
            "highlights": self.highlights,
            "document": self.document,
        }


@dataclass(slots=True)
class RecentSearch:
    """The result of one test."""

    documents: int
    unreadable: int  # records that are no JSON objects
    matches: list[RecentMatch]


def search_recent(
    bootstrap: str,
    login: ClientSettings,
    topic: str,
    condition: Condition,
    texts: Sequence[str],
    *,
    since_ms: int | None,
    most: int,
    most_bytes: int | None = None,
    schemas: SchemasSettings,
    marks: tuple[str, str],
) -> RecentSearch:
    """Of the records since then, or of all, the last `most`, with so many bytes together. Matches
    are in the order of time. Raises BrokerUnreachable, RequestRefused.
    """
    test, paths = condition.test(), [path_of(name) for name in texts]
    result = RecentSearch(0, 0, [])
    for found in recent_records(
        bootstrap,
        login,
        topic,
        since_ms=since_ms,
        most=most,
        most_bytes=most_bytes,
        schemas=schemas,
    ):
        result.unreadable += found.is_unreadable
        if found.columns is None:
            continue
        result.documents += 1
        document = Document(found.columns, paths)
        if test(document):
            result.matches.append(
                RecentMatch(
                    found.partition,
                    found.record.offset,
                    datetime.fromtimestamp(found.record.timestamp_ms / 1000, UTC),
                    highlights.score(document, condition),
                    highlights.fragments(document, condition, marks, _FRAGMENTS),
                    found.columns,
                )
            )
    return result
