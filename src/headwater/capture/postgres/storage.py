"""How PostgreSQL stores a table's rows, to detect changes that are not logged.

Logical decoding does not report an ALTER TABLE that rewrites the rows or gives them a new column's
default, nor of a partition that is truncated, detached, dropped or attached with rows. What the
catalogs show of a table (a `Storage`, as JSON) is compared with how it was before:

    file       relfilenode: another after each rewrite
    columns    attnum, type, xmin of the pg_attribute row, and whether it is part of the key: an
               ALTER makes new rows there; VACUUM FULL and CLUSTER, which keep values, do not
    missing    columns whose default stands for values that older rows lack
    parts      partitions, on all levels, with their files
"""

from collections.abc import Collection
from typing import Any, Final, TypeAlias

from headwater.capture.postgres.catalog import PARTS
from headwater.capture.postgres.connection import quoted

Storage: TypeAlias = dict[str, Any]

SAME, REWRITTEN, REDUCED = (
    "same",
    "rewritten",
    "reduced",
)  # values changed; rows may be deleted, too

_STORAGES: Final = f"""
WITH {PARTS}, columns AS (
    SELECT a.attrelid AS root, array_agg(
        ARRAY[a.attnum::text, a.atttypid::text, a.xmin::text,
              CASE WHEN a.attnum = ANY(k.indkey::int2[]) THEN 'key' ELSE '' END]
        ORDER BY a.attnum) AS found
    FROM pg_attribute a LEFT JOIN pg_index k ON k.indrelid = a.attrelid AND k.indisprimary
    WHERE a.attrelid = ANY(%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
      AND a.attgenerated = ''
    GROUP BY 1
), missing AS (
    SELECT m.root, array_agg(DISTINCT a.attname::text ORDER BY a.attname::text) AS found
    FROM (SELECT unnest(%(oids)s::oid[]) AS root, unnest(%(oids)s::oid[]) AS member
          UNION ALL SELECT root, part FROM parts WHERE root = ANY(%(oids)s::oid[])) m
    JOIN pg_attribute a ON a.attrelid = m.member
    WHERE a.atthasmissing AND NOT a.attisdropped GROUP BY 1
), files AS (
    SELECT p.root, json_object_agg(p.part::text, f.relfilenode::int8) AS found
    FROM parts p JOIN pg_class f ON f.oid = p.part
    WHERE p.root = ANY(%(oids)s::oid[]) GROUP BY 1
)
SELECT c.oid::int8, c.relfilenode::int8, coalesce(columns.found, '{{}}'),
    coalesce(missing.found, '{{}}'), coalesce(files.found, '{{}}')
FROM pg_class c LEFT JOIN columns ON columns.root = c.oid LEFT JOIN missing ON missing.root = c.oid
LEFT JOIN files ON files.root = c.oid
WHERE c.oid = ANY(%(oids)s::oid[])
"""  # noqa: S608
_FIRST_PAGES: Final = 4_096  # 32 MB: all of a large partition would take longer than we may wait
# Of partitions that are new: whether each has rows, was made as a partition (its link is as old as
# itself: system columns' rows in pg_attribute never change), by whom, and whether we may read it.
_NEW_PARTS: Final = """
SELECT n.nspname, c.relname, c.relkind = 'r' AND pg_relation_size(c.oid) > 0, i.xmin = a.xmin,
       i.xmin::text, has_table_privilege(c.oid, 'SELECT')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_inherits i ON i.inhrelid = c.oid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
WHERE c.oid = ANY(%s::oid[])
"""


def read_storages(cursor: Any, oids: Collection[int]) -> dict[int, Storage]:
    cursor.execute(_STORAGES, {"oids": list(oids)})
    return {
        oid: {"oid": oid, "file": file, "columns": columns, "missing": missing, "parts": parts}
        for oid, file, columns, missing, parts in cursor.fetchall()
    }


def compare(cursor: Any, before: Storage, now: Storage) -> str:
    """What became of the rows in between, as far as it is not logged."""
    if before == now:
        return SAME
    if before["oid"] != now["oid"]:  # created again under the same name
        return REDUCED
    parts = now["parts"]
    if before["parts"].keys() - parts.keys():  # detached or dropped
        return REDUCED
    if _types(before, "key") != _types(now, "key"):  # what the topic has goes by other keys
        return REDUCED
    is_altered = before["columns"] != now["columns"]
    if any(parts[part] != file for part, file in before["parts"].items()):
        return REWRITTEN if is_altered else REDUCED  # truncated
    if (
        (is_altered and before["file"] != now["file"])
        or set(now["missing"]) - set(before["missing"])
        or any(_types(now).get(column, of) != of for column, of in _types(before).items())
        or _came_with_rows(cursor, parts.keys() - before["parts"].keys())
    ):
        return REWRITTEN
    return SAME


def _types(storage: Storage, part: str = "") -> dict[str, str]:
    """By attnum; only of the key's columns if `part` is "key"."""
    return {
        number: type_oid
        for number, type_oid, _, part_of in storage["columns"]
        if part in ("", part_of)
    }


def _came_with_rows(cursor: Any, new: Collection[str]) -> bool:
    """Whether partitions have rows that they had before they were partitions."""
    if not new:
        return False
    cursor.execute(_NEW_PARTS, ([int(part) for part in new],))
    found = cursor.fetchall()
    filled = [part for part in found if part[2]]
    if not filled:
        return False
    if not all(made_as_partition for _, _, _, made_as_partition, _, _ in found):
        return True
    for schema, name, _, _, creator, is_readable in filled:
        if not is_readable:
            return True
        # Made, filled and attached by one transaction. Until it was committed only that one could
        # write there, so its rows come first. If none are left there, those behind may be its own.
        part = quoted(schema, name)
        cursor.execute(
            "SELECT coalesce(bool_or(xmin = %s::xid), EXISTS ("  # noqa: S608
            f"SELECT FROM ONLY {part} WHERE ctid >= '({_FIRST_PAGES},0)')) "
            f"FROM ONLY {part} WHERE ctid < '({_FIRST_PAGES},0)'",
            (creator,),
        )
        if cursor.fetchone()[0]:
            return True
    return False
