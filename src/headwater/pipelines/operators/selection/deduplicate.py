"""`hw.deduplicate`: the first row of each key within some time.

Arguments are checked here, before anything runs; deduplication.py is the operator.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.selection.deduplication import Deduplication
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import CORRECT, DROP, lateness_of
from headwater.pipelines.operators.time.result_time import input_time
from headwater.pipelines.position import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KIND: Final = "deduplicate"


def deduplicate(
    frame: "DataFrame",
    key: str | Sequence[str],
    within: Duration,
    *,
    time: str | EventTime = AT,
    late: str = DROP,
    name: str | None = None,
) -> "DataFrame":
    """The rows without repetitions: a row is left out if an earlier one of the same key, which was
    not left out itself, is less than `within` away from it in event time.

    Rows of a key are expected in one partition, whose order counts: which of two is earlier is a
    fact of the log. A row is emitted at once. Null is a key like any other.

    `time`      when rows happened: the name of a column, or `hw.event_time(…)`; else when they came
                into the log
    `late`      a row that is behind the watermark of its partition cannot be compared any more: it
                is left out and counted (drop), or sent to `<pipeline>.late`, too (side)
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise PipelineError(f"{_KIND}: key is empty", hint="the columns that repetitions share")
    for column in keys:
        if column not in frame.columns:
            raise PipelineError(
                f"{_KIND}: there is no column {column}",
                detail="columns are " + ", ".join(frame.columns),
            )
        kind = frame.schema[column].dataType.simpleString()
        if "map<" in kind or "variant" in kind:
            raise PipelineError(f"{_KIND}: {column} is {kind}, which is no type for a key")
    if late == CORRECT:
        raise PipelineError(
            f"{_KIND}: late={late!r} is for windows",
            hint='late="drop" counts late rows, "side" stores them, too',
        )
    from pyspark.sql.pandas.types import to_arrow_schema

    operator = Deduplication(
        keys,
        microseconds(within, "within", at_least_us=1),
        input_time(_KIND, frame, time, late),
        lateness_of(late, None),
        to_arrow_schema(frame.schema, timezone="UTC"),
    )
    columns = tuple(column for column in frame.columns if column != POSITION)
    side = Side(frame, keys, columns, operator.time)
    return run_operator(_KIND, operator, [side], name=name)
