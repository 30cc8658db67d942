"""The search of hw.match for one version of a stored pattern, with its own tables in the state."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from headwater.pipelines.operators.patterns.match_settings import EVENT_TIME, MatchSettings
from headwater.pipelines.operators.patterns.matching.key_searches import KEYS, ROWS
from headwater.pipelines.operators.patterns.matching.leaves import Navigation
from headwater.pipelines.operators.patterns.matching.measures import MatchRows
from headwater.pipelines.operators.patterns.stored.definitions import (
    TIMED_OUT,
    CompiledPattern,
    leaf_name,
)
from headwater.pipelines.operators.patterns.stored.row_expressions import RowExpression
from headwater.pipelines.operators.runtime.contract import State
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

PATTERN_ID: Final = "pattern_id"
OWNER: Final = "owner"
TARGET: Final = "target"
MEASURES: Final = "measures"
ROW: Final = "__row"  # of a row that is ready: its number among all that are
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_MICROSECOND: Final = timedelta(microseconds=1)


def result_schema(key: Iterable[pa.Field], pattern_id: pa.Field) -> pa.Schema:
    return pa.schema(
        [
            pa.field(PATTERN_ID, pattern_id.type),
            pa.field(OWNER, pa.string()),
            pa.field(TARGET, pa.string()),
            *key,
            with_metadata(pa.field(EVENT_TIME, _TIMESTAMP), {LEAD: 1}),
            pa.field(MEASURES, pa.string()),
            pa.field(TIMED_OUT, pa.bool_()),
            with_metadata(pa.field(POSITION, POSITION_TYPE), {RESULTS: EVENTS}),
            pa.field(OP, pa.string()),
        ]
    )


class RowValues:
    """Rows that are ready, and what patterns compute of them: once for all patterns."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self.undecided = 0
        self._columns = _Columns(rows)
        self._true: dict[str, list[int]] = {}  # rows for which a condition is true

    def true_rows(self, condition: RowExpression) -> Sequence[int]:
        """For which it is true. Of conditions that AND connects, one is computed for all rows, and
        shared with other patterns; the next ones where those before are true.
        """
        first, *others = condition.parts
        rows = self._true.get(first.text)
        if rows is None:
            rows = self._true[first.text] = self._where(first, range(len(self.rows)))
        for part in others:
            rows = self._where(part, rows)
        return rows

    def of_some(self, expression: RowExpression, rows: pa.Table) -> list[Any]:
        """Its values in some of the rows."""
        return self._values(expression, rows[ROW].to_pylist())

    def _where(self, condition: RowExpression, rows: Sequence[int]) -> list[int]:
        values = self._values(condition, rows)
        return [row for row, value in zip(rows, values, strict=True) if value is True]

    def _values(self, expression: RowExpression, rows: Sequence[int]) -> list[Any]:
        found, undecided = expression.values(self._columns, rows)
        self.undecided += undecided
        return found


class _Columns(Mapping[str, Sequence[Any]]):
    """The columns of a table as lists, when they are first asked for."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._lists: dict[str, list[Any]] = {}

    def __getitem__(self, name: str) -> list[Any]:
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = self._rows[name].to_pylist()
        return found

    def __iter__(self) -> Any:
        return iter(self._rows.column_names)

    def __len__(self) -> int:
        return len(self._rows.column_names)


@dataclass(frozen=True)
class VersionedMatch(MatchSettings):
    """Its computed columns are columns of the input, and expressions over them are computed when
    they are needed: so values of any type need no column of their own.
    """

    id: Any = None
    pattern: CompiledPattern | None = None
    ready: RowValues | None = None
    shown: pa.Schema | None = None  # the output, which all patterns share

    @property
    def output(self) -> pa.Schema:
        return self.shown

    @cached_property
    def _expressions(self) -> tuple[RowExpression, ...]:
        assert self.pattern is not None
        return self.pattern.expressions

    @cached_property
    def _wanted(self) -> set[int]:
        """All but those that nothing reads."""
        of_measures = {
            leaf.column
            for leaf in self.rules.measures
            if isinstance(leaf, Navigation) and leaf.column is not None
        }
        return self.rules.columns_in_python | of_measures

    def can_begin(self, rows: pa.Table) -> bool:
        """Whether a match can begin with one of these rows, or rows before it matter."""
        starts = self.starts_in(rows)
        return (
            self.needs_every_key
            or (starts is None and len(rows) > 0)
            or (starts is not None and bool(starts.any()))
        )

    def starts_in(self, rows: pa.Table) -> npt.NDArray[np.bool_] | None:
        columns = self.rules.first_columns
        if columns is None:
            return None
        assert self.ready is not None
        is_start = np.zeros(len(self.ready.rows), np.bool_)
        for column in columns:
            is_start[self.ready.true_rows(self._expressions[column])] = True
        found: npt.NDArray[np.bool_] = is_start[rows[ROW].to_numpy()]
        return found

    def values(self, old: pa.Table, ready: pa.Table) -> list[list[Any]]:
        assert self.ready is not None
        of_old = _Columns(old)
        return [
            expression.values(of_old, range(len(old)))[0] + self.ready.of_some(expression, ready)
            if number in self._wanted
            else []
            for number, expression in enumerate(self._expressions)
        ]

    def starts_among(
        self, rows: pa.Table, values: Sequence[Sequence[Any]]
    ) -> Sequence[bool] | None:
        columns = self.rules.first_columns
        if columns is None:
            return None
        chosen = [values[column] for column in columns]
        return [any(one[row] is True for one in chosen) for row in range(len(rows))]

    def result(
        self, keys: pa.Table, rows: pa.Table, values: Sequence[Sequence[Any]], found: MatchRows
    ) -> pa.Table:
        assert self.pattern is not None
        count = len(found.times_us)
        times = pa.array(np.array(found.times_us, np.int64))
        of_keys = keys.take(pa.array(found.keys, pa.int64()))
        definition = self.pattern.definition
        columns: dict[str, Any] = {
            PATTERN_ID: pa.repeat(pa.scalar(self.id, self.output.field(PATTERN_ID).type), count),
            OWNER: pa.repeat(pa.scalar(definition.owner or None, pa.string()), count),
            TARGET: pa.repeat(pa.scalar(definition.target or None, pa.string()), count),
            **{name: of_keys[name] for name in of_keys.column_names},
            EVENT_TIME: times.cast(_TIMESTAMP),
            MEASURES: pa.array(self._measures(values, found), pa.string()),
            TIMED_OUT: pa.array(found.is_timed_out, pa.bool_()),
            POSITION: result_positions(self.topic, times),
            OP: pa.repeat("c", count),
        }
        return pa.Table.from_arrays(
            [columns[name] for name in self.output.names], schema=self.output
        )

    def _measures(self, values: Sequence[Sequence[Any]], found: MatchRows) -> list[str]:
        assert self.pattern is not None
        leaves: dict[str, list[Any]] = {}
        for number, (leaf, of_leaf) in enumerate(
            zip(self.rules.measures, found.values, strict=True)
        ):
            if isinstance(leaf, Navigation) and leaf.column is not None:  # numbers of rows
                column = values[leaf.column]
                of_leaf = [None if row is None else column[row] for row in of_leaf]  # noqa: PLW2901
            leaves[leaf_name(number)] = of_leaf
        rows = range(len(found.times_us))
        columns = {
            name: measure.values(leaves, rows)[0] for name, measure in self.pattern.measures.items()
        }
        return [_json({name: column[row] for name, column in columns.items()}) for row in rows]


def _json(values: Mapping[str, Any]) -> str:
    """As stores have nested values (sinks/rows/nested.py): decimals are texts."""
    try:
        return orjson.dumps(values, default=_plain).decode()
    except TypeError:  # an integer of more than 64 bits
        as_texts = {
            name: str(value) if isinstance(value, int) else value for name, value in values.items()
        }
        return orjson.dumps(as_texts, default=_plain).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, timedelta):
        return value // _MICROSECOND
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date):
        return value.isoformat()
    raise TypeError


class VersionState:
    """The state of one version (contract.State), in that of the operator."""

    TABLES: Final = tuple(
        f"{name}{suffix}" for name in (KEYS, ROWS) for suffix in ("", "-gone", "-new")
    )

    def __init__(self, state: State, name: str) -> None:
        self._state = state
        self._name = name
        self.document: dict[str, Any] = {}
        self.counters: dict[str, int] = {}
        self.cache: dict[str, Any] = {}

    def table(self, name: str) -> pa.Table | None:
        return self._state.table(f"{self._name}-{name}")

    def put(self, name: str, table: pa.Table | None) -> None:
        self._state.put(f"{self._name}-{name}", table)

    def side(self, name: str, rows: pa.Table) -> None:
        raise NotImplementedError(name)

    def remove(self) -> None:
        for name in self.TABLES:
            if self.table(name) is not None:
                self.put(name, None)
