"""Queries of `hw.lookup`: rows of a live database by their keys, many keys in one query.

Keys are parameters, never text of a statement; names are quoted.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote

from headwater.errors import PipelineError
from headwater.settings import Secret
from headwater.sinks.sql_positions import names, quoted

if TYPE_CHECKING:
    import sqlite3

MOST_KEYS: Final = 10_000  # of a query; SQLite allows 32,766 parameters
_APPLICATION: Final = "headwater-lookup"
_HINT: Final = "postgresql://…, mysql://…, mariadb://… or sqlite:///file.db"

Key = tuple[Any, ...]
Row = tuple[Any, ...]


class Database(Protocol):
    def rows(self, keys: Sequence[Key]) -> list[Row]:
        """Those that are there: the key's columns, then the others. StoreUnreachable,
        StoreRefused.
        """
        ...

    def close(self) -> None: ...


def check_url(url: Secret) -> None:
    """When the frame is built. Raises PipelineError, ConfigError."""
    text = url.reveal()
    supported = ("postgresql://", "postgres://", "mysql://", "mariadb://", "sqlite:///")
    if not isinstance(text, str) or not text.startswith(supported):
        raise PipelineError("lookup: the url is of no supported database", hint=_HINT)
    if text == "sqlite:///":
        raise PipelineError("lookup: the url names no file", hint=_HINT)
    if text.startswith(("mysql", "mariadb")):
        from headwater.databases.mysql import Address

        Address.parse(text)


def connect(url: Secret, table: str, key: Sequence[str], columns: Sequence[str]) -> Database:
    kind = url.reveal().partition(":")[0]
    if kind == "sqlite":
        return _Sqlite(url, table, key, columns)
    if kind in ("mysql", "mariadb"):
        return _Mysql(url, table, key, columns)
    return _Postgres(url, table, key, columns)


def _statement(
    table: str, key: Sequence[str], columns: Sequence[str], condition: str, mark: str = '"'
) -> str:
    """`table` may have a schema in front."""
    where = ".".join(quoted(part, mark) for part in table.split("."))
    return f"SELECT {names((*key, *columns), mark)} FROM {where} WHERE {condition}"  # noqa: S608


class _Postgres:
    def __init__(self, url: Secret, table: str, key: Sequence[str], columns: Sequence[str]) -> None:
        from headwater.sinks.postgres.connection import Session

        self._session = Session(url, _APPLICATION)
        # Not by an array, which has a type: a text would not be taken for a uuid.
        start = _statement(table, key, columns, f"({names(key)}) IN ")
        self._statement = start.replace("%", "%%") + "%(keys)s"

    def rows(self, keys: Sequence[Key]) -> list[Row]:
        given = tuple(key for key in keys if not any(_has_nul(value) for value in key))
        return self._session.run(self._statement, {"keys": given}) if given else []

    def close(self) -> None:
        self._session.connection.close()


def _has_nul(value: Any) -> bool:
    """No text in PostgreSQL does, and the driver refuses to ask for one."""
    return isinstance(value, str) and "\0" in value


class _Mysql:
    def __init__(self, url: Secret, table: str, key: Sequence[str], columns: Sequence[str]) -> None:
        from headwater.databases.mysql import Address
        from headwater.sinks.mysql.session import Session

        self._session = Session(Address.parse(url.reveal()))
        start = _statement(table, key, columns, f"({names(key, '`')}) IN ", "`")
        self._statement = start.replace("%", "%%") + "%s"

    def rows(self, keys: Sequence[Key]) -> list[Row]:
        return self._session.ask(self._statement, [tuple(keys)])

    def close(self) -> None:
        self._session.close()


class _Sqlite:
    def __init__(self, url: Secret, table: str, key: Sequence[str], columns: Sequence[str]) -> None:
        from headwater.sinks.sqlite.database import Database as File

        path = unquote(url.reveal().removeprefix("sqlite:///"))
        self._file = File(path)
        self._connection: sqlite3.Connection = self._file.connect("ro")
        self._start = _statement(table, key, columns, f"({names(key)}) IN (VALUES ")
        self._of_key = f"({','.join('?' * len(key))})"

    def rows(self, keys: Sequence[Key]) -> list[Row]:
        found: list[Row] = []
        size = 30_000 // len(keys[0])
        for first in range(0, len(keys), size):
            part = keys[first : first + size]
            statement = f"{self._start}{','.join([self._of_key] * len(part))})"
            with self._file.translated():
                values = [value for key in part for value in key]
                found += self._connection.execute(statement, values).fetchall()
        return found

    def close(self) -> None:
        self._connection.close()
