"""Event time: when rows happened, and how far time has come.

Every partition has a watermark of its own: the latest time that was seen in it, less the `delay`
by which rows may be out of order. A row is late for what ended before the watermark of its own
partition at its own place in the log. So whether it is late is a fact of the log: it does not
depend on how the log was cut into batches, nor on other partitions. Time itself, by which windows
close, has come as far as the least of all partitions; no row that is in time can find its window
closed, because that watermark is never ahead of the row's own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.contract import (
    FAULT,
    NO_TIME,
    ORIGIN,
    SEEN,
    TIME,
    Input,
    Progress,
)

NEVER_US = -(2**62)  # a watermark before the first row


@dataclass(frozen=True)
class EventTime:
    """Stamping (contract.py) by a column."""

    column: str
    delay_us: int

    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def start(self) -> "_Stamper":
        return _Stamper(self)


class _Stamper:
    def __init__(self, settings: EventTime) -> None:
        self._settings = settings
        self._seen: dict[int, int] = {}

    def stamp(self, rows: pa.RecordBatch, origins: pa.Array) -> Mapping[str, pa.Array]:
        time = rows.column(self._settings.column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        is_null = time.is_null()
        times = time.fill_null(NEVER_US).to_numpy()
        seen = np.empty(len(times), np.int64)
        codes = origins.to_numpy()
        for code in np.unique(codes).tolist():
            of_partition = codes == code
            running = np.maximum.accumulate(
                np.maximum(times[of_partition], self._seen.get(code, NEVER_US))
            )
            seen[of_partition] = running
            self._seen[code] = int(running[-1])
        return {
            TIME: time,
            SEEN: pa.array(seen, mask=seen == NEVER_US),
            FAULT: pc.if_else(is_null, pa.scalar(NO_TIME, pa.int8()), pa.scalar(0, pa.int8())),
        }

    def punctuations(self, origin: int) -> tuple[tuple[str, int | None], ...]:
        return ()


class Watermarks:
    """How far time has come in one input, as one bucket knows it; all buckets know the same.

    In a batch: `of_rows` first, for what the rows find, then `advance`, then `now_us`.
    """

    def __init__(self, delay_us: int, kept: Mapping[str, Any] | None = None) -> None:
        self._delay_us = delay_us
        kept = kept or {}
        self._seen: dict[tuple[str, int], int] = {
            (topic, partition): seen for topic, partition, seen in kept.get("partitions", ())
        }
        self._now_us: int = kept.get("now", NEVER_US)

    def to_json(self) -> dict[str, Any]:
        return {
            "partitions": [[*place, seen] for place, seen in sorted(self._seen.items())],
            "now": self._now_us,
        }

    def of_rows(self, given: Input) -> npt.NDArray[np.int64]:
        """The watermark of its own partition at each row's place, the row itself included."""
        before = np.array([self._seen.get(each, NEVER_US) for each in given.origins], np.int64)
        seen = given.rows[SEEN].combine_chunks().fill_null(NEVER_US).to_numpy()
        if not len(seen):
            return np.empty(0, np.int64)
        own: npt.NDArray[np.int64] = before[given.rows[ORIGIN].combine_chunks().to_numpy()]
        watermarks: npt.NDArray[np.int64] = np.maximum(seen, own) - self._delay_us
        return watermarks

    def advance(self, progress: Iterable[Progress], now_us: int) -> None:
        for each in progress:
            place = each.topic, each.partition
            if each.seen_us is not None:
                self._seen[place] = max(self._seen.get(place, NEVER_US), each.seen_us)
            else:
                self._seen.setdefault(place, NEVER_US)
        if self._seen:
            self._now_us = max(self._now_us, min(self._seen.values()) - self._delay_us)

    @property
    def now_us(self) -> int:
        """The least of all partitions, less the delay. It never goes back."""
        return self._now_us
