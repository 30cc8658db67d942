"""Windows over a table: `hw.tumbling` and `hw.hopping` with a `key`.

Two operators follow each other, as in a join of tables; a row of hopping windows is copied first,
once for each of its windows:

    changes ──▶ by the table's key:      what changes in which window   (joins/table_changes.py)
            ──▶ by `by` and the window:  what changes in its result     (table_windows.py)
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headwater.errors import PipelineError
from headwater.pipelines.operators.aggregates.contract import Aggregate
from headwater.pipelines.operators.aggregates.named_aggregates import (
    NamedAggregates,
    Previous,
    check_names,
)
from headwater.pipelines.operators.joins.tables.table_changes import TableChanges
from headwater.pipelines.operators.runtime.contract import TIME
from headwater.pipelines.operators.runtime.grouping import check_keys
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.windows.results import WINDOW_END, WINDOW_START
from headwater.pipelines.operators.windows.table_windows import (
    WINDOW,
    TableWindows,
    ZonedTableWindows,
)
from headwater.pipelines.operators.windows.zoned_windows import DAY_US, Calendar
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import DELETE, OP, TRUNCATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_COPY: Final = "__copy"  # int32: which of the windows of a row it is for
_RESERVED: Final = (WINDOW_START, WINDOW_END, POSITION, OP)


@dataclass(frozen=True)
class WindowedTable:
    """Rows of a table in windows, to be aggregated by `agg`."""

    kind: str  # for names and errors
    frame: "DataFrame"
    time: str
    by: tuple[str, ...]
    key: tuple[str, ...]
    size_us: int
    hop_us: int
    zone: str | None
    name: str | None

    def agg(self, **named: Aggregate | Previous) -> "DataFrame":
        """The columns `by`, `window_start`, `window_end`, one for each aggregate, `_position` and
        `_op`: "c" (the first row of the window), "u" (it has changed), "d" (it has no rows any
        more). Raises PipelineError.
        """
        from pyspark.sql import functions as F  # noqa: N812
        from pyspark.sql.pandas.types import to_arrow_schema

        check_names(self.kind, named, (*self.by, *_RESERVED))
        computed = []
        for name, wanted in named.items():
            if isinstance(wanted, Previous):
                raise PipelineError(
                    f"{self.kind}: {name} is the result of a window before,"
                    " and those of a table change"
                )
            computed.append((name, wanted))
        read = [column for _, aggregate in computed for column in aggregate.columns]
        for column in (*self.by, *self.key, self.time, *read, OP, POSITION):
            self._check_column(column)
        frame = self.frame.withColumn(TIME, F.unix_micros(self.time))
        frame = self._in_windows(frame)
        # A row without a time is in no window; it may have been in one before.
        is_out = F.col(WINDOW).isNull() & (F.col(OP) != TRUNCATE)
        frame = frame.withColumn(OP, F.when(is_out, DELETE).otherwise(F.col(OP)))
        row_key = self.key if self.size_us == self.hop_us else (*self.key, _COPY)
        columns = list(dict.fromkeys([*self.by, *row_key, *read, TIME, WINDOW]))
        schema = to_arrow_schema(frame.select(*columns).schema, timezone="UTC")
        check_keys(self.kind, schema, (*self.by, *self.key))
        aggregates = NamedAggregates(tuple(computed), schema)
        _ = aggregates.bound  # raises now for columns that cannot be aggregated
        operator = TableWindows(aggregates, self.by, self.key, self.size_us)
        if self.zone is not None:
            operator = ZonedTableWindows(
                aggregates, self.by, self.key, self.size_us, self.hop_us, self.zone
            )
        changes = run_operator(
            f"{self.kind}_changes",
            TableChanges("windowed", schema, row_key, operator.group),
            [Side(frame, row_key, (*columns, OP), everywhere=f"{OP} = '{TRUNCATE}'")],
            name=self.name and f"{self.name}-changes",
        )
        side = Side(changes, operator.group, (*columns, OP))
        return run_operator(f"{self.kind}_table", operator, [side], name=self.name)

    def _in_windows(self, frame: "DataFrame") -> "DataFrame":
        """With WINDOW, the number of each row's window (table_windows.py). In hopping windows there
        are copies of a row, one for each of its windows; of a delete and a truncate, too.
        """
        from pyspark.sql import functions as F  # noqa: N812

        time_us = F.col(TIME)
        pane, step = time_us - F.pmod(time_us, F.lit(self.hop_us)), self.hop_us
        if self.zone is not None:
            pane, step = self._zoned_pane(self.zone), 1
        if self.size_us == self.hop_us:
            return frame.withColumn(WINDOW, pane)
        copies = F.sequence(F.lit(0), F.lit(self.size_us // self.hop_us - 1))
        frame = frame.withColumn(_COPY, F.explode(copies))
        return frame.withColumn(WINDOW, pane - F.col(_COPY) * F.lit(step))

    def _zoned_pane(self, zone: str) -> "Column":
        """As `Calendar.pane_at`: a day lasts until the next one begins for the first time, also if
        clocks are then put back to it.
        """
        from pyspark.sql import functions as F  # noqa: N812

        calendar = Calendar(zone, self.hop_us // DAY_US)
        local_us = F.unix_micros(F.from_utc_timestamp(self.time, zone))
        next_us = local_us - F.pmod(local_us, F.lit(DAY_US)) + F.lit(DAY_US)
        begins_us = F.unix_micros(F.to_utc_timestamp(F.timestamp_micros(next_us), zone))
        day = F.when(F.col(TIME) >= begins_us, next_us).otherwise(next_us - F.lit(DAY_US))
        since_us = day - F.lit(calendar.first_day * DAY_US)
        return F.floor(since_us / F.lit(self.hop_us))

    def _check_column(self, column: str) -> None:
        if column not in self.frame.columns:
            raise PipelineError(
                f"{self.kind}: there is no column {column}",
                detail="columns are " + ", ".join(self.frame.columns),
            )
        if column in self.by and column in _RESERVED:
            raise PipelineError(
                f"{self.kind}: results have a column {column} of their own",
                hint=".withColumnRenamed(…)",
            )
        kind = self.frame.schema[column].dataType.simpleString()
        if column == self.time and kind != "timestamp":
            raise PipelineError(
                f"{self.kind}: the column {column} is no timestamp", detail=f"it is {kind}"
            )
