"""Conditions on rows: SQL expressions, evaluated on captured rows in three-valued logic.

A condition is parsed when the settings are read and bound to a table when that is first seen; then
it is a function from a row to True, False or None (unknown). What stands here is a small part of
SQL; everything else is refused by name, never ignored.

Texts are compared by code point and exactly: databases may do so by a collation. Integers divide
as in PostgreSQL and SQLite (7/2 is 3), in MySQL and MariaDB to a decimal; by zero gives null.
"""

import operator
import re
from collections.abc import Callable
from decimal import DivisionByZero, InvalidOperation
from typing import Any, Final

import sqlglot
from sqlglot import exp

from headwater.capture.contract import Column, Row, Table, without_values
from headwater.capture.rules.condition_terms import (
    NUMBERS,
    Term,
    Value,
    applied_to,
    as_kind,
    column_term,
    constant_term,
    literal,
    same_kind,
    widest,
)
from headwater.errors import ConfigError, TableRefused

_COMPARE: Final[dict[type[exp.Expression], Callable[[Any, Any], bool]]] = {
    exp.EQ: operator.eq,
    exp.NEQ: operator.ne,
    exp.LT: operator.lt,
    exp.LTE: operator.le,
    exp.GT: operator.gt,
    exp.GTE: operator.ge,
}
_ARITHMETIC: Final[dict[type[exp.Expression], Callable[[Any, Any], Any]]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
    exp.Div: operator.truediv,
}
_TEXT_FUNCTIONS: Final[dict[type[exp.Expression], tuple[str, Callable[[str], Any]]]] = {
    exp.Lower: ("text", str.lower),
    exp.Upper: ("text", str.upper),
    exp.Length: ("integer", len),
}
_SUPPORTED: Final = (
    *_COMPARE, *_ARITHMETIC, *_TEXT_FUNCTIONS,
    exp.And, exp.Or, exp.Not, exp.Paren, exp.In, exp.Between, exp.Is, exp.Like, exp.Escape,
    exp.Coalesce, exp.Neg, exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null,
)  # fmt: skip
# Parts of those that are looked at below. Any other that is set changes the meaning: refused.
_PARTS: Final = {
    "this", "expression", "expressions", "low", "high", "quoted", "is_string", "negate",
    "typed", "safe",  # of a division: what a dialect does with integers and zero
}  # fmt: skip


class Condition:
    """A condition as it was written. Raises ConfigError if it cannot be understood."""

    def __init__(self, sql: str, table_pattern: str, connector: str) -> None:
        self.sql = sql
        self._where = f"the condition for {table_pattern}"
        self._is_mysql = connector in {"mysql", "mariadb"}
        try:
            tree = sqlglot.parse_one(sql, read="mysql" if self._is_mysql else "postgres")
        except (sqlglot.errors.SqlglotError, RecursionError) as error:
            raise ConfigError(
                f"{self._where} is not SQL", detail=sql, hint=str(error).partition("\n")[0]
            ) from None
        for node in tree.walk():
            if not isinstance(node, _SUPPORTED) or not _is_understood(node):
                raise ConfigError(
                    f"{self._where} uses what conditions do not have: {node.sql()}",
                    detail=sql,
                    hint="there are =, <>, <, <=, >, >=, in, between, like, is null, and, or, not, "
                    "+, -, *, /, lower, upper, length and coalesce",
                )
        self._tree = tree

    def bind(self, table: Table) -> Callable[[Row], bool | None]:
        """The condition for rows of this table. Raises TableRefused if they do not fit."""
        term = _Binder(table, self._where, self._is_mysql).term(self._tree)
        if term.kind != "boolean":
            raise TableRefused(f"{self._where} is neither true nor false", detail=self.sql)
        decide = term.value

        def decided(row: Row) -> bool | None:
            try:
                return decide(row)  # type: ignore[no-any-return]
            except (TypeError, ValueError, ArithmeticError) as error:
                # SQLite has texts in columns of numbers.
                raise TableRefused(
                    f"{self._where} cannot be decided for a row of {table.id}",
                    detail=without_values(error),
                ) from None

        return decided


def _is_understood(node: exp.Expr) -> bool:
    return all(part in _PARTS for part, value in node.args.items() if value)


class _Binder:
    def __init__(self, table: Table, where: str, is_mysql: bool) -> None:
        self._table = table
        self._where = where
        self._is_mysql = is_mysql

    def term(self, node: Any) -> Term:
        if node.args.get("negate"):  # "is not", "not like", … in some dialects
            return Term(applied_to(operator.not_, self._term(node).value), "boolean")
        return self._term(node)

    def _term(self, node: Any) -> Term:
        if isinstance(node, exp.Paren):
            return self.term(node.this)
        if isinstance(node, exp.Column):
            return column_term(self._column(node), self._table)
        if isinstance(node, exp.Literal | exp.Boolean | exp.Null):
            return literal(node)
        if isinstance(node, exp.And | exp.Or):
            both = self._boolean(node.this), self._boolean(node.expression)
            return Term((_both if isinstance(node, exp.And) else _either)(*both), "boolean")
        if isinstance(node, exp.Not):
            return Term(applied_to(operator.not_, self._boolean(node.this)), "boolean")
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.Between):
            low = self._compare(node, operator.ge, node.this, node.args["low"])
            high = self._compare(node, operator.le, node.this, node.args["high"])
            return Term(_both(low, high), "boolean")
        if isinstance(node, exp.Escape):
            return self._escaped(node)
        if isinstance(node, exp.Like):
            return self._like(node, "\\")
        if isinstance(node, exp.Coalesce):
            return self._coalesce(node)
        if isinstance(node, exp.Neg):
            return self._negative(node)
        if type(node) in _COMPARE:
            compare = _COMPARE[type(node)]
            return Term(self._compare(node, compare, node.this, node.expression), "boolean")
        if type(node) in _ARITHMETIC:
            return self._arithmetic(node)
        kind, function = _TEXT_FUNCTIONS[type(node)]
        argument = self.term(node.this)
        if argument.kind not in {"text", "null"}:
            raise self._refusal(node, "takes a text")
        return Term(applied_to(function, argument.value), kind)

    def _column(self, node: exp.Column) -> Column:
        name, columns = node.name, {column.name: column for column in self._table.columns}
        if name not in columns and not node.this.args.get("quoted"):
            # In SQL, a and A are the same unless they are quoted.
            same = [column for column in columns if column.lower() == name.lower()]
            name = same[0] if len(same) == 1 else name
        if name not in columns:
            raise TableRefused(
                f"{self._where} names a column that {self._table.id} does not have: {name}",
                hint="its columns are " + ", ".join(columns),
            )
        return columns[name]

    def _boolean(self, node: Any) -> Value:
        term = self.term(node)
        if term.kind not in {"boolean", "null"}:
            raise self._refusal(node, "is neither true nor false")
        return term.value

    def _is(self, node: exp.Is) -> Term:
        wanted = node.expression
        if isinstance(wanted, exp.Null):
            if isinstance(node.this, exp.Column):  # whatever its type, and even if left out
                value: Value = operator.itemgetter(self._column(node.this).name)
            else:
                value = self.term(node.this).value
            return Term(lambda row: value(row) is None, "boolean")
        if not isinstance(wanted, exp.Boolean):
            raise self._refusal(node, "asks for something else than null, true or false")
        operand, expected = self._boolean(node.this), bool(wanted.this)
        return Term(lambda row: operand(row) is expected, "boolean")

    def _in(self, node: exp.In) -> Term:
        equal = [self._compare(node, operator.eq, node.this, value) for value in node.expressions]

        def within(row: Row) -> bool | None:
            result: bool | None = False
            for is_equal in equal:
                if (found := is_equal(row)) is True:
                    return True
                if found is None:
                    result = None
            return result

        return Term(within, "boolean")

    def _escaped(self, node: exp.Escape) -> Term:
        like, escape = node.this, self._text_constant(node.expression, node)
        if not isinstance(like, exp.Like) or len(escape) != 1:
            raise self._refusal(node, "is no like with one character to escape with")
        matches = self._like(like, escape)
        if not like.args.get("negate"):
            return matches
        return Term(applied_to(operator.not_, matches.value), "boolean")

    def _like(self, node: exp.Like, escape: str) -> Term:
        text = self.term(node.this)
        if text.kind not in {"text", "null"}:
            raise self._refusal(node, "takes a text")
        matches = _like_pattern(self._text_constant(node.expression, node), escape).fullmatch
        return Term(applied_to(lambda value: matches(value) is not None, text.value), "boolean")

    def _text_constant(self, node: Any, whole: Any) -> str:
        if not (isinstance(node, exp.Literal) and node.is_string):
            raise self._refusal(whole, "takes a text between quotes")
        return str(node.this)

    def _coalesce(self, node: exp.Coalesce) -> Term:
        terms = [self.term(part) for part in (node.this, *node.expressions)]
        kinds = {term.kind for term in terms if term.kind != "null"}
        if len(kinds) > 1 and not kinds <= set(NUMBERS):
            raise self._refusal(node, "mixes " + " and ".join(sorted(kinds)))
        kind = widest(kinds) if kinds <= set(NUMBERS) else kinds.pop()
        if kind not in {*NUMBERS, "text", "boolean"}:
            raise self._refusal(node, "takes numbers, texts and booleans")
        values = [as_kind(term, kind) for term in terms]
        return Term(
            lambda row: next((v for value in values if (v := value(row)) is not None), None), kind
        )

    def _negative(self, node: exp.Neg) -> Term:
        term = self.term(node.this)
        if term.kind not in NUMBERS:
            raise self._refusal(node, "takes a number")
        if term.constant is not None:
            return constant_term(-term.constant, term.kind)
        return Term(applied_to(operator.neg, term.value), term.kind)

    def _arithmetic(self, node: Any) -> Term:
        left, right = self.term(node.this), self.term(node.expression)
        kinds = {left.kind, right.kind} - {"null"}
        if not kinds <= set(NUMBERS):
            raise self._refusal(node, "takes numbers")
        kind = widest(kinds)
        apply = _ARITHMETIC[type(node)]
        if isinstance(node, exp.Div) and kind == "integer":
            if self._is_mysql:
                kind = "decimal"
            else:
                apply = _integer_division
        a, b = as_kind(left, kind), as_kind(right, kind)

        def computed(row: Row) -> Any:
            x, y = a(row), b(row)
            if x is None or y is None:
                return None
            try:
                return apply(x, y)
            except (ZeroDivisionError, DivisionByZero, InvalidOperation, OverflowError):
                return None

        return Term(computed, kind)

    def _compare(
        self, node: Any, compare: Callable[[Any, Any], bool], left_node: Any, right_node: Any
    ) -> Value:
        left, right = self.term(left_node), self.term(right_node)
        left, right = same_kind(left, right), same_kind(right, left)
        kinds = {left.kind, right.kind} - {"null"}
        fits = (
            kinds <= set(NUMBERS) or (len(kinds) <= 1 and left.unit == right.unit)
        ) and "opaque" not in kinds
        if not fits:
            raise self._refusal(node, f"compares {left.kind} with {right.kind}")
        kind = widest(kinds)
        a, b = as_kind(left, kind), as_kind(right, kind)

        def compared(row: Row) -> bool | None:
            x = a(row)
            if x is None:
                return None
            y = b(row)
            return None if y is None else compare(x, y)

        if right.constant is None:
            return compared
        constant = b({})

        def compared_with_constant(row: Row) -> bool | None:
            x = a(row)
            return None if x is None else compare(x, constant)

        return compared_with_constant

    def _refusal(self, node: Any, why: str) -> TableRefused:
        return TableRefused(
            f"{self._where} does not fit {self._table.id}", detail=f"{node.sql()} {why}"
        )


# ── three values ────────────────────────────────────────────────────────────────────────────────


def _both(a: Value, b: Value) -> Value:
    def both(row: Row) -> bool | None:
        x = a(row)
        if x is False:
            return False
        y = b(row)
        return y if x is True else (False if y is False else None)

    return both


def _either(a: Value, b: Value) -> Value:
    def either(row: Row) -> bool | None:
        x = a(row)
        if x is True:
            return True
        y = b(row)
        return y if x is False else (True if y is True else None)

    return either


def _integer_division(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _like_pattern(pattern: str, escape: str) -> re.Pattern[str]:
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == escape:
            parts.append(re.escape(next(characters, escape)))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or re.escape(character))
    return re.compile("".join(parts), re.DOTALL)
