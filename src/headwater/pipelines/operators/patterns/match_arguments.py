"""Arguments of hw.match: read and checked, before Spark sees any of them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.builder import Pattern
from headwater.pipelines.operators.patterns.language.expressions import Expression
from headwater.pipelines.operators.patterns.language.names import Names
from headwater.pipelines.operators.patterns.language.pattern_text import parse_pattern
from headwater.pipelines.operators.patterns.language.pattern_tree import (
    Tree,
    first_variables,
    has_anchor,
    has_deadline,
    has_exclusion,
    is_unbounded,
    variables_of,
)
from headwater.pipelines.operators.patterns.language.terms import term_of
from headwater.pipelines.operators.patterns.match_settings import EVENT_TIME
from headwater.pipelines.operators.patterns.matching.search import (
    PAST_LAST_ROW,
    TO_FIRST,
    TO_LAST,
    TO_NEXT_ROW,
)
from headwater.pipelines.operators.patterns.pattern_rules import (
    ALL_ROWS,
    ONE_ROW,
    Condition,
    PatternRules,
    machine_of,
)
from headwater.pipelines.operators.time.durations import Duration, microseconds
from headwater.pipelines.position import POSITION
from headwater.sinks.contract import OP

if TYPE_CHECKING:
    from pyspark.sql import Column

    from headwater.pipelines.operators.patterns.matching.leaves import Leaf

_KIND: Final = "match"
OURS: Final = (OP, "_at", POSITION)  # columns of the input that results do not have
_SKIP: Final = re.compile(
    r"(?:after\s+match\s+)?skip\s+(?:(?P<past>past\s+last\s+row)|(?P<next>to\s+next\s+row)"
    r"|to\s+(?P<which>(?:first|last)\s+)?(?P<name>\w+))",
    re.IGNORECASE,
)
_ROWS: Final = re.compile(
    r"(?:(?P<one>one\s+row)|all\s+rows)\s+per\s+match"
    r"(?P<more>\s+show\s+empty\s+matches|\s+omit\s+empty\s+matches|\s+with\s+unmatched\s+rows)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class MatchArguments:
    rules: PatternRules
    names: Names
    shown: tuple[str, ...]  # columns of the input that results have
    measures: Mapping[str, str]  # expressions of Spark's over the leaves, __m0 and so on


def read_arguments(
    columns: Sequence[str] | None,
    keys: tuple[str, ...],
    pattern: str | Pattern,
    *,
    define: "Mapping[str, str | Column] | None" = None,
    measures: Mapping[str, str] | None = None,
    subset: Mapping[str, Sequence[str]] | None = None,
    within: Duration | None = None,
    timed_out: str | None = None,
    after_match: str = "SKIP PAST LAST ROW",
    rows_per_match: str = "ONE ROW PER MATCH",
    unbounded: bool = False,
) -> MatchArguments:
    """As of `hw.match`; `columns` are those of the input (None: any). Raises PipelineError."""
    tree, define, within_us, gives_matches = _pattern_of(pattern, define, within)
    if not gives_matches and timed_out is not None:
        raise PipelineError(
            f"{_KIND}: timed_out={timed_out!r} with a pattern that ends in not_followed_by",
            hint="its matches are what timed out: leave timed_out out",
        )
    _check_bounded(tree, within_us, unbounded=unbounded, timed_out=timed_out)
    names = Names(variables_of(tree), _subsets(subset, variables_of(tree)), columns)
    conditions = _conditions(names, define)
    rows, shows_empty, shows_unmatched = _rows_of(rows_per_match, tree)
    leaves: dict[Leaf, str] = {}
    texts = {
        column: Expression(f"{_KIND}: the measure {column}", text, names).measure(
            leaves, is_final=rows == ONE_ROW
        )
        for column, text in (measures or {}).items()
    }
    skip, target = _skip_of(after_match, tree, names)
    rules = PatternRules(
        tree,
        conditions,
        tuple(leaves),
        within_us,
        skip,
        target,
        rows,
        shows_empty,
        shows_unmatched,
        timed_out,
        gives_matches,
        tuple(str(computed) for computed in names.computed),
    )
    machine_of(rules)  # raises if the pattern is too large
    shown = keys if rows == ONE_ROW else tuple(columns or ())
    _check_results(shown, [*texts, *([timed_out] if timed_out is not None else [])])
    return MatchArguments(rules, names, shown, texts)


def _pattern_of(
    pattern: str | Pattern, define: Any, within: Duration | None
) -> tuple[Tree, Mapping[str, Any], int | None, bool]:
    within_us = None if within is None else microseconds(within, "within", at_least_us=1)
    if not isinstance(pattern, Pattern):
        tree = parse_pattern(pattern)
        if not variables_of(tree):
            raise PipelineError(f"{_KIND}: the pattern has no variable", detail=pattern)
        return tree, define or {}, within_us, True
    if define is not None or (within is not None and pattern.within_us is not None):
        raise PipelineError(
            f"{_KIND}: the pattern has its own {'conditions' if define is not None else 'within'}",
            hint='hw.pattern().begin("a", where=…), .within(…)',
        )
    tree = pattern.tree()
    within_us = within_us if pattern.within_us is None else pattern.within_us
    return tree, pattern.conditions(), within_us, not pattern.ends_in_absence


def _check_bounded(
    tree: Tree, within_us: int | None, *, unbounded: bool, timed_out: str | None
) -> None:
    has_end = within_us is not None or has_deadline(tree)
    if timed_out is not None and not has_end:
        raise PipelineError(
            f"{_KIND}: timed_out={timed_out!r} without within", hint='such as within="1 hour"'
        )
    if unbounded:
        return
    if within_us is None and is_unbounded(tree):
        raise PipelineError(
            f"{_KIND}: a match of this pattern can grow for ever, and its state with it",
            detail="it has a quantifier without an upper bound, and no within",
            hint='within="1 hour", or {1,100} instead of +; unbounded=True allows it',
        )
    if has_anchor(tree):
        raise PipelineError(
            f"{_KIND}: ^ needs a state for each key for ever",
            detail="whether a row is the first of its key",
            hint="unbounded=True allows it",
        )


def _subsets(
    subset: Mapping[str, Sequence[str]] | None, variables: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    by_name = {variable.upper(): variable for variable in variables}
    found = {}
    for union, members in (subset or {}).items():
        if union.upper() in by_name:
            raise PipelineError(f"{_KIND}: subset {union} is a variable of the pattern, too")
        listed = [members] if isinstance(members, str) else members
        for member in listed:
            if member.upper() not in by_name:
                raise _unknown(f"subset {union}", member, variables)
        found[union] = tuple(by_name[member.upper()] for member in listed)
        if not found[union]:
            raise PipelineError(f"{_KIND}: subset {union} is empty")
    return found


def _unknown(where: str, name: str, variables: Sequence[str]) -> PipelineError:
    return PipelineError(
        f"{_KIND}: {where} names {name}, which is no variable of the pattern",
        detail="variables are " + ", ".join(variables),
    )


def _conditions(names: Names, define: "Mapping[str, str | Column]") -> tuple[Condition, ...]:
    by_name = {variable.upper(): variable for variable in names.variables}
    found: dict[str, Condition] = {}
    for given, condition in define.items():
        variable = by_name.get(given.upper())
        if variable is None:
            raise _unknown("define", given, names.variables)
        if variable in found:
            raise PipelineError(f"{_KIND}: define has {variable} twice")
        what = f"{_KIND}: the condition of {variable}"
        if not isinstance(condition, str):
            _check_column(what, condition)
            found[variable] = Condition(variable, names.add(condition, what))
            continue
        expression = Expression(what, condition, names, variable)
        if expression.is_of_row:
            found[variable] = Condition(variable, expression.row_column())
            continue
        term = term_of(expression)
        if term[0] in ("+", "-", "*", "/", "%", "negative", "abs"):
            raise PipelineError(f"{what} is neither true nor false", detail=condition)
        found[variable] = Condition(variable, term=term, text=condition)
    return tuple(found[variable] for variable in names.variables if variable in found)


def _check_column(what: str, condition: Any) -> None:
    from pyspark.sql import Column

    if not isinstance(condition, Column):
        raise PipelineError(f"{what} is {condition!r}", hint="a text in Spark's SQL, or a Column")


def _rows_of(given: str, tree: Tree) -> tuple[str, bool, bool]:
    found = _ROWS.fullmatch(given.strip()) if isinstance(given, str) else None
    more = " ".join((found["more"] or "").lower().split()) if found else ""
    if found is None or (found["one"] and more):
        raise PipelineError(
            f"{_KIND}: rows_per_match={given!r}",
            hint="ONE ROW PER MATCH, or ALL ROWS PER MATCH and one of SHOW EMPTY MATCHES, OMIT"
            " EMPTY MATCHES, WITH UNMATCHED ROWS",
        )
    shows_unmatched = more.startswith("with")
    if shows_unmatched and has_exclusion(tree):
        raise PipelineError(
            f"{_KIND}: a pattern with {{- -}} and ALL ROWS PER MATCH WITH UNMATCHED ROWS",
            detail="rows would be left out that are neither matched nor unmatched",
        )
    return (ONE_ROW if found["one"] else ALL_ROWS), not more.startswith("omit"), shows_unmatched


def _skip_of(given: str, tree: Tree, names: Names) -> tuple[str, tuple[str, ...]]:
    found = _SKIP.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        raise PipelineError(
            f"{_KIND}: after_match={given!r}",
            hint="SKIP PAST LAST ROW, SKIP TO NEXT ROW, SKIP TO FIRST A, SKIP TO LAST A",
        )
    if found["past"]:
        return PAST_LAST_ROW, ()
    if found["next"]:
        return TO_NEXT_ROW, ()
    variables = names.variables_of(found["name"])
    if variables is None:
        raise _unknown("after_match", found["name"], names.variables)
    target = tuple(names.variables[number] for number in sorted(variables))
    is_first = (found["which"] or "last").strip().lower() == "first"
    if is_first and first_variables(tree) <= set(target):
        raise PipelineError(
            f"{_KIND}: after_match={given!r} leads to the first row of the match, again and again",
            detail=f"every match begins with {found['name']}",
            hint="SKIP TO NEXT ROW",
        )
    return (TO_FIRST if is_first else TO_LAST), target


def _check_results(shown: Sequence[str], added: Sequence[str]) -> None:
    taken = {name.lower() for name in (*shown, EVENT_TIME, *OURS)}
    if EVENT_TIME in (name.lower() for name in shown):
        raise PipelineError(
            f"{_KIND}: the input has a column {EVENT_TIME}, and results have one of their own",
            hint=f'.withColumnRenamed("{EVENT_TIME}", "…") before',
        )
    for name in added:
        if name.lower() in taken:
            raise PipelineError(f"{_KIND}: results have a column {name} of their own, or twice")
        taken.add(name.lower())
