"""A stored pattern: its definition as a topic has it, checked and compiled.

The search is that of hw.match, by the same rules. What Spark computes there of single rows, its
conditions and measures, is computed in Python here (row_expressions.py).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

import orjson
import pyarrow as pa

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.language.names import Names
from headwater.pipelines.operators.patterns.match_arguments import read_arguments
from headwater.pipelines.operators.patterns.matching.leaves import (
    AVG,
    COLUMN,
    COUNT,
    SUM,
    Aggregate,
    Leaf,
    MatchNumber,
    Navigation,
)
from headwater.pipelines.operators.patterns.pattern_rules import PatternRules
from headwater.pipelines.operators.patterns.stored.row_expressions import (
    RowExpression,
    check_types,
    row_expression,
    sample_of,
)
from headwater.pipelines.operators.time.watermarks import NEVER_US

NOW: Final = "now"
START: Final = "start"
TIMED_OUT: Final = "timed_out"
AFTER_MATCH: Final = "SKIP PAST LAST ROW"
# The columns of the topic, for flow.table. Objects are read as the JSON that they are.
PATTERNS: Final = (
    "id string, pattern string, define string, measures string, subset string, within string, "
    "after_match string, timed_out boolean, `from` string, owner string, target string, "
    "created timestamp"
)
_TEXTS: Final = (
    "pattern", "define", "measures", "subset", "within", "after_match", "from", "owner", "target",
)  # fmt: skip
# Their types, without the id's, which may be any.
PATTERN_COLUMNS: Final = {name: pa.string() for name in _TEXTS} | {TIMED_OUT: pa.bool_()}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_CHARACTERS: Final = 100_000
_ARITHMETIC: Final = ("+", "-", "*", "/", "%", "negative", "abs")


@dataclass(frozen=True)
class PatternDefinition:
    id: str
    pattern: str
    define: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, str] = field(default_factory=dict)
    subset: Mapping[str, Sequence[str]] = field(default_factory=dict)
    within: str | None = None
    after_match: str = AFTER_MATCH
    timed_out: bool = False  # partial matches that ran out of time are rows, too
    begins: str = NOW  # in the topic it is called "from"
    owner: str = ""
    target: str = ""
    created: str = ""  # ISO 8601

    def to_json(self) -> bytes:
        """Without what is not set."""
        fields = {_FIELDS.get(name, name): value for name, value in asdict(self).items()}
        unset: tuple[Any, ...] = ("", None, False, {}, AFTER_MATCH)
        return orjson.dumps({name: value for name, value in fields.items() if value not in unset})

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> "PatternDefinition":
        """Of the columns PATTERNS, of which some may be missing. Raises PipelineError."""
        timed_out = row.get("timed_out")
        if not isinstance(timed_out, bool | None):
            raise PipelineError(f"timed_out={timed_out!r}", hint="true or false")
        return cls(
            _text(row, "id"),
            _text(row, "pattern"),
            _object(row, "define", str),
            _object(row, "measures", str),
            _object(row, "subset", list),
            _text(row, "within") or None,
            _text(row, "after_match") or AFTER_MATCH,
            bool(timed_out),
            _text(row, "from") or NOW,
            _text(row, "owner"),
            _text(row, "target"),
            str(row.get("created") or ""),
        )

    @property
    def begins_us(self) -> int | None:
        """None: when it is stored. Raises PipelineError."""
        if self.begins == NOW:
            return None
        if self.begins == START:
            return NEVER_US
        try:
            found = datetime.fromisoformat(self.begins)
        except ValueError:
            raise PipelineError(
                f"from={self.begins!r} is no time",
                hint='"now", "start", or a time such as 2026-03-01T12:00:00Z',
            ) from None
        found = found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        return (found - _EPOCH) // timedelta(microseconds=1)


_FIELDS: Final = {"begins": "from"}


@dataclass(frozen=True)
class CompiledPattern:
    definition: PatternDefinition
    rules: PatternRules
    expressions: tuple[RowExpression, ...]  # what rules call computed columns
    measures: Mapping[str, RowExpression]  # over the leaves, as COLUMN-like names
    begins_us: int | None

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the input, that it reads."""
        return tuple(dict.fromkeys(name for one in self.expressions for name in one.columns))


def leaf_name(number: int) -> str:
    return f"__m{number}"


def compiled(definition: PatternDefinition, columns: pa.Schema | None = None) -> CompiledPattern:
    """`columns`: those of the input, if they are there; else any name may be one, and types are not
    checked. Raises PipelineError, with the place of a mistake.
    """
    if len(definition.to_json()) > _MOST_CHARACTERS:
        raise PipelineError(f"a pattern has at most {_MOST_CHARACTERS:,} characters")
    begins_us = definition.begins_us
    names = None if columns is None else columns.names
    given = read_arguments(
        names,
        (),
        definition.pattern,
        define=definition.define,
        measures=definition.measures,
        subset=definition.subset,
        within=definition.within,
        timed_out=TIMED_OUT if definition.timed_out else None,
        after_match=definition.after_match,
    )
    rules = given.rules
    expressions = tuple(
        row_expression(owner, text, names)
        for text, owner in zip(given.names.computed, given.names.owners, strict=True)
    )
    _check_conditions(rules, given.names, expressions)
    leaves = [leaf_name(number) for number in range(len(rules.measures))]
    measures = {
        name: row_expression(
            f"match: the measure {name}", text, leaves, of_measure=definition.measures[name]
        )
        for name, text in given.measures.items()
    }
    if columns is not None:
        _check_types(rules, given.names, expressions, measures, columns)
    stored = PatternRules(
        **{
            name: getattr(rules, name) for name in rules.__dataclass_fields__ if name != "is_stored"
        },
        is_stored=True,
    )
    return CompiledPattern(definition, stored, expressions, measures, begins_us)


@lru_cache(maxsize=4_096)
def compiled_row(row: tuple[tuple[str, Any], ...], columns: pa.Schema) -> Any:
    """The CompiledPattern of a row of the topic, or the PipelineError by which it is refused. Once
    in a process.
    """
    try:
        return compiled(PatternDefinition.of_row(dict(row)), columns)
    except PipelineError as error:
        return error


def _check_conditions(
    rules: PatternRules, names: Names, expressions: Sequence[RowExpression]
) -> None:
    for condition in rules.conditions:
        if condition.column is None:
            continue
        term = expressions[condition.column].term
        is_value = term[0] == "constant" and not isinstance(term[1], bool | None)
        if term[0] in _ARITHMETIC or is_value:
            raise PipelineError(
                f"{names.owners[condition.column]} is neither true nor false",
                detail=expressions[condition.column].text,
            )


def _check_types(
    rules: PatternRules,
    names: Names,
    expressions: Sequence[RowExpression],
    measures: Mapping[str, RowExpression],
    columns: pa.Schema,
) -> None:
    samples: list[Any] = []
    conditions = {condition.column for condition in rules.conditions}
    for number, expression in enumerate(expressions):
        of_columns = [sample_of(columns.field(name).type) for name in expression.columns]
        sample = _sampling(of_columns)
        is_condition = number in conditions
        owner = names.owners[number]
        samples.append(check_types(owner, expression.term, sample, is_condition=is_condition))
    for condition in rules.conditions:
        if condition.term is not None:
            check_types(
                f"match: the condition of {condition.variable}",
                condition.term,
                lambda leaf: _sample(leaf, samples),
                is_condition=True,
            )
    leaves = [_sample(leaf, samples) for leaf in rules.measures]
    for name, measure in measures.items():
        used = [leaves[int(column.removeprefix("__m"))] for column in measure.columns]
        what = f"match: the measure {name}"
        check_types(what, measure.term, _sampling(used), is_condition=False)


def _sampling(samples: Sequence[Any]) -> Callable[[Any], Any]:
    return lambda leaf: samples[leaf.column]


def _sample(leaf: Leaf, samples: Sequence[Any]) -> Any:
    if isinstance(leaf, MatchNumber):
        return 1
    if isinstance(leaf, Navigation):
        return "" if leaf.column is None else samples[leaf.column]
    assert isinstance(leaf, Aggregate)
    if leaf.column is None or leaf.kind == COUNT:
        return 1
    found = samples[leaf.column]
    is_number = not isinstance(found, bool | str | datetime) and found is not None
    if leaf.kind in (SUM, AVG) and found is not None and not is_number:
        raise PipelineError(f"match: {leaf.kind} takes numbers", detail=COLUMN.format(leaf.column))
    return found


def _text(row: Mapping[str, Any], name: str) -> str:
    found = row.get(name)
    if not isinstance(found, str | None):
        raise PipelineError(f"{name}={found!r} is no text")
    return found or ""


def _object(row: Mapping[str, Any], name: str, kind: type) -> dict[str, Any]:
    """An object, or a text with one, whose values are of this kind."""
    found = row.get(name)
    if isinstance(found, str):
        try:
            found = orjson.loads(found) if found else {}
        except orjson.JSONDecodeError as error:
            raise PipelineError(f"{name} is no JSON", detail=str(error)) from None
    found = {} if found is None else found
    if not isinstance(found, dict) or not all(isinstance(one, kind) for one in found.values()):
        what = "texts" if kind is str else "lists of variables"
        raise PipelineError(f"{name} is no object with {what}", detail=str(found)[:200])
    return found
