"""Pages of records of a topic, merged from its partitions by time.

Partitions are merged by time, each in the order of its own offsets, so what one screen shows of a
partition is one offset range, and the next screen begins where this one ended. Of a long value
only the beginning is held: a screen costs memory by its rows, not by what is in them.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headwater.client.reading.fetching import EARLIEST, LATEST, Fetcher
from headwater.console.web.access import Access
from headwater.errors import DataLost
from headwater.inspect.decoding.part import Part
from headwater.web.listener import require_listener
from headwater.web.login_access import PATIENCE_S

if TYPE_CHECKING:
    import pyarrow as pa

PREVIEW_BYTES: Final = 4096
WHOLE_BYTES: Final = 1 << 20  # of one record that is shown by itself
MOST_PARTITIONS: Final = 32  # that are shown together
COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")
# Compaction leaves holes; how far one looks behind them for a screen of records.
_WIDEST: Final = 1 << 20
_MOST_HEADERS: Final = 256
_ROWS_AT_ONCE: Final = 4096
_HEADER_NAME_CHARACTERS: Final = 200

Positions = Mapping[int, int]  # offset by partition


class Record(NamedTuple):
    partition: int
    offset: int
    timestamp_ms: int | None
    key: Part
    value: Part
    headers: list[tuple[str, Part]]


class Screen(NamedTuple):
    """Some records, and where those before and behind them are."""

    records: list[Record]
    starts: Positions  # of the log
    ends: Positions
    before: Positions  # the first that is shown of each partition; its end if none is
    behind: Positions  # behind the last one
    is_newest_first: bool

    @property
    def has_older(self) -> bool:
        return any(offset > self.starts[partition] for partition, offset in self.before.items())

    @property
    def has_newer(self) -> bool:
        return any(offset < self.ends[partition] for partition, offset in self.behind.items())


def opened(access: Access) -> Fetcher:
    """For one request, and to be closed. Raises BrokerUnreachable at once if the broker does not
    listen.
    """
    require_listener(access.bootstrap)
    return Fetcher(access.bootstrap, access.login, patience_s=PATIENCE_S)


def bounds(fetcher: Fetcher, topic: str, partitions: Iterable[int]) -> tuple[Positions, Positions]:
    """Where the partitions begin, and where what may be read of them ends."""
    topic_partitions = [(topic, partition) for partition in partitions]
    starts = fetcher.offsets(topic_partitions, EARLIEST)
    ends = fetcher.offsets(topic_partitions, LATEST)
    return (
        {partition: offset for (_, partition), offset in starts.items()},
        {partition: max(offset, starts[topic, partition]) for (_, partition), offset in
         ends.items()},
    )  # fmt: skip


def newest(
    fetcher: Fetcher, topic: str, partitions: Iterable[int], rows: int, before: Positions
) -> Screen:
    """The last `rows` records in front of these positions (the end, where there is none)."""
    starts, ends = bounds(fetcher, topic, partitions)
    tops = {
        partition: min(max(before.get(partition, end), starts[partition]), end)
        for partition, end in ends.items()
    }
    found = {
        partition: _last(fetcher, topic, partition, starts[partition], top, rows)
        for partition, top in tops.items()
    }
    merged = heapq.merge(
        *(reversed(last) for last, _ in found.values()),
        key=lambda record: record.timestamp_ms or 0,
        reverse=True,
    )
    records = list(islice(merged, rows))
    firsts = dict(tops)
    for record in records:
        firsts[record.partition] = record.offset
    for partition, (some, lowest) in found.items():
        if not some:  # nothing but holes
            firsts[partition] = lowest
    return Screen(records, starts, ends, firsts, tops, is_newest_first=True)


def following(
    fetcher: Fetcher, topic: str, partitions: Iterable[int], rows: int, at: Positions
) -> Screen:
    """The first `rows` records from these positions on (the start, where there is none)."""
    starts, ends = bounds(fetcher, topic, partitions)
    froms = {
        partition: min(max(at.get(partition, start), start), ends[partition])
        for partition, start in starts.items()
    }
    found = {
        partition: _first(fetcher, topic, partition, start, ends[partition], rows)
        for partition, start in froms.items()
    }
    merged = heapq.merge(*found.values(), key=lambda record: record.timestamp_ms or 0)
    records = list(islice(merged, rows))
    behind = dict(froms)
    for record in records:
        behind[record.partition] = record.offset + 1
    for partition, some in found.items():
        if not some:
            behind[partition] = ends[partition]
    return Screen(records, starts, ends, froms, behind, is_newest_first=False)


def at_time(fetcher: Fetcher, topic: str, partitions: Iterable[int], time_ms: int) -> Positions:
    found = fetcher.offsets([(topic, partition) for partition in partitions], time_ms)
    return {partition: offset for (_, partition), offset in found.items()}


def one(fetcher: Fetcher, topic: str, partition: int, offset: int) -> Record | None:
    """One record with all of its value up to WHOLE_BYTES."""
    starts, ends = bounds(fetcher, topic, [partition])
    if not starts[partition] <= offset < ends[partition]:
        return None
    found = read_range(fetcher, topic, partition, offset, offset + 1, WHOLE_BYTES)
    return next(found, None)


def _last(
    fetcher: Fetcher, topic: str, partition: int, start: int, end: int, rows: int
) -> tuple[list[Record], int]:
    """The records, and the lowest offset that was looked at."""
    width = rows
    while True:
        first = max(start, end - width)
        # Behind the holes there may be very many.
        found = deque(read_range(fetcher, topic, partition, first, end, PREVIEW_BYTES), rows)
        if len(found) >= rows or first == start or width >= _WIDEST:
            return list(found), first
        width *= 8


def _first(
    fetcher: Fetcher, topic: str, partition: int, start: int, end: int, rows: int
) -> list[Record]:
    found: list[Record] = []
    width = rows
    while start < end and len(found) < rows:
        stop = min(end, start + width)
        more = read_range(fetcher, topic, partition, start, stop, PREVIEW_BYTES)
        found += islice(more, rows - len(found))
        start, width = stop, min(width * 8, _WIDEST)
    return found


def read_range(
    fetcher: Fetcher, topic: str, partition: int, start: int, end: int, most_bytes: int
) -> Iterator[Record]:
    """The records with start <= offset < end; what retention takes meanwhile is left out."""
    while start < end:
        try:
            for record in fetcher.records(topic, partition, start, end):
                yield Record(
                    partition,
                    record.offset,
                    record.timestamp_ms if record.timestamp_ms >= 0 else None,
                    _cut(record.key, most_bytes),
                    _cut(record.value, most_bytes),
                    _headers(record.headers, most_bytes),
                )
                start = record.offset + 1
            return
        except DataLost as lost:
            if lost.first <= start:
                raise
            start = lost.first


def slices(batch: "pa.RecordBatch") -> Iterator["pa.RecordBatch"]:
    """Some rows at a time. As Python objects the rows of one batch may be gigabytes: a few
    kilobytes that a producer compressed are millions of empty records.
    """
    for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
        yield batch.slice(first, _ROWS_AT_ONCE)


def records_of(batch: "pa.RecordBatch", partition: int, most_bytes: int) -> Iterator[Record]:
    """The rows of what was read in bulk."""
    keys, values, offsets, stamps = (batch.column(name) for name in COLUMNS[:4])
    headers = batch.column("headers") if "headers" in batch.schema.names else None
    micros = stamps.cast("int64")
    for row in range(batch.num_rows):
        at_us = micros[row].as_py()
        pairs = headers[row].as_py() if headers is not None else ()
        yield Record(
            partition,
            offsets[row].as_py(),
            None if at_us is None else at_us // 1000,
            _part(keys[row], most_bytes),
            _part(values[row], most_bytes),
            _headers(((pair["name"], pair["value"]) for pair in pairs), most_bytes),
        )


def _part(scalar: Any, most_bytes: int) -> Part:
    buffer = scalar.as_buffer()
    if buffer is None:
        return Part(None, 0)
    return Part(buffer.slice(0, min(most_bytes, buffer.size)).to_pybytes(), buffer.size)


def _headers(pairs: Iterable[tuple[str, bytes | None]], most_bytes: int) -> list[tuple[str, Part]]:
    """All together so much of their values; a record may have thousands."""
    found, left = [], most_bytes
    for name, value in islice(pairs, _MOST_HEADERS):
        part = _cut(value, left)
        left -= len(part.data or b"")
        found.append((name[:_HEADER_NAME_CHARACTERS], part))
    return found


def _cut(data: bytes | None, most_bytes: int) -> Part:
    return Part(None, 0) if data is None else Part(data[:most_bytes], len(data))


def positions_text(positions: Positions) -> str:
    """0:120,1:33, for an address."""
    return ",".join(f"{partition}:{offset}" for partition, offset in sorted(positions.items()))


def parse_positions(text: str) -> dict[int, int]:
    """The reverse; what is no position is left out."""
    found = {}
    for position in text.split(","):
        partition, _, offset = position.partition(":")
        if all(
            part.isascii() and part.isdigit() and len(part) < 19 for part in (partition, offset)
        ):
            found[int(partition)] = int(offset)
    return found


Read = Callable[[Fetcher], Any]


def with_fetcher(access: Access, read: Read) -> Any:
    """`read(fetcher)`, and the fetcher is closed. Blocks."""
    with opened(access) as fetcher:
        return read(fetcher)
