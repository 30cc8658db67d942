"""`hw.join`: an interval join of two streams.

Arguments are checked here, before anything runs; interval_join.py is the operator.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT
from headwater.pipelines.operators.joins.interval_join import IntervalJoin, JoinSide, result_schema
from headwater.pipelines.operators.joins.join_columns import (
    INTEGERS,
    On,
    pairs_of,
    type_of,
    with_equal_types,
)
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import CORRECT, DROP, lateness_of
from headwater.pipelines.operators.time.result_time import input_time
from headwater.pipelines.operators.windows.results import MARK
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

How = Literal["inner", "left", "right", "full"]
Time = str | EventTime

_HOWS: Final = ("inner", "left", "right", "full")
_KIND: Final = "join"
_HASH: Final = "__hash"
_OURS: Final = (OP, AT, POSITION)
_KEYS: Final = ("string", "boolean", "date", "timestamp", "timestamp_ntz", "binary", *INTEGERS)


def join(
    left: "DataFrame",
    right: "DataFrame",
    on: On,
    within: Duration | tuple[Duration, Duration],
    *,
    left_time: Time,
    right_time: Time,
    how: How = "inner",
    late: str = DROP,
    suffixes: tuple[str, str] | None = None,
    name: str | None = None,
) -> "DataFrame":
    """Rows of both streams that have the same key and happened near each other, in pairs.

    A left row at l meets a right row at r if l - before <= r <= l + after, where `within` is
    `(before, after)` or one duration for both. Which of them arrives first does not matter. A pair
    is emitted as soon as both are there; with `how` "left", "right" or "full" a row of that side
    (or of both) without a partner is emitted once it can no longer find one, with nulls. A null in
    a key is equal to nothing.

    Columns are those of both; the key once, if it has the same name on both sides. Other names that
    both have need `suffixes`, one for each side. `_op` is "c"; `_position` is that of the row of
    the two that happened later (the right one, if at the same time), `_at` the later of both.
    """
    keys = _keys(left, right, on)
    if suffixes is None and MARK in left.columns and MARK in right.columns:
        left, right = left.drop(MARK), right.drop(MARK)  # of windows: all are final
    left, right = with_equal_types(_KIND, left, right, keys)
    _check_types(left, [one for one, _ in keys])
    before_us, after_us = _interval(within)
    if how not in _HOWS:
        raise PipelineError(f"{_KIND}: how={how!r}", hint="it is " + ", ".join(_HOWS))
    if late == CORRECT:
        raise PipelineError(
            f"{_KIND}: late={late!r} is not for joins",
            detail="a row that was emitted alone is not retracted",
            hint='late="drop" counts late rows, "side" stores them, too; a longer delay of'
            " hw.event_time lets more of them be in time",
        )
    lateness = lateness_of(late, None)
    names = _names(left, right, keys, suffixes)
    ours = JoinSide(
        "left",
        time=input_time(_KIND, left, left_time, late),
        key=tuple(one for one, _ in keys),
        hash_column=_hash_column(left, [one for one, _ in keys]),
        columns=names[0],
        is_outer=how in ("left", "full"),
        back_us=before_us,
        ahead_us=after_us,
    )
    theirs = JoinSide(
        "right",
        time=input_time(_KIND, right, right_time, late),
        key=tuple(other for _, other in keys),
        hash_column=_hash_column(right, [other for _, other in keys]),
        columns=names[1],
        is_outer=how in ("right", "full"),
        back_us=after_us,
        ahead_us=before_us,
    )
    with_at = AT in left.columns and AT in right.columns
    sides = _side(left, ours, with_at=with_at), _side(right, theirs, with_at=with_at)
    schema = result_schema((ours, theirs), [_arrow_schema(side) for side in sides])
    return run_operator(_KIND, IntervalJoin(ours, theirs, lateness, schema), sides, name=name)


def _keys(left: "DataFrame", right: "DataFrame", on: On) -> list[tuple[str, str]]:
    keys = pairs_of(_KIND, on)
    for pair in [(POSITION, POSITION), *keys]:
        for side, frame, name in zip(("left", "right"), (left, right), pair, strict=True):
            if name not in frame.columns:
                raise PipelineError(
                    f"{_KIND}: the {side} side has no column {name}",
                    detail="columns are " + ", ".join(frame.columns),
                    hint='columns of different names are given as pairs: on=[("id", "order_id")]',
                )
    return keys


def _check_types(frame: "DataFrame", key: Sequence[str]) -> None:
    for name in key:
        kind = type_of(frame, name)
        if kind not in _KEYS and not kind.startswith("decimal"):
            raise PipelineError(
                f"{_KIND}: {name} is {kind}, which is no type for a key",
                hint="keys are integers, decimals, strings, booleans, dates, timestamps or binary",
            )


def _interval(within: Duration | tuple[Duration, Duration]) -> tuple[int, int]:
    both = within if isinstance(within, tuple) else (within, within)
    if len(both) != 2:
        raise PipelineError(f"{_KIND}: within={within!r}", hint='(before, after), or "1 hour"')
    before, after = both
    return microseconds(before, "within"), microseconds(after, "within")


def _names(
    left: "DataFrame",
    right: "DataFrame",
    keys: list[tuple[str, str]],
    suffixes: tuple[str, str] | None,
) -> list[tuple[tuple[str, str], ...]]:
    """For each side its columns, and what they are called in the result."""
    if suffixes is not None and (isinstance(suffixes, str) or len(suffixes) != len((left, right))):
        raise PipelineError(
            f"{_KIND}: suffixes={suffixes!r}", hint='one for each side: ("_left", "_right")'
        )
    shared = [one for one, other in keys if one == other]
    columns = [[name for name in frame.columns if name not in _OURS] for frame in (left, right)]
    twice = [name for name in columns[0] if name in columns[1] and name not in shared]
    if twice and suffixes is None:
        raise PipelineError(
            f"{_KIND}: both sides have a column {twice[0]}",
            detail=", ".join(twice),
            hint='rename them, or give suffixes=("_left", "_right")',
        )
    names = [
        tuple((name, name + suffix if name in twice else name) for name in of_side)
        for of_side, suffix in zip(columns, suffixes or ("", ""), strict=True)
    ]
    results = [name for _, name in (*names[0], *names[1]) if name not in shared]
    for name in results:
        if results.count(name) > 1 or name in (*shared, *_OURS):
            raise PipelineError(
                f"{_KIND}: two columns of the result would be called {name}",
                hint="choose other suffixes, or rename",
            )
    return names


def _side(frame: "DataFrame", side: JoinSide, *, with_at: bool) -> Side:
    from pyspark.sql import functions as F  # noqa: N812

    columns = [source for source, _ in side.columns]
    columns += [name for name in (OP,) if name in frame.columns]
    columns += [AT] if with_at else []
    if not side.is_hash_exact:
        frame = frame.withColumn(_HASH, F.xxhash64(*[F.col(name) for name in side.key]))
        columns.append(_HASH)
    return Side(frame, side.key, tuple(columns), side.time)


def _arrow_schema(side: Side) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(side.frame.select(*side.columns, POSITION).schema, timezone="UTC")


def _hash_column(frame: "DataFrame", key: Sequence[str]) -> str:
    return key[0] if len(key) == 1 and type_of(frame, key[0]) in INTEGERS else _HASH
