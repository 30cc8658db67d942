"""`hw.process`: a Python function with state and a timer for each key.

Arguments are checked here, before anything runs; keyed_process.py is the operator.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import PipelineError
from headwater.pipelines.operators.processing.batch_process import KINDS, BatchProcess
from headwater.pipelines.operators.processing.keyed_process import (
    RESERVED,
    Function,
    KeyedProcess,
)
from headwater.pipelines.operators.runtime.grouping import check_keys
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import CORRECT, DROP, lateness_of
from headwater.pipelines.operators.time.result_time import input_time
from headwater.pipelines.position import POSITION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

_KIND: Final = "process"


def process(
    frame: "DataFrame",
    key: str | Sequence[str],
    function: Function,
    *,
    time: str | EventTime,
    output: "str | StructType",
    batches: str | None = None,
    every: Duration | None = None,
    late: str = DROP,
    name: str | None = None,
) -> "DataFrame":
    """What `function(row, context)` returns for each row, and for each timer that is due.

    `row` is a dict of the row's columns, or None if the timer is due. `context` is of its key:

    `context.key`    a dict of the key's columns
    `context.time`   when the row happened, or the time of the timer: a datetime in UTC
    `context.state`  a dict, empty at first, for anything that JSON can hold; a key with an empty
                     state and no timer is not stored
    `context.timer`  None, or a datetime later than `context.time` that the function sets: it is
                     called with None when the watermark has passed it. Setting it again moves it

    It returns a dict with the columns `output` (Spark's DDL), several of them, or None. Results
    have the key's columns, `event_time` (`context.time`), and these. Rows and timers of a key come
    in the order of event time, when the watermark has passed them: so the result depends neither on
    batch boundaries nor on the order of arrival, if the function depends on its arguments only.

    With `batches="arrow"` or `"pandas"` the function gets, in place of a row, all rows of the key
    in an interval of event time, `every` long, as a pyarrow.Table or a pandas.DataFrame, when the
    watermark has passed its end, which is `context.time`. It may return such a table, too.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    if not callable(function):
        raise PipelineError(f"{_KIND}: {function!r} is no function", hint="function(row, context)")
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise PipelineError(f"{_KIND}: key is empty", hint="the columns that have a state together")
    for column in keys:
        if column not in frame.columns:
            raise PipelineError(
                f"{_KIND}: there is no column {column}",
                detail="columns are " + ", ".join(frame.columns),
            )
    if late == CORRECT:
        raise PipelineError(
            f"{_KIND}: late={late!r} is for windows",
            hint='late="drop" counts late rows, "side" stores them, too',
        )
    if (batches is None) != (every is None) or batches not in (None, *KINDS):
        raise PipelineError(
            f"{_KIND}: batches={batches!r}, every={every!r}",
            hint='batches="arrow" or "pandas" goes with every="1 minute", the event time of each',
        )
    columns = tuple(column for column in frame.columns if column != POSITION)
    rows = to_arrow_schema(frame.select(*columns).schema, timezone="UTC")
    check_keys(_KIND, rows, keys)
    results = to_arrow_schema(_schema(output), timezone="UTC")
    for column in results.names:
        if column in (*keys, *RESERVED):
            raise PipelineError(
                f"{_KIND}: results have a column {column} of their own",
                hint=f"leave it out of output: it is {'the key' if column in keys else 'added'}",
            )
    settings = (
        keys,
        function,
        getattr(function, "__qualname__", type(function).__qualname__),
        input_time(_KIND, frame, time, late),
        lateness_of(late, None),
        rows,
        results,
    )
    operator = KeyedProcess(*settings)
    if batches is not None and every is not None:
        every_us = microseconds(every, "every", at_least_us=1)
        operator = BatchProcess(*settings, batches=batches, every_us=every_us)
    return run_operator(_KIND, operator, [Side(frame, keys, columns, operator.time)], name=name)


def _schema(output: Any) -> "StructType":
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    if isinstance(output, StructType):
        return output
    try:
        found = StructType.fromDDL(output)
    except (ParseException, TypeError, ValueError, AttributeError) as error:
        raise PipelineError(
            f"{_KIND}: output={output!r} has no columns", hint='"alert string, count bigint"'
        ) from error
    assert isinstance(found, StructType)
    return found
