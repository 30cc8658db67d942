"""Stamping of rows with event time, in the task that reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.pipelines.operators.runtime.contract import (
    FAULT,
    FUTURE,
    NO_TIME,
    PUNCTUATION,
    SEEN,
    TIME,
)
from headwater.pipelines.operators.time.watermarks import NEVER_US
from headwater.pipelines.position import POSITION

if TYPE_CHECKING:
    from headwater.pipelines.operators.time.event_time import EventTime, Producers
    from headwater.pipelines.operators.time.punctuations import Punctuations

AT: Final = "_at"
LEFT_US: Final = 253_370_764_800_000_000  # the year 9999: a producer with this watermark leaves


class TimeStamper:
    """Stamps the rows of one task."""

    def __init__(self, settings: "EventTime") -> None:
        self._settings = settings
        self.lead_us = settings.lead_us
        self.floor_us = settings.floor_us
        self._latest: dict[int, _Latest] = {}  # by partition
        self._punctuations: dict[int, Punctuations] = {}

    def stamp(self, rows: pa.RecordBatch, origins: pa.Array) -> Mapping[str, pa.Array]:
        codes = origins.to_numpy()
        time = self._settings.time(rows)
        times = time.fill_null(NEVER_US).to_numpy()
        fault = np.zeros(len(times), np.int8)
        if time.null_count:
            fault[times == NEVER_US] = NO_TIME
        if self._settings.future_us is not None:
            at = epoch_us(rows.column(AT)).fill_null(-NEVER_US).to_numpy()
            fault[times > at + self._settings.future_us] = FUTURE
        if self._settings.producers is not None:
            self._collect_punctuations(self._settings.producers, rows, codes, times, fault)
        is_faulty = fault != 0
        if is_faulty.any():
            times = np.where(is_faulty, NEVER_US, times)
            time = pa.array(times, mask=is_faulty)
        offsets = pc.struct_field(rows.column(POSITION), "offset").to_numpy(zero_copy_only=False)
        seen = times if self._settings.is_in_order else self._running(times, codes, offsets)
        return {TIME: time, SEEN: pa.array(seen, mask=seen == NEVER_US), FAULT: pa.array(fault)}

    def _collect_punctuations(
        self,
        producers: "Producers",
        rows: pa.RecordBatch,
        codes: npt.NDArray[np.int32],
        times: npt.NDArray[np.int64],
        fault: npt.NDArray[np.int8],
    ) -> None:
        """A row without a time that only carries a watermark is no event."""
        from headwater.pipelines.operators.time.punctuations import LEFT, MARK, ROW, Punctuations

        producer = rows.column(producers.producer).cast(pa.string())
        has_producer = producer.is_valid().to_numpy(zero_copy_only=False)
        marks = epoch_us(rows.column(producers.watermark)).fill_null(NEVER_US).to_numpy()
        kind = np.where(marks == NEVER_US, ROW, np.where(marks < LEFT_US, MARK, LEFT))
        if self._settings.future_us is not None:
            at = epoch_us(rows.column(AT)).fill_null(-NEVER_US).to_numpy()
            fault[(kind == MARK) & (marks > at + self._settings.future_us)] = FUTURE
        fault[(fault == NO_TIME) & (kind != ROW) & has_producer] = PUNCTUATION
        kind[(fault == FUTURE) & (kind == MARK)] = ROW
        value = np.where(kind == ROW, times, marks)
        is_punctuation = has_producer & ((kind != ROW) | (fault == 0))
        offset = pc.struct_field(rows.column(POSITION), "offset")
        punctuations = pa.RecordBatch.from_arrays(
            [offset, producer, pa.array(value), pa.array(kind.astype(np.int8))],
            names=["offset", "producer", "value", "kind"],
        )
        for code in np.unique(codes).tolist():
            of_partition = punctuations.filter(pa.array((codes == code) & is_punctuation))
            self._punctuations.setdefault(code, Punctuations()).add(of_partition)

    def _running(
        self,
        times: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        if not len(codes):
            return times
        if codes.min() == codes.max():
            return self._of_partition(int(codes[0]), times, offsets)
        seen = np.empty(len(times), np.int64)
        for code in np.unique(codes).tolist():
            which = codes == code
            seen[which] = self._of_partition(code, times[which], offsets[which])
        return seen

    def _of_partition(
        self, code: int, times: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Rows of the same offset do not count for each other: a shuffle leaves them in any order.
        Results of windows that end at the same time have the same, as have pairs of a join.
        """
        before = self._latest.get(code, _NO_ROWS)
        running = np.maximum.accumulate(times)
        np.maximum(running, before.seen_us, out=running)
        is_first = np.insert(offsets[1:] != offsets[:-1], 0, offsets[0] != before.offset)
        seen: npt.NDArray[np.int64] = running
        lower_us = int(running[-2]) if len(running) > 1 else before.seen_us
        if not is_first.all():
            at_first = np.append(before.seen_us, running)[np.flatnonzero(is_first)]
            lower = np.append(before.lower_us, at_first)[np.cumsum(is_first)]
            seen, lower_us = np.maximum(lower, times), int(lower[-1])
        self._latest[code] = _Latest(int(offsets[-1]), lower_us, int(running[-1]))
        return seen

    def punctuations(self, origin: int) -> tuple[str, ...]:
        found = self._punctuations.get(origin)
        return () if found is None else (found.to_text(),)


@dataclass(frozen=True, slots=True)
class _Latest:
    """Of one partition, in one task: its last offset, and the latest times up to it."""

    offset: int | None
    lower_us: int  # of lower offsets
    seen_us: int  # of all


_NO_ROWS: Final = _Latest(None, NEVER_US, NEVER_US)


def epoch_us(column: pa.Array) -> pa.Array:
    zone = column.type.tz
    return column.cast(pa.timestamp("us", zone), safe=False).view(pa.int64())
