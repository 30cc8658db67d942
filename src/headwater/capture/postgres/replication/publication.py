"""The publication: which tables' changes PostgreSQL sends, in step with the settings."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg2
import psycopg2.errors

from headwater.capture.postgres.catalog import Candidate, Selection
from headwater.capture.postgres.connection import Address, literal, quoted
from headwater.errors import HeadwaterError, TableRefused

# ALTER PUBLICATION waits for VACUUM and index builds on a table; we come again instead.
_LOCK_TIMEOUT_MS: Final = 500
_OURS: Final = "made by headwater capture"


@dataclass(slots=True)
class Synced:
    tables: list[Candidate]  # that are published, and so can be captured
    failed: dict[str, HeadwaterError] = field(default_factory=dict)
    added: list[Candidate] = field(default_factory=list)
    held: list[Candidate] = field(default_factory=list)


class Publication:
    """Tables that match the patterns are added, also while the capture runs. A table without
    replica identity is never in it: PostgreSQL would refuse the application's UPDATEs and DELETEs.

    A publication that was there before us loses no table for not matching, and is not dropped. Its
    comment marks one that we made.
    """

    def __init__(self, name: str, address: Address, select: Selection) -> None:
        self.name = name
        self._address = address
        self._select = select

    def sync(self, cursor: Any, held: Collection[str] = ()) -> Synced:
        """Creates it if it is not there, and adds and takes out tables, but does not add those that
        are `held`. What cannot be locked at once is left for the next time.
        """
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", (str(_LOCK_TIMEOUT_MS),))
        try:
            return self._sync(cursor, held)
        finally:
            if not cursor.connection.closed:
                cursor.execute("SELECT set_config('lock_timeout', '0', false)")

    def exists(self, cursor: Any) -> bool:
        cursor.execute("SELECT FROM pg_publication WHERE pubname = %s", (self.name,))
        return cursor.fetchone() is not None

    def _sync(self, cursor: Any, held: Collection[str]) -> Synced:
        cursor.execute("SELECT puballtables FROM pg_publication WHERE pubname = %s", (self.name,))
        found = cursor.fetchone()
        if found is None:
            cursor.execute(
                f"CREATE PUBLICATION {quoted(self.name)} WITH (publish_via_partition_root = true); "
                f"COMMENT ON PUBLICATION {quoted(self.name)} IS {literal(_OURS)}"
            )
        candidates = self._select.candidates(cursor, self.name)
        failed: dict[str, HeadwaterError] = {
            c.id: unidentified(c, self.name) for c in candidates if not c.identified
        }
        identified = [c for c in candidates if c.identified]
        if found is not None and found[0]:  # FOR ALL TABLES
            return Synced(identified, failed)
        synced = Synced([c for c in identified if c.published], failed)
        self._drop_others(cursor, [c.oid for c in identified])
        synced.held = [c for c in identified if not c.published and c.id in held]
        missing = [c for c in identified if not c.published and c.id not in held]
        if missing:
            self._add(cursor, missing, synced)
        return synced

    def drop(self, cursor: Any) -> None:
        """Takes it away if we made it."""
        if self._is_ours(cursor):
            cursor.execute(f"DROP PUBLICATION IF EXISTS {quoted(self.name)}")

    def _is_ours(self, cursor: Any) -> bool:
        cursor.execute(
            "SELECT FROM pg_publication WHERE pubname = %s "
            "AND obj_description(oid, 'pg_publication') = %s",
            (self.name, _OURS),
        )
        return cursor.fetchone() is not None

    def _add(self, cursor: Any, missing: list[Candidate], synced: Synced) -> None:
        try:
            cursor.execute(self.sql_to_add(*missing))
            synced.added += missing
        except psycopg2.Error:
            if cursor.connection.closed:
                raise
            for candidate in missing:  # which of them is it
                self._add_one(cursor, candidate, synced)
        synced.tables += synced.added

    def _add_one(self, cursor: Any, candidate: Candidate, synced: Synced) -> None:
        try:
            cursor.execute(self.sql_to_add(candidate))
            synced.added.append(candidate)
        except (psycopg2.errors.LockNotAvailable, psycopg2.errors.UndefinedTable):
            pass  # the next time
        except psycopg2.Error as error:
            if cursor.connection.closed:
                raise
            why = self._address.explained(error)
            why.what = f"the table {candidate.id} cannot be published"
            why.hint = self.hint_to_publish(candidate, exists=True)
            synced.failed[candidate.id] = why

    def hint_to_publish(self, *candidates: Candidate, exists: bool) -> str:
        """Who adds a table has to own both, the table and the publication."""
        owners = sorted({c.owner for c in candidates if not c.owner_is_superuser})
        tables = _listed(candidates)
        sql = (
            f"ALTER PUBLICATION {quoted(self.name)} ADD TABLE {tables};"
            if exists
            else f"CREATE PUBLICATION {quoted(self.name)} FOR TABLE {tables} "
            "WITH (publish_via_partition_root = true);"
        )
        if len(owners) != 1 or any(c.owner_is_superuser for c in candidates):
            return f"as a superuser: {sql}"
        return (
            f"GRANT {quoted(owners[0])} TO {quoted(self._address.user)}; (or as a superuser: {sql})"
        )

    def sql_to_add(self, *candidates: Candidate) -> str:
        return f"ALTER PUBLICATION {quoted(self.name)} ADD TABLE {_listed(candidates)}"

    def _drop_others(self, cursor: Any, wanted: list[int]) -> None:
        """Tables that lost their identity, or that no longer match."""
        cursor.execute(
            """
            SELECT n.nspname, c.relname, c.relreplident = 'n' OR c.relreplident = 'd' AND NOT EXISTS
                (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)
            FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
            JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE p.pubname = %s AND NOT c.oid = ANY(%s::oid[])
            """,
            (self.name, wanted),
        )
        others = cursor.fetchall()
        is_ours = bool(others) and self._is_ours(cursor)
        for schema, name, unidentified_now in others:
            if not unidentified_now and not is_ours:
                continue
            try:
                cursor.execute(
                    f"ALTER PUBLICATION {quoted(self.name)} DROP TABLE {quoted(schema, name)}"
                )
            except psycopg2.Error:  # not ours to change, or locked: the next time
                if cursor.connection.closed:
                    raise


def _listed(candidates: Iterable[Candidate]) -> str:
    return ", ".join(
        ("" if c.partitioned else "ONLY ") + quoted(c.schema, c.name) for c in candidates
    )


def unidentified(candidate: Candidate, publication: str) -> TableRefused:
    if candidate.full:
        return TableRefused(
            f"the table {candidate.id} has generated columns in its replica identity",
            detail="REPLICA IDENTITY FULL has all columns, and PostgreSQL would refuse UPDATEs and "
            "DELETEs as long as some are not published; the table is left out",
            hint=f"ALTER PUBLICATION {quoted(publication)} SET (publish_generated_columns = stored)"
            "; (virtual columns cannot be published: use a primary key as identity)",
        )
    return TableRefused(
        f"the table {candidate.id} has no replica identity",
        detail="no primary key: PostgreSQL could not identify the row of an UPDATE or DELETE, "
        "and would refuse them; the table is left out",
        hint=f"ALTER TABLE {quoted(candidate.schema, candidate.name)} REPLICA IDENTITY FULL; "
        "(or give it a primary key)",
    )
