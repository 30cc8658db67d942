"""When rows happened: what users say of it, and how rows are stamped with it.

Operators take a time from users as `str | EventTime` and begin with `time_of`. The result goes into
Side.stamping, which checks the columns; in a step `settings.watermarks(kept)` tells how far time
has come:

    watermarks = self.time.watermarks(state.document.get("time"))
    own_us, closed_us = watermarks.of_rows(given), watermarks.now_us
    watermarks.advance(given.progress, given.now_us)
    state.document["time"] = watermarks.to_json()
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.contract import FAULT, FUTURE, NO_TIME, SEEN, TIME, Stamper
from headwater.pipelines.operators.device_clocks import DeviceClocks
from headwater.pipelines.operators.durations import Duration, microseconds
from headwater.pipelines.operators.packing import NOW
from headwater.pipelines.operators.watermarks import NEVER_US, BatchTime, Watermarks

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NEVER_US", "EventTime", "Watermarks", "event_time", "processing_time", "time_of"]

AT: Final = "_at"
_TIMES: Final = ("timestamp", "timestamp_ntz")
_DELAY: Final = "10 seconds"
_FUTURE: Final = "1 hour"
_HINTS: Final = {
    "bigint": "of milliseconds: F.timestamp_millis(F.col({column!r}))",
    "string": "F.to_timestamp({column!r})",
    "date": "F.to_timestamp({column!r})",
}


@dataclass(frozen=True)
class EventTime:
    """Stamping (contract.py) by a column. Made by `event_time`."""

    column: str
    delay_us: int
    idle_us: int | None = None
    future_us: int | None = None
    clocks: DeviceClocks | None = None

    def watermarks(self, kept: Mapping[str, Any] | None = None) -> Watermarks:
        """As the batch before has left them: `kept` is what their `to_json` gave, None at first."""
        return Watermarks(self.delay_us, kept, idle_us=self.idle_us)

    def columns(self) -> tuple[str, ...]:
        guard = () if self.future_us is None else (AT,)
        return (*self._times(), *guard)

    def check(self, kind: str, schema: "StructType") -> None:
        """Raises PipelineError unless these columns are there, and are times."""
        for name in self.columns():
            if name not in schema.names:
                raise PipelineError(
                    f"{kind}: there is no column {name}",
                    detail="columns are " + ", ".join(schema.names),
                    hint=f'a guard against times from the future needs it: select "{AT}", too, or'
                    " say hw.event_time(…, future=None)"
                    if name == AT
                    else "",
                )
        for name in self.columns():
            found = schema[name].dataType.simpleString()
            if found not in _TIMES:
                how = _HINTS.get(found, "").format(column=name)
                raise PipelineError(
                    f"{kind}: the column {name} is no timestamp",
                    detail=f"it is {found}",
                    hint=f"make it one: {how}" if how else "",
                )

    def start(self) -> Stamper:
        return _Stamper(self)

    def _times(self) -> tuple[str, ...]:
        clocks = self.clocks
        return (self.column,) if clocks is None else (self.column, clocks.sent, clocks.received)

    def time(self, rows: pa.RecordBatch) -> pa.Array:
        """Microseconds; null where there is none."""
        times = [_microseconds(rows.column(name)) for name in self._times()]
        return times[0] if self.clocks is None else self.clocks.corrected(*times)


@dataclass(frozen=True)
class ProcessingTime(EventTime):
    """All rows of a batch happened when it was planned."""

    def watermarks(self, kept: Mapping[str, Any] | None = None) -> Watermarks:
        return BatchTime(kept)

    def columns(self) -> tuple[str, ...]:
        return ()

    def time(self, rows: pa.RecordBatch) -> pa.Array:
        return _microseconds(rows.column(NOW))


def event_time(
    column: str,
    *,
    delay: Duration = _DELAY,
    idle: Duration | None = None,
    future: Duration | None = _FUTURE,
    sent: str | None = None,
    received: str | None = None,
) -> EventTime:
    """Rows happened when `column` says: a timestamp, or one without a zone, which is taken as UTC.

    `delay`     by how much rows of a partition may be out of order; what comes later is late
    `idle`      a partition without new rows for so long does not hold time back; None: it does
    `future`    a time that is ahead of `_at` by more is wrong: such rows are counted and left out,
                and do not move time; None: any time is right
    `sent`, `received`  columns with the time at which the device sent the row, by its own clock,
                and at which a server got it: `column` is then by the device's clock, too, and is
                set right
    """
    if (sent is None) != (received is None):
        raise PipelineError(
            "sent and received are given together",
            hint="the time is received - (sent - column); one of them alone tells nothing",
        )
    return EventTime(
        column,
        microseconds(delay, "delay"),
        None if idle is None else microseconds(idle, "idle"),
        None if future is None else microseconds(future, "future"),
        None if sent is None or received is None else DeviceClocks(sent, received),
    )


def processing_time() -> EventTime:
    """Rows happened when they were processed: the time of their batch. Nothing is late, and nothing
    can be repeated: whoever reads the same log again gets other windows.
    """
    return ProcessingTime(NOW, 0)


def time_of(time: str | EventTime) -> EventTime:
    """Of what a user gave an operator as a time; a name alone is event time with all defaults."""
    if isinstance(time, EventTime):
        return time
    if isinstance(time, str):
        return event_time(time)
    raise PipelineError(
        f"{time!r} is no time", hint='a column\'s name, or hw.event_time("column", …)'
    )


class _Stamper:
    """Of one task."""

    def __init__(self, settings: EventTime) -> None:
        self._settings = settings
        self._seen: dict[int, int] = {}

    def stamp(self, rows: pa.RecordBatch, origins: pa.Array) -> Mapping[str, pa.Array]:
        time = self._settings.time(rows)
        fault = np.where(time.is_valid().to_numpy(zero_copy_only=False), 0, NO_TIME).astype(np.int8)
        times = time.fill_null(NEVER_US).to_numpy()
        if self._settings.future_us is not None:
            at = _microseconds(rows.column(AT)).fill_null(-NEVER_US).to_numpy()
            is_ahead = times > at + self._settings.future_us
            if is_ahead.any():
                fault[is_ahead] = FUTURE
                times = np.where(is_ahead, NEVER_US, times)
        seen = self._running(times, origins.to_numpy())
        return {
            TIME: time if not fault.any() else pa.array(times, mask=fault != 0),
            SEEN: pa.array(seen, mask=seen == NEVER_US),
            FAULT: pa.array(fault),
        }

    def _running(
        self, times: npt.NDArray[np.int64], codes: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int64]:
        if not len(codes):
            return times
        if codes.min() == codes.max():
            return self._of_partition(int(codes[0]), times)
        seen = np.empty(len(times), np.int64)
        for code in np.unique(codes).tolist():
            which = codes == code
            seen[which] = self._of_partition(code, times[which])
        return seen

    def _of_partition(self, code: int, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        running = np.maximum.accumulate(times)
        np.maximum(running, self._seen.get(code, NEVER_US), out=running)
        self._seen[code] = int(running[-1])
        return running

    def punctuations(self, origin: int) -> tuple[tuple[str, int | None], ...]:
        return ()


def _microseconds(column: pa.Array) -> pa.Array:
    zone = column.type.tz
    return column.cast(pa.timestamp("us", zone), safe=False).view(pa.int64())
