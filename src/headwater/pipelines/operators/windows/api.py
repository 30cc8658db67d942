"""`hw.tumbling` and `hw.hopping`, and the checks that all kinds of windows share."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.contract import Aggregate
from headwater.pipelines.operators.aggregates.named_aggregates import (
    NamedAggregates,
    Previous,
    check_names,
)
from headwater.pipelines.operators.runtime.contract import Operator
from headwater.pipelines.operators.runtime.grouping import check_keys
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.event_time import EventTime, time_of
from headwater.pipelines.operators.time.lateness import DROP, Lateness, lateness_of
from headwater.pipelines.operators.time.result_time import input_time
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.operators.windows.results import RESERVED
from headwater.pipelines.operators.windows.windowed_tables import WindowedTable
from headwater.pipelines.operators.windows.zoned_windows import DAY_US, ZonedWindows
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def tumbling(
    frame: "DataFrame",
    time: str | EventTime,
    size: Duration,
    *,
    by: str | Sequence[str] = (),
    key: str | Sequence[str] = (),
    late: str = DROP,
    allowed_lateness: Duration | None = None,
    early: bool = False,
    tz: str | None = None,
    name: str | None = None,
) -> "Windowed | WindowedTable":
    """Windows of `size`, one after another; each row is in one of them. With a time zone `tz`, such
    as "Europe/Berlin", `size` is in days or weeks, by the calendar there.

    With a `key` the frame is the changes of a table, whose rows it identifies, and results are of
    the table as it is: a row that is updated or deleted is taken out of its window again.
    """
    size_us = microseconds(size, "size", at_least_us=1)
    if key:
        _check_table("tumbling", late, allowed_lateness, early)
        return _table("tumbling", frame, time, size_us, size_us, by, key, tz, name)
    lateness = lateness_of(late, allowed_lateness)
    return _fixed("tumbling", frame, time, size_us, size_us, by, lateness, early, tz, name)


def hopping(
    frame: "DataFrame",
    time: str | EventTime,
    size: Duration,
    hop: Duration,
    *,
    by: str | Sequence[str] = (),
    key: str | Sequence[str] = (),
    late: str = DROP,
    allowed_lateness: Duration | None = None,
    early: bool = False,
    tz: str | None = None,
    name: str | None = None,
) -> "Windowed | WindowedTable":
    """Windows of `size` that begin every `hop`; each row is in size / hop of them. With a time zone
    `tz`, both are in days or weeks, by the calendar there. With a `key` the frame is a table, as
    for `tumbling`.
    """
    size_us = microseconds(size, "size", at_least_us=1)
    hop_us = microseconds(hop, "hop", at_least_us=1)
    if size_us % hop_us:
        raise PipelineError(
            f"hopping: size={size!r} is no multiple of hop={hop!r}",
            hint="every row is to be in the same number of windows",
        )
    if key:
        _check_table("hopping", late, allowed_lateness, early)
        return _table("hopping", frame, time, size_us, hop_us, by, key, tz, name)
    lateness = lateness_of(late, allowed_lateness)
    return _fixed("hopping", frame, time, size_us, hop_us, by, lateness, early, tz, name)


# The operator of the aggregates, and of those that are compared with windows before.
Make = Callable[["Windowed", NamedAggregates, dict[str, Previous]], Operator]


@dataclass(frozen=True)
class Windowed:
    """Rows in windows, to be aggregated by `agg`. A window without rows has no result."""

    kind: str  # for names and errors
    frame: "DataFrame"
    time: EventTime
    by: tuple[str, ...]
    lateness: Lateness
    make: Make
    keep: tuple[str, ...] = ()  # columns of the rows that results have, too
    reserved: tuple[str, ...] = RESERVED  # columns that results have anyway
    name: str | None = None  # identifies its state when its inputs are changed

    def agg(self, **named: Aggregate | Previous) -> "DataFrame":
        """The columns `by`, `window_start`, `window_end`, one for each aggregate, `_position`,
        `_mark` and `_op` (results.py). Raises PipelineError.
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        check_names(self.kind, named, (*self.by, *self.keep, *self.reserved))
        computed = tuple(
            (name, wanted) for name, wanted in named.items() if not isinstance(wanted, Previous)
        )
        compared = {name: wanted for name, wanted in named.items() if isinstance(wanted, Previous)}
        read = {*self.by, *self.keep, OP}
        read |= {column for _, aggregate in computed for column in aggregate.columns}
        self._check_columns(read - {OP})
        columns = tuple(name for name in self.frame.columns if self._is_selected(name, read))
        schema = to_arrow_schema(self.frame.select(*columns).schema, timezone="UTC")
        check_keys(self.kind, schema, self.by)
        aggregates = NamedAggregates(computed, schema)
        _ = aggregates.bound  # raises now for columns that cannot be aggregated
        operator = self.make(self, aggregates, compared)
        side = Side(self.frame, self.by, columns, self.time)
        return run_operator(self.kind, operator, [side], name=self.name)

    def _is_selected(self, name: str, read: set[str]) -> bool:
        """Rows in the side output have all of their columns."""
        return name in read or (self.lateness.mode != DROP and name != POSITION)

    def _check_columns(self, names: set[str]) -> None:
        for name in sorted(names - set(self.frame.columns)):
            raise PipelineError(
                f"{self.kind}: there is no column {name}",
                detail="columns are " + ", ".join(self.frame.columns),
            )


def windowed(
    kind: str,
    frame: "DataFrame",
    time: str | EventTime,
    by: str | Sequence[str],
    lateness: Lateness,
    make: Make,
    *,
    keep: tuple[str, ...] = (),
    reserved: tuple[str, ...] = RESERVED,
    name: str | None = None,
) -> Windowed:
    """Checks the arguments of all kinds of windows. Raises PipelineError."""
    keys = _names(by)
    for column in keys:
        if keys.count(column) > 1:
            raise PipelineError(f"{kind}: by has {column} twice")
    for column in (*keys, *keep):
        if column in reserved:
            raise PipelineError(
                f"{kind}: results have a column {column} of their own", hint=".withColumnRenamed(…)"
            )
    of_rows = input_time(kind, frame, time, lateness.mode)
    return Windowed(kind, frame, of_rows, keys, lateness, make, keep, reserved, name)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _fixed(
    kind: str,
    frame: "DataFrame",
    time: str | EventTime,
    size_us: int,
    hop_us: int,
    by: str | Sequence[str],
    lateness: Lateness,
    early: bool,
    tz: str | None,
    name: str | None,
) -> Windowed:
    if tz is not None:
        _check_zone(kind, tz, hop_us)

    def make(
        windows: Windowed, aggregates: NamedAggregates, compared: dict[str, Previous]
    ) -> Operator:
        previous = tuple(
            (name, wanted.name, _windows_ago(kind, name, wanted, hop_us, aggregates))
            for name, wanted in compared.items()
        )
        panes = size_us // hop_us
        settings = windows.by, windows.time, hop_us, panes, lateness, early, previous
        if tz is None:
            return FixedWindows(aggregates, *settings)
        return ZonedWindows(aggregates, *settings, zone=tz)

    return windowed(kind, frame, time, by, lateness, make, name=name)


def _check_table(kind: str, late: str, allowed_lateness: Duration | None, early: bool) -> None:
    if (late, allowed_lateness, early) != (DROP, None, False):
        raise PipelineError(
            f"{kind}: late, allowed_lateness and early are not for tables (key=…)",
            hint="a window over a table changes with its rows, whenever they come",
        )


def _table(
    kind: str,
    frame: "DataFrame",
    time: str | EventTime,
    size_us: int,
    hop_us: int,
    by: str | Sequence[str],
    key: str | Sequence[str],
    tz: str | None,
    name: str | None,
) -> WindowedTable:
    if tz is not None:
        _check_zone(kind, tz, hop_us)
    column = time if isinstance(time, str) else time_of(time).column
    return WindowedTable(kind, frame, column, _names(by), _names(key), size_us, hop_us, tz, name)


def _check_zone(kind: str, tz: str, hop_us: int) -> None:
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise PipelineError(
            f"{kind}: there is no time zone {tz!r}",
            hint='a name such as "Europe/Berlin"; where the system has none, pip install tzdata',
        ) from error
    if hop_us % DAY_US:
        raise PipelineError(
            f"{kind}: windows with tz={tz!r} are of days or weeks",
            hint="leave tz out: shorter ones are the same everywhere",
        )


def _windows_ago(
    kind: str, name: str, previous: Previous, hop_us: int, aggregates: NamedAggregates
) -> int:
    names = [aggregate for aggregate, _ in aggregates.aggregates]
    if previous.name not in names:
        raise PipelineError(
            f"{kind}: {name} is the previous {previous.name}, which is no aggregate here",
            detail="aggregates are " + ", ".join(names),
        )
    if previous.ago is None:
        return 1
    ago_us = microseconds(previous.ago, "ago", at_least_us=1)
    if ago_us % hop_us:
        raise PipelineError(
            f"{kind}: no window began {previous.ago!r} before another",
            hint=f"windows begin every {hop_us / 1e6:g} seconds",
        )
    return ago_us // hop_us
