"""The tables of a capture in information_schema."""

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from headwater.capture.mysql.columns import ColumnDef, TableDef, with_charset
from headwater.capture.mysql.connection import query
from headwater.capture.settings import CaptureSettings

SYSTEM_SCHEMAS: Final = ("information_schema", "mysql", "performance_schema", "sys")
TRANSACTIONAL_ENGINES: Final = ("InnoDB", "ROCKSDB", "NDBCLUSTER", "ndbcluster")
_COLUMNS: Final = (
    "SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.CHARACTER_SET_NAME,"
    " c.IS_NULLABLE FROM information_schema.COLUMNS c JOIN information_schema.TABLES t"
    " ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME"
    " WHERE t.TABLE_TYPE = 'BASE TABLE' AND {}"
    " ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION"
)
_KEYS: Final = (
    "SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME FROM information_schema.STATISTICS c"
    " WHERE c.INDEX_NAME = 'PRIMARY' AND {} ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.SEQ_IN_INDEX"
)


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tables the settings name. A pattern for all databases (`*.t`) means the one in the
    source's address, if there is one.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...]

    @classmethod
    def of(cls, settings: CaptureSettings, database: str) -> "Choice":
        include = settings.tables
        if database:
            include = tuple(
                f"{database}.{p.removeprefix('*.')}" if p.startswith("*.") else p for p in include
            )
        return cls(include, settings.exclude)

    def __contains__(self, table_id: str) -> bool:
        if table_id.partition(".")[0].lower() in SYSTEM_SCHEMAS:
            return False
        return any(fnmatchcase(table_id, pattern) for pattern in self.include) and not any(
            fnmatchcase(table_id, pattern) for pattern in self.exclude
        )


def read_tables(
    connection: Any, choice: Choice, only: Iterable[tuple[str, str]] | None = None
) -> dict[str, TableDef]:
    """The chosen tables by id; `only` asks for these alone, chosen or not."""
    where, values = _condition(only)
    columns: dict[tuple[str, str], list[ColumnDef]] = {}
    for schema, table, name, kind, charset, nullable in query(
        connection,
        _COLUMNS.format(where),
        values,
    ):
        if only is None and f"{schema}.{table}" not in choice:
            continue
        text = kind.decode() if isinstance(kind, bytes) else str(kind)
        columns.setdefault((str(schema), str(table)), []).append(
            ColumnDef(str(name), with_charset(text, charset), nullable == "YES")
        )
    keys: dict[tuple[str, str], list[str]] = {}
    for schema, table, name in query(
        connection,
        _KEYS.format(where),
        values,
    ):
        keys.setdefault((str(schema), str(table)), []).append(str(name))
    return {
        f"{schema}.{table}": TableDef(
            schema, table, tuple(found), tuple(keys.get((schema, table), ()))
        )
        for (schema, table), found in columns.items()
    }


def _condition(only: Iterable[tuple[str, str]] | None) -> tuple[str, list[str]]:
    if only is None:
        marks = ", ".join(["%s"] * len(SYSTEM_SCHEMAS))
        return f"c.TABLE_SCHEMA NOT IN ({marks})", list(SYSTEM_SCHEMAS)
    pairs = list(only)
    clause = " OR ".join(["(c.TABLE_SCHEMA = %s AND c.TABLE_NAME = %s)"] * len(pairs)) or "FALSE"
    return f"({clause})", [name for pair in pairs for name in pair]


def engine(connection: Any, schema: str, table: str) -> str | None:
    rows = query(
        connection,
        "SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (schema, table),
    )
    return str(rows[0][0]) if rows else None


def is_versioned(connection: Any, schema: str, table: str) -> bool:
    """MariaDB's tables WITH SYSTEM VERSIONING: the log has their history instead of their rows."""
    return _is_of_type(connection, schema, table, "SYSTEM VERSIONED")


def is_sequence(connection: Any, schema: str, table: str) -> bool:
    """MariaDB's sequences, which stand in the log like tables of one row."""
    return _is_of_type(connection, schema, table, "SEQUENCE")


def _is_of_type(connection: Any, schema: str, table: str, kind: str) -> bool:
    return bool(
        query(
            connection,
            "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"
            " AND TABLE_TYPE = %s",
            (schema, table, kind),
        )
    )


def estimated_rows(connection: Any, schema: str, table: str) -> int | None:
    rows = query(
        connection,
        "SELECT TABLE_ROWS FROM information_schema.TABLES"
        " WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
        (schema, table),
    )
    return int(rows[0][0]) if rows and rows[0][0] is not None else None
