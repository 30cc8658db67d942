"""Selections: some rows of a SQL store, by conditions on its columns, in an order, up to a limit.

Columns and operators are those that there are, values are parameters or literals of our making: no
text of a client becomes SQL. Values are given as texts, and must be of the column's type.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from headwater.errors import UsageError
from headwater.sinks.contract import Contents, Store
from headwater.sinks.rows.nested import is_nested
from headwater.sinks.rows.sql_literals import from_texts
from headwater.spelling import nearest

OPERATORS: Final = ("=", "!=", "<", "<=", ">", ">=")
_SQL: Final = {"!=": "<>"}


@dataclass(frozen=True, slots=True)
class Condition:
    """`value` None: the column is null (=), or is not (!=)."""

    column: str
    operator: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Selection:
    conditions: tuple[Condition, ...] = ()
    order: tuple[tuple[str, bool], ...] = ()  # column, and whether it is descending
    limit: int = 100


class SelectableStore(Store):
    """A store of which some rows can be read."""

    @abstractmethod
    def select(self, version: int, selection: Selection) -> AbstractContextManager[Contents]:
        """The rows, and the position, in one consistent read. Raises UsageError for a column that
        there is none of, and for a value that is not of its type.
        """


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database writes names and values."""

    name: str
    quoted: Callable[[str], str]
    # The value as it stands in SQL: a mark for a parameter, which is added, or a literal.
    written: Callable[[pa.Array, list[Any]], str]
    unordered: Callable[[pa.DataType], bool]  # whether its order is not that of the values


def clause(
    selection: Selection, fields: pa.Schema, key: Sequence[str], dialect: Dialect
) -> tuple[str, list[Any]]:
    """`WHERE … ORDER BY … LIMIT n` with a space in front, and the parameters. Without an order, in
    that of the key.
    """
    parameters: list[Any] = []
    parts = [
        _condition(condition, fields, dialect, parameters) for condition in selection.conditions
    ]
    order = selection.order or tuple((column, False) for column in key)
    sql = f" WHERE {' AND '.join(parts)}" if parts else ""
    if order:
        sql += f" ORDER BY {', '.join(_ordering(order, fields, key, dialect))}"
    return f"{sql} LIMIT {int(selection.limit)}", parameters


def _condition(
    condition: Condition, fields: pa.Schema, dialect: Dialect, parameters: list[Any]
) -> str:
    field = field_of(condition.column, fields)
    name = dialect.quoted(field.name)
    if condition.operator not in OPERATORS:
        raise UsageError(f"there is no operator {condition.operator}")
    if condition.value is None:
        if condition.operator not in ("=", "!="):
            raise UsageError(f"{field.name} is compared with null by = and != only")
        return f"{name} IS {'NOT ' if condition.operator == '!=' else ''}NULL"
    if condition.operator not in ("=", "!="):
        _check_order(field, dialect)
    written = dialect.written(_array(condition.value, field), parameters)
    return f"{name} {_SQL.get(condition.operator, condition.operator)} {written}"


def _ordering(
    order: Sequence[tuple[str, bool]], fields: pa.Schema, key: Sequence[str], dialect: Dialect
) -> Iterator[str]:
    """Nulls last, which databases do not agree about."""
    for column, is_descending in order:
        field = field_of(column, fields)
        if column not in key or len(order) > len(key):
            _check_order(field, dialect)
        name = dialect.quoted(field.name)
        if column not in key:
            yield f"{name} IS NULL"
        yield f"{name} DESC" if is_descending else name


def field_of(column: str, fields: pa.Schema) -> pa.Field:
    """Raises UsageError."""
    if column not in fields.names:
        meant = nearest(column, fields.names)
        raise UsageError(
            f"there is no column {column[:100]}",
            hint=f"did you mean {meant}?" if meant else f"there are {', '.join(fields.names)}",
        )
    return fields.field(column)


def _check_order(field: pa.Field, dialect: Dialect) -> None:
    if is_nested(field.type) or dialect.unordered(field.type):
        raise UsageError(
            f"{dialect.name} has no order for {field.name}, which is {field.type}",
            hint="= and != work",
        )


def _array(value: str, field: pa.Field) -> pa.Array:
    """One value of the column's type. Raises UsageError."""
    if is_nested(field.type) or pa.types.is_binary(field.type):
        raise UsageError(f"{field.name} is {field.type}, which cannot be compared")
    if pa.types.is_string(field.type):
        return pa.array([value], pa.string())
    try:
        if pa.types.is_duration(field.type):
            return pa.array([int(value)], pa.int64()).cast(field.type)
        return from_texts([value], field.type)
    except (pa.ArrowException, ValueError, OverflowError):
        raise UsageError(f"{field.name} is {field.type}, and {value[:100]!r} is not") from None
