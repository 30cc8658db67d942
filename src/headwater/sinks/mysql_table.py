"""A table as the server describes it (SHOW CREATE TABLE, which has all of it in one answer)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.errors import StoreRefused
from headwater.sinks.mysql_session import NoSuchTable, Session
from headwater.sinks.sql import quoted


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    engine: str  # "" for a view
    comment: str
    key: tuple[str, ...]
    uniques: Mapping[str, str]  # further unique indexes: the first column of each
    columns: frozenset[str]  # in lower case: the server does not tell the cases apart

    def check_engine(self) -> None:
        if self.engine != "InnoDB":
            raise StoreRefused(
                f"table {self.name} is not kept by InnoDB",
                detail=f"its engine is {self.engine or 'none'}, which has no transactions",
                hint=f"ALTER TABLE {quoted(self.name, '`')} ENGINE = InnoDB;",
            )


def table_of(session: Session, name: str) -> Table | None:
    """A view counts as a table. None: there is nothing of that name."""
    try:
        text = str(session.ask(f"SHOW CREATE TABLE {quoted(name, '`')}")[0][1])
    except NoSuchTable:
        return None
    body, _, options = text.rpartition("\n)")
    uniques = re.findall(rf"^  UNIQUE KEY {_NAME} \({_NAME}", body, re.MULTILINE)
    columns = re.findall(rf"^  {_NAME} ", body, re.MULTILINE)
    return Table(
        name,
        _first(r"ENGINE=(\w+)", options),
        _first(r"COMMENT='([^']*)'", options),
        tuple(_unquoted(re.findall(_NAME, _first(r"^  PRIMARY KEY \((.*)\)", body)))),
        {_unquoted([index])[0]: _unquoted([column])[0] for index, column in uniques},
        frozenset(each.lower() for each in _unquoted(columns)),
    )


_NAME = "`((?:[^`]|``)+)`"


def _first(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _unquoted(names: list[str]) -> list[str]:
    return [name.replace("``", "`") for name in names]
