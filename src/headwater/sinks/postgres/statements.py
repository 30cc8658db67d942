"""Statements that move rows from one table of PostgreSQL into another, by key."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.sinks.postgres.connection import Session
from headwater.sinks.postgres.values import to_literals
from headwater.sinks.sql_positions import names, quoted


def upsert_rows_of(rows: str, table: str, columns: Sequence[str], key: Sequence[str]) -> str:
    """`rows` is the name of a table, with at most one row of each key."""
    listed = names(columns)
    return f"INSERT INTO {table} ({listed}) SELECT {listed} FROM {rows} {on_conflict(columns, key)}"


def insert_rows_of(rows: str, table: str, columns: Sequence[str]) -> str:
    """For keys that the table has not."""
    return f"INSERT INTO {table} ({names(columns)}) SELECT {names(columns)} FROM {rows}"


def delete_rows_in(rows: str, table: str, key: Sequence[str]) -> str:
    equal = " AND ".join(f"t.{quoted(name)} = d.{quoted(name)}" for name in key)
    return f"DELETE FROM {table} t USING {rows} d WHERE {equal}"


def on_conflict(columns: Sequence[str], key: Sequence[str]) -> str:
    if not key:
        return ""
    others = [quoted(name) for name in columns if name not in key]
    assignments = ", ".join(f"{name} = excluded.{name}" for name in others)
    return f"ON CONFLICT ({names(key)}) DO " + (
        f"UPDATE SET {assignments}" if others else "NOTHING"
    )


def lowest_key(rows: pa.Table, key: Sequence[str]) -> str | None:
    """The lowest value of the key's first column, as a literal; None if there is none, or it is a
    text: texts are compared by the database's rules, not by Arrow's.
    """
    first = key[0]
    kind = rows.schema.field(first).type
    if not len(rows) or not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return None
    [literal] = to_literals(pa.table({first: pa.array([pc.min(rows[first]).as_py()], kind)}))
    return literal


def is_above(session: Session, table: str, key: Sequence[str], lowest: str) -> bool:
    """Whether the table certainly has no row with such a key, or a higher one."""
    [(is_higher,)] = session.run(
        f"SELECT coalesce({lowest} > max({quoted(key[0])}), true) FROM {table}"
    )
    return bool(is_higher)
