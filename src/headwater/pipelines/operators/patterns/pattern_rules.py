"""Settings of hw.match as the operator has them, and what follows from them for the search."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from headwater.pipelines.operators.patterns.language.pattern_tree import (
    Tree,
    first_variables,
    has_anchor,
    is_nullable,
    least_positions,
    variables_of,
)
from headwater.pipelines.operators.patterns.matching.attempt import Machine
from headwater.pipelines.operators.patterns.matching.automaton import compile_pattern
from headwater.pipelines.operators.patterns.matching.conditions import (
    KeyRows,
    Term,
    condition_function,
    leaves_of,
)
from headwater.pipelines.operators.patterns.matching.leaves import (
    Aggregate,
    Leaf,
    MatchNumber,
    Navigation,
    Variables,
)
from headwater.pipelines.operators.patterns.matching.search import PAST_LAST_ROW, SearchRules
from headwater.pipelines.operators.state.fingerprints import NO_SETTING

ONE_ROW: Final = "one row"
ALL_ROWS: Final = "all rows"
_MOST_PATTERNS: Final = 4_096  # that a process has ready

ConditionFunction = Callable[[KeyRows, int, str], bool]


@dataclass(frozen=True)
class Condition:
    """Of a variable in DEFINE: a column of booleans that Spark computes, or a term over rows."""

    variable: str
    column: int | None = None
    term: Term | None = None
    text: str = ""  # as it was written: terms with 1 and with true are equal to Python


@dataclass(frozen=True)
class PatternRules:
    tree: Tree
    conditions: tuple[Condition, ...]  # variables without one match every row
    measures: tuple[Leaf, ...]
    within_us: int | None = None
    skip: str = PAST_LAST_ROW
    skip_target: tuple[str, ...] = ()  # variables
    rows: str = ONE_ROW
    shows_empty: bool = True
    shows_unmatched: bool = False
    timed_out: str | None = None  # the column that says so; None: they are no rows
    gives_matches: bool = True  # else only what timed out
    expressions: tuple[str, ...] = ()  # of the columns that are computed of single rows
    # Of a stored pattern, which ends no pipeline: a condition that cannot be decided for a row is
    # not true, an attempt with too many partial matches is given up, and both are counted.
    is_stored: bool = field(default=False, metadata=NO_SETTING)

    @cached_property
    def variables(self) -> tuple[str, ...]:
        return variables_of(self.tree)

    @property
    def search(self) -> SearchRules:
        shifts = [leaf.shift for _, leaf in self._leaves() if isinstance(leaf, Navigation)]
        return SearchRules(
            self.skip,
            frozenset(self.variables.index(name) for name in self.skip_target),
            self.within_us,
            self._history,
            max([0, *shifts]),
            self.timed_out is not None or not self.gives_matches,
            self.shows_unmatched,
            MatchNumber() in self.measures,
            has_anchor(self.tree),
            self.is_stored,
        )

    @property
    def needs_every_key(self) -> bool:
        """Whether also a key without a row that can begin a match has a state, or a result."""
        search = self.search
        return bool(
            search.history
            or search.lookahead
            or search.gives_unmatched
            or search.remembers_start
            or is_nullable(self.tree)
        )

    @property
    def first_columns(self) -> tuple[int, ...] | None:
        """Of which one is true where an attempt can succeed; None: everywhere it may."""
        if is_nullable(self.tree):
            return None
        by_name = {condition.variable: condition.column for condition in self.conditions}
        found = [by_name.get(name) for name in sorted(first_variables(self.tree))]
        columns = [column for column in found if column is not None]
        return tuple(columns) if len(columns) == len(found) else None

    @property
    def columns_in_python(self) -> set[int]:
        """Those whose values conditions and aggregates compute with."""
        found = {condition.column for condition in self.conditions}
        for leaf in self.condition_leaves():
            if not isinstance(leaf, MatchNumber):
                found.add(leaf.column)
        found |= {leaf.column for leaf in self.measures if isinstance(leaf, Aggregate)}
        return {column for column in found if column is not None}

    def condition_leaves(self) -> Iterator[Leaf]:
        for condition in self.conditions:
            if condition.term is not None:
                yield from leaves_of(condition.term)

    def _leaves(self) -> Iterator[tuple[str | None, Leaf]]:
        """All of them, with the variable whose condition has it."""
        for condition in self.conditions:
            if condition.term is not None:
                for leaf in leaves_of(condition.term):
                    yield condition.variable, leaf
        for leaf in self.measures:
            yield None, leaf

    @property
    def _history(self) -> int:
        """How far PREV reaches before the first row of a match."""
        before = least_positions(self.tree)
        found = 0
        for variable, leaf in self._leaves():
            if not isinstance(leaf, Navigation) or leaf.column is None or leaf.shift >= 0:
                continue
            base = 0
            if leaf.variables is not None:
                base = self._least(leaf.variables, before)
            elif variable is not None and leaf.depends_on_row_only:
                base = before[variable]
            found = max(found, -leaf.shift - base)
        return found

    def _least(self, variables: Variables, before: dict[str, int]) -> int:
        assert variables is not None
        return min(before[self.variables[number]] for number in variables)


@lru_cache(maxsize=_MOST_PATTERNS)
def machine_of(rules: PatternRules) -> Machine:
    """Once in a process."""
    leaves = rules.condition_leaves()
    merges = all(isinstance(leaf, Navigation) and leaf.depends_on_row_only for leaf in leaves)
    return Machine(compile_pattern(rules.tree), merges=merges)


@lru_cache(maxsize=_MOST_PATTERNS)
def functions_of(rules: PatternRules) -> tuple[ConditionFunction | int | None, ...]:
    """Of each variable: a function, the column that is the condition, or None (always true)."""
    found: dict[str, ConditionFunction | int | None] = {}
    for condition in rules.conditions:
        found[condition.variable] = condition.column
        if condition.term is not None:
            found[condition.variable] = condition_function(
                condition.term, f"the condition of {condition.variable}"
            )
    return tuple(found.get(name) for name in rules.variables)
