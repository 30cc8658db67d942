"""`hw.join_tables`: an incremental join of two tables by their changes.

Arguments are checked here, before anything runs. Three operators follow each other:

    changes ──▶ by the table's key:  what changes at which join key   (table_changes.py, each table)
            ──▶ by the join key:     what changes in the result       (table_join.py)
            ──▶ by the result's key: one change for each row          (only where rows of the result
                                                                      can go from bucket to bucket)
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.flow import AT
from headwater.pipelines.operators.joins.join_columns import On, pairs_of, with_equal_types
from headwater.pipelines.operators.joins.tables.table_changes import TableChanges
from headwater.pipelines.operators.joins.tables.table_join import (
    JoinedTable,
    OneChangePerRow,
    TableJoin,
    result_key,
)
from headwater.pipelines.operators.runtime.planning import Side, run_operator
from headwater.pipelines.position import POSITION, POSITION_TYPE
from headwater.sinks.contract import OP, TRUNCATE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

How = Literal["inner", "left", "right", "full"]

_HOWS: Final = ("inner", "left", "right", "full")
_KIND: Final = "join_tables"
_OURS: Final = (OP, AT, POSITION)


def join_tables(
    left: "DataFrame",
    right: "DataFrame",
    on: On,
    *,
    left_key: str | Sequence[str],
    right_key: str | Sequence[str],
    how: How = "inner",
    name: str | None = None,
) -> "DataFrame":
    """The join of two tables that change, as changes of the result: after each batch, the result
    is the join of both tables as they are at that position in the log.

    Both inputs are changes (`flow.changes`, or another join's result); `left_key` and `right_key`
    are the columns that identify their rows. Columns of the result are those of both;
    join columns of the same name once. Its key is `left_key` and `right_key` together. `_op` is "c"
    (new), "u" (changed) or "d" (deleted; only the key's columns count), once for each row and
    batch; `_position` is that of one of the changes that made it. A null in a join column is equal
    to nothing.
    """
    if how not in _HOWS:
        raise PipelineError(f"{_KIND}: how={how!r}", hint="it is " + ", ".join(_HOWS))
    pairs = pairs_of(_KIND, on)
    keys = [_names(key, name) for key, name in ((left_key, "left_key"), (right_key, "right_key"))]
    for side, frame, named in (
        ("left", left, [*keys[0], *(one for one, _ in pairs)]),
        ("right", right, [*keys[1], *(other for _, other in pairs)]),
    ):
        _check_columns(side, frame, named)
    _check_names(left, right, pairs)
    left, right = with_equal_types(_KIND, left, right, pairs)
    tables = joined_tables([_columns(left), _columns(right)], keys, pairs, how)
    join, consolidation = planned(tables, pairs, how)
    moves = [_moves(table, frame, name) for table, frame in zip(tables, (left, right), strict=True)]
    joined = run_operator(_KIND, join, moves, name=name)
    if consolidation is None:
        return joined
    columns = tuple(name for name in joined.columns if name != POSITION)
    sides = [Side(joined, consolidation.key, columns)]
    return run_operator(f"{_KIND}_result", consolidation, sides, name=name and f"{name}-result")


def joined_tables(
    columns: Sequence[pa.Schema],
    keys: Sequence[tuple[str, ...]],
    pairs: list[tuple[str, str]],
    how: str,
) -> tuple[JoinedTable, JoinedTable]:
    one, other = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    return (
        JoinedTable("left", columns[0], keys[0], one, how in ("left", "full")),
        JoinedTable("right", columns[1], keys[1], other, how in ("right", "full")),
    )


def planned(
    tables: tuple[JoinedTable, JoinedTable], pairs: list[tuple[str, str]], how: str
) -> tuple[TableJoin, OneChangePerRow | None]:
    """The join, and the operator that consolidates its result, if one is needed."""
    left, right = tables
    key = result_key(left, right)
    if how == "full":
        _check_full(key, pairs)
    of_right = [field for field in right.columns if field.name not in left.columns.names]
    output = pa.schema([*left.columns, *of_right, (OP, pa.string()), (POSITION, POSITION_TYPE)])
    is_last = _stays_in_its_bucket(left.key, right.key, pairs, how)
    join = TableJoin(left, right, output, is_last)
    return join, None if is_last else OneChangePerRow(key, output)


def _moves(table: JoinedTable, frame: "DataFrame", name: str | None) -> Side:
    names = tuple(table.columns.names)
    changes = run_operator(
        f"{_KIND}_{table.name}",
        TableChanges(table.name, table.columns, table.key, table.on),
        [Side(frame, table.key, (*names, OP), everywhere=f"{OP} = '{TRUNCATE}'")],
        name=name and f"{name}-{table.name}",
    )
    return Side(changes, table.on, (*names, OP))


def _names(key: str | Sequence[str], what: str) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else tuple(key or ())
    if not names:
        raise PipelineError(
            f"{_KIND}: {what} is empty", hint="it names the columns of the table's primary key"
        )
    return names


def _check_columns(side: str, frame: "DataFrame", named: Sequence[str]) -> None:
    for name in (OP, POSITION):
        if name not in frame.columns:
            raise PipelineError(
                f"{_KIND}: the {side} table has no column {name}",
                detail="columns are " + ", ".join(frame.columns),
                hint=f'it is joined by its changes: flow.changes has them; select "{name}", too',
            )
    for name in named:
        if name not in frame.columns:
            raise PipelineError(
                f"{_KIND}: the {side} table has no column {name}",
                detail="columns are " + ", ".join(frame.columns),
                hint='columns of different names are given as pairs: on=[("id", "order_id")]',
            )
        kind = frame.schema[name].dataType.simpleString()
        if "map<" in kind or "variant" in kind:
            raise PipelineError(f"{_KIND}: {name} is {kind}, which is no type for a key")


def _check_names(left: "DataFrame", right: "DataFrame", pairs: list[tuple[str, str]]) -> None:
    shared = [one for one, other in pairs if one == other]
    twice = [
        name
        for name in left.columns
        if name in right.columns and name not in shared and name not in _OURS
    ]
    if twice:
        raise PipelineError(
            f"{_KIND}: both tables have a column {twice[0]}",
            detail=", ".join(twice),
            hint=f'rename one of them: .withColumnRenamed("{twice[0]}", …)',
        )


def _columns(frame: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    chosen = frame.select(*[name for name in frame.columns if name not in _OURS])
    return to_arrow_schema(chosen.schema, timezone="UTC")


def _check_full(key: tuple[str, ...], pairs: list[tuple[str, str]]) -> None:
    """Rows without a partner, one of each table, must not have the same key."""
    shared = {one for one, other in pairs if one == other}
    if set(key) <= shared and len(key) < len(pairs):
        raise PipelineError(
            f"{_KIND}: rows of a full join would not be identified by their keys",
            detail=f"{', '.join(key)} can be in both tables, and not match by all of "
            + ", ".join(one for one, _ in pairs),
            hint="rename the key's column in one of the tables, and give on=[(…, …)]",
        )


def _stays_in_its_bucket(
    left: tuple[str, ...], right: tuple[str, ...], pairs: list[tuple[str, str]], how: str
) -> bool:
    """Whether the key of a row of the result determines its join key, so that all its changes come
    from one bucket. A row without a partner has the columns of its own table only.
    """

    def determines(one: str, other: str) -> bool:
        if one == other:
            return one in (*left, *right)
        by = {"inner": one in left or other in right, "full": one in left and other in right}
        return by.get(how, one in left if how == "left" else other in right)

    return all(determines(one, other) for one, other in pairs)
