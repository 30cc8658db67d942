"""What a query would have found in the last records of a topic, decided here and without Spark.

Documents are values in JSON, or values with the id of a schema that can be looked up; of changes in
Debezium's envelope the row after the change is the document, as in `flow.changes`.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import RequestRefused
from headwater.pipelines.search import highlights
from headwater.pipelines.search.conditions import Condition
from headwater.pipelines.search.documents import Document, path_of
from headwater.protocol.records import Record
from headwater.settings import ClientSettings

_PATIENCE_S: Final = 20.0
_FRAGMENTS: Final = 3

Decode = Callable[[bytes], bytes]  # a value with the id of a schema to JSON


@dataclass(frozen=True, slots=True)
class RecentMatch:
    partition: int
    offset: int
    at: datetime
    score: float
    highlights: list[str]
    document: Any


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
    decode: Decode,
    marks: tuple[str, str],
) -> RecentSearch:
    """Of the records since then, or of all, the last `most`. Matches are in the order of time.
    Raises BrokerUnreachable, RequestRefused.
    """
    test, paths = condition.test(), [path_of(name) for name in texts]
    result = RecentSearch(0, 0, [])
    with Fetcher(bootstrap, login, patience_s=_PATIENCE_S) as fetcher:
        if not fetcher.exists(topic):
            raise RequestRefused(f"there is no topic {topic}")
        for partition, record in _last_records(fetcher, topic, since_ms, most):
            columns = _columns(record.value, decode)
            if columns is None:
                result.unreadable += record.value is not None
                continue
            result.documents += 1
            document = Document(columns, paths)
            if test(document):
                result.matches.append(
                    RecentMatch(
                        partition,
                        record.offset,
                        datetime.fromtimestamp(record.timestamp_ms / 1000, UTC),
                        highlights.score(document, condition),
                        highlights.fragments(document, condition, marks, _FRAGMENTS),
                        columns,
                    )
                )
    return result


def _last_records(
    fetcher: Fetcher, topic: str, since_ms: int | None, most: int
) -> Iterator[tuple[int, Record]]:
    numbers = [(topic, number) for number in range(fetcher.partitions(topic))]
    starts = fetcher.offsets(numbers, EARLIEST if since_ms is None else since_ms)
    ends = fetcher.offsets(numbers, LATEST)
    latest: list[tuple[int, int, int, Record]] = []
    for place in numbers:
        # No partition has more than `most` of the last ones.
        start = max(starts[place], ends[place] - most)
        for record in fetcher.records(topic, place[1], start, ends[place]):
            entry = record.timestamp_ms, place[1], record.offset, record
            if len(latest) < most:
                heapq.heappush(latest, entry)
            else:
                heapq.heappushpop(latest, entry)
    for _, partition, _, record in sorted(latest, key=lambda entry: entry[:3]):
        yield partition, record


def _columns(value: bytes | memoryview | None, decode: Decode) -> dict[str, Any] | None:
    """The columns of the document, or None if it is none."""
    if value is None:
        return None
    try:
        found = orjson.loads(decode(bytes(value)))
    except (orjson.JSONDecodeError, ValueError):
        return None
    if isinstance(found, dict) and isinstance(found.get("payload"), dict) and "schema" in found:
        found = found["payload"]
    if isinstance(found, dict) and "op" in found and "after" in found:
        found = found["after"]
    return found if isinstance(found, dict) else None
