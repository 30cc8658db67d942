"""Terms of conditions: values of rows and constants, each with its kind.

Rows hold values as Debezium writes them: decimals as texts or bytes, times as numbers of various
units or as ISO texts. Here they become what Python compares as SQL would.
"""

import operator
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, TypeAlias

from sqlglot import exp

from headwater.capture.contract import UNAVAILABLE, Column, Row, Table
from headwater.errors import TableRefused

Value: TypeAlias = Callable[[Row], Any]

NUMBERS: Final = ("integer", "decimal", "float")
_DECIMAL_TYPE: Final = re.compile(r"(numeric|decimal|dec|fixed|number)\b", re.IGNORECASE)
# PostgreSQL's name of char(n), whose blanks at the end do not count.
_PADDED_TYPE: Final = re.compile(r"(character|bpchar)(\(|$)")
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
class Term:
    """Part of a condition: what it gives, its kind, and its value if it is the same for all rows.

    Kinds: integer, decimal, float, text, boolean, null; date, timestamp, time (numbers in `unit`),
    instant (microseconds since 1970); opaque (only IS NULL can be asked).
    """

    value: Value
    kind: str
    constant: Any = None
    unit: int = 1


def column_term(column: Column, table: Table) -> Term:
    name, connect = column.name, column.connect
    connect_type, logical = connect.get("type"), connect.get("name")
    if logical in _UNITS:
        kind, unit = _UNITS[logical]
        return Term(operator.itemgetter(name), kind, unit=unit)
    if logical == "org.apache.kafka.connect.data.Decimal":
        scale = int(connect.get("parameters", {}).get("scale", 0))
        return Term(_present(name, table, lambda data: _unscaled(data, scale)), "decimal")
    if logical == "io.debezium.data.VariableScaleDecimal":
        return Term(
            _present(name, table, lambda data: _unscaled(data["value"], data["scale"])), "decimal"
        )
    if logical in _ISO:
        kind, unit, convert = _ISO[logical]
        return Term(_present(name, table, convert), kind, unit=unit)
    if logical is None or logical in {"io.debezium.data.Enum", "io.debezium.data.Uuid"}:
        if connect_type in {"int8", "int16", "int32", "int64"}:
            return Term(operator.itemgetter(name), "integer")
        if connect_type in {"float32", "float64", "float", "double"}:
            return Term(_present(name, table, _float), "float")
        if connect_type == "boolean":
            return Term(operator.itemgetter(name), "boolean")
        if connect_type == "string":
            if _DECIMAL_TYPE.match(column.type):
                return Term(_present(name, table, _decimal), "decimal")
            if _PADDED_TYPE.match(column.type):
                return Term(_present(name, table, lambda text: text.rstrip(" ")), "text")
            return Term(_present(name, table, None), "text")
    return Term(operator.itemgetter(name), "opaque")


def _present(name: str, table: Table, convert: Callable[[Any], Any] | None) -> Value:
    """A value that the database's log may have left out: then nothing can be decided."""

    def value(row: Row) -> Any:
        found = row[name]
        if found is None:
            return None
        if found == UNAVAILABLE:
            raise TableRefused(
                f"the condition for {table.id} needs {name}, which an update left out",
                detail="the database did not log a large value that did not change",
                hint=f"PostgreSQL: alter table {table.id} replica identity full; "
                "MySQL and MariaDB: set global binlog_row_image = 'FULL'",
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
    if text.startswith("24:"):  # midnight at the end of a day, which Python does not have
        return 86_400 * 10**6
    at = time.fromisoformat(text.removesuffix("Z"))
    return ((at.hour * 60 + at.minute) * 60 + at.second) * 10**6 + at.microsecond


# Times that are texts: their kind, their unit, and how to get there.
_ISO: Final[dict[str, tuple[str, int, Callable[[str], int]]]] = {
    "io.debezium.time.ZonedTimestamp": ("instant", 10**6, _micros),
    "io.debezium.time.IsoTimestamp": ("timestamp", 10**6, _micros),
    "io.debezium.time.IsoDate": ("date", 1, _days),
    "io.debezium.time.IsoTime": ("time", 10**6, _micros_of_day),
}


def literal(node: exp.Expression) -> Term:
    if isinstance(node, exp.Null):
        return Term(lambda _row: None, "null")
    if isinstance(node, exp.Boolean):
        return constant_term(bool(node.this), "boolean")
    text = str(node.this)
    if node.is_string:
        return constant_term(text, "text")
    if text.isdigit():
        return constant_term(int(text), "integer")
    return constant_term(Decimal(text), "decimal")


def constant_term(value: Any, kind: str) -> Term:
    return Term(lambda _row: value, kind, constant=value)


def same_kind(term: Term, other: Term) -> Term:
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
    return Term(lambda _row: number, other.kind, number, other.unit)


def widest(kinds: set[str]) -> str:
    return next((kind for kind in ("float", "decimal") if kind in kinds), "integer")


def as_kind(term: Term, kind: str) -> Value:
    """A number as one of another kind, for Python mixes decimals with nothing but integers."""
    if term.kind == kind or kind not in {"decimal", "float"} or term.kind == "null":
        return term.value
    if kind == "decimal":
        return applied_to(Decimal, term.value)
    # An integer is compared with a float exactly, as it is.
    return term.value if term.kind == "integer" else applied_to(float, term.value)


def applied_to(function: Callable[[Any], Any], value: Value) -> Value:
    def applied(row: Row) -> Any:
        x = value(row)
        return None if x is None else function(x)

    return applied
