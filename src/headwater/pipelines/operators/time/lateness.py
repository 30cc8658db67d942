"""Lateness: which rows an operator admits, and counters and side output of those it rejects."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import (
    FAULT,
    FUTURE,
    NO_TIME,
    ORIGIN,
    TIME,
    WATERMARK,
    Input,
    State,
)
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.sinks.contract import OP

DROP: Final = "drop"  # counted
SIDE: Final = "side"  # counted, and sent to <pipeline>.late
CORRECT: Final = "correct"  # admitted: emitted results are retracted, and emitted again
MODES: Final = (DROP, SIDE, CORRECT)
LATE: Final = "late"  # the name of the side output, and of a counter
EVENTS: Final = "events"  # a counter: all events, admitted or not
CAUSES: Final = ("without_time", "future", LATE)  # counters of rejected ones, by cause
CAUSE: Final = "__cause"
TOPIC: Final = "__topic"
PARTITION: Final = "__partition"
OF_SIDE: Final = "__side"  # of an operator with two inputs: "left" or "right"
RIGHT: Final = "right"
_DEFAULT_LATENESS: Final = "1 day"
_EVENTS: Final = ("c", "r")  # a row that is changed or deleted later is no second event


@dataclass(frozen=True)
class Lateness:
    mode: str
    allowed_us: int  # 0 unless corrected

    @property
    def is_corrected(self) -> bool:
        return self.mode == CORRECT


def lateness_of(late: str, allowed_lateness: Duration | None) -> Lateness:
    if late not in MODES:
        raise PipelineError(f"late={late!r}", hint="it is " + ", ".join(MODES))
    if late != CORRECT:
        if allowed_lateness is not None:
            raise PipelineError(
                f'allowed_lateness={allowed_lateness!r} is for late="correct"',
                hint="how far rows may be out of order is the delay of hw.event_time",
            )
        return Lateness(late, 0)
    allowed = _DEFAULT_LATENESS if allowed_lateness is None else allowed_lateness
    return Lateness(late, microseconds(allowed, "allowed_lateness"))


def admit(
    state: State,
    given: Input,
    lateness: Lateness,
    *,
    own_us: npt.NDArray[np.int64],
    due_us: npt.NDArray[np.int64],
    closed_us: int,
) -> npt.NDArray[np.bool_]:
    """Which rows are admitted; the others are counted, and go to the side output if configured.

    `own_us`: the watermark of the row's partition at its offset (Watermarks.of_rows). `due_us`:
    when the last result that the row belongs to is final. `closed_us`: the watermark before the
    batch (Watermarks.now_us): ahead of a row's own only where the partition was idle.
    """
    rows = given.rows
    fault = rows[FAULT].combine_chunks().to_numpy()
    is_event = np.ones(len(rows), np.bool_)
    if OP in rows.column_names:
        op = rows[OP].combine_chunks().fill_null(_EVENTS[0])
        is_event = pc.is_in(op, pa.array(_EVENTS)).to_numpy(zero_copy_only=False)
        _count(state, "not_events", int((~is_event).sum()))
    is_late = due_us + lateness.allowed_us <= np.maximum(own_us, closed_us)
    causes = {
        "without_time": is_event & (fault == NO_TIME),
        "future": is_event & (fault == FUTURE),
        LATE: is_event & (fault == 0) & is_late,
    }
    _count(state, EVENTS, int(is_event.sum()))
    for cause, which in causes.items():
        _count(state, cause, int(which.sum()))
    if lateness.mode != DROP:  # also what is too late for a correction
        _to_side_output(state, given, causes)
    admitted: npt.NDArray[np.bool_] = is_event & (fault == 0) & ~is_late
    return admitted


@dataclass(frozen=True, slots=True)
class Admission:
    """Which rows of a batch are admitted, and the watermark before and after it."""

    rows: npt.NDArray[np.bool_]
    before_us: int
    watermark_us: int


def admit_and_advance(
    state: State,
    given: Input,
    time: EventTime,
    lateness: Lateness,
    due_us: npt.NDArray[np.int64],
) -> Admission:
    """Of an operator with one input: `admit`, and the watermark after the batch in its state."""
    watermarks = time.watermarks(state.document.get("time"))
    own_us, before_us = watermarks.of_rows(given), watermarks.now_us
    rows = admit(state, given, lateness, own_us=own_us, due_us=due_us, closed_us=before_us)
    watermarks.advance(given.progress, given.now_us)
    state.document |= {"time": watermarks.to_json(), WATERMARK: watermarks.now_us}
    return Admission(rows, before_us, watermarks.now_us)


def times_of(given: Input) -> npt.NDArray[np.int64]:
    """0 where a row has none; such rows are not admitted."""
    times_us: npt.NDArray[np.int64] = given.rows[TIME].combine_chunks().fill_null(0).to_numpy()
    return times_us


def _count(state: State, name: str, count: int) -> None:
    state.counters[name] = state.counters.get(name, 0) + count


def _to_side_output(state: State, given: Input, causes: dict[str, npt.NDArray[np.bool_]]) -> None:
    parts = []
    for cause, which in causes.items():
        if not which.any():
            continue
        rows = given.rows.filter(pa.array(which))
        origins = [given.origins[code] for code in rows[ORIGIN].to_pylist()]
        added = {
            CAUSE: pa.array([cause] * len(rows), pa.string()),
            TOPIC: pa.array([topic for topic, _ in origins], pa.string()),
            PARTITION: pa.array([partition for _, partition in origins], pa.int32()),
        }
        for name, column in added.items():
            rows = rows.append_column(name, column)
        parts.append(rows)
    if parts:
        state.side(LATE, pa.concat_tables(parts))
