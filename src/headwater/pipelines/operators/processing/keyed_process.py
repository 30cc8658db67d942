"""A Python function with keyed state and timers: the operator of hw.process (process.py).

Rows of a key are given to the function in the order of event time, and its timers among them, once
the watermark has passed them: from then on no row that is in time can come before. So the calls for
a key, and with them state and results, follow from the rows that are in time alone, however they
were cut into batches. Rows with the same time come in the order of their positions, and before a
timer of that time.

State: rows that the watermark has not passed, and of each key its state as JSON and its timer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import (
    OFFSET,
    ORIGIN,
    TIME,
    Input,
    State,
)
from headwater.pipelines.operators.runtime.lineage import Flags, admitted, same_keys
from headwater.pipelines.operators.state.compatibility import check_settings_compatible
from headwater.pipelines.operators.state.fingerprints import NO_SETTING
from headwater.pipelines.operators.state.key_groups import Share
from headwater.pipelines.operators.state.row_hashes import WORDS, distinct, hashes_of
from headwater.pipelines.operators.state.sorted_rows import (
    SortedRows,
    rescale_sorted_rows,
    sorted_order,
)
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness, admit_and_advance, times_of
from headwater.pipelines.operators.time.watermarks import NEVER_US, watermark_of
from headwater.pipelines.operators.windows.results import LEAD
from headwater.pipelines.position import (
    EVENTS,
    POSITION,
    POSITION_TYPE,
    RESULTS,
    result_positions,
    with_metadata,
)
from headwater.sinks.contract import OP

EVENT_TIME: Final = "event_time"
RESERVED: Final = (EVENT_TIME, POSITION, OP)
_TOPIC, _PARTITION, _KEY = "__topic", "__partition", "__key"
_STATE, _TIMER = "__state", "__timer"
_PENDING: Final = "pending"
_KEYS: Final = "keys"
_NEVER_US: Final = 2**62  # of a timer that is not set
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Int64s = npt.NDArray[np.int64]
Row = dict[str, Any]
Call = tuple[int, Any]  # the time of a call, and what the function is given
Results = Any  # what a call has returned: rows, or a table of them


@dataclass(slots=True)
class Context:
    """Of one key: the second argument of the function."""

    key: Row
    state: Row
    timer: datetime | None
    time: datetime


Function = Callable[[Any, Context], Any]


@dataclass(frozen=True)
class KeyedProcess:
    """The operator (contract.py)."""

    key: tuple[str, ...]
    function: Function = field(metadata=NO_SETTING)
    called: str  # the function's name: state is that of the function of this name
    time: EventTime
    lateness: Lateness
    rows: pa.Schema  # of the input
    results: pa.Schema  # what the function returns
    topic: str = field(default="", metadata=NO_SETTING)  # in the positions of results

    @cached_property
    def output(self) -> pa.Schema:
        return pa.schema(
            [
                *(self.rows.field(name) for name in self.key),
                with_metadata(pa.field(EVENT_TIME, _TIMESTAMP), {LEAD: 1}),
                *self.results,
                with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: EVENTS}),
                pa.field(OP, pa.string()),
            ]
        )

    @property
    def floors_us(self) -> Mapping[str, int]:
        return {EVENT_TIME: 0}

    def output_watermark_us(self, document: Mapping[str, Any]) -> int:
        """All rows and timers before it have been processed."""
        return watermark_of(document)

    def with_topic(self, topic: str) -> "KeyedProcess":
        return replace(self, topic=topic)

    def step(self, state: State, inputs: tuple[Input, ...]) -> pa.Table:
        (given,) = inputs
        self._check_compatible(state)
        # A row is in time as long as the watermark has not passed its call.
        call_us = self._call_times(times_of(given))
        admission = admit_and_advance(state, given, self.time, self.lateness, call_us + 1)
        ready = self._ready(state, self._fresh(given, admission.rows), admission.watermark_us)
        return self._called(state, ready, admission.watermark_us)

    @property
    def _settings(self) -> str:
        return f"key {self.key}"

    def _call_times(self, times_us: Int64s) -> Int64s:
        """`context.time` of the calls with rows of these times."""
        return times_us

    def rescale(self, before: Sequence[State], after: State, share: Share) -> None:
        self._check_compatible(after)
        tables = [table for state in before if (table := state.table(_PENDING)) is not None]
        if tables:
            rows = pa.concat_tables(tables)
            rows = rows.filter(pa.array(share.of_rows(rows, self.key)))
            after.put(_PENDING, rows if len(rows) else None)
        after.counters[_KEYS] = rescale_sorted_rows(
            before, after, share, _KEYS, self._keys_schema, self.key, words=WORDS
        )

    def _check_compatible(self, state: State) -> None:
        check_settings_compatible(state, "hw.process", self._settings)

    @cached_property
    def _pending_schema(self) -> pa.Schema:
        columns = [column for column in self.rows if column.name != OP]
        position = [(_TOPIC, pa.string()), (_PARTITION, pa.int32()), (OFFSET, pa.int64())]
        return pa.schema([*columns, (TIME, pa.int64()), *position])

    @cached_property
    def _keys_schema(self) -> pa.Schema:
        keys = [self.rows.field(name) for name in self.key]
        return pa.schema([*keys, (_STATE, pa.string()), (_TIMER, pa.int64())])

    def _fresh(self, given: Input, is_admitted: npt.NDArray[np.bool_]) -> pa.Table:
        rows = given.rows.filter(pa.array(is_admitted))
        origin = rows[ORIGIN].combine_chunks()
        topics = pa.array([topic for topic, _ in given.origins], pa.string())
        partitions = pa.array([partition for _, partition in given.origins], pa.int32())
        columns = {name: rows[name] for name in self.rows.names if name != OP}
        columns[TIME] = rows[TIME]
        columns |= {_TOPIC: topics.take(origin), _PARTITION: partitions.take(origin)}
        columns[OFFSET] = rows[OFFSET]
        return pa.Table.from_arrays(list(columns.values()), schema=self._pending_schema)

    def _ready(self, state: State, fresh: pa.Table, now_us: int) -> pa.Table:
        """Rows that the watermark has passed; the others are stored."""
        stored = state.table(_PENDING)
        rows = fresh if stored is None else pa.concat_tables([stored, fresh])
        is_ready = pa.array(self._call_times(rows[TIME].to_numpy()) < now_us)
        ready = rows.filter(is_ready)
        if len(fresh) or len(ready):
            pending = rows.filter(pc.invert(is_ready)).combine_chunks()
            state.put(_PENDING, pending if len(pending) else None)
        return ready

    def _called(self, state: State, ready: pa.Table, now_us: int) -> pa.Table:
        stored = SortedRows(state, _KEYS, self._keys_schema, self.key, words=WORDS)
        numbers = stored.numbers()
        timers = stored.take(numbers, [_TIMER])[_TIMER].to_numpy()
        due = numbers[timers < now_us]
        row_hashes = hashes_of([ready[name] for name in self.key])
        groups, group = distinct(np.concatenate([row_hashes, stored.hashes(due)]))
        if not len(groups):
            return self.output.empty_table()
        rows = ready.append_column(_KEY, pa.array(group[: len(ready)]))
        order = (_KEY, TIME, _TOPIC, _PARTITION, OFFSET)
        rows = rows.take(pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in order]))
        before = stored.find(groups)
        existing = np.flatnonzero(before >= 0)
        existing = existing[np.argsort(before[existing])]
        were = stored.take(before[existing])
        keys = self._keys(rows, were, existing, len(groups))
        found = self._calls(rows, keys, were, existing, now_us)

        is_stored = np.array([bool(text) for text, _ in found.states], np.bool_)
        texts = pa.array([text or "{}" for text, _ in found.states], pa.string())
        all_timers = pa.array([timer_us for _, timer_us in found.states], pa.int64())
        new = pa.Table.from_arrays([*keys.columns, texts, all_timers], schema=self._keys_schema)
        chosen = np.flatnonzero(is_stored)
        chosen = chosen[sorted_order(groups[chosen])]
        state.counters[_KEYS] = stored.change(
            np.sort(before[existing]), new.take(pa.array(chosen)), groups[chosen]
        )
        return self._table(keys, found)

    def _keys(self, rows: pa.Table, stored: pa.Table, existing: Int64s, groups: int) -> pa.Table:
        """The key's columns of each group: of its first row, or as they are stored."""
        both = pa.concat_tables([rows.select(self.key), stored.select(self.key)])
        at = np.empty(groups, np.int64)
        at[existing] = len(rows) + np.arange(len(existing))
        group = rows[_KEY].to_numpy()
        at[group[::-1]] = np.arange(len(rows))[::-1]
        return both.take(pa.array(at)).combine_chunks()

    def _calls(
        self, rows: pa.Table, keys: pa.Table, stored: pa.Table, existing: Int64s, now_us: int
    ) -> "_Found":
        groups = len(keys)
        ends = np.searchsorted(rows[_KEY].to_numpy(), np.arange(groups), "right").tolist()
        names = [name for name in self.rows.names if name != OP]
        calls_of = self._arguments(self._call_times(rows[TIME].to_numpy()), rows.select(names))
        texts: list[str] = ["{}"] * groups
        timers: list[int] = [_NEVER_US] * groups
        for at, text, timer_us in zip(
            existing.tolist(), stored[_STATE].to_pylist(), stored[_TIMER].to_pylist(), strict=True
        ):
            texts[at], timers[at] = text, timer_us
        found = _Found([], [], [], [])
        start = 0
        for number, (end, key) in enumerate(zip(ends, keys.to_pylist(), strict=True)):
            calls = _Calls(self, key, orjson.loads(texts[number]), timers[number])
            for time_us, results in calls.run(calls_of(start, end), now_us):
                found.keys.extend([number] * len(results))
                found.times.extend([time_us] * len(results))
                found.rows.append(results)
            found.states.append(calls.stored())
            start = end
        return found

    def _arguments(self, times_us: Int64s, rows: pa.Table) -> Callable[[int, int], list[Call]]:
        """The calls with rows from a number to another, of one key, which are in order."""
        times, events = times_us.tolist(), rows.to_pylist()
        return lambda start, end: list(zip(times[start:end], events[start:end], strict=True))

    def checked(self, returned: Any) -> Results:
        """The rows that the function has returned. Raises PipelineError."""
        rows = [returned] if isinstance(returned, dict) else list(returned)
        names = set(self.results.names)
        for row in rows:
            if not isinstance(row, dict) or not row.keys() <= names:
                raise self.misfit(row)
        return rows

    def misfit(self, returned: Any) -> PipelineError:
        return PipelineError(
            f"hw.process: {self.called} has returned what is no row of its output",
            detail=repr(returned)[:500],
            hint="a dict with columns of " + ", ".join(self.results.names),
        )

    def _united(self, results: list[Results]) -> pa.Table:
        return pa.Table.from_pylist(list(chain.from_iterable(results)), schema=self.results)

    def _table(self, keys: pa.Table, found: "_Found") -> pa.Table:
        try:
            results = self._united(found.rows)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
            raise PipelineError(
                f"hw.process: {self.called} has returned a row that does not fit its output",
                detail=str(error),
            ) from error
        time_us = np.array(found.times, np.int64)
        order = pa.array(np.argsort(time_us, kind="stable"))
        times = pa.array(time_us).take(order)
        columns = [
            *keys.take(pa.array(found.keys, pa.int64())).take(order).columns,
            times.cast(_TIMESTAMP),
            *results.take(order).columns,
            result_positions(self.topic, times),
            pa.repeat("c", len(times)),
        ]
        return pa.Table.from_arrays(columns, schema=self.output)

    roles = ("event",)
    is_exact = False  # which of them the function has used is not traced

    def lineage(self, inputs: tuple[Input, ...], rows: pa.Table) -> tuple[Flags, ...]:
        """The events of the key that the function has seen up to the result."""
        (given,) = inputs
        call_us = self._call_times(times_of(given))
        is_admitted = admitted(self.time, self.lateness, given, call_us + 1)
        key, row_key = same_keys(given.rows, rows, self.key)
        last_us = np.full(max(key.max(initial=-1), row_key.max(initial=-1)) + 1, NEVER_US)
        np.maximum.at(last_us, row_key, rows[EVENT_TIME].combine_chunks().cast(pa.int64()))
        return (is_admitted & (call_us <= last_us[key]),)


@dataclass(frozen=True, slots=True)
class _Found:
    """Results of calls, the number of the key and the time of each row of them, and the state of
    each key as it is stored.
    """

    keys: list[int]
    times: list[int]
    rows: list[Results]
    states: list[tuple[str, int]]  # and the timer; "" if there is nothing to store


class _Calls:
    """The calls for one key in a batch."""

    def __init__(self, operator: KeyedProcess, key: Row, state: Row, timer_us: int) -> None:
        self._operator = operator
        self._timer_us = timer_us
        self._context = Context(key, state, None, _EPOCH)

    def run(self, calls: list[Call], now_us: int) -> Iterator[tuple[int, Any]]:
        """Results of calls, with their times."""
        for time_us, argument in calls:
            yield from self._timers(time_us)
            yield from self._call(argument, time_us)
        yield from self._timers(now_us)

    def stored(self) -> tuple[str, int]:
        state = self._context.state
        if not state and self._timer_us == _NEVER_US:
            return "", self._timer_us
        try:
            text = orjson.dumps(state).decode()
            is_same = orjson.loads(text) == state
        except TypeError:
            is_same = False
        if not is_same:
            raise PipelineError(
                f"hw.process: the state of {self._operator.called} is more than JSON can hold",
                detail=f"of {self._context.key}: {state!r}"[:500],
                hint="dicts with texts as keys, lists, texts, finite numbers, booleans and None;"
                " times as .isoformat()",
            )
        return text, self._timer_us

    def _timers(self, before_us: int) -> Iterator[tuple[int, Any]]:
        while self._timer_us < before_us:
            time_us, self._timer_us = self._timer_us, _NEVER_US
            yield from self._call(None, time_us)

    def _call(self, argument: Any, time_us: int) -> Iterator[tuple[int, Any]]:
        context = self._context
        context.time = _EPOCH + time_us * _MICROSECOND
        is_set = self._timer_us != _NEVER_US
        context.timer = _EPOCH + self._timer_us * _MICROSECOND if is_set else None
        returned = self._operator.function(argument, context)
        # A generator sets the timer while it is read.
        results = None if returned is None else self._operator.checked(returned)
        self._timer_us = self._checked_timer()
        if results is not None and len(results):
            yield time_us, results

    def _checked_timer(self) -> int:
        timer = self._context.timer
        if timer is None:
            return _NEVER_US
        if not isinstance(timer, datetime) or timer.tzinfo is None:
            raise PipelineError(
                f"hw.process: {self._operator.called} has set timer={timer!r}",
                hint="context.time + timedelta(…)",
            )
        if timer <= self._context.time:
            raise PipelineError(
                f"hw.process: {self._operator.called} has set a timer that is not later than now",
                detail=f"{timer}, at {self._context.time}",
                hint="context.time + timedelta(…)",
            )
        return (timer - _EPOCH) // _MICROSECOND
