"""Expressions of a single row in Spark's SQL, computed in Python: the part of a stored pattern that
Spark computes for hw.match.

They have the operators of conditions (conditions.py) and the functions of row_functions.py.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import sqlglot
from sqlglot import exp

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.language.pattern_text import place_in
from headwater.pipelines.operators.patterns.language.terms import Terms, constant_of
from headwater.pipelines.operators.patterns.matching.conditions import (
    UNFIT,
    KeyRows,
    Term,
    leaves_of,
    value_function,
)
from headwater.pipelines.operators.patterns.matching.leaves import Navigation

FUNCTIONS: Final = (
    "abs, coalesce, nvl, ifnull, nullif, case, if, lower, upper, trim, length, concat, ||,"
    " substring, startswith, endswith, contains, like, round, floor, ceil, year, month, day, hour,"
    " minute, second, dayofweek, and cast to string, bigint, double, timestamp and date"
)
_CALLS: Final[dict[type[exp.Expression], str]] = {
    exp.Lower: "lower", exp.Upper: "upper", exp.Trim: "trim", exp.Length: "length",
    exp.StartsWith: "startswith", exp.EndsWith: "endswith", exp.Contains: "contains",
    exp.Like: "like", exp.DPipe: "concat", exp.Floor: "floor", exp.Ceil: "ceil",
    exp.Year: "year", exp.Month: "month", exp.Day: "day", exp.Hour: "hour",
    exp.Minute: "minute", exp.Second: "second", exp.DayOfWeek: "dayofweek",
}  # fmt: skip
_LEAF: Final = re.compile(r"__m\d+")
_OF_DATE: Final = (exp.Year, exp.Month, exp.Day, exp.DayOfWeek)
_CASTS: Final = {
    exp.DType.TEXT: "string", exp.DType.VARCHAR: "string", exp.DType.INT: "bigint",
    exp.DType.BIGINT: "bigint", exp.DType.DOUBLE: "double", exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPTZ: "timestamp", exp.DType.TIMESTAMPLTZ: "timestamp",
    exp.DType.DATE: "date",
}  # fmt: skip


@dataclass(frozen=True)
class RowExpression:
    """`columns` of a row, and the term over them: its leaves are their numbers."""

    text: str
    term: Term
    columns: tuple[str, ...]

    @property
    def is_column(self) -> bool:
        return self.term == ("leaf", Navigation(0))

    @property
    def parts(self) -> "tuple[RowExpression, ...]":
        """The conditions that AND connects; itself, if it has none."""
        if self.term[0] != "and":
            return (self,)
        return tuple(
            inner
            for term in self.term[1:]
            for inner in RowExpression(self._name_of(term), term, self.columns).parts
        )

    def _name_of(self, term: Term) -> str:
        """Equal for parts of other expressions that compute the same."""
        used = [
            self.columns[leaf.column]
            for leaf in leaves_of(term)
            if isinstance(leaf, Navigation) and leaf.column is not None
        ]
        return f"{term!r} {used}"

    def values(
        self, columns: Mapping[str, Sequence[Any]], rows: Sequence[int]
    ) -> tuple[list[Any], int]:
        """Of these rows; and for how many it cannot be computed, which have null."""
        used = [columns[name] for name in self.columns]
        if self.is_column:
            return [used[0][row] for row in rows], 0
        key = KeyRows(used, (), range(len(used[0]) if used else len(rows)))
        evaluate = value_function(self.term)
        found: list[Any] = []
        undecided = 0
        for row in rows:
            try:
                found.append(evaluate(key, row, ""))
            except UNFIT:
                found.append(None)
                undecided += 1
        return found, undecided

    def value(self, row: Mapping[str, Any]) -> Any:
        """Of one row. Null if it cannot be computed."""
        return self.values({name: [row[name]] for name in self.columns}, (0,))[0][0]


def row_expression(
    what: str, text: str, columns: Sequence[str] | None, *, of_measure: str | None = None
) -> RowExpression:
    """`columns`: those of the row; None: any. `of_measure`: the text of a measure, in which columns
    stand for leaves. Raises PipelineError, with the place of a mistake.
    """
    try:
        tree = sqlglot.parse_one(text, read="spark")
    except (sqlglot.errors.SqlglotError, RecursionError) as error:
        detail = str(error).partition("\n")[0]
        raise PipelineError(
            f"{what} is no expression of Spark's SQL", detail=detail, hint=of_measure or text
        ) from None
    terms = _RowTerms(what, text, columns, of_measure)
    term = terms.term(tree)
    return RowExpression(text, term, tuple(terms.used))


class _RowTerms(Terms):
    def __init__(
        self, what: str, text: str, columns: Sequence[str] | None, of_measure: str | None
    ) -> None:
        self._what = what
        self._of_measure = of_measure
        self._text = text
        self._columns = None if columns is None else {name.lower(): name for name in columns}
        self.used: dict[str, int] = {}  # columns, and their numbers

    def leaf(self, node: Any) -> Term | None:
        if not isinstance(node, exp.Column):
            return constant_of(node)
        first, *members = [part.name for part in node.parts]
        if self._columns is not None:
            if first.lower() not in self._columns:
                raise self._refusal(
                    f"there is no column {first}",
                    node,
                    detail="columns are " + ", ".join(self._columns.values()),
                )
            first = self._columns[first.lower()]
        number = self.used.setdefault(first, len(self.used))
        found: Term = ("leaf", Navigation(number))
        for member in members:
            found = ("call", "member", found, ("constant", member))
        return found

    def other(self, node: Any) -> Term:
        name = _CALLS.get(type(node))
        if name is not None and not node.args.get("escape"):
            if name == "trim" and (node.args.get("expression") or node.args.get("position")):
                raise self._unsupported(node)
            argument = node.this
            if isinstance(node, _OF_DATE) and isinstance(argument, exp.TsOrDsToDate):
                argument = argument.this
            arguments = [argument]
            if isinstance(node, exp.Binary | exp.StartsWith | exp.EndsWith | exp.Contains):
                arguments.append(node.expression)
            return self._call(name, arguments)
        if isinstance(node, exp.Concat):
            return self._call("concat", node.expressions)
        if isinstance(node, exp.Substring):
            parts = [node.this, node.args.get("start"), node.args.get("length")]
            return self._call("substring", [part for part in parts if part is not None])
        if isinstance(node, exp.Round) and not node.args.get("truncate"):
            decimals = node.args.get("decimals")
            return self._call("round", [node.this, *([] if decimals is None else [decimals])])
        if isinstance(node, exp.Nullif):
            one, other = self.term(node.this), self.term(node.expression)
            return "if", ("=", one, other), ("constant", None), one
        if isinstance(node, exp.NullSafeNEQ):
            return "not", ("<=>", self.term(node.this), self.term(node.expression))
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Identifier):
            return "call", "member", self.term(node.this), ("constant", node.expression.name)
        if isinstance(node, exp.TsOrDsToDate):
            return self._call("date", [node.this])
        if isinstance(node, exp.Cast) and node.to.this in _CASTS:
            return self._call(_CASTS[node.to.this], [node.this])
        raise self._unsupported(node)

    def _call(self, name: str, arguments: Sequence[Any]) -> Term:
        return "call", name, *map(self.term, arguments)

    def _unsupported(self, node: Any) -> PipelineError:
        text = node.sql(dialect="spark")
        if self._of_measure is not None:
            text = _LEAF.sub("…", text)
        return self._refusal(
            f"a stored pattern does not have {text}",
            node,
            hint="its functions are " + FUNCTIONS,
        )

    def _refusal(self, what: str, node: Any, *, detail: str = "", hint: str = "") -> PipelineError:
        starts = [part.meta["start"] for part in node.walk() if "start" in part.meta]
        place = self._of_measure or place_in(self._text, min(starts, default=0))
        return PipelineError(f"{self._what}: {what}", detail=detail or place, hint=hint)


# ── types ───────────────────────────────────────────────────────────────────────────────────────


def check_types(what: str, term: Term, sample: Callable[[Any], Any], *, is_condition: bool) -> Any:
    """What the term gives for a sample of each leaf. Raises PipelineError if a part of it takes no
    values of these types, or a condition is neither true nor false.
    """
    term = _with_samples(term, sample)
    none = KeyRows((), (), [])
    for part in _parts_of(term):
        try:
            found = value_function(part)(none, 0, "")
        except TypeError as error:
            raise PipelineError(
                f"{what} compares or computes values of different types",
                detail=str(error),
                hint="CAST(x AS type)",
            ) from None
        except UNFIT:  # of other values it may be computed
            found = None
    if is_condition and not (found is None or isinstance(found, bool)):
        raise PipelineError(f"{what} is neither true nor false")
    return found


def _with_samples(term: Term, sample: Callable[[Any], Any]) -> Term:
    if term[0] == "leaf":
        return "constant", sample(term[1])
    return tuple(
        _with_samples(part, sample) if isinstance(part, tuple) and term[0] != "constant" else part
        for part in term
    )


def _parts_of(term: Term) -> list[Term]:
    """The term's parts, and itself as the last one."""
    if term[0] == "constant":
        return [term]
    parts = [part for part in term[1:] if isinstance(part, tuple)]
    return [*(inner for part in parts for inner in _parts_of(part)), term]


def sample_of(kind: pa.DataType) -> Any:
    """A value as Arrow gives it to Python."""
    is_type = pa.types
    if is_type.is_boolean(kind):
        return True
    if is_type.is_integer(kind):
        return 1
    if is_type.is_floating(kind):
        return 1.0
    if is_type.is_decimal(kind):
        return Decimal(1)
    if is_type.is_string(kind) or is_type.is_large_string(kind):
        return "1"
    if is_type.is_timestamp(kind):
        return datetime(2026, 1, 1, tzinfo=None if kind.tz is None else UTC)
    if is_type.is_date(kind):
        return date(2026, 1, 1)
    if is_type.is_duration(kind):
        return timedelta(1)
    if is_type.is_struct(kind):
        return {field.name: sample_of(field.type) for field in kind}
    return None
