"""The tables of a target in MySQL: which is which version, and their positions."""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import quote

import pyarrow as pa

from headwater.errors import StoreRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import Position, Target, fields_to_text, name_of
from headwater.sinks.mysql.session import NoSuchTable, Session, TransactionConflict
from headwater.sinks.mysql.values import column_types
from headwater.sinks.rows.schema_evolution import evolved
from headwater.sinks.sql_positions import POSITIONS, StoredVersion

WHERE: Final = " WHERE owner = %s AND target = %s AND version = %s"
_ATTEMPTS: Final = 10  # to find a table that is being renamed
_NAME: Final = "`((?:[^`]|``)+)`"
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    engine: str  # "" for a view
    comment: str
    key: tuple[str, ...]
    uniques: Mapping[str, str]  # further unique indexes: the first column of each
    columns: frozenset[str]  # in lower case: the server ignores case
    indexes: Mapping[str, str]  # all but the primary key: "KEY `by_n` (`n`)"
    constraints: tuple[str, ...]

    def check_engine(self) -> None:
        if self.engine != "InnoDB":
            raise StoreRefused(
                f"table {self.name} is not stored by InnoDB",
                detail=f"its engine is {self.engine or 'none'}, which has no transactions",
                hint=f"ALTER TABLE {quoted(self.name)} ENGINE = InnoDB;",
            )


class Tables:
    """The tables of one target: its versions, and their rows in the table of positions."""

    def __init__(self, database: str, target: Target) -> None:
        self.target = target
        self._name = f"{database} {target.name}"

    def unchanging(self, session: Session) -> AbstractContextManager[None]:
        """A lock: no other process creates, renames, alters or drops its tables meanwhile."""
        return session.lock(self._name)

    def all_stored(self, session: Session) -> dict[int, StoredVersion]:
        if describe(session, POSITIONS) is None:
            return {}
        rows = session.ask(
            f"SELECT version, epoch, position, fields FROM {POSITIONS}"
            " WHERE owner = %s AND target = %s AND fields <> '' ORDER BY version",
            [self.target.owner, self.target.name],
        )
        live = describe(session, self.target.name) if rows else None
        comment = live.comment if live else ""
        return {
            int(number): StoredVersion.from_row(
                int(number), comment == self.marker(int(number)), int(epoch), position, fields
            )
            for number, epoch, position, fields in rows
        }

    def stored(
        self, session: Session, version: int, *, locks: bool = False
    ) -> StoredVersion | None:
        """One row, without finding out what is live."""
        rows = session.ask(
            f"SELECT epoch, position, fields FROM {POSITIONS}{WHERE} AND fields <> ''"
            + (" FOR UPDATE" if locks else ""),
            self.identity(version),
        )
        if not rows:
            return None
        [(epoch, position, fields)] = rows
        return StoredVersion.from_row(version, False, int(epoch), position, fields)

    def save(self, session: Session, version: int, position: Position, fields: pa.Schema) -> None:
        session.run(
            f"UPDATE {POSITIONS} SET position = %s, fields = %s{WHERE}",
            [position.to_json().decode(), fields_to_text(fields), *self.identity(version)],
        )

    def table_of(self, session: Session, stored: StoredVersion) -> Table:
        name = stored.table(self.target)
        table = describe(session, name)
        if table is None or table.comment != self.marker(stored.version):
            raise sql_positions.table_missing(name)
        return table

    def evolve(self, session: Session, stored: StoredVersion, fields: pa.Schema) -> pa.Schema:
        """All columns. New ones are added, also if a crash came after some of them; then the
        position's row is updated.
        """
        changed = evolved(stored.fields, fields)
        sql_positions.check_names(changed.fields)
        before = column_types(stored.fields, self.target.key)
        after = column_types(changed.fields, self.target.key)
        new = {name: type_ for name, type_ in after.items() if type_ != before.get(name)}
        if changed.fields == stored.fields:
            return changed.fields
        table = self.table_of(session, stored)
        steps = [
            f"{'MODIFY' if name.lower() in table.columns else 'ADD'} COLUMN {quoted(name)} {type_}"
            for name, type_ in new.items()
        ]
        if steps:  # a struct that has grown is JSON as it was
            session.change(f"ALTER TABLE {quoted(table.name)} {', '.join(steps)}")
        session.run(
            f"UPDATE {POSITIONS} SET fields = %s{WHERE}",
            [fields_to_text(changed.fields), *self.identity(stored.version)],
        )
        return changed.fields

    def has(self, session: Session, name: str, version: int) -> bool:
        """Whether the table of that name is that version."""
        table = describe(session, name)
        return table is not None and table.comment == self.marker(version)

    def locked_table(self, session: Session, version: int) -> Table:
        """The version's table, which no session can rename until the transaction ends. Raises
        TransactionConflict if it is being renamed.
        """
        for is_live in (True, False):
            name = name_of(self.target, version, is_live=is_live)
            if self.has(session, name, version):
                with contextlib.suppress(NoSuchTable):
                    session.ask(f"SELECT 1 FROM {quoted(name)} LIMIT 0")  # takes the lock
                    table = describe(session, name)
                    if table is not None and table.comment == self.marker(version):
                        return table
                break
        raise TransactionConflict(f"the tables of {self.target.name} are being renamed")

    def retried(self, session: Session, version: int, work: Callable[[], _Result]) -> _Result:
        """`work` is one transaction, or the beginning of one."""
        for _ in range(_ATTEMPTS):
            try:
                return work()
            except TransactionConflict as error:
                session.run("ROLLBACK")
                again = error
        if found := self.all_stored(session).get(version):
            self.table_of(session, found)  # raises if it is missing
        raise again

    def marker(self, version: int) -> str:
        # Only characters that a server shows unescaped.
        name, owner = quote(self.target.name), quote(self.target.owner)
        return f"headwater: version {version} of {name}, by {owner}"

    def writer_lock(self, version: int, epoch: int) -> str:
        return f"{self._name} {self.target.owner} {version} {epoch}"

    def identity(self, version: int) -> list[Any]:
        return [self.target.owner, self.target.name, version]


def describe(session: Session, name: str) -> Table | None:
    """What SHOW CREATE TABLE says, which has all of it in one answer, as of now and not as of the
    transaction's snapshot. A view counts as a table. None: there is nothing of that name.
    """
    try:
        text = str(session.ask(f"SHOW CREATE TABLE {quoted(name)}")[0][1])
    except NoSuchTable:
        return None
    body, _, options = text.rpartition("\n)")
    uniques = re.findall(rf"^  UNIQUE KEY {_NAME} \({_NAME}", body, re.MULTILINE)
    columns = re.findall(rf"^  {_NAME} ", body, re.MULTILINE)
    indexes = re.findall(rf"^  ((?:[A-Z]+ )?KEY {_NAME} .*?),?$", body, re.MULTILINE)
    return Table(
        name,
        _first(r"ENGINE=(\w+)", options),
        _first(r"COMMENT='([^']*)'", options),
        tuple(_unquoted(re.findall(_NAME, _first(r"^  PRIMARY KEY \((.*)\)", body)))),
        {_unquoted([index])[0]: _unquoted([column])[0] for index, column in uniques},
        frozenset(name.lower() for name in _unquoted(columns)),
        {_unquoted([name])[0]: definition for definition, name in indexes},
        tuple(_unquoted(re.findall(rf"^  CONSTRAINT {_NAME}", body, re.MULTILINE))),
    )


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _unquoted(names: list[str]) -> list[str]:
    return [name.replace("``", "`") for name in names]


def quoted(name: str) -> str:
    return sql_positions.quoted(name, "`")


def names(columns: Iterable[str]) -> str:
    return sql_positions.names(columns, "`")
