"""Column rules for documents, whose fields have no schema: each is looked up by its path.

A field is named by the names of the fields around it, joined by dots: `app.people.address.city`.
Arrays have no names: `app.people.phones.number` is the field of all documents in `phones`.
"""

from collections.abc import Callable
from typing import Any, Final

from headwater.capture.contract import Row, Table
from headwater.capture.rules.column_rules import ColumnRule

HIDDEN: Final = object()
_FIELDS: Final = 4096  # paths whose rule is remembered


class DocumentRules:
    """`find` looks up the rule of a path. Used by several threads."""

    def __init__(self, table: Table, find: Callable[[str], ColumnRule | None]) -> None:
        self._table = table
        self._find = find
        self._rules: dict[str, ColumnRule | None] = {}

    def shown(self, row: Row) -> Row:
        """A document as consumers see it. Raises TableRefused if a rule would make its _id equal to
        another one.
        """
        return self._document(row, "")

    def updated(self, path: str, value: Any) -> Any:
        """What an update set at a path, or HIDDEN: a part of what a rule changes would show it."""
        names = path.split(".")
        rule, is_whole = self._rule_around(names)
        if rule is not None:
            return HIDDEN if rule.is_drop or not is_whole else rule.new_value(value)
        # A number is an index, or the name of a field, which is ambiguous here.
        here, elsewhere = (self._nested(value, _joined(reading)) for reading in _readings(names))
        if elsewhere in (here, value):
            return here
        return elsewhere if here == value else HIDDEN

    def is_ruled(self, path: str) -> bool:
        """Whether a rule changes this field, or one around it."""
        return self._rule_around(path.split("."))[0] is not None

    def _rule_around(self, names: list[str]) -> tuple[ColumnRule | None, bool]:
        """The outermost rule on the way to a field, and whether it is for the field itself."""
        for reading in _readings(names):
            for depth in range(1, len(reading) + 1):
                rule = self._rule(".".join(reading[:depth]))
                if rule is not None:
                    # An index behind the last name leads to a part of it.
                    return rule, depth == len(reading) and reading[-1] == names[-1]
        return None, False

    def _document(self, row: Row, above: str) -> Row:
        shown = {}
        for name, value in row.items():
            # {"$oid": …}, {"$date": …}: how extended JSON writes a value, no field.
            rule = None if above and name.startswith("$") else self._rule(above + name)
            if rule is None:
                shown[name] = (
                    self._nested(value, f"{above}{name}.")
                    if isinstance(value, dict | list)
                    else value
                )
            elif not rule.is_drop:
                shown[name] = rule.new_value(value)
        return shown

    def _nested(self, value: Any, above: str) -> Any:
        if isinstance(value, dict):
            return self._document(value, above)
        return [self._nested(item, above) for item in value] if isinstance(value, list) else value

    def _rule(self, path: str) -> ColumnRule | None:
        try:
            return self._rules[path]
        except KeyError:
            pass
        rule = self._find(path)
        if rule is not None and path.partition(".")[0] in self._table.key:
            rule.refuse_key(path, self._table)
        if len(self._rules) >= _FIELDS:
            self._rules.clear()
        self._rules[path] = rule
        return rule


def _readings(names: list[str]) -> tuple[list[str], list[str]]:
    return names, [name for name in names if not name.isdecimal()]


def _joined(names: list[str]) -> str:
    return "".join(name + "." for name in names)
