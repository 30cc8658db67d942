"""Checks of the database: all that a capture needs and lacks, with the SQL that fixes it.

What stands in the way of all is a SourceRefused (or SourceUnreachable, PositionLost); what concerns
one table only, which is then left out, is a TableRefused.
"""

from collections.abc import Iterator
from typing import Any, Final

from headwater.capture.postgres.catalog import Candidate, Selection
from headwater.capture.postgres.connection import Address, quoted
from headwater.capture.postgres.replication.publication import Publication, unidentified
from headwater.capture.postgres.replication.slot import Slot
from headwater.capture.settings import CaptureSettings
from headwater.errors import HeadwaterError, PositionLost, SourceRefused, TableRefused

OLDEST_VERSION: Final = 140000
_FILTERS_VERSION: Final = 150000  # row filters and column lists in publications
_FACTS: Final = """
SELECT current_setting('server_version_num')::int, current_setting('server_version'),
    current_setting('wal_level'), current_setting('max_replication_slots')::int,
    current_setting('max_wal_senders')::int, current_setting('server_encoding'),
    pg_is_in_recovery(), (SELECT count(*) FROM pg_replication_slots),
    rolsuper OR rolreplication OR EXISTS (
        SELECT FROM pg_roles r WHERE r.rolname = 'rds_replication'
            AND pg_has_role(current_user, r.oid, 'MEMBER')),
    has_database_privilege(current_database(), 'CREATE'), current_user, current_database(),
    (SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s),
    EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s),
    EXISTS (SELECT FROM pg_publication WHERE pubname = %s)
FROM pg_roles WHERE rolname = current_user
"""


def check(
    address: Address,
    settings: CaptureSettings,
    slot: Slot,
    publication: Publication,
    selection: Selection,
) -> list[HeadwaterError]:
    try:
        connection = address.connect()
    except HeadwaterError as error:
        return [error]
    try:
        with address.errors(), connection.cursor() as cursor:
            return [
                *_server(cursor, settings, slot, publication),
                *_publication(cursor, publication),
                *_tables(cursor, publication, selection),
            ]
    except HeadwaterError as error:
        return [error]
    finally:
        connection.close()


def _server(
    cursor: Any, settings: CaptureSettings, slot: Slot, publication: Publication
) -> Iterator[HeadwaterError]:
    cursor.execute(_FACTS, (slot.name, slot.name, publication.name))
    (
        number, version, wal_level, max_slots, max_senders, encoding, in_recovery, slots,
        may_replicate, may_create, role, database, wal_status, has_slot, has_publication,
    ) = cursor.fetchone()  # fmt: skip
    if number < OLDEST_VERSION:
        yield SourceRefused(
            "PostgreSQL is too old", detail=f"{version}", hint="version 14 or later is needed"
        )
    if in_recovery:
        yield SourceRefused(
            "the server is a standby", hint="name the primary in `source`: captures follow it"
        )
    if wal_level != "logical":
        yield SourceRefused(
            "PostgreSQL's log has not enough in it",
            detail=f"wal_level is {wal_level}, needed is logical",
            hint="ALTER SYSTEM SET wal_level = 'logical'; and restart PostgreSQL",
        )
    if not has_slot and slots >= max_slots:
        yield SourceRefused(
            "no replication slot is free",
            detail=f"max_replication_slots is {max_slots}",
            hint=f"ALTER SYSTEM SET max_replication_slots = {max_slots + 10}; and restart "
            "PostgreSQL (or drop unused slots)",
        )
    if max_senders < 1:
        yield SourceRefused(
            "PostgreSQL sends its log to nobody",
            detail=f"max_wal_senders is {max_senders}",
            hint="ALTER SYSTEM SET max_wal_senders = 10; and restart PostgreSQL",
        )
    if not may_replicate:
        yield SourceRefused(
            "the role may not replicate",
            detail=role,
            hint=f"ALTER ROLE {quoted(role)} REPLICATION;",
        )
    if not has_publication and not may_create:
        yield SourceRefused(
            "the role may not create the publication",
            detail=role,
            hint=f"GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(role)};",
        )
    if encoding == "SQL_ASCII":
        yield SourceRefused(
            "the database does not know the encoding of its texts",
            detail="server_encoding is SQL_ASCII",
            hint="dump it and restore it into a database with ENCODING 'UTF8'",
        )
    if wal_status == "lost":
        yield PositionLost(
            "the replication slot is invalid: PostgreSQL has removed log that it needed",
            detail=f"slot {slot.name}",
            hint=f"headwater capture reset {settings.name}",
        )


def _publication(cursor: Any, publication: Publication) -> Iterator[HeadwaterError]:
    """One that was there before us may leave out what we need."""
    cursor.execute(
        """SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubviaroot
           FROM pg_publication WHERE pubname = %s""",
        (publication.name,),
    )
    if cursor.fetchall() == [(False,)]:
        yield SourceRefused(
            "the publication does not publish everything",
            detail=publication.name,
            hint=f"ALTER PUBLICATION {quoted(publication.name)} SET (publish = 'insert, update, "
            "delete, truncate', publish_via_partition_root = true);",
        )
    if cursor.connection.server_version < _FILTERS_VERSION:
        return
    cursor.execute(
        """SELECT prrelid::regclass::text FROM pg_publication_rel r
           JOIN pg_publication p ON p.oid = r.prpubid
           WHERE pubname = %s AND (prqual IS NOT NULL OR prattrs IS NOT NULL)""",
        (publication.name,),
    )
    for (table,) in cursor.fetchall():
        name = quoted(publication.name)
        yield SourceRefused(
            f"the publication leaves out rows or columns of {table}",
            detail=publication.name,
            hint=f"ALTER PUBLICATION {name} DROP TABLE {table}; ALTER PUBLICATION {name} ADD TABLE "
            f"{table}; and [capture.NAME.columns] or [capture.NAME.rows] instead",
        )


def _tables(
    cursor: Any, publication: Publication, selection: Selection
) -> Iterator[HeadwaterError]:
    cursor.execute("SELECT current_user, usesuper FROM pg_user WHERE usename = current_user")
    role, superuser = cursor.fetchone()
    candidates = selection.candidates(cursor, publication.name)
    if not candidates:
        yield TableRefused(
            "no table matches",
            detail="tables that are created later will be captured",
            hint="check `tables` and `exclude`: patterns such as public.*",
        )
    exists = publication.exists(cursor)
    wanted = [candidate for candidate in candidates if candidate.identified]
    foreign = [c for c in wanted if not (c.published or c.owned or superuser)]
    if foreign and foreign == wanted:
        yield SourceRefused(
            "the role may publish none of the tables: only their owner can",
            detail=f"the role of the capture is {role}",
            hint=publication.hint_to_publish(*foreign, exists=exists),
        )
        foreign = []
    for candidate in candidates:
        if not candidate.identified:
            yield unidentified(candidate, publication.name)
            continue
        if not candidate.readable:
            yield _unreadable(candidate, role)
        if candidate in foreign:
            yield TableRefused(
                f"only its owner can publish the table {candidate.id}",
                detail=f"the role of the capture is {role}",
                hint=publication.hint_to_publish(candidate, exists=exists),
            )


def _unreadable(candidate: Candidate, role: str) -> TableRefused:
    return TableRefused(
        f"the role may not read the table {candidate.id}",
        detail=role,
        hint=f"GRANT USAGE ON SCHEMA {quoted(candidate.schema)} TO {quoted(role)}; "
        f"GRANT SELECT ON {quoted(candidate.schema, candidate.name)} TO {quoted(role)};",
    )
