"""What is taken out of rows before they are written: columns that are left out or made
unrecognisable, rows that do not meet a condition.

Rules are compiled once per table. Conditions see rows as the database has them; columns are
changed afterwards, in the old row, the new row and the key alike.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import orjson

from headwater.capture.contract import UNAVAILABLE, Column, Row, Table
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, TableRefused

if TYPE_CHECKING:
    from headwater.capture.conditions import Condition

Seen: TypeAlias = tuple[str, Row | None, Row | None]  # op, before, after

_TEXT: Final[Mapping[str, Any]] = {"type": "string"}
_FIELDS: Final = 4096  # names of fields of documents whose rule is remembered


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """One entry of settings.columns. `value` makes the new value of one that is not null."""

    pattern: str
    action: str
    is_drop: bool = False
    is_null: bool = False
    is_truncate: bool = False
    value: Callable[[Any], Any] = lambda value: value

    def matches(self, table: Table, column: str) -> bool:
        return fnmatchcase(f"{table.id}.{column}", self.pattern)

    def apply_to(self, column: Column, table: Table) -> Column | None:
        """The column as consumers see it; None if they do not. Refuses what would do harm."""
        if column.name in table.key and not self.action.startswith("hash"):
            raise TableRefused(
                f"columns: {self.action} on {table.id}.{column.name}, which is part of the key",
                detail="rows could no longer be told apart",
                hint=f'"{table.id}.{column.name}" = "hash" keeps them apart',
            )
        if self.is_drop:
            return None
        if self.is_null:
            return replace(column, optional=True)
        if self.is_truncate:
            if column.connect.get("type") != "string" or column.connect.get("name"):
                raise TableRefused(
                    f"columns: {self.action} on {table.id}.{column.name}, which is no text",
                    detail=f"its type is {column.type}",
                )
            return column
        return replace(column, type="text", connect=_TEXT)


@dataclass(slots=True)
class RowRules:
    """What is to be done with the rows of one table."""

    shaped: Table  # as consumers see it
    transform: Callable[[Row], Row]
    condition: Callable[[Row], bool | None] | None
    columns: int  # of a row that is known wholly
    key: tuple[str, ...]

    def apply(self, op: str, before: Row | None, after: Row | None) -> Seen | None:
        """A change as consumers shall see it, or None if they shall not.

        A row that does not meet the condition any more is deleted. Whether a row met it before is
        only known if the old row is: if it is not, the delete may be of a row that nobody saw.
        """
        if self.condition is not None and op != "t":
            seen = self._select(op, before, after)
            if seen is None:
                return None
            op, before, after = seen
        transform = self.transform
        return (
            op,
            None if before is None else transform(before),
            None if after is None else transform(after),
        )

    def _select(self, op: str, before: Row | None, after: Row | None) -> Seen | None:
        condition = self.condition
        assert condition is not None
        if after is not None and condition(after) is True:
            return op, before, after
        is_old_known = before is not None and len(before) >= self.columns
        if before is not None and is_old_known:
            # A row that came in by "c" or "r" has no old one; an update's or delete's did count.
            return ("d", before, None) if condition(before) is True else None
        if op == "u" and after is not None and self.key:
            return "d", before or {name: after[name] for name in self.key}, None
        return (op, before, after) if op == "d" else None


class Rules:
    """The rules of a capture, for all of its tables. Raises ConfigError for one that cannot be
    understood.
    """

    def __init__(self, settings: CaptureSettings, connector: str) -> None:
        salt = settings.options.get("hash_salt", "")
        self._columns = [
            _column_rule(pattern, action, salt) for pattern, action in settings.columns.items()
        ]
        self._conditions: list[tuple[str, Condition]] = []
        if settings.rows:
            from headwater.capture import conditions  # brings sqlglot

            self._conditions = [
                (pattern, conditions.Condition(sql, pattern, connector))
                for pattern, sql in settings.rows.items()
            ]

    def bind(self, table: Table) -> RowRules | None:
        """What applies to this table, None if nothing does. Of several rules for a column the
        first counts; of several conditions for a table, all. Raises TableRefused.
        """
        written = [each for pattern, each in self._conditions if fnmatchcase(table.id, pattern)]
        if table.documents:
            return self._bind_documents(table, has_conditions=bool(written))
        conditions = [condition.bind(table) for condition in written]
        found = [(column, self._rule(table, column.name)) for column in table.columns]
        if not conditions and all(rule is None for _, rule in found):
            return None
        columns = [
            column if rule is None else rule.apply_to(column, table) for column, rule in found
        ]
        shaped = replace(table, columns=tuple(column for column in columns if column is not None))
        rules = {column.name: rule for column, rule in found if rule is not None}
        transform = _transform(rules) if rules else _unchanged
        return RowRules(shaped, transform, _all(conditions), len(table.columns), table.key)

    def unused(self, tables: list[Table]) -> list[str]:
        """Patterns that match nothing of these tables: most likely misspelt, and then a column
        is not masked that should be.
        """
        columns = [
            rule.pattern
            for rule in self._columns
            if not any(
                table.documents or rule.matches(table, column.name)
                for table in tables
                for column in table.columns
            )
        ]
        return columns + [
            pattern
            for pattern, _ in self._conditions
            if not any(fnmatchcase(table.id, pattern) for table in tables)
        ]

    def _rule(self, table: Table, column: str) -> ColumnRule | None:
        return next((rule for rule in self._columns if rule.matches(table, column)), None)

    def _bind_documents(self, table: Table, *, has_conditions: bool) -> RowRules | None:
        """Documents have fields that nobody announced: each is looked up by its name."""
        if has_conditions:
            raise TableRefused(
                f"rows: there are no conditions on documents, such as those of {table.id}",
                hint="leave the collection out of `rows`, or filter where it is read",
            )
        prefix = table.id + "."
        if not any(_may_match(rule.pattern, prefix) for rule in self._columns):
            return None
        for name in table.key:
            if (rule := self._rule(table, name)) is not None:
                rule.apply_to(Column(name, "document"), table)
        rules: dict[str, ColumnRule | None] = {}

        def transform(row: Row) -> Row:
            shown = {}
            for name, value in row.items():
                if name not in rules:
                    if len(rules) >= _FIELDS:
                        rules.clear()
                    rules[name] = self._rule(table, name)
                rule = rules[name]
                if rule is None:
                    shown[name] = value
                elif not rule.is_drop:
                    shown[name] = _new_value(rule, value)
            return shown

        return RowRules(table, transform, None, 0, table.key)


def _may_match(pattern: str, prefix: str) -> bool:
    """Whether a field of a collection can be meant: its name is not known yet."""
    parts = pattern.split(".")
    return fnmatchcase(prefix, ".".join(parts[:-1]) + ".") or "*" in pattern


def _transform(rules: Mapping[str, ColumnRule]) -> Callable[[Row], Row]:
    dropped = [name for name, rule in rules.items() if rule.is_drop]
    changed = [(name, rule) for name, rule in rules.items() if not rule.is_drop]

    def transform(row: Row) -> Row:
        row = row.copy()
        for name in dropped:
            row.pop(name, None)
        for name, rule in changed:
            if name in row:  # of an old row there may be only the key
                row[name] = _new_value(rule, row[name])
        return row

    return transform


def _new_value(rule: ColumnRule, value: Any) -> Any:
    # A value that the log left out stays marked as such: its hash would be a wrong one.
    return value if value is None or value == UNAVAILABLE else rule.value(value)


def _unchanged(row: Row) -> Row:
    return row


def _all(conditions: list[Callable[[Row], bool | None]]) -> Callable[[Row], bool | None] | None:
    if len(conditions) > 1:
        return lambda row: all(condition(row) is True for condition in conditions)
    return conditions[0] if conditions else None


# ── actions ─────────────────────────────────────────────────────────────────────────────────────


def _column_rule(pattern: str, action: str, salt: str) -> ColumnRule:
    name, colon, argument = action.partition(":")
    if name == "drop" and not colon:
        return ColumnRule(pattern, action, is_drop=True)
    if name == "null" and not colon:
        return ColumnRule(pattern, action, is_null=True, value=lambda _: None)
    if name == "mask" and (not colon or argument.isdecimal()):
        stars = "*" * (int(argument) if colon else 4)
        return ColumnRule(pattern, action, value=lambda _: stars)
    if name == "hash":
        return ColumnRule(pattern, "hash", value=_hasher((argument if colon else salt).encode()))
    if name == "truncate" and argument.isdecimal():
        length = int(argument)
        return ColumnRule(pattern, action, is_truncate=True, value=lambda text: text[:length])
    raise ConfigError(
        f"columns: unknown rule for {pattern}: {action}",
        hint='rules are "drop", "null", "mask", "mask:8", "hash", "hash:salt" and "truncate:20"',
    )


def _hasher(salt: bytes) -> Callable[[Any], str]:
    salted = hashlib.sha256(salt)

    def hashed(value: Any) -> str:
        digest = salted.copy()
        digest.update(value.encode() if isinstance(value, str) else orjson.dumps(value))
        return digest.hexdigest()

    return hashed
