"""The last records of a topic as objects, here and without Spark: for tests of stored definitions.

Objects are values in JSON, or values with the id of a schema that can be looked up; of changes in
Debezium's envelope the row after the change is the object, as in `flow.changes`.
"""

import contextlib
import heapq
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import orjson

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.errors import HeadwaterError, RequestRefused
from headwater.protocol.records import Record
from headwater.schema_lookup.lookup import SchemaLookup, looks_framed
from headwater.schema_lookup.sources import schema_source
from headwater.schemas.settings import SchemasSettings
from headwater.settings import ClientSettings

_PATIENCE_S: Final = 20.0

_Decode = Callable[[bytes], bytes]  # a value with the id of a schema to JSON


class RecentRecord(NamedTuple):
    partition: int
    record: Record
    columns: dict[str, Any] | None  # None: it is no object

    @property
    def is_unreadable(self) -> bool:
        """Neither an object nor a tombstone."""
        return self.columns is None and self.record.value is not None


def recent_records(
    bootstrap: str,
    login: ClientSettings,
    topic: str,
    *,
    since_ms: int | None,
    most: int,
    most_bytes: int | None = None,
    schemas: SchemasSettings,
) -> Iterator[RecentRecord]:
    """Of the records since then, or of all, the last `most`, with so many bytes together, in the
    order of time. Raises BrokerUnreachable, RequestRefused.
    """
    with (
        _decoding(schemas, bootstrap, login) as decode,
        Fetcher(bootstrap, login, patience_s=_PATIENCE_S) as fetcher,
    ):
        if not fetcher.exists(topic):
            raise RequestRefused(f"there is no topic {topic}")
        for partition, record in _last_records(fetcher, topic, since_ms, most, most_bytes):
            yield RecentRecord(partition, record, _columns(record.value, decode))


@contextlib.contextmanager
def _decoding(schemas: SchemasSettings, bootstrap: str, login: ClientSettings) -> Iterator[_Decode]:
    """Values with the id of a schema are looked up when the first one comes."""
    lookup: list[SchemaLookup] = []

    def decode(value: bytes) -> bytes:
        if not looks_framed(value):
            return value
        if not lookup:
            lookup.append(SchemaLookup(schema_source(schemas, bootstrap, login)))
        try:
            return lookup[0].decode(value).json()
        except HeadwaterError as error:
            raise ValueError(str(error)) from error

    try:
        yield decode
    finally:
        for opened in lookup:
            opened.close()


def _last_records(
    fetcher: Fetcher, topic: str, since_ms: int | None, most: int, most_bytes: int | None
) -> Iterator[tuple[int, Record]]:
    numbers = [(topic, number) for number in range(fetcher.partitions(topic))]
    starts = fetcher.offsets(numbers, EARLIEST if since_ms is None else since_ms)
    ends = fetcher.offsets(numbers, LATEST)
    latest: list[tuple[int, int, int, Record]] = []
    size_bytes = 0
    for place in numbers:
        # No partition has more than `most` of the last ones.
        start = max(starts[place], ends[place] - most)
        for record in fetcher.records(topic, place[1], start, ends[place]):
            heapq.heappush(latest, (record.timestamp_ms, place[1], record.offset, record))
            size_bytes += _size_bytes(record)
            while len(latest) > most or (most_bytes is not None and size_bytes > most_bytes):
                size_bytes -= _size_bytes(heapq.heappop(latest)[3])
    for _, partition, _, record in sorted(latest, key=lambda entry: entry[:3]):
        yield partition, record


def _size_bytes(record: Record) -> int:
    return 0 if record.value is None else len(record.value)


def _columns(value: bytes | memoryview | None, decode: _Decode) -> dict[str, Any] | None:
    """The columns of the object, or None if it is none."""
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
