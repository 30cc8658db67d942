"""Conditions on rows: SQL's words, decided on captured rows, with SQL's three values.

A condition is parsed when the settings are read and bound to a table when that is first seen; then
it is a function from a row to True, False or None (unknown). What stands here is a small part of
SQL; everything else is refused by name, never ignored.

Texts are compared by code point and exactly: databases may do so by a collation. Integers divide
as in PostgreSQL and SQLite (7/2 is 3), in MySQL and MariaDB to a decimal; by zero gives null.
"""

import operator
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal, DivisionByZero, InvalidOperation
from typing import Any, Final, TypeAlias

import sqlglot
from sqlglot import exp

from headwater.capture.contract import UNAVAILABLE, Column, Row, Table
from headwater.errors import ConfigError, TableRefused

Value: TypeAlias = Callable[[Row], Any]

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
_NUMBERS: Final = ("integer", "decimal", "float")
_DECIMAL_TYPE: Final = re.compile(r"(numeric|decimal|dec|fixed|number)\b", re.IGNORECASE)
# Times that Debezium writes as numbers: how many of its unit there are in a second (date: a day).
_UNITS: Final = {
    "io.debezium.time.Date": ("date", 1),
    "org.apache.kafka.connect.data.Date": ("date", 1),
    "io.debezium.time.Timestamp": ("timestamp", 10**3),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp", 10**3),
    "io.debezium.time.MicroTimestamp": ("timestamp", 10**6),
    "io.debezium.time.NanoTimestamp": ("timestamp", 10**9),
    "io.debezium.time.Time": ("time", 10**3),
    "org.apache.kafka.connect.data.Time": ("time", 10**3),
    "io.debezium.time.MicroTime": ("time", 10**6),
    "io.debezium.time.NanoTime": ("time", 10**9),
}


@dataclass(frozen=True, slots=True)
class _Term:
    """Part of a condition: what it gives, its kind, and its value if it is the same for all rows.

    Kinds: integer, decimal, float, text, boolean, null; date, timestamp, time (numbers in `unit`),
    instant (microseconds since 1970); opaque (only IS NULL can be asked).
    """

    value: Value
    kind: str
    constant: Any = None
    unit: int = 1


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
                    f"{self._where} cannot be decided for a row of {table.id}", detail=str(error)
                ) from None

        return decided


def _is_understood(node: exp.Expr) -> bool:
    return all(part in _PARTS for part, value in node.args.items() if value)


class _Binder:
    def __init__(self, table: Table, where: str, is_mysql: bool) -> None:
        self._table = table
        self._where = where
        self._is_mysql = is_mysql

    def term(self, node: Any) -> _Term:
        if node.args.get("negate"):  # "is not", "not like", … in some dialects
            return _Term(_applied(operator.not_, self._term(node).value), "boolean")
        return self._term(node)

    def _term(self, node: Any) -> _Term:
        if isinstance(node, exp.Paren):
            return self.term(node.this)
        if isinstance(node, exp.Column):
            return _column_term(self._column(node), self._table)
        if isinstance(node, exp.Literal | exp.Boolean | exp.Null):
            return _literal(node)
        if isinstance(node, exp.And | exp.Or):
            both = self._boolean(node.this), self._boolean(node.expression)
            return _Term((_both if isinstance(node, exp.And) else _either)(*both), "boolean")
        if isinstance(node, exp.Not):
            return _Term(_applied(operator.not_, self._boolean(node.this)), "boolean")
        if isinstance(node, exp.Is):
            return self._is(node)
        if isinstance(node, exp.In):
            return self._in(node)
        if isinstance(node, exp.Between):
            low = self._compare(node, operator.ge, node.this, node.args["low"])
            high = self._compare(node, operator.le, node.this, node.args["high"])
            return _Term(_both(low, high), "boolean")
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
            return _Term(self._compare(node, compare, node.this, node.expression), "boolean")
        if type(node) in _ARITHMETIC:
            return self._arithmetic(node)
        kind, function = _TEXT_FUNCTIONS[type(node)]
        argument = self.term(node.this)
        if argument.kind not in {"text", "null"}:
            raise self._refusal(node, "takes a text")
        return _Term(_applied(function, argument.value), kind)

    def _column(self, node: exp.Column) -> Column:
        name, columns = node.name, {column.name: column for column in self._table.columns}
        if name not in columns and not node.this.args.get("quoted"):
            # SQL does not tell a from A unless they are quoted.
            same = [each for each in columns if each.lower() == name.lower()]
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

    def _is(self, node: exp.Is) -> _Term:
        wanted = node.expression
        if isinstance(wanted, exp.Null):
            if isinstance(node.this, exp.Column):  # whatever its type, and even if left out
                value: Value = operator.itemgetter(self._column(node.this).name)
            else:
                value = self.term(node.this).value
            return _Term(lambda row: value(row) is None, "boolean")
        if not isinstance(wanted, exp.Boolean):
            raise self._refusal(node, "asks for something else than null, true or false")
        operand, expected = self._boolean(node.this), bool(wanted.this)
        return _Term(lambda row: operand(row) is expected, "boolean")

    def _in(self, node: exp.In) -> _Term:
        equal = [self._compare(node, operator.eq, node.this, each) for each in node.expressions]

        def within(row: Row) -> bool | None:
            result: bool | None = False
            for each in equal:
                if (found := each(row)) is True:
                    return True
                if found is None:
                    result = None
            return result

        return _Term(within, "boolean")

    def _escaped(self, node: exp.Escape) -> _Term:
        like, escape = node.this, self._text_constant(node.expression, node)
        if not isinstance(like, exp.Like) or len(escape) != 1:
            raise self._refusal(node, "is no like with one character to escape with")
        matches = self._like(like, escape)
        if not like.args.get("negate"):
            return matches
        return _Term(_applied(operator.not_, matches.value), "boolean")

    def _like(self, node: exp.Like, escape: str) -> _Term:
        text = self.term(node.this)
        if text.kind not in {"text", "null"}:
            raise self._refusal(node, "takes a text")
        matches = _like_pattern(self._text_constant(node.expression, node), escape).fullmatch
        return _Term(_applied(lambda value: matches(value) is not None, text.value), "boolean")

    def _text_constant(self, node: Any, whole: Any) -> str:
        if not (isinstance(node, exp.Literal) and node.is_string):
            raise self._refusal(whole, "takes a text between quotes")
        return str(node.this)

    def _coalesce(self, node: exp.Coalesce) -> _Term:
        terms = [self.term(each) for each in (node.this, *node.expressions)]
        kinds = {term.kind for term in terms if term.kind != "null"}
        if len(kinds) > 1 and not kinds <= set(_NUMBERS):
            raise self._refusal(node, "mixes " + " and ".join(sorted(kinds)))
        kind = _widest(kinds) if kinds <= set(_NUMBERS) else kinds.pop()
        if kind not in {*_NUMBERS, "text", "boolean"}:
            raise self._refusal(node, "takes numbers, texts and booleans")
        values = [_as_kind(term, kind) for term in terms]
        return _Term(
            lambda row: next((v for value in values if (v := value(row)) is not None), None), kind
        )

    def _negative(self, node: exp.Neg) -> _Term:
        term = self.term(node.this)
        if term.kind not in _NUMBERS:
            raise self._refusal(node, "takes a number")
        if term.constant is not None:
            return _constant(-term.constant, term.kind)
        return _Term(_applied(operator.neg, term.value), term.kind)

    def _arithmetic(self, node: Any) -> _Term:
        left, right = self.term(node.this), self.term(node.expression)
        kinds = {left.kind, right.kind} - {"null"}
        if not kinds <= set(_NUMBERS):
            raise self._refusal(node, "takes numbers")
        kind = _widest(kinds)
        apply = _ARITHMETIC[type(node)]
        if isinstance(node, exp.Div) and kind == "integer":
            if self._is_mysql:
                kind = "decimal"
            else:
                apply = _integer_division
        a, b = _as_kind(left, kind), _as_kind(right, kind)

        def computed(row: Row) -> Any:
            x, y = a(row), b(row)
            if x is None or y is None:
                return None
            try:
                return apply(x, y)
            except (ZeroDivisionError, DivisionByZero, InvalidOperation, OverflowError):
                return None

        return _Term(computed, kind)

    def _compare(
        self, node: Any, compare: Callable[[Any, Any], bool], left_node: Any, right_node: Any
    ) -> Value:
        left, right = self.term(left_node), self.term(right_node)
        left, right = _same_kind(left, right), _same_kind(right, left)
        kinds = {left.kind, right.kind} - {"null"}
        fits = (
            kinds <= set(_NUMBERS) or (len(kinds) <= 1 and left.unit == right.unit)
        ) and "opaque" not in kinds
        if not fits:
            raise self._refusal(node, f"compares {left.kind} with {right.kind}")
        kind = _widest(kinds)
        a, b = _as_kind(left, kind), _as_kind(right, kind)

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


# ── values of rows ──────────────────────────────────────────────────────────────────────────────


def _column_term(column: Column, table: Table) -> _Term:
    name, connect = column.name, column.connect
    connect_type, logical = connect.get("type"), connect.get("name")
    if logical in _UNITS:
        kind, unit = _UNITS[logical]
        return _Term(operator.itemgetter(name), kind, unit=unit)
    if logical == "org.apache.kafka.connect.data.Decimal":
        scale = int(connect.get("parameters", {}).get("scale", 0))
        return _Term(_present(name, table, lambda data: _unscaled(data, scale)), "decimal")
    if logical == "io.debezium.data.VariableScaleDecimal":
        return _Term(
            _present(name, table, lambda data: _unscaled(data["value"], data["scale"])), "decimal"
        )
    if logical in _ISO:
        kind, unit, convert = _ISO[logical]
        return _Term(_present(name, table, convert), kind, unit=unit)
    if logical is None or logical in {"io.debezium.data.Enum", "io.debezium.data.Uuid"}:
        if connect_type in {"int8", "int16", "int32", "int64"}:
            return _Term(operator.itemgetter(name), "integer")
        if connect_type in {"float32", "float64", "float", "double"}:
            return _Term(_present(name, table, _float), "float")
        if connect_type == "boolean":
            return _Term(operator.itemgetter(name), "boolean")
        if connect_type == "string":
            if _DECIMAL_TYPE.match(column.type):
                return _Term(_present(name, table, _decimal), "decimal")
            return _Term(_present(name, table, None), "text")
    return _Term(operator.itemgetter(name), "opaque")


def _present(name: str, table: Table, convert: Callable[[Any], Any] | None) -> Value:
    """A value that the database's log may have left out: then nothing can be decided."""

    def value(row: Row) -> Any:
        found = row[name]
        if found is None:
            return None
        if found == UNAVAILABLE:
            raise TableRefused(
                f"the condition for {table.id} needs {name}, which an update left out",
                detail="PostgreSQL does not log large values that did not change",
                hint=f"alter table {table.id} replica identity full",
            )
        return found if convert is None else convert(found)

    return value


def _decimal(text: Any) -> Any:
    number = Decimal(text)
    # PostgreSQL's NaN is equal to itself and above all numbers; Python's is neither.
    return Decimal("Infinity") if number.is_nan() else number


def _float(value: Any) -> float:
    number = float(value)
    return number if number == number else float("inf")  # noqa: PLR0124 (NaN, as above)


def _unscaled(data: str, scale: int) -> Decimal:
    return Decimal(int.from_bytes(b64decode(data), "big", signed=True)).scaleb(-scale)


def _micros(text: str) -> int:
    """Microseconds since 1970; a time without a zone is in UTC. What Python's calendar does not
    reach (years before 1 and after 9999, infinity) is before or after all that it does.
    """
    if not text[0].isdigit():
        return -(2**63) if text[0] == "-" else 2**63
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _days(text: str) -> int:
    if not text[0].isdigit():
        return -(2**63) if text[0] == "-" else 2**63
    return date.fromisoformat(text.removesuffix("Z")).toordinal() - date(1970, 1, 1).toordinal()


def _micros_of_day(text: str) -> int:
    at = time.fromisoformat(text.removesuffix("Z"))
    return ((at.hour * 60 + at.minute) * 60 + at.second) * 10**6 + at.microsecond


# Times that are texts: their kind, their unit, and how to get there.
_ISO: Final[dict[str, tuple[str, int, Callable[[str], int]]]] = {
    "io.debezium.time.ZonedTimestamp": ("instant", 10**6, _micros),
    "io.debezium.time.IsoTimestamp": ("timestamp", 10**6, _micros),
    "io.debezium.time.IsoDate": ("date", 1, _days),
    "io.debezium.time.IsoTime": ("time", 10**6, _micros_of_day),
}


def _literal(node: exp.Expression) -> _Term:
    if isinstance(node, exp.Null):
        return _Term(lambda _row: None, "null")
    if isinstance(node, exp.Boolean):
        return _constant(bool(node.this), "boolean")
    text = str(node.this)
    if node.is_string:
        return _constant(text, "text")
    if text.isdigit():
        return _constant(int(text), "integer")
    return _constant(Decimal(text), "decimal")


def _constant(value: Any, kind: str) -> _Term:
    return _Term(lambda _row: value, kind, constant=value)


def _same_kind(term: _Term, other: _Term) -> _Term:
    """A text constant as the time that it is compared with."""
    if term.kind != "text" or term.constant is None:
        return term
    text: str = term.constant
    if not text[:1].isdigit():
        return term  # refused as a text that is compared with a time
    try:
        if other.kind == "date":
            number = _days(text)
        elif other.kind in {"timestamp", "instant"}:
            number = _micros(text) * other.unit // 10**6
        elif other.kind == "time":
            number = _micros_of_day(text) * other.unit // 10**6
        else:
            return term
    except ValueError:
        return term
    return _Term(lambda _row: number, other.kind, number, other.unit)


def _widest(kinds: set[str]) -> str:
    return next((kind for kind in ("float", "decimal") if kind in kinds), "integer")


def _as_kind(term: _Term, kind: str) -> Value:
    """A number as one of another kind, for Python mixes decimals with nothing but integers."""
    if term.kind == kind or kind not in {"decimal", "float"} or term.kind == "null":
        return term.value
    if kind == "decimal":
        return _applied(Decimal, term.value)
    # An integer is compared with a float exactly, as it is.
    return term.value if term.kind == "integer" else _applied(float, term.value)


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


def _applied(function: Callable[[Any], Any], value: Value) -> Value:
    def applied(row: Row) -> Any:
        x = value(row)
        return None if x is None else function(x)

    return applied


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
