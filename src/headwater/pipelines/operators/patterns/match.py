"""`hw.match`: row pattern matching, MATCH_RECOGNIZE of SQL:2016, over a stream.

Arguments are checked here, before anything runs; match_operator.py is the operator.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.builder import Pattern
from headwater.pipelines.operators.patterns.corrected_matching import MATCH_ID, CorrectedMatching
from headwater.pipelines.operators.patterns.language.names import Names
from headwater.pipelines.operators.patterns.match_arguments import (
    OURS,
    MatchArguments,
    read_arguments,
)
from headwater.pipelines.operators.patterns.match_operator import Matching
from headwater.pipelines.operators.patterns.match_settings import EVENT_TIME
from headwater.pipelines.operators.patterns.matching.leaves import (
    AVG,
    COLUMN,
    COUNT,
    SUM,
    Aggregate,
    Leaf,
    MatchNumber,
)
from headwater.pipelines.operators.runtime.grouping import check_keys
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.time.durations import Duration
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import CORRECT, DROP, Lateness, lateness_of
from headwater.pipelines.operators.time.result_time import input_time
from headwater.pipelines.operators.windows.results import MARK
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KIND: Final = "match"


def match(
    frame: "DataFrame",
    key: str | Sequence[str],
    pattern: str | Pattern,
    *,
    time: str | EventTime,
    define: "Mapping[str, str | Column] | None" = None,
    measures: Mapping[str, str] | None = None,
    subset: Mapping[str, Sequence[str]] | None = None,
    within: Duration | None = None,
    timed_out: str | None = None,
    after_match: str = "SKIP PAST LAST ROW",
    rows_per_match: str = "ONE ROW PER MATCH",
    unbounded: bool = False,
    late: str = DROP,
    allowed_lateness: Duration | None = None,
    name: str | None = None,
) -> "DataFrame":
    """Matches of a pattern in the rows of each key, in the order of event time.

    `pattern`    as SQL:2016 has it, "A B+ (C | D)", or `hw.pattern()…`
    `define`     the conditions of variables, in Spark's SQL with PREV, NEXT, FIRST, LAST,
                 CLASSIFIER and aggregates over variables; or Columns. A variable without one
                 is any row
    `measures`   the columns of the result, also with MATCH_NUMBER, RUNNING and FINAL
    `subset`     names for several variables: {"U": ["A", "B"]}
    `within`     how long a match may take, from its first row to its last
    `timed_out`  the name of a column: partial matches that ran out of time are rows, too, and it is
                 true in them
    `unbounded`  allows a pattern without `within` that can wait, and grow, for ever
    `late`       "drop", "side", or "correct": a row that is late by at most `allowed_lateness`
                 (default: a day) retracts the matches that are none with it, and adds those that
                 are; results then have `match_id`, which identifies a match, and `_mark`

    A match is a row (or its rows) as soon as no later row can change it. Results have the key's
    columns, or with ALL ROWS PER MATCH all of the input; `event_time`, which is when the match was
    decided: the time of the row or of the deadline; and the measures. They follow from the rows
    that are in time alone, neither from batch boundaries nor from the order of arrival.
    """
    keys = keys_of(_KIND, frame, key)
    lateness = lateness_of(late, allowed_lateness)
    given = read_arguments(
        [column for column in frame.columns if column not in OURS],
        keys,
        pattern,
        define=define,
        measures=measures,
        subset=subset,
        within=within,
        timed_out=timed_out,
        after_match=after_match,
        rows_per_match=rows_per_match,
        unbounded=unbounded,
    )
    names, shown = given.names, given.shown
    if lateness.is_corrected:
        _check_names_of_corrections(shown, [*given.measures, timed_out])
    chosen = _with_computed(frame, names)
    input_times = input_time(_KIND, frame, time, late)
    operator = _operator(chosen, keys, given, input_times, lateness)
    # Late rows are put aside as they came.
    passed = frame.columns if late != DROP else [*shown, *([OP] if OP in frame.columns else [])]
    columns = [column for column in passed if column != POSITION]
    side = Side(chosen, keys, (*columns, *operator.computed.names), operator.time)
    result = run_operator(_KIND, operator, [side], name=name)
    return _measured(result, shown, given.measures, timed_out)


def keys_of(kind: str, frame: "DataFrame", key: str | Sequence[str]) -> tuple[str, ...]:
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys:
        raise PipelineError(
            f"{kind}: key is empty",
            hint="the columns that rows of a match share (PARTITION BY); for one match over all"
            ' rows, a constant: .withColumn("all", F.lit(1))',
        )
    for column in keys:
        if column not in frame.columns:
            raise PipelineError(
                f"{kind}: there is no column {column}",
                detail="columns are " + ", ".join(frame.columns),
            )
    return keys


def _check_names_of_corrections(shown: Sequence[str], added: Sequence[str | None]) -> None:
    for column in (*shown, *added):
        if column is not None and column.lower() in (MATCH_ID, MARK):
            raise PipelineError(
                f"{_KIND}: results have a column {column} of their own with late={CORRECT!r}",
                hint="another name; .withColumnRenamed(…) for a column of the input",
            )


# ── Spark ───────────────────────────────────────────────────────────────────────────────────────


def _with_computed(frame: "DataFrame", names: Names) -> "DataFrame":
    """The input with the columns that conditions and measures are made of."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812

    def column(number: int) -> "Column":
        computed = names.computed[number]
        found = F.expr(computed) if isinstance(computed, str) else computed
        return found.alias(COLUMN.format(number))

    try:
        return frame.select("*", *(column(number) for number in range(len(names.computed))))
    except AnalysisException:
        for number, owner in enumerate(names.owners):
            try:
                frame.select(column(number))
            except AnalysisException as error:
                raise _spark_error(owner, names.computed[number], error) from error
        raise


def _spark_error(owner: str, text: Any, error: Exception) -> PipelineError:
    return PipelineError(
        f"{owner} is not accepted by Spark", detail=str(error).partition("\n")[0], hint=str(text)
    )


def _operator(
    chosen: "DataFrame",
    keys: tuple[str, ...],
    given: MatchArguments,
    time: EventTime,
    lateness: Lateness,
) -> Matching:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import BooleanType

    names, rules = given.names, given.rules
    columns = [COLUMN.format(number) for number in range(len(names.computed))]
    for condition in rules.conditions:
        column = condition.column
        if condition.term is not None and condition.term[0] == "leaf":  # PREV(x), and no more
            column = getattr(condition.term[1], "column", None)
        if column is None:
            continue
        kind = chosen.schema[columns[column]].dataType
        if not isinstance(kind, BooleanType):
            raise PipelineError(
                f"{_KIND}: the condition of {condition.variable} is neither true nor false",
                detail=f"{names.computed[column]} is {kind.simpleString()}",
            )
    rows = to_arrow_schema(chosen.select(*given.shown).schema, timezone="UTC")
    check_keys(_KIND, rows, keys)
    computed = to_arrow_schema(chosen.select(*columns).schema, timezone="UTC")
    results = pa.schema(
        [
            pa.field(f"__m{number}", _type_of(leaf, chosen, computed, names))
            for number, leaf in enumerate(rules.measures)
        ]
    )
    operator = CorrectedMatching if lateness.is_corrected else Matching
    return operator(keys, rules, time, lateness, rows, computed, results)


def _type_of(leaf: Leaf, chosen: "DataFrame", computed: pa.Schema, names: Names) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    if isinstance(leaf, MatchNumber):
        return pa.int64()
    if leaf.column is None:
        return pa.int64() if isinstance(leaf, Aggregate) else pa.string()
    if not isinstance(leaf, Aggregate):
        return computed.field(leaf.column).type
    if leaf.kind == COUNT:
        return pa.int64()
    kind = computed.field(leaf.column).type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    if leaf.kind in (SUM, AVG) and not is_number:
        raise PipelineError(
            f"{names.owners[leaf.column]}: {leaf.kind} takes numbers",
            detail=f"{names.computed[leaf.column]} is {kind}",
        )
    if pa.types.is_nested(kind):
        raise PipelineError(
            f"{names.owners[leaf.column]}: {leaf.kind} takes values that can be compared",
            detail=f"{names.computed[leaf.column]} is {kind}",
        )
    found = chosen.selectExpr(f"{leaf.kind}({COLUMN.format(leaf.column)}) AS found").schema["found"]
    return to_arrow_type(found.dataType, timezone="UTC")


def _measured(
    result: "DataFrame", shown: Sequence[str], texts: Mapping[str, str], timed_out: str | None
) -> "DataFrame":
    """The result's columns, with measures computed of their leaves."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F  # noqa: N812

    columns = []
    for name, text in texts.items():
        try:
            column = F.expr(text).alias(name)
            result.select(column)
        except (AnalysisException, ParseException) as error:
            raise _spark_error(f"{_KIND}: the measure {name}", text, error) from error
        columns.append(column)
    flags = [] if timed_out is None else [F.col(timed_out)]
    of_corrections = [name for name in (MATCH_ID, MARK) if name in result.columns]
    return result.select(
        *(F.col(f"`{name}`") for name in shown),
        EVENT_TIME,
        *columns,
        *flags,
        *of_corrections,
        POSITION,
        OP,
    )
