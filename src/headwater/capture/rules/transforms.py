"""Rules of a table, applied to its rows: columns dropped or masked, rows filtered by a condition.

Rules are compiled once per table. Conditions see rows as the database has them; columns are
changed afterwards, in the old row, the new row and the key alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from headwater.capture.contract import Column, Row, Table
from headwater.capture.rules.column_rules import ColumnRule, column_rule
from headwater.capture.rules.document_rules import DocumentRules
from headwater.capture.settings import CaptureSettings
from headwater.errors import ConfigError, TableRefused

if TYPE_CHECKING:
    from headwater.capture.rules.conditions import Condition

Seen: TypeAlias = tuple[str, Row | None, Row | None]  # op, before, after


@dataclass(slots=True)
class RowRules:
    """What is to be done with the rows of one table."""

    shaped: Table  # as consumers see it
    transform: Callable[[Row], Row]
    condition: Callable[[Row], bool | None] | None
    columns: int  # of a complete row
    key: tuple[str, ...]
    documents: DocumentRules | None = None  # of a collection of documents
    encrypt: Callable[[Row], Row] | None = None  # of personal columns, after `transform`

    def apply(self, op: str, before: Row | None, after: Row | None) -> Seen | None:
        """A change as consumers shall see it, or None if they shall not.

        A row that does not meet the condition any more is deleted, one that did not meet it before
        is created. Whether it did is certain only with the old row: without it, the delete may be
        of a row that was never published, and the create is an update.
        """
        if self.condition is not None and op != "t":
            seen = self._select(op, before, after)
            if seen is None:
                return None
            op, before, after = seen
        shown = self.transform if self.encrypt is None else self._encrypted
        return (
            op,
            None if before is None else shown(before),
            None if after is None else shown(after),
        )

    def _encrypted(self, row: Row) -> Row:
        assert self.encrypt is not None
        return self.encrypt(self.transform(row))

    def _select(self, op: str, before: Row | None, after: Row | None) -> Seen | None:
        condition = self.condition
        assert condition is not None
        is_old_known = before is not None and len(before) >= self.columns
        if after is not None and condition(after) is True:
            if before is not None and is_old_known and condition(before) is not True:
                return "c", None, after  # the old row is none that consumers shall see
            return op, before, after
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
        if settings.columns and settings.options.get("include_query", "").lower() == "true":
            raise ConfigError(
                f"capture {settings.name}: include_query would publish what `columns` hides",
                detail="statements have the values that they write",
                hint="take include_query out of its options",
            )
        salt = settings.options.get("hash_salt", "")
        self._columns = [
            column_rule(pattern, action, salt) for pattern, action in settings.columns.items()
        ]
        self._conditions: list[tuple[str, Condition]] = []
        if settings.rows:
            from headwater.capture.rules import conditions  # brings sqlglot

            self._conditions = [
                (pattern, conditions.Condition(sql, pattern, connector))
                for pattern, sql in settings.rows.items()
            ]

    def bind(self, table: Table) -> RowRules | None:
        """What applies to this table, None if nothing does. Of several rules for a column the
        first counts; of several conditions for a table, all. Raises TableRefused.
        """
        written = [
            condition for pattern, condition in self._conditions if fnmatchcase(table.id, pattern)
        ]
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
                _may_match(rule.pattern, table)
                if table.documents
                else any(rule.matches(table, column.name) for column in table.columns)
                for table in tables
            )
        ]
        return columns + [
            pattern
            for pattern, _ in self._conditions
            if not any(fnmatchcase(table.id, pattern) for table in tables)
        ]

    def check_new(self, table: Table) -> None:
        """Raises TableRefused if a rule names a column of this new table that it has not: what the
        rule was to hide has another name.
        """
        for rule in self._columns:
            if (
                rule.names_columns_of(table)
                and not table.documents
                and not any(rule.matches(table, column.name) for column in table.columns)
            ):
                raise TableRefused(
                    f"the rule for {rule.pattern} applies to no column of {table.id}",
                    detail="its columns are " + ", ".join(column.name for column in table.columns),
                    hint="fix the rule, or remove it",
                )

    def check_changed(self, before: Table, after: Table) -> None:
        """Raises TableRefused if a column with a rule was dropped while another came that has none:
        it may be the same one, renamed, and would be published as it is.
        """
        old, new = ({column.name for column in table.columns} for table in (before, after))
        lost = [name for name in sorted(old - new) if self._rule(before, name) is not None]
        bare = [name for name in sorted(new - old) if self._rule(after, name) is None]
        if lost and bare:
            raise TableRefused(
                f"{after.id} has no column {lost[0]} any more, for which there is a rule",
                detail=f"it may be {' or '.join(bare)} now, which has none",
                hint=f"give {' and '.join(bare)} a rule if need be, and start the capture again",
            )

    def _rule(self, table: Table, column: str) -> ColumnRule | None:
        return next((rule for rule in self._columns if rule.matches(table, column)), None)

    def _bind_documents(self, table: Table, *, has_conditions: bool) -> RowRules | None:
        """Documents have fields without a schema: each is looked up by its name."""
        if has_conditions:
            raise TableRefused(
                f"rows: there are no conditions on documents, such as those of {table.id}",
                hint="leave the collection out of `rows`, or filter where it is read",
            )
        if not any(_may_match(rule.pattern, table) for rule in self._columns):
            return None
        for name in table.key:
            if (rule := self._rule(table, name)) is not None:
                rule.apply_to(Column(name, "document"), table)
        documents = DocumentRules(table, lambda path: self._rule(table, path))
        return RowRules(table, documents.shown, None, 0, table.key, documents)


def _may_match(pattern: str, table: Table) -> bool:
    """Whether a field of a collection can be meant: its name has not been seen yet. So the pattern,
    up to some place, has to match all that stands in front of the name.
    """
    prefix, pattern = f"{table.id}.".lower(), pattern.lower()
    return any(
        fnmatchcase(prefix, pattern[:end]) and (end < len(pattern) or pattern.endswith("*"))
        for end in range(len(pattern) + 1)
    )


def _transform(rules: Mapping[str, ColumnRule]) -> Callable[[Row], Row]:
    dropped = [name for name, rule in rules.items() if rule.is_drop]
    changed = [(name, rule) for name, rule in rules.items() if not rule.is_drop]

    def transform(row: Row) -> Row:
        row = row.copy()
        for name in dropped:
            row.pop(name, None)
        for name, rule in changed:
            if name in row:  # of an old row there may be only the key
                row[name] = rule.new_value(row[name])
        return row

    return transform


def _unchanged(row: Row) -> Row:
    return row


def _all(conditions: list[Callable[[Row], bool | None]]) -> Callable[[Row], bool | None] | None:
    if len(conditions) > 1:
        return lambda row: all(condition(row) is True for condition in conditions)
    return conditions[0] if conditions else None
