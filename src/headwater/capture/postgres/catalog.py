"""The catalog: which tables the settings match, with their columns and keys."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from threading import Lock
from typing import Any, Final, NamedTuple

from headwater.capture.contract import Column, Table
from headwater.capture.postgres.type_catalog import TypeCatalog
from headwater.capture.settings import CaptureSettings

# A table without replica identity cannot be published: its UPDATEs would fail in the application.
# Of a partitioned table every leaf needs one.
_SCHEMAS_VERSION: Final = 150000  # CREATE PUBLICATION … FOR TABLES IN SCHEMA
GENERATED_VERSION: Final = 180000  # CREATE PUBLICATION … WITH (publish_generated_columns = stored)
_IN_SCHEMA: Final = """
    OR EXISTS (SELECT FROM pg_publication_namespace s
               WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""
# From version 18 on PostgreSQL refuses UPDATEs of a table whose identity has columns that are not
# published; virtual ones never are.
_UNPUBLISHED: Final = """ AND NOT EXISTS (
            SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND NOT a.attisdropped
              AND (a.attgenerated = 'v' OR a.attgenerated = 's' AND NOT EXISTS (
                  SELECT FROM pg_publication
                  WHERE pubname = %(publication)s AND pubgencols = 's')))"""
# Partitions on all levels, by their root. pg_partition_tree() would wait while one is locked.
PARTS: Final = """RECURSIVE parts AS (
    SELECT i.inhparent AS root, i.inhrelid AS part
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent
    WHERE c.relkind = 'p' AND NOT i.inhdetachpending
  UNION ALL
    SELECT p.root, i.inhrelid FROM parts p JOIN pg_inherits i ON i.inhparent = p.part
    WHERE NOT i.inhdetachpending
)"""
_CANDIDATES: Final = f"""
WITH {PARTS}, identity AS (
    SELECT c.oid, CASE c.relreplident
        WHEN 'f' THEN true/* generated */
        WHEN 'd' THEN EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
        WHEN 'i' THEN EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisreplident)
        ELSE false END AS present
    FROM pg_class c WHERE c.relkind = 'r' AND c.relpersistence = 'p'
), identity_of_parts AS (
    SELECT p.root, bool_and(i.present) AS present
    FROM parts p JOIN identity i ON i.oid = p.part GROUP BY 1
)
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind = 'p',
    CASE WHEN c.relispartition THEN ARRAY(
        SELECT relid::oid::int8 FROM pg_partition_ancestors(c.oid) WHERE relid <> c.oid
    ) ELSE '{{}}' END,
    CASE WHEN c.relkind = 'p' THEN coalesce(leaves.present, true) ELSE identity.present END,
    EXISTS (SELECT FROM pg_publication p WHERE p.pubname = %(publication)s AND (p.puballtables OR
        EXISTS (SELECT FROM pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = c.oid)
        /* schemas */)),
    pg_get_userbyid(c.relowner)::text,
    COALESCE((SELECT rolsuper FROM pg_roles o WHERE o.oid = c.relowner), false),
    pg_has_role(c.relowner, 'USAGE'),
    has_table_privilege(c.oid, 'SELECT'),
    c.relreplident = 'f'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN identity ON identity.oid = c.oid LEFT JOIN identity_of_parts leaves ON leaves.root = c.oid
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
    AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%%'
ORDER BY 2, 3
"""  # noqa: S608
# Generated columns are in snapshots if they are in the stream: before PostgreSQL 18 never.
_GENERATED: Final = """ OR attgenerated = 's' AND EXISTS (
        SELECT FROM pg_publication WHERE pubname = %(publication)s AND pubgencols = 's')"""
_COLUMNS: Final = """
SELECT attrelid::int8, attname::text, atttypid::int8, atttypmod, format_type(atttypid, atttypmod),
       attnotnull
FROM pg_attribute
WHERE attrelid = ANY(%(oids)s::oid[]) AND attnum > 0 AND NOT attisdropped
    AND (attgenerated = ''/* generated */)
ORDER BY attrelid, attnum
"""
# The primary key; without one the index that is the replica identity.
_KEYS: Final = """
SELECT DISTINCT ON (i.indrelid) i.indrelid::int8, ARRAY(
    SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index i
WHERE i.indrelid = ANY(%s::oid[]) AND (i.indisprimary OR i.indisreplident)
ORDER BY i.indrelid, i.indisprimary DESC
"""
_VERSIONS_KEPT: Final = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """A table that the settings name."""

    oid: int
    schema: str
    name: str
    partitioned: bool
    ancestors: tuple[int, ...]
    identified: bool  # UPDATE and DELETE identify the row
    published: bool
    owner: str
    owner_is_superuser: bool
    owned: bool  # we have its owner's rights
    readable: bool
    full: bool  # its replica identity is the whole row

    @property
    def id(self) -> str:
        return f"{self.schema}.{self.name}"


class RawColumn(NamedTuple):
    name: str
    oid: int
    typmod: int
    type: str
    required: bool


class Description(NamedTuple):
    """A table as pg_attribute and pg_index have it now."""

    columns: tuple[RawColumn, ...]
    key: tuple[str, ...]


class Selection:
    """The patterns of the settings."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._tables = settings.tables
        self._exclude = settings.exclude

    def has(self, table_id: str) -> bool:
        return any(fnmatchcase(table_id, pattern) for pattern in self._tables) and not any(
            fnmatchcase(table_id, pattern) for pattern in self._exclude
        )

    def candidates(self, cursor: Any, publication: str) -> list[Candidate]:
        """The tables that match. A partition is left out if a table it belongs to is there, whose
        name its rows go by.
        """
        query = _CANDIDATES
        if cursor.connection.server_version >= _SCHEMAS_VERSION:
            query = query.replace("/* schemas */", _IN_SCHEMA)
        if cursor.connection.server_version >= GENERATED_VERSION:
            query = query.replace("/* generated */", _UNPUBLISHED)
        cursor.execute(query, {"publication": publication})
        matching = [
            Candidate(oid, schema, name, partitioned, tuple(ancestors), *flags)
            for oid, schema, name, partitioned, ancestors, *flags in cursor.fetchall()
            if self.has(f"{schema}.{name}")
        ]
        oids = {candidate.oid for candidate in matching}
        return [c for c in matching if oids.isdisjoint(c.ancestors)]


def describe(cursor: Any, oids: Sequence[int], publication: str) -> dict[int, Description]:
    """Tables as the publication shows them."""
    query = _COLUMNS
    if cursor.connection.server_version >= GENERATED_VERSION:
        query = query.replace("/* generated */", _GENERATED)
    cursor.execute(query, {"oids": list(oids), "publication": publication})
    columns: dict[int, list[RawColumn]] = {oid: [] for oid in oids}
    for oid, *fields in cursor.fetchall():
        columns[oid].append(RawColumn(*fields))
    cursor.execute(_KEYS, (list(oids),))
    keys = {oid: tuple(names) for oid, names in cursor.fetchall()}
    return {oid: _description(tuple(found), keys.get(oid, ())) for oid, found in columns.items()}


def _description(columns: tuple[RawColumn, ...], key: tuple[str, ...]) -> Description:
    names = {column.name for column in columns}
    return Description(columns, key if names.issuperset(key) else ())  # a key that is generated


def make_table(
    schema: str, name: str, columns: Iterable[RawColumn], key: tuple[str, ...], types: TypeCatalog
) -> Table:
    """`types` must know the columns' types."""
    return Table(
        schema,
        name,
        tuple(
            Column(c.name, c.type, types.codec(c.oid, c.typmod).connect, not c.required)
            for c in columns
        ),
        key,
    )


class TableInterner:
    """The same Table object for the same table, whichever thread built it."""

    def __init__(self) -> None:
        self._tables: dict[str, list[Table]] = {}
        self._lock = Lock()

    def intern(self, table: Table) -> Table:
        with self._lock:
            versions = self._tables.setdefault(table.id, [])
            for version in versions:
                if version == table:
                    return version
            versions.append(table)
            del versions[:-_VERSIONS_KEPT]
            return table
