"""What can be set in [alert.NAME], and what a condition is. Imported with the configuration: light.

lag(orders) > 10000                                    a measure, compared with a number
failing(revenue)                                       a measure that is 0 or 1
(SELECT count(*) FROM warehouse.orders WHERE state = 'stuck') > 5        rows of a derived table
(SELECT count(*) FROM payments WHERE state = 'failed') within 5m > 10    records of a topic
"""

import re
from dataclasses import MISSING, dataclass
from typing import Any, Final, NamedTuple

from headwater.settings import (
    Secret,
    SecretKind,
    list_of,
    parse_duration_ms,
    parse_size_bytes,
    setting,
    text,
)
from headwater.spelling import nearest

# name: (whether it has an argument, what it is)
MEASURES: Final = {
    "lag": (True, "records that a group, pipeline or view has not read; of a topic: the largest"),
    "lag_s": (True, "seconds that a capture is behind its database"),
    "rate": (True, "records a second of a topic, by their times in the last minute"),
    "late_rows": (True, "rows of a pipeline that came too late"),
    "dead_letters": (True, "records in TOPIC.dlq, or in a topic that ends with .dlq"),
    "failing": (True, "1 if a pipeline, view or capture is not well, else 0"),
    "disk_free": (False, "bytes that are free where the broker's data directory is"),
    "disk_free_percent": (False, "the same, in percent of the disk"),
    "certificate_days": (False, "days until the first certificate of this configuration expires"),
}
MAX_COUNTED: Final = 10_000  # rows of a derived table
MAX_WITHIN_S: Final = 86_400.0
_CALL: Final = re.compile(r"\s*([a-z_]+)\s*\(\s*([^()\s]*)\s*\)\s*")
_SELECT: Final = re.compile(
    r"\s*\(\s*(select\b.*)\)\s*(?:within\s+([0-9][0-9a-z.]*)\s*)?(?=[<>=!]|within\b|$)",
    re.IGNORECASE | re.DOTALL,
)
_COMPARISON: Final = re.compile(r"(>=|<=|!=|==|=|<|>)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    measure: str  # one of MEASURES, or "select"
    argument: str
    operator: str
    threshold: float
    within_s: float = 0.0  # of a SELECT about records of a topic: how old they are at most

    def holds(self, value: float) -> bool:
        match self.operator:
            case ">":
                return value > self.threshold
            case ">=":
                return value >= self.threshold
            case "<":
                return value < self.threshold
            case "<=":
                return value <= self.threshold
            case "=":
                return value == self.threshold
            case _:
                return value != self.threshold


def parse_condition(given: str) -> Condition:
    """Raises ValueError that says where it is wrong, and what was expected."""
    select = _SELECT.match(given)
    call = None if select else _CALL.match(given)
    within_s = 0.0
    if select is not None:
        measure, argument, at = "select", select[1].strip(), select.end()
        within_s = 0.0 if select[2] is None else _within_s(given, select)
        try:
            parse_select(argument, is_topic=bool(within_s))
        except ValueError as error:
            raise _wrong(given, select.start(1), str(error)) from None
    elif call is not None:
        measure, argument, at = call[1], call[2], call.end()
        if measure not in MEASURES:
            meant = nearest(measure, list(MEASURES))
            hint = f"did you mean {meant}?" if meant else f"one of {', '.join(MEASURES)}"
            raise _wrong(given, call.start(1), f"there is no measure {measure}; {hint}")
        needs_argument = MEASURES[measure][0]
        if needs_argument != bool(argument):
            shown = f"{measure}(NAME)" if needs_argument else f"{measure}()"
            raise _wrong(given, call.start(2), shown)
    else:
        raise _wrong(given, 0, "a measure such as lag(orders), or (SELECT count(*) FROM …)")
    rest = given[at:]
    if not rest and measure == "failing":
        return Condition(measure, argument, ">", 0.0)
    comparison = _COMPARISON.fullmatch(rest)
    if comparison is None:
        raise _wrong(given, at, "a comparison such as > 10000")
    try:
        threshold = _number(comparison[2])
    except ValueError:
        place = at + comparison.start(2)
        raise _wrong(given, place, "a number, a size (10GiB) or a duration (5m)") from None
    if measure == "select" and not within_s and threshold >= MAX_COUNTED:
        raise _wrong(given, at, f"rows are counted up to {MAX_COUNTED:,}")
    sign = "=" if comparison[1] == "==" else comparison[1]
    return Condition(measure, argument, sign, threshold, within_s)


def _within_s(given: str, select: "re.Match[str]") -> float:
    try:
        found = parse_duration_ms(select[2]) / 1000
    except ValueError as error:
        raise _wrong(given, select.start(2), str(error)) from None
    if not 0 < found <= MAX_WITHIN_S:
        raise _wrong(given, select.start(2), "a duration of at most 1d")
    return found


class Comparison(NamedTuple):
    """`column operator value`. Of a topic a column is a field of the value, `a.b` one within it."""

    column: tuple[str, ...]
    operator: str
    value: str | None  # None: IS NULL
    is_text: bool = False  # 'in quotes'


@dataclass(frozen=True, slots=True)
class Select:
    """SELECT count(*) FROM sink.table WHERE column = value AND …; of a topic there is no sink."""

    sink: str
    table: str
    conditions: tuple[Comparison, ...]


def parse_select(given: str, *, is_topic: bool = False) -> Select:
    """Raises ValueError that says what was expected."""
    import sqlglot  # few configurations need it
    from sqlglot import expressions

    form = "SELECT count(*) FROM sink.table WHERE column = value AND …"
    if is_topic:
        form = "SELECT count(*) FROM topic WHERE column = value AND …"
    operators: dict[type[Any], str] = {
        expressions.EQ: "=", expressions.NEQ: "!=", expressions.GT: ">", expressions.GTE: ">=",
        expressions.LT: "<", expressions.LTE: "<=",
    }  # fmt: skip
    try:
        tree = sqlglot.parse_one(given, read="sqlite")  # names in " or `
    except sqlglot.ParseError as error:
        first = error.errors[0] if error.errors else {}
        place = f"line {first.get('line')}, column {first.get('col')}: " if first else ""
        quotes = " (a name with other signs: `my-topic`)" if is_topic else ""
        raise ValueError(f"{place}{form}{quotes}") from None
    tables = list(tree.find_all(expressions.Table))
    used = {name for name, value in tree.args.items() if value}
    counted = tree.expressions[0] if isinstance(tree, expressions.Select) else None
    if (
        not isinstance(counted, expressions.Count)
        or len(tree.expressions) != 1
        or not isinstance(counted.this, expressions.Star)
        or not used <= {"expressions", "from", "from_", "where", "kind"}
        or len(tables) != 1
    ):
        raise ValueError(f"only {form} is counted")
    names = [part.name for part in tables[0].parts]
    if not is_topic and len(names) != 2:
        topic = "records of a topic: (SELECT … FROM topic) within 5m > 10"
        raise ValueError(f"only {form} is counted; {topic}")
    where = tree.args.get("where")
    found = []
    for part in where.this.flatten() if where and isinstance(
        where.this, expressions.And
    ) else ([where.this] if where else []):  # fmt: skip
        operator = operators.get(type(part))
        column, value = part.args.get("this"), part.args.get("expression")
        is_negative = isinstance(value, expressions.Neg)
        literal = value.this if isinstance(value, expressions.Neg) else value
        if isinstance(part, expressions.Is) and isinstance(literal, expressions.Null):
            operator, literal = "=", None
        if (
            operator is None
            or not isinstance(column, expressions.Column)
            or not isinstance(literal, expressions.Literal | expressions.Boolean | None)
        ):
            raise ValueError(f"{part.sql()}: a column compared with a value, with AND between")
        shown = None if literal is None else literal.name or literal.sql().lower()
        found.append(
            Comparison(
                tuple(part.name for part in column.parts),
                operator,
                f"-{shown}" if is_negative else shown,
                isinstance(literal, expressions.Literal) and bool(literal.is_string),
            )
        )
    if is_topic:
        return Select("", ".".join(names), tuple(found))
    return Select(names[0], names[1], tuple(found))


def _number(given: str) -> float:
    """A duration is in seconds, a size in bytes."""
    for read in (float, lambda one: parse_duration_ms(one) / 1000, parse_size_bytes):
        try:
            return float(read(given))
        except ValueError:
            continue
    raise ValueError(given)


def _wrong(given: str, at: int, expected: str) -> ValueError:
    return ValueError(f"at character {at + 1} of {len(given)}: {expected}")


def _when(value: Any) -> str:
    found = text(value)
    parse_condition(found)
    return found


def _duration_s(value: Any) -> float:
    return parse_duration_ms(text(value)) / 1000


def _notify(value: Any) -> str:
    found = text(value)
    if (
        found != "log"
        and not re.fullmatch(r"webhook:https?://\S+", found)
        and not re.fullmatch(r"mailto:[^\s@,<>]+@[^\s@,<>]+", found)
    ):
        raise ValueError('"log", "webhook:https://…" or "mailto:name@host"')
    return found


def _places(value: Any) -> str:
    """On lines."""
    return "\n".join(list_of(",", _notify)(value)) or "log"


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """One [alert.NAME] section."""

    name: str
    when: str = setting(
        MISSING, _when, "Condition, for example `lag(orders) > 10000`; docs/alerts.md lists all."
    )
    for_: float = setting(0.0, _duration_s, "How long it has to hold before the alert fires.")
    notify: Secret | None = setting(  # noqa: RUF009 (a Secret does not change)
        None,
        SecretKind(_places),  # the path of a webhook may be a secret
        "A list of who is notified: `log`, `webhook:https://…`, `mailto:name@host`. Outside the"
        " file: with `,` between them. Default: `log`.",
    )
    mail: str | None = setting(
        None, text, "Sink of kind email whose server and `from` are used for `mailto:`."
    )

    @property
    def receivers(self) -> tuple[str, ...]:
        """Who is notified."""
        return ("log",) if self.notify is None else tuple(self.notify.reveal().split("\n"))

    @property
    def condition(self) -> Condition:
        return parse_condition(self.when)
