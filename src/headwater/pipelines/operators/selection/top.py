"""`hw.top`: the first rows of each group of a table, as changes of the result.

Arguments are checked here, before anything runs. Operators follow each other as in a join of
tables:

    changes ──▶ by the table's key:  what changes in which group    (joins/table_changes.py)
            ──▶ by the group:        what changes among its first   (top_rows.py)
            ──▶ by the table's key:  one change for each row        (only where rows can go from
                                                                    group to group)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT, read_of
from headwater.pipelines.operators.joins.tables.table_changes import TableChanges
from headwater.pipelines.operators.joins.tables.table_join import OneChangePerRow
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.operators.selection.top_rows import TopRows
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP, TRUNCATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KIND: Final = "top"
_OURS: Final = (OP, AT, POSITION)
_ALL: Final = "__all"  # the group of all rows
_NOT_ORDERED: Final = ("array", "map", "struct", "variant", "binary")

Names = str | Sequence[str]


def top(
    frame: "DataFrame",
    n: int,
    *,
    by: Names,
    per: Names = (),
    key: Names = (),
    ascending: bool = False,
    rank: str | None = None,
    name: str | None = None,
) -> "DataFrame":
    """The first `n` rows of each group of a table, as changes: after each batch, the result is that
    of the table as it is at that position in the log.

    `frame`     changes of a table: `flow.changes`, `hw.join_tables`, results of windows
    `by`        columns to order by, the highest value first (`ascending`: the lowest); nulls and
                NaN are last. Of equal rows those with the lower key are first
    `per`       columns of the group; all rows are one without it
    `key`       columns that identify the rows; those of a captured table have theirs
    `rank`      the name of a column with the rank of the row, from 1; a row changes with it

    Its key is that of the table. `_op` is "c" (it came among the first), "u" (changed) or "d" (it
    is no longer among them), once for each row and batch; `_position` is that of one of the changes
    that made it.
    """
    _check(frame, n, rank)
    keys = _names(key) or _key_of(frame)
    order, groups = _names(by), _names(per)
    if not order:
        raise PipelineError(f"{_KIND}: by is empty", hint='a column to order by: by="total"')
    for column in (*keys, *order, *groups):
        _check_column(frame, column)
    if not groups:
        from pyspark.sql import functions as F  # noqa: N812

        frame, groups = frame.withColumn(_ALL, F.lit(0)), (_ALL,)
    columns = _columns(frame)
    changes = run_operator(
        f"{_KIND}_changes",
        TableChanges("ranked", columns, keys, groups),
        [Side(frame, keys, (*columns.names, OP), everywhere=f"{OP} = '{TRUNCATE}'")],
        name=name and f"{name}-changes",
    )
    ranking = TopRows(n, order, ascending, groups, keys, rank, columns)
    side = Side(changes, groups, (*columns.names, OP))
    found = run_operator(_KIND, ranking, [side], name=name)
    if not set(groups) <= {*keys, _ALL}:
        rows = tuple(column for column in found.columns if column != POSITION)
        found = run_operator(
            f"{_KIND}_result",
            OneChangePerRow(keys, ranking.output),
            [Side(found, keys, rows)],
            name=name and f"{name}-result",
        )
    return found.drop(_ALL)


def _check(frame: "DataFrame", n: int, rank: str | None) -> None:
    if not isinstance(n, int) or n < 1:
        raise PipelineError(f"{_KIND}: n={n!r}", hint="how many rows of each group: 1 or more")
    for column in (OP, POSITION):
        if column not in frame.columns:
            raise PipelineError(
                f"{_KIND}: the table has no column {column}",
                detail="columns are " + ", ".join(frame.columns),
                hint=f'it is read by its changes: flow.changes has them; select "{column}", too',
            )
    if rank is not None and rank in frame.columns:
        raise PipelineError(f"{_KIND}: there is a column {rank} already", hint="rank= another name")


def _check_column(frame: "DataFrame", column: str) -> None:
    if column not in frame.columns or column in _OURS:
        raise PipelineError(
            f"{_KIND}: there is no column {column}",
            detail="columns are " + ", ".join(name for name in frame.columns if name not in _OURS),
        )
    kind = frame.schema[column].dataType.simpleString()
    if kind.startswith(_NOT_ORDERED):
        raise PipelineError(
            f"{_KIND}: {column} is {kind}, by which rows are neither ordered nor identified"
        )


def _key_of(frame: "DataFrame") -> tuple[str, ...]:
    read = read_of(frame)
    found = read.reader.key_of(read.topic, read.options) if read and read.topic else ()
    if not found:
        raise PipelineError(
            f"{_KIND}: the key of the table cannot be found",
            hint='name the columns that identify its rows: key="id"',
        )
    return found


def _names(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _columns(frame: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    chosen = frame.select(*[name for name in frame.columns if name not in _OURS])
    schema: pa.Schema = to_arrow_schema(chosen.schema, timezone="UTC")
    return schema
