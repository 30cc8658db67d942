"""Column rules (`settings.columns`): a column or field is dropped, masked, hashed or truncated."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import orjson

from headwater.capture.contract import UNAVAILABLE, Column, Table
from headwater.errors import ConfigError, TableRefused

_TEXT: Final[Mapping[str, Any]] = {"type": "string"}


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """One entry of settings.columns. `value` makes the new value of one that is not null."""

    pattern: str
    action: str
    is_drop: bool = False
    is_null: bool = False
    is_truncate: bool = False
    is_constant: bool = False  # the new value reveals nothing about the old one
    value: Callable[[Any], Any] = lambda value: value

    def matches(self, table: Table, column: str) -> bool:
        """Without regard to case: MySQL and SQLite have none in names, and a column that is added
        as `Phone` is as private as `phone`.
        """
        return fnmatchcase(f"{table.id}.{column}".lower(), self.pattern.lower())

    def names_columns_of(self, table: Table) -> bool:
        """Whether it names a column of this very table, and no pattern."""
        pattern = self.pattern.lower()
        return not set(pattern) & set("*?[") and pattern.startswith(f"{table.id}.".lower())

    def refuse_key(self, column: str, table: Table) -> None:
        """Raises TableRefused for what cannot be done with a part of the key."""
        if self.action != "hash":
            raise TableRefused(
                f"columns: {self.action} on {table.id}.{column}, which is part of the key",
                detail="rows could no longer be distinguished",
                hint=f'"{table.id}.{column}" = "hash" keeps them distinct',
            )

    def apply_to(self, column: Column, table: Table) -> Column | None:
        """The column as consumers see it; None if they do not. Refuses what would do harm."""
        if column.name in table.key:
            self.refuse_key(column.name, table)
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

    def new_value(self, value: Any) -> Any:
        # Of a value that the log left out nothing can be made: its hash would be a wrong one.
        if value is None or (value == UNAVAILABLE and not self.is_constant):
            return value
        return self.value(value)


def column_rule(pattern: str, action: str, salt: str) -> ColumnRule:
    """Raises ConfigError for an action that there is not."""
    name, colon, argument = action.partition(":")
    if name == "drop" and not colon:
        return ColumnRule(pattern, action, is_drop=True)
    if name == "null" and not colon:
        return ColumnRule(pattern, action, is_null=True, is_constant=True, value=lambda _: None)
    if name == "mask" and (not colon or argument.isdecimal()):
        stars = "*" * (int(argument) if colon else 4)
        return ColumnRule(pattern, action, is_constant=True, value=lambda _: stars)
    if name == "hash":
        return ColumnRule(pattern, "hash", value=_hasher((argument if colon else salt).encode()))
    if name == "truncate" and argument.isdecimal():
        cut = _cutter(int(argument), pattern)
        return ColumnRule(pattern, action, is_truncate=True, value=cut)
    raise ConfigError(
        f"columns: unknown rule for {pattern}: {name}{colon and ':…'}",  # it may be a salt
        hint='rules are "drop", "null", "mask", "mask:8", "hash", "hash:salt" and "truncate:20"',
    )


def _hasher(salt: bytes) -> Callable[[Any], str]:
    salted = hashlib.sha256(salt)

    def hashed(value: Any) -> str:
        digest = salted.copy()
        digest.update(value.encode() if isinstance(value, str) else orjson.dumps(value))
        return digest.hexdigest()

    return hashed


def _cutter(length: int, pattern: str) -> Callable[[Any], str]:
    def cut(text: Any) -> str:
        if not isinstance(text, str):  # a document's field, or SQLite's: each value has its type
            raise TableRefused(
                f"columns: truncate:{length} for {pattern} meets a value that is no text",
                hint='"drop", "null", "mask" and "hash" do with all values',
            )
        return text[:length]

    return cut
