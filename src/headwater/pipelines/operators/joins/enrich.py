"""`hw.enrich`: events joined with the row of a table as it was at their time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT, TopicRead, has_results
from headwater.pipelines.operators.joins.as_of_join import AsOfJoin
from headwater.pipelines.operators.joins.join_columns import On, pairs_of
from headwater.pipelines.operators.joins.tables.table_reads import TableRead, table_read
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.result_time import input_time
from headwater.pipelines.operators.time.stamping import epoch_us
from headwater.pipelines.plans import passes_watermarks
from headwater.pipelines.position import FLOOR, POSITION
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE
from headwater.sinks.contract import OP, TRUNCATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_KIND: Final = "enrich"
_OURS: Final = (OP, AT, POSITION)
TABLE_EVERYWHERE: Final = f"{OP} in ('{TRUNCATE}', '{READ_TO_END}', '{READ_TO_HERE}')"
_IDLE_US: Final = 600_000_000  # of a partition of events, after which it retains no versions
_KEEP_VERSIONS: Final = "7 days"

Columns = Sequence[str] | Mapping[str, str] | None


def enrich(
    events: "DataFrame",
    table: "DataFrame",
    on: On,
    *,
    how: str = "left",
    as_of: str | EventTime | None = None,
    valid_from: str | None = None,
    keep_versions: Duration | None = None,
    columns: Columns = None,
    key: Sequence[str] | str = (),
    name: str | None = None,
) -> "DataFrame":
    """The events, each with the columns of the row of `table` that has its key, as it was when the
    event came into the log, or at the event's own time (`as_of`). An event is not revised when the
    row changes later.

    `table`     what `flow.table` gave, or `flow.changes` with a `key`; columns may be selected,
                computed and renamed, and rows filtered, if its key is left
    `on`        the event's columns that are the key of the table: "customer_id", or pairs
                [("customer_id", "id")]
    `how`       left: an event without a row has nulls; inner: it is left out, and counted
    `as_of`     a column with a time, or `hw.event_time(…)`: the row as it was then. The topic must
                not be compacted
    `valid_from`    with `as_of`, the column of the table that says from when on a row is valid;
                else it is from its change on (`_at`)
    `keep_versions`  with `as_of`, how far the time of an event may be behind the watermark of its
                partition (7 days); an older one finds no row, and is counted
    `columns`   of the table that are wanted, or {"name": "customer_name"}; all but its key
    `name`      identifies its state when its inputs are changed
    """
    found = table_in_log(_KIND, table)
    read = found.topic
    table_key = key_of_table(_KIND, found, key)
    changes = found.applied(changes_of_table(_KIND, read, is_stream=events.isStreaming))
    pairs = _pairs(on, changes.columns, table_key, read.topic)
    _check_keys(events.schema, changes.schema, pairs)
    wanted = _wanted(columns, events.columns, changes.columns, table_key, read.topic)
    times = _times(events, as_of, valid_from, keep_versions)
    if as_of is not None:
        _refuse_compacted(read)
    if how not in ("left", "inner"):
        raise PipelineError(
            f"how={how!r}", hint="it is left or inner; the table's rows are no events"
        )
    fields = arrow_schema(changes)
    names = tuple(dict.fromkeys((*table_key, *wanted)))
    result = pa.schema(
        [
            *arrow_schema(events),
            *(fields.field(name).with_name(new) for name, new in wanted.items()),
        ]
    )
    operator = AsOfJoin(
        output=result,
        events=tuple(events.columns),
        event_key=tuple(one for one, _ in pairs),
        table_key=tuple(other for _, other in pairs),
        table=tuple(fields.field(name) for name in names),
        columns=tuple(wanted),
        is_inner=how == "inner",
        time=times.events,
        is_log_time=as_of is None,
        valid_from=valid_from,
        keep_us=times.keep_us,
        is_stream=events.isStreaming,
        chosen=() if columns is None else tuple(wanted),
        floors=_floors(events),
    )
    read_columns = tuple(dict.fromkeys((*names, *([valid_from] if valid_from else ()), OP, AT)))
    return run_operator(
        _KIND,
        operator,
        [
            # Spark plans sources in this order: what the table had when the events were planned is
            # in the same batch or before.
            Side(events, operator.event_key, operator.events, times.events, passes=True),
            Side(changes, operator.table_key, read_columns, times.table, TABLE_EVERYWHERE),
        ],
        name=name,
    )


def table_in_log(kind: str, table: "DataFrame") -> TableRead:
    """The topic of a table that an operator of this kind reads in step with the log. Raises
    PipelineError.
    """
    found = table_read(table)
    if found is None:
        raise PipelineError(
            f"{kind}: the topic of the table cannot be found",
            detail="it does not come from flow.table, or more was done to it since than to select,"
            " compute and rename columns, and to filter rows",
            hint="do the rest to the events, or to the result",
        )
    read = found.topic
    if not read.topic or read.value == "bytes" or "connector" in read.options:
        raise PipelineError(
            f"{kind}: this table cannot be read in step with the log",
            detail=read.topic or "topics by a pattern",
            hint="name one topic, decoded, by the connector that is the default",
        )
    return found


def changes_of_table(kind: str, read: TopicRead, *, is_stream: bool) -> "DataFrame":
    """The changes of the table, from the first one on."""
    options = {name: value for name, value in read.options.items() if name != "key"}
    options |= {"start": "earliest", "progress": "true"}
    changes = read.reader.changes(read.topic, read.schema, read.value, options)
    if changes.isStreaming != is_stream:
        raise PipelineError(
            f"{kind}: one of events and table is a stream, the other is not",
            hint="take both from the same flow",
        )
    return changes


def key_of_table(kind: str, table: TableRead, key: Sequence[str] | str) -> tuple[str, ...]:
    """As the table's columns are called."""
    if key:
        return (key,) if isinstance(key, str) else tuple(key)
    read = table.topic
    found = read.reader.key_of(read.topic, read.options)
    if not found:
        raise PipelineError(
            f"{kind}: {read.topic} has no key: its rows cannot be identified",
            hint='name one: flow.table(…, key="id")',
        )
    return table.key(found)


def _pairs(
    on: On, columns: Sequence[str], key: tuple[str, ...], topic: str
) -> tuple[tuple[str, str], ...]:
    """(the event's column, the table's)."""
    pairs = pairs_of(_KIND, on)
    one, other = pairs[0]
    if one == other and one not in columns and len(pairs) == len(key) == 1:
        pairs = [(one, key[0])]
    if sorted(other for _, other in pairs) != sorted(key):
        raise PipelineError(
            f"{_KIND}: the key of {topic} is {', '.join(key)}",
            detail=f"on={on!r}",
            hint="an event has one row of the table: on= names all columns of its key, as pairs"
            f' [("…", "{key[0]}")] where they are called otherwise',
        )
    return tuple(pairs)


def _check_keys(
    events: "StructType", table: "StructType", pairs: Sequence[tuple[str, str]]
) -> None:
    for one, other in pairs:
        for name, schema in ((one, events), (other, table)):
            if name not in schema.names:
                raise PipelineError(
                    f"{_KIND}: there is no column {name}",
                    detail="columns are " + ", ".join(schema.names),
                )
        kinds = [events[one].dataType.simpleString(), table[other].dataType.simpleString()]
        if kinds[0] != kinds[1]:
            raise PipelineError(
                f"{_KIND}: {one} is {kinds[0]}, {other} of the table is {kinds[1]}",
                hint=f'events.withColumn("{one}", F.col("{one}").cast("{kinds[1]}"))',
            )
        if kinds[0].startswith(("float", "double", "array", "map", "struct", "variant")):
            raise PipelineError(f"{_KIND}: {one} is {kinds[0]}, which is no type for a key")


def _wanted(
    columns: Columns,
    of_events: Sequence[str],
    of_table: Sequence[str],
    key: tuple[str, ...],
    topic: str,
) -> dict[str, str]:
    """The table's columns, and their names in the result."""
    if columns is None:
        wanted = {name: name for name in of_table if name not in (*key, *_OURS)}
    elif isinstance(columns, Mapping):
        wanted = dict(columns)
    else:
        wanted = {name: name for name in columns}
    for name, new in wanted.items():
        if name not in of_table or name in _OURS:
            raise PipelineError(
                f"{_KIND}: {topic} has no column {name}",
                detail="columns are "
                + ", ".join(column for column in of_table if column not in _OURS),
            )
        if new in of_events or list(wanted.values()).count(new) > 1:
            raise PipelineError(
                f"{_KIND}: two columns of the result would be called {new}",
                hint=f'choose and rename the table\'s: columns={{"{name}": "…_{name}", …}}',
            )
    return wanted


@dataclass(frozen=True)
class ValidFrom(EventTime):
    """Event time of a table whose rows have a start of validity. A row that is published ahead
    counts by its time in the log: it does not mean that earlier ones have all come.
    """

    def time(self, rows: pa.RecordBatch) -> pa.Array:
        times = super().time(rows), epoch_us(rows.column(AT))
        return pc.min_element_wise(*times, skip_nulls=False)

    def _timestamps(self) -> tuple[str, ...]:
        return (self.column, AT)


@dataclass(frozen=True)
class _Times:
    events: EventTime
    table: EventTime
    keep_us: int


def _times(
    events: "DataFrame",
    as_of: str | EventTime | None,
    valid_from: str | None,
    keep_versions: Duration | None,
) -> _Times:
    if as_of is None:
        if valid_from is not None or keep_versions is not None:
            raise PipelineError(
                f"{_KIND}: valid_from and keep_versions go with as_of",
                hint="without it, an event has the row as it was when the event came into the log",
            )
        if AT not in events.columns and has_results(events):
            raise PipelineError(
                f"{_KIND}: results of windows have no time in the log ({AT})",
                hint='the table as it was at the end of the window: as_of="window_end"',
            )
        return _Times(EventTime(AT, 0, idle_us=_IDLE_US), EventTime(AT, 0), 0)
    return _Times(
        input_time(_KIND, events, as_of, in_order=True),
        EventTime(AT, 0) if valid_from is None else ValidFrom(valid_from, 0),
        microseconds(_KEEP_VERSIONS if keep_versions is None else keep_versions, "keep_versions"),
    )


def _floors(events: "DataFrame") -> tuple[tuple[str, int], ...]:
    """The times that the operator before bounds by its watermark: an event leaves as it came."""
    if not passes_watermarks(events):
        return ()
    return tuple(
        (column.name, column.metadata[FLOOR])
        for column in events.schema
        if FLOOR in column.metadata
    )


def _refuse_compacted(read: TopicRead) -> None:
    policy = read.reader.cleanup_policy(read.topic)
    if "compact" in policy:
        raise PipelineError(
            f"{_KIND}: {read.topic} is compacted, so earlier versions of its rows are missing",
            detail=f"cleanup.policy={policy}",
            hint="leave out as_of, or keep every change: cleanup.policy=delete, retention.ms=-1",
        )


def arrow_schema(frame: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: pa.Schema = to_arrow_schema(frame.schema, timezone="UTC")
    return schema
