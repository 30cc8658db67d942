"""Results of matches as Arrow columns: the rows of the output, and the leaves of their measures.

A leaf that names a row is taken from that row's column, so a measure can be of any type. What is
computed of leaves (`LAST(B.price) - A.price`) is computed by Spark behind the operator.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.matching.attempt import is_excluded
from headwater.pipelines.operators.patterns.matching.conditions import UNFIT, KeyRows, aggregate_of
from headwater.pipelines.operators.patterns.matching.leaves import Aggregate, Leaf, Navigation
from headwater.pipelines.operators.patterns.matching.search import TIMED_OUT, UNMATCHED, Found


@dataclass(slots=True)
class MatchRows:
    """Collects the rows of the output, in lists by column."""

    leaves: Sequence[Leaf]
    is_all_rows: bool
    shows_empty: bool
    is_stored: bool = False  # of a stored pattern: an aggregate of values that do not fit is null
    keys: list[int] = field(default_factory=list)
    times_us: list[int] = field(default_factory=list)
    is_timed_out: list[bool] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)  # which input row it is, of ALL ROWS PER MATCH
    members: list[tuple[int, int]] = field(default_factory=list)  # of its match: first row, number
    values: list[list[Any]] = field(default_factory=list)  # of each leaf; of navigation, rows

    def __post_init__(self) -> None:
        self.values = [[] for _ in self.leaves]

    def add(self, group: int, key: KeyRows, found: Found) -> None:
        labels = found.labels
        if not self.is_all_rows:
            self._row(group, key, found, len(labels) - 1)
        elif labels:
            for row, label in enumerate(labels):
                if not is_excluded(label):
                    self._row(group, key, found, row)
        elif self.shows_empty or found.kind == UNMATCHED:
            self._row(group, key, found, -1)

    def copy(self, other: "MatchRows", row: int) -> None:
        """Adds a row of another one."""
        self.keys.append(other.keys[row])
        self.times_us.append(other.times_us[row])
        self.is_timed_out.append(other.is_timed_out[row])
        self.rows.append(other.rows[row])
        self.members.append(other.members[row])
        for values, added in zip(self.values, other.values, strict=True):
            values.append(added[row])

    def _row(self, group: int, key: KeyRows, found: Found, current: int) -> None:
        start = found.start - key.first
        self.keys.append(group)
        self.times_us.append(found.time_us)
        self.is_timed_out.append(found.kind == TIMED_OUT)
        self.rows.append(key.rows[start + max(current, 0)])
        self.members.append((key.rows[start], max(len(found.labels), 1)))
        for leaf, values in zip(self.leaves, self.values, strict=True):
            values.append(
                None if found.kind == UNMATCHED else self._value(leaf, key, found, start, current)
            )

    def _value(self, leaf: Leaf, key: KeyRows, found: Found, start: int, current: int) -> Any:
        try:
            return _value(leaf, key, found, start, current)
        except UNFIT:
            if not self.is_stored:
                raise
            return None

    def column(self, number: int, kind: pa.DataType, computed: Sequence[pa.ChunkedArray]) -> Any:
        """Of a leaf; `computed` are the columns of all rows."""
        leaf, values = self.leaves[number], self.values[number]
        if isinstance(leaf, Navigation) and leaf.column is not None:
            return computed[leaf.column].take(pa.array(values, pa.int64()))
        if pa.types.is_decimal(kind):
            unit = Decimal(1).scaleb(-kind.scale)
            values = [
                None if value is None else Decimal(value).quantize(unit, ROUND_HALF_UP)
                for value in values
            ]
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise PipelineError(
                "hw.match: an aggregate of a match does not fit its type",
                detail=f"{kind}: {error}",
                hint="CAST its argument to a larger type",
            ) from error


def _value(leaf: Leaf, key: KeyRows, found: Found, start: int, current: int) -> Any:
    labels = found.labels
    if isinstance(leaf, Navigation):
        if leaf.column is None:
            variable = leaf.classifier(labels, current)
            return None if variable is None else key.variables[variable]
        row = leaf.row(labels, current)
        at = -1 if row is None else start + row
        return key.rows[at] if 0 <= at < len(key.rows) else None
    if isinstance(leaf, Aggregate):
        rows = leaf.rows(labels, current)
        if leaf.column is None:
            return len([*rows])
        column = key.columns[leaf.column]
        return aggregate_of(leaf.kind, [column[key.rows[start + row]] for row in rows])
    return found.number
