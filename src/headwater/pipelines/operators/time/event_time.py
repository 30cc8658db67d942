"""Event time as users configure it: the column, delay, idleness, future guard, device clocks.

Operators take a time from users as `str | EventTime` and begin with `input_time` (result_time.py).
The result goes into Side.stamping, which checks the columns; in a step
`settings.watermarks(stored)` gives the watermarks:

    watermarks = self.time.watermarks(state.document.get("time"))
    own_us, closed_us = watermarks.of_rows(given), watermarks.now_us
    watermarks.advance(given.progress, given.now_us)
    state.document["time"] = watermarks.to_json()
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import Stamper
from headwater.pipelines.operators.runtime.naming import depends_on_when
from headwater.pipelines.operators.runtime.packing import NOW
from headwater.pipelines.operators.time.device_clocks import DeviceClocks
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.stamping import AT, TimeStamper, epoch_us
from headwater.pipelines.operators.time.watermarks import NEVER_US, BatchTime, Watermarks

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["NEVER_US", "EventTime", "Watermarks", "event_time", "processing_time", "time_of"]

_TIMES: Final = ("timestamp", "timestamp_ntz")
_NAMES: Final = ("string", "bigint", "int", "smallint", "tinyint")
_WHY_AT: Final = (
    f'the guard against times from the future needs it: select "{AT}", too, or say'
    " hw.event_time(…, future=None)"
)
_DELAY: Final = "10 seconds"
_FUTURE: Final = "1 hour"
_HINTS: Final = {
    "bigint": "of milliseconds: F.timestamp_millis(F.col({column!r}))",
    "string": "F.to_timestamp({column!r})",
    "date": "F.to_timestamp({column!r})",
}


@dataclass(frozen=True)
class Producers:
    """The columns by which producers send watermarks inside the stream."""

    producer: str
    watermark: str


@dataclass(frozen=True)
class EventTime:
    """Stamping (contract.py) by a column. Made by `event_time`."""

    column: str
    delay_us: int
    idle_us: int | None = None
    future_us: int | None = None
    clocks: DeviceClocks | None = None
    producers: Producers | None = None

    @property
    def lead_us(self) -> int | None:
        """Of results of windows (contract.Stamper)."""
        return None

    @property
    def floor_us(self) -> int | None:
        """Of results of an operator with an output watermark (contract.Stamper)."""
        return None

    @property
    def is_in_order(self) -> bool:
        """Whether rows come in the order of their time, batch by batch: none makes another late."""
        return False

    def watermarks(self, stored: Mapping[str, Any] | None = None) -> Watermarks:
        """Those after the batch before: `stored` is what their `to_json` gave, None at first."""
        if self.producers is not None:
            from headwater.pipelines.operators.time.producer_watermarks import ProducerWatermarks

            return ProducerWatermarks(self.delay_us, stored, idle_us=self.idle_us)
        return Watermarks(self.delay_us, stored, idle_us=self.idle_us)

    def columns(self) -> tuple[str, ...]:
        producer = () if self.producers is None else (self.producers.producer,)
        return (*self._timestamps(), *producer)

    def check(self, kind: str, schema: "StructType") -> None:
        """Raises PipelineError unless these columns are there, and are times."""
        for name in self.columns():
            if name not in schema.names:
                raise PipelineError(
                    f"{kind}: there is no column {name}",
                    detail="columns are " + ", ".join(schema.names),
                    hint=_WHY_AT if name == AT else "",
                )
        for name in self._timestamps():
            found = schema[name].dataType.simpleString()
            if found not in _TIMES:
                how = _HINTS.get(found, "").format(column=name)
                raise PipelineError(
                    f"{kind}: the column {name} is no timestamp",
                    detail=f"it is {found}",
                    hint=f"make it one: {how}" if how else "",
                )
        if self.producers is not None:
            name = self.producers.producer
            found = schema[name].dataType.simpleString()
            if found not in _NAMES:
                raise PipelineError(
                    f"{kind}: the column {name} is no producer's name",
                    detail=f"it is {found}",
                    hint="a string, or a whole number",
                )

    def start(self) -> Stamper:
        return TimeStamper(self)

    def _timestamps(self) -> tuple[str, ...]:
        guard = () if self.future_us is None else (AT,)
        marks = () if self.producers is None else (self.producers.watermark,)
        return (*self._times(), *marks, *guard)

    def _times(self) -> tuple[str, ...]:
        clocks = self.clocks
        return (self.column,) if clocks is None else (self.column, clocks.sent, clocks.received)

    def time(self, rows: pa.RecordBatch) -> pa.Array:
        """Microseconds; null where there is none."""
        times = [epoch_us(rows.column(name)) for name in self._times()]
        return times[0] if self.clocks is None else self.clocks.corrected(*times)


@dataclass(frozen=True)
class ProcessingTime(EventTime):
    """Processing time: all rows of a batch happened when it was planned."""

    def watermarks(self, stored: Mapping[str, Any] | None = None) -> Watermarks:
        return BatchTime(stored)

    def check(self, kind: str, schema: "StructType") -> None:
        depends_on_when("hw.processing_time")

    def _timestamps(self) -> tuple[str, ...]:
        return ()

    def time(self, rows: pa.RecordBatch) -> pa.Array:
        return epoch_us(rows.column(NOW))


def time_floors(time: EventTime, floor_us: int = 0) -> dict[str, int]:
    """The column of rows that are not before the operator's watermark (position.FLOOR), if the time
    is what the column says.
    """
    is_column = time.clocks is None and not isinstance(time, ProcessingTime)
    return {time.column: floor_us} if is_column else {}


def event_time(
    column: str,
    *,
    delay: Duration = _DELAY,
    idle: Duration | None = None,
    future: Duration | None = _FUTURE,
    sent: str | None = None,
    received: str | None = None,
    producer: str | None = None,
    watermark: str | None = None,
) -> EventTime:
    """Rows happened when `column` says: a timestamp, or one without a zone, which is taken as UTC.

    `delay`     by how much rows of a partition may be out of order; what comes later is late
    `idle`      a partition without new rows for so long does not hold the watermark back; None: it
                does
    `future`    a time that is ahead of `_at` by more is wrong: such rows are counted and left out,
                and do not move the watermark; None: any time is right
    `sent`, `received`  columns with the time at which the device sent the row, by its own clock,
                and at which a server got it: `column` is then by the device's clock, too, and is
                corrected
    `producer`, `watermark`  columns by which producers send their own watermarks (punctuations):
                `watermark`, where it is not null, says that the producer has sent everything before
                that time; in the year 9999, that it leaves. The watermark is then the least of the
                producers that are present, and `idle` is for them. `delay` is for rows before a
                producer's first watermark.
    """
    if (sent is None) != (received is None):
        raise PipelineError(
            "sent and received are given together",
            hint="the time is received - (sent - column); one of them alone is not enough",
        )
    if (producer is None) != (watermark is None):
        raise PipelineError(
            "producer and watermark are given together",
            hint="one is the column with the producer's name, the other with its watermark",
        )
    return EventTime(
        column,
        microseconds(delay, "delay"),
        None if idle is None else microseconds(idle, "idle"),
        None if future is None else microseconds(future, "future"),
        None if sent is None or received is None else DeviceClocks(sent, received),
        None if producer is None or watermark is None else Producers(producer, watermark),
    )


def processing_time() -> EventTime:
    """Rows happened when they were processed: the time of their batch. Nothing is late, and nothing
    can be repeated: reading the same log again gives other windows.
    """
    return ProcessingTime(NOW, 0)


def time_of(time: str | EventTime) -> EventTime:
    """The event time of an operator's argument; a name alone is event time with all defaults."""
    if isinstance(time, EventTime):
        return time
    if isinstance(time, str):
        return event_time(time)
    raise PipelineError(
        f"{time!r} is no time", hint='a column\'s name, or hw.event_time("column", …)'
    )
