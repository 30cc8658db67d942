"""Leaves of conditions and measures: what they take from the rows of a match.

Row pattern navigation (PREV, NEXT, FIRST, LAST, CLASSIFIER), aggregates over a variable's rows, and
MATCH_NUMBER. A leaf is evaluated over the labels of a match (attempt.py) as of one of its rows:
RUNNING has the rows up to that one, FINAL has all.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from headwater.pipelines.operators.patterns.matching.attempt import variable_of

COUNT: Final = "count"
SUM: Final = "sum"
AVG: Final = "avg"
MIN: Final = "min"
MAX: Final = "max"
COLUMN: Final = "__e{}"  # what Spark computes of a row, by its number
AGGREGATES: Final = (COUNT, SUM, AVG, MIN, MAX)

Variables: TypeAlias = frozenset[int] | None  # None: every row of the match


@dataclass(frozen=True, slots=True)
class Navigation:
    column: int | None  # of the computed ones; None: CLASSIFIER
    variables: Variables = None
    is_first: bool = False  # FIRST, else LAST
    offset: int = 0  # of FIRST or LAST: rows of these variables further inside
    shift: int = 0  # of PREV (negative) or NEXT: rows of the key from there
    is_final: bool = False

    @property
    def is_current_row(self) -> bool:
        return self.depends_on_row_only and self.shift == 0

    @property
    def depends_on_row_only(self) -> bool:
        """In a condition: on the row itself and its neighbours, not on what was matched before."""
        is_last = self.variables is None and not self.is_first and not self.offset
        return is_last and self.column is not None

    def row(self, labels: str, current: int) -> int | None:
        """Its row, counted from the first row of the match; it may be before that, or after it."""
        seen = len(labels) if self.is_final else current + 1
        if self.variables is None:
            found = self.offset if self.is_first else seen - 1 - self.offset
            return found + self.shift if 0 <= found < seen else None
        rows: Iterable[int] = range(seen) if self.is_first else range(seen - 1, -1, -1)
        left = self.offset
        for row in rows:
            if variable_of(labels[row]) in self.variables:
                if not left:
                    return row + self.shift
                left -= 1
        return None

    def classifier(self, labels: str, current: int) -> int | None:
        """The number of its row's variable."""
        row = self.row(labels, current)
        seen = len(labels) if self.is_final else current + 1
        return None if row is None or not 0 <= row < seen else variable_of(labels[row])


@dataclass(frozen=True, slots=True)
class Aggregate:
    kind: str
    column: int | None  # None: count(*)
    variables: Variables = None
    is_final: bool = False

    def rows(self, labels: str, current: int) -> Iterable[int]:
        """Rows of its variables, counted from the first row of the match."""
        seen = range(len(labels) if self.is_final else current + 1)
        if self.variables is None:
            return seen
        return [row for row in seen if variable_of(labels[row]) in self.variables]


@dataclass(frozen=True, slots=True)
class MatchNumber:
    pass


Leaf: TypeAlias = Navigation | Aggregate | MatchNumber
