"""Records of a topic within a time, counted: `(SELECT count(*) FROM payments …) within 5m`.

A topic is read once, from where that time begins, and from then on what is new. Nothing is stored:
after a restart the log is read again. Times are those of the records.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from headwater.alert_settings import Comparison, Condition, parse_select
from headwater.client.reading.fetching import LATEST, Fetcher
from headwater.config import Config
from headwater.errors import DataLost, NotReady
from headwater.gateway.reading.filters import Where, value_at
from headwater.inspect.decoding.forms import decoded
from headwater.protocol.records import Record
from headwater.schema_lookup.lookup import SchemaLookup
from headwater.schema_lookup.sources import schema_source

_PATIENCE_S: Final = 10.0
_READING_S: Final = 1.0  # of one look at a topic: the other alerts wait meanwhile
_STRETCH: Final = 5_000  # offsets, between two looks at the clock
_BUCKETS: Final = 600  # of the time: how exactly records leave the count


class RecordCounts:
    """Of all such conditions. To be used by one thread at a time; to be closed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._fetcher: Fetcher | None = None
        self._lookup: SchemaLookup | None = None
        self._counts: dict[tuple[str, float], _Count] = {}  # by select and time

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
        if self._lookup is not None:
            self._lookup.close()

    def count(self, condition: Condition) -> float:
        """Blocks. Raises NotReady while older records of the time are still to be read."""
        if self._fetcher is None:
            bootstrap, login = self._config.bootstrap(), self._config.client
            self._fetcher = Fetcher(bootstrap, login, patience_s=_PATIENCE_S)
            self._lookup = SchemaLookup(schema_source(self._config.schemas, bootstrap, login))
        key = (condition.argument, condition.within_s)
        if key not in self._counts:
            select = parse_select(condition.argument, is_topic=True)
            avro_schema = self._config.console.avro_schemas.get(select.table)
            self._counts[key] = _Count(
                select.table,
                int(condition.within_s * 1000),
                select.conditions,
                lambda value: decoded(value, avro_schema, self._lookup)[0],
            )
        return float(self._counts[key].look(self._fetcher, time.time_ns() // 1_000_000))


class _Count:
    """Of one condition."""

    def __init__(
        self,
        topic: str,
        within_ms: int,
        comparisons: Sequence[Comparison],
        document_of: Callable[[bytes | None], Any],
    ) -> None:
        self._topic = topic
        self._within_ms = within_ms
        self._tests = [_test(one) for one in comparisons]
        self._document_of = document_of
        self._at: dict[int, int] = {}  # next offsets
        self._width_ms = max(1, within_ms // _BUCKETS)
        self._found: Counter[int] = Counter()  # by the time of the records, in buckets

    def look(self, fetcher: Fetcher, now_ms: int) -> int:
        if not fetcher.exists(self._topic):
            raise NotReady(f"there is no topic {self._topic}")
        places = [(self._topic, number) for number in range(fetcher.partitions(self._topic))]
        ends = fetcher.offsets(places, LATEST)
        if any(ends.get((self._topic, number), 0) < at for number, at in self._at.items()):
            self._at, self._found = {}, Counter()  # the topic was deleted and created again
        new = [place for place in places if place[1] not in self._at]
        begins = fetcher.offsets(new, now_ms - self._within_ms) if new else {}
        self._at.update({number: offset for (_, number), offset in begins.items()})
        until_s = time.monotonic() + _READING_S
        for _, number in places:
            self._read(fetcher, number, ends[self._topic, number], now_ms, until_s)
        left = sum(ends[place] - self._at[place[1]] for place in places)
        if left:
            raise NotReady(f"{left:,} records of {self._topic} are still to be read")
        oldest = (now_ms - self._within_ms) // self._width_ms
        for bucket in [bucket for bucket in self._found if bucket < oldest]:
            del self._found[bucket]
        return self._found.total()

    def _read(
        self, fetcher: Fetcher, partition: int, end: int, now_ms: int, until_s: float
    ) -> None:
        """Some, as long as there is time for it."""
        while self._at[partition] < end and time.monotonic() < until_s:
            start = self._at[partition]
            stop = min(start + _STRETCH, end)
            try:
                for record in fetcher.records(self._topic, partition, start, stop):
                    self._take(record, now_ms)
                    self._at[partition] = record.offset + 1
            except DataLost as lost:  # retention was quicker
                if lost.first <= start:
                    raise
                stop = min(lost.first, end)
            self._at[partition] = stop

    def _take(self, record: Record, now_ms: int) -> None:
        at_ms = now_ms if record.timestamp_ms < 0 else min(record.timestamp_ms, now_ms)
        if at_ms <= now_ms - self._within_ms:
            return
        if self._tests:
            document = self._document_of(record.value)
            if not all(test(document) for test in self._tests):
                return
        self._found[at_ms // self._width_ms] += 1


def _test(comparison: Comparison) -> Callable[[Any], bool]:
    """As SQL has it: what is missing is null, and null equals nothing."""
    path = comparison.column
    exists = Where(path)

    def is_null(document: Any) -> bool:
        return not exists.passes(document) or value_at(document, path) is None

    if comparison.value is None:
        return is_null
    where = Where(path, comparison.operator, _operand(comparison.value, comparison.is_text))
    return lambda document: not is_null(document) and where.passes(document)


def _operand(value: str, is_text: bool) -> str | float | bool:
    if is_text:
        return value
    return {"true": True, "false": False}[value] if value in ("true", "false") else float(value)
