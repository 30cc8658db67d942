"""Promotion: another version gets the live name, at once for every reader.

Tables are renamed, in one transaction. A view is bound to a table and not to its name, so views on
the live table are created again over the other one; indexes and privileges that users added to the
live table are added to the other one first. What cannot be carried over (materialized views,
triggers, foreign keys, check constraints) is refused, unless the other version has its like.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final

from headwater.errors import StoreRefused
from headwater.sinks import sql_positions
from headwater.sinks.contract import name_of
from headwater.sinks.postgres.connection import Session
from headwater.sinks.postgres.tables import (
    NAME_BYTES,
    Tables,
    hidden_name,
    literal,
    with_table_lock,
)
from headwater.sinks.sql_positions import StoredVersion, quoted

# Those of the live table (%(live)s) that the other one (%(other)s) lacks.
_IN_THE_WAY: Final = """
SELECT 'trigger ' || tgname FROM pg_trigger t WHERE tgrelid = %(live)s AND NOT tgisinternal
   AND NOT EXISTS (SELECT FROM pg_trigger o WHERE o.tgrelid = %(other)s AND o.tgname = t.tgname)
UNION ALL
SELECT 'constraint ' || conname FROM pg_constraint c WHERE conrelid = %(live)s
   AND contype IN ('c', 'f', 'x')
   AND NOT EXISTS (SELECT FROM pg_constraint o WHERE o.conrelid = %(other)s
                   AND o.conname = c.conname)
UNION ALL
SELECT 'foreign key ' || conname || ' of ' || conrelid::regclass FROM pg_constraint
   WHERE confrelid = %(live)s
UNION ALL
SELECT 'policy ' || polname FROM pg_policy p WHERE polrelid = %(live)s
   AND NOT EXISTS (SELECT FROM pg_policy o WHERE o.polrelid = %(other)s AND o.polname = p.polname)
UNION ALL
SELECT DISTINCT 'materialized view ' || c.oid::regclass FROM pg_depend d
   JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
   JOIN pg_class c ON c.oid = r.ev_class
   WHERE d.refobjid = %(live)s AND c.relkind = 'm'
ORDER BY 1
"""
_VIEWS: Final = """
SELECT DISTINCT c.oid::regclass::text, pg_get_viewdef(c.oid),
       coalesce('WITH (' || array_to_string(c.reloptions, ', ') || ')', ''), c.oid FROM pg_depend d
   JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass
   JOIN pg_class c ON c.oid = r.ev_class
   WHERE d.refobjid = %(live)s AND c.relkind = 'v' ORDER BY c.oid
"""
# name, what its definition is behind the table's name, whether it is unique
_INDEXES: Final = """
SELECT c.relname, substr(pg_get_indexdef(c.oid), length(format('CREATE %%sINDEX %%I ON %%s ',
          CASE WHEN indisunique THEN 'UNIQUE ' ELSE '' END, c.relname,
          (SELECT format('%%I.%%I', n.nspname, t.relname) FROM pg_class t JOIN pg_namespace n
           ON n.oid = t.relnamespace WHERE t.oid = indrelid))) + 1), indisunique, indisprimary
   FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE indrelid = %(table)s ORDER BY 1
"""
_GRANTS: Final = """
SELECT format('GRANT %%s ON %%s TO %%s%%s', privilege_type, %(into)s,
              CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END,
              CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
   FROM pg_class, aclexplode(relacl) WHERE oid = %(live)s AND grantee <> relowner
UNION ALL
SELECT format('GRANT %%s (%%I) ON %%s TO %%s', privilege_type, attname, %(into)s,
              CASE WHEN grantee = 0 THEN 'PUBLIC' ELSE grantee::regrole::text END)
   FROM pg_attribute, aclexplode(attacl) WHERE attrelid = %(live)s AND NOT attisdropped
"""


@dataclass(frozen=True, slots=True)
class _Index:
    name: str
    definition: str
    is_unique: bool
    is_primary: bool


def promote(session: Session, tables: Tables, version: int) -> None:
    """Indexes are built first, outside of the exclusive lock: that may take long."""
    while True:
        with session.transaction():
            tables.lock_changes(session)
            found = tables.stored_versions(session, "FOR UPDATE")
            if version not in found:
                raise sql_positions.unknown_version(tables.target, version)
            if found[version].is_live:
                return
            live = next((stored for stored in found.values() if stored.is_live), None)
            missing = _missing_indexes(session, tables, live, found[version])
            if not missing:
                swap = partial(_swap, session, tables, live, found[version])
                with_table_lock(session, swap)
                return
        for index in missing:
            _build(session, tables, index, found[version])


def _swap(
    session: Session, tables: Tables, live: StoredVersion | None, other: StoredVersion
) -> None:
    target = tables.target
    views = []
    if live is None:
        if tables.exists(session, target.name):
            raise sql_positions.not_ours(target.name, target)
    else:
        oids = {"live": _oid(session, tables, live), "other": _oid(session, tables, other)}
        _check_nothing_in_the_way(session, tables, oids, other)
        views = session.run(_VIEWS, oids)
        for (grant,) in session.run(_GRANTS, {**oids, "into": tables.table(other)}):
            session.run(grant)
        _rename(session, tables, live, is_live=False)
    _rename(session, tables, other, is_live=True)
    for view, definition, options, _ in views:
        session.run(f"CREATE OR REPLACE VIEW {view} {options} AS {definition}")


def _rename(session: Session, tables: Tables, stored: StoredVersion, *, is_live: bool) -> None:
    """The table, its indexes (the key's among them), and the position's row."""
    suffix = hidden_name("", stored.version)
    for index in _indexes(session, tables, stored):
        if is_live and index.name.endswith(suffix):
            new_name = index.name.removesuffix(suffix)
        elif not is_live:
            new_name = hidden_name(index.name, stored.version)
        else:
            continue
        session.run(f"ALTER INDEX {tables.named(index.name)} RENAME TO {quoted(new_name)}")
    name = name_of(tables.target, stored.version, is_live=is_live)
    session.run(f"ALTER TABLE {tables.table(stored)} RENAME TO {quoted(name)}")
    session.run(
        f"UPDATE {tables.positions} SET is_live = {is_live}"
        f" WHERE {tables.where} AND version = {stored.version}"
    )


def _check_nothing_in_the_way(
    session: Session, tables: Tables, oids: dict[str, int], other: StoredVersion
) -> None:
    found = [name for (name,) in session.run(_IN_THE_WAY, oids)]
    if found:
        raise StoreRefused(
            f"{tables.target.name} has what cannot be carried over to version {other.version}",
            detail=", ".join(found),
            hint=f"give {other.table(tables.target)} the same, by the same name, or drop it"
            " and create it again after the promote",
        )


def _missing_indexes(
    session: Session, tables: Tables, live: StoredVersion | None, other: StoredVersion
) -> list[_Index]:
    if live is None:
        return []
    has = {index.name for index in _indexes(session, tables, other)}
    return [
        index
        for index in _indexes(session, tables, live)
        if not index.is_primary and hidden_name(index.name, other.version) not in has
    ]


def _build(session: Session, tables: Tables, index: _Index, other: StoredVersion) -> None:
    """Blocks the table's writer, but no reader."""
    name = hidden_name(index.name, other.version)
    if len(name.encode()) > NAME_BYTES:
        raise StoreRefused(
            f"index {index.name} has a name that is too long for two versions",
            hint=f"ALTER INDEX … RENAME: with __v{other.version} behind it, it has"
            f" {NAME_BYTES} bytes at most",
        )
    unique = "UNIQUE " if index.is_unique else ""
    session.run(f"CREATE {unique}INDEX {quoted(name)} ON {tables.table(other)} {index.definition}")


def _indexes(session: Session, tables: Tables, stored: StoredVersion) -> list[_Index]:
    rows = session.run(_INDEXES, {"table": _oid(session, tables, stored)})
    return [_Index(*row) for row in rows]


def _oid(session: Session, tables: Tables, stored: StoredVersion) -> int:
    if not tables.exists(session, stored.table(tables.target)):
        raise sql_positions.table_missing(stored.table(tables.target))
    [(oid,)] = session.run(f"SELECT {literal(tables.table(stored))}::regclass::oid")
    return int(oid)
