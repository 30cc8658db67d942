"""Conditions that are evaluated in Python, in SQL's three-valued logic: those of DEFINE that look
at other rows, and all of stored patterns.

Numbers are Python's: integers do not overflow, decimals have 38 digits, division by zero is null.
NaN equals NaN and is above all numbers, as in Spark.
"""

import operator
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from typing import Any, Final, TypeAlias

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.matching.leaves import (
    AVG,
    COUNT,
    MAX,
    MIN,
    SUM,
    Aggregate,
    Leaf,
    Navigation,
)
from headwater.pipelines.operators.patterns.row_functions import ROW_FUNCTIONS

Term: TypeAlias = tuple[Any, ...]  # ("and", term, term), ("leaf", Leaf), ("constant", value)

_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "<": operator.lt,
    "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "not": operator.not_,
    "negative": operator.neg,
    "abs": abs,
}
_DECIMALS: Final = Context(prec=38)
UNFIT: Final = (TypeError, ArithmeticError, ValueError)  # values that an operation does not take


def leaves_of(term: Term) -> list[Leaf]:
    if term[0] == "leaf":
        return [term[1]]
    parts = [part for part in term[1:] if isinstance(part, tuple)]
    return [leaf for part in parts for leaf in leaves_of(part)]


class KeyRows:
    """The rows of one key as conditions see them, by their numbers."""

    __slots__ = ("columns", "first", "rows", "variables")

    def __init__(
        self, columns: Sequence[Sequence[Any]], variables: Sequence[str], rows: Sequence[int]
    ) -> None:
        self.columns = columns  # by the number of the computed column; values of all rows
        self.variables = variables
        self.rows = rows  # from the number `first` on: where they are in the columns
        self.first = 0


# The key's rows, the number of the row, and the labels of the match so far, this row included.
Evaluated: TypeAlias = Callable[[KeyRows, int, str], Any]


class Undecided(PipelineError):
    """A condition has met values that do not fit."""


def condition_function(term: Term, what: str) -> Callable[[KeyRows, int, str], bool]:
    """Whether the condition is true. It raises Undecided for values that do not fit."""
    evaluate = value_function(term)

    def holds(key: KeyRows, number: int, labels: str) -> bool:
        try:
            return evaluate(key, number, labels) is True
        except UNFIT as error:
            raise Undecided(
                f"hw.match: {what} cannot be decided for a row",
                detail=str(error),
                hint="it compares or computes values of different types: CAST(x AS type) in it",
            ) from error

    return holds


def value_function(term: Term) -> Evaluated:
    """What the term computes. It raises one of UNFIT for values that do not fit."""
    kind, *parts = term
    if kind == "constant":
        value = parts[0]
        return lambda *_: value
    if kind == "leaf":
        return _leaf(parts[0])
    if kind == "call":
        return _call(ROW_FUNCTIONS[parts[0]], [value_function(part) for part in parts[1:]])
    functions = [value_function(part) for part in parts]
    if kind == "and":
        return _both(*functions)
    if kind == "or":
        return _either(*functions)
    if kind == "if":
        when, then, otherwise = functions
        return lambda *at: then(*at) if when(*at) is True else otherwise(*at)
    if kind == "coalesce":
        return lambda *at: next((v for f in functions if (v := f(*at)) is not None), None)
    if kind == "is":
        wanted = parts[1][1]
        return lambda *at: functions[0](*at) is wanted
    if kind == "<=>":
        one, other = functions
        return lambda *at: _is_same(one(*at), other(*at))
    if len(functions) == 1:
        apply = _UNARY[kind]
        return lambda *at: None if (v := functions[0](*at)) is None else apply(v)
    apply_both = _compared(_COMPARE[kind]) if kind in _COMPARE else _computed(kind)
    one, other = functions

    def applied(key: KeyRows, number: int, labels: str) -> Any:
        x = one(key, number, labels)
        if x is None:
            return None
        y = other(key, number, labels)
        return None if y is None else apply_both(x, y)

    return applied


def _call(function: Callable[..., Any], arguments: Sequence[Evaluated]) -> Evaluated:
    """Null if an argument is."""

    def called(key: KeyRows, number: int, labels: str) -> Any:
        values = [argument(key, number, labels) for argument in arguments]
        return None if None in values else function(*values)

    return called


def _leaf(leaf: Leaf) -> Evaluated:
    if isinstance(leaf, Aggregate):
        return _aggregate(leaf)
    assert isinstance(leaf, Navigation)
    if leaf.column is None:

        def classifier(key: KeyRows, number: int, labels: str) -> Any:
            found = leaf.classifier(labels, len(labels) - 1)
            return None if found is None else key.variables[found]

        return classifier
    column, shift = leaf.column, leaf.shift
    if leaf.depends_on_row_only:

        def neighbour(key: KeyRows, number: int, labels: str) -> Any:
            at = number + shift - key.first
            return key.columns[column][key.rows[at]] if 0 <= at < len(key.rows) else None

        return neighbour

    def navigated(key: KeyRows, number: int, labels: str) -> Any:
        row = leaf.row(labels, len(labels) - 1)
        if row is None:
            return None
        at = number - len(labels) + 1 + row - key.first
        return key.columns[column][key.rows[at]] if 0 <= at < len(key.rows) else None

    return navigated


def _aggregate(leaf: Aggregate) -> Evaluated:
    def aggregated(key: KeyRows, number: int, labels: str) -> Any:
        rows = leaf.rows(labels, len(labels) - 1)
        if leaf.column is None:
            return len([*rows])
        start = number - len(labels) + 1 - key.first
        column = key.columns[leaf.column]
        return aggregate_of(leaf.kind, [column[key.rows[start + row]] for row in rows])

    return aggregated


def aggregate_of(kind: str, values: Sequence[Any]) -> Any:
    """As SQL has it: nulls do not count, and nothing has no sum."""
    found = [value for value in values if value is not None]
    if kind == COUNT:
        return len(found)
    if not found:
        return None
    if kind in (MIN, MAX):
        return (min if kind == MIN else max)(found, key=_in_order)
    total = found[0]
    for value in found[1:]:
        total = _DECIMALS.add(total, value) if isinstance(total, Decimal) else total + value
    if kind == SUM:
        return total
    assert kind == AVG
    return _computed("/")(total, len(found))


def _in_order(value: Any) -> Any:
    """NaN is above all numbers, as in Spark."""
    if isinstance(value, float):
        return (True, 0.0) if value != value else (False, value)  # noqa: PLR0124
    return value


def _both(a: Evaluated, b: Evaluated) -> Evaluated:
    def both(key: KeyRows, number: int, labels: str) -> bool | None:
        x = a(key, number, labels)
        if x is False:
            return False
        y = b(key, number, labels)
        return y if x is True else (False if y is False else None)

    return both


def _either(a: Evaluated, b: Evaluated) -> Evaluated:
    def either(key: KeyRows, number: int, labels: str) -> bool | None:
        x = a(key, number, labels)
        if x is True:
            return True
        y = b(key, number, labels)
        return y if x is False else (True if y is True else None)

    return either


def _compared(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def compared(x: Any, y: Any) -> bool:
        if x != x or y != y:  # noqa: PLR0124 (NaN equals NaN, and is above all numbers)
            return compare(x != x, y != y)  # noqa: PLR0124
        if isinstance(x, float) or isinstance(y, float):
            if isinstance(x, Decimal):  # a double is compared with decimals as doubles
                x = float(x)
            elif isinstance(y, Decimal):
                y = float(y)
        return compare(x, y)

    return compared


def _is_same(x: Any, y: Any) -> bool:
    if x is None or y is None:
        return x is y
    return _compared(operator.eq)(x, y)


def _computed(sign: str) -> Callable[[Any, Any], Any]:
    exact = {
        "+": _DECIMALS.add,
        "-": _DECIMALS.subtract,
        "*": _DECIMALS.multiply,
        "/": _DECIMALS.divide,
        "%": _DECIMALS.remainder,
    }[sign]
    plain = {
        "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
        "%": _remainder,
    }[sign]  # fmt: skip

    def computed(x: Any, y: Any) -> Any:
        if sign in "/%" and not y:
            return None
        if isinstance(x, Decimal) or isinstance(y, Decimal):
            if isinstance(x, float) or isinstance(y, float):
                return plain(float(x), float(y))
            if isinstance(x, Decimal | int) and isinstance(y, Decimal | int):
                return exact(x, y)
        return plain(x, y)

    return computed


def _remainder(x: Any, y: Any) -> Any:
    """With the sign of the dividend."""
    found = abs(x) % abs(y)
    return -found if x < 0 else found
