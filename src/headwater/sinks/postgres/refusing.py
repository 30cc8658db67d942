"""Finds the rows of a batch that PostgreSQL refuses, by bisection with savepoints."""

import re
from collections.abc import Callable
from typing import Any

import psycopg2
import pyarrow as pa

from headwater.errors import RowRefused
from headwater.sinks.postgres.connection import Session, ValuesRefused
from headwater.sinks.postgres.tables import literal
from headwater.sinks.postgres.values import to_literals
from headwater.sinks.rows.row_validation import shown
from headwater.sinks.sql_positions import names, refusal


def write_parts(
    session: Session,
    rows: pa.Table,
    write: Callable[[pa.Table], None],
    refused: list[RowRefused] | None,
    table: str,
) -> None:
    """Writes the rows that fit, in their order. The others are added to `refused`; if it is None,
    the first one is raised.
    """
    session.run("SAVEPOINT part")
    try:
        write(rows)
        session.run("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")
    except ValuesRefused as refusing:
        session.run("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
        if len(rows) > 1:
            half = len(rows) // 2
            write_parts(session, rows.slice(0, half), write, refused, table)
            write_parts(session, rows.slice(half), write, refused, table)
            return
        explained = _explained(session, rows, refusing.error, table)
        if refused is None:
            raise explained from None
        refused.append(explained)
    else:
        session.run("RELEASE SAVEPOINT part")


def _explained(session: Session, row: pa.Table, error: psycopg2.Error, table: str) -> RowRefused:
    column = _column_of(session, error, table) or _by_trying(session, row, error, table)
    return refusal(shown(row)[0], column, session.shown(error))


def _column_of(session: Session, error: psycopg2.Error, table: str) -> str:
    """The refusal, with the column and cause that PostgreSQL reports."""
    diag = error.diag
    if diag.column_name:
        return str(diag.column_name)
    if diag.constraint_name:
        found = session.run(
            "SELECT attname FROM pg_catalog.pg_constraint JOIN pg_catalog.pg_attribute"
            " ON attrelid = conrelid AND attnum = ANY (conkey)"
            f" WHERE conrelid = {literal(table)}::regclass"
            f" AND conname = {literal(diag.constraint_name)} ORDER BY attnum"
        )
        return ", ".join(name for (name,) in found)
    in_copy = re.search(r"COPY .*, line \d+, column (.+?)(?:: |$)", diag.context or "", re.DOTALL)
    return in_copy[1] if in_copy else ""


def _by_trying(session: Session, row: pa.Table, error: psycopg2.Error, table: str) -> str:
    """A value that the column's type rejects fails alike without the other columns: types are
    checked before constraints.
    """
    for column in row.column_names:
        found: Any = None
        session.run("SAVEPOINT probe")
        try:
            _insert(session, row.select([column]), table)
        except ValuesRefused as other:
            found = other.error.pgcode
        session.run("ROLLBACK TO SAVEPOINT probe; RELEASE SAVEPOINT probe")
        if found == error.pgcode:
            return str(column)
    return ""


def _insert(session: Session, row: pa.Table, table: str) -> None:
    [values] = to_literals(row)
    session.run(f"INSERT INTO {table} ({names(row.column_names)}) VALUES {values}")
