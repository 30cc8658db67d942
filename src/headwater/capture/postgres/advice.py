"""Advice of `headwater doctor`: what does not stop a capture, but will hurt later."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from headwater.capture.postgres.catalog import Candidate, Selection
from headwater.capture.postgres.connection import Address, quoted
from headwater.capture.postgres.replication.publication import Publication
from headwater.capture.postgres.replication.slot import FAILOVER_VERSION, Slot
from headwater.errors import CaptureError

# Tables whose updates may leave out large values, by how much they have of them.
_LARGE: Final = """
SELECT t.root, sum(pg_relation_size(c.reltoastrelid))::int8
FROM (SELECT o AS root, coalesce(p.relid::oid, o) AS relid FROM unnest(%s::oid[]) o
      LEFT JOIN LATERAL pg_partition_tree(o) p ON p.isleaf) t
JOIN pg_class c ON c.oid = t.relid
WHERE c.reltoastrelid <> 0 AND c.relreplident <> 'f'
GROUP BY 1 HAVING sum(pg_relation_size(c.reltoastrelid)) > 0 ORDER BY 2 DESC
"""
_NAMED: Final = 5


def advice(
    address: Address, slot: Slot, publication: Publication, selection: Selection
) -> list[CaptureError]:
    with address.errors():
        connection = address.connect()
        try:
            with connection.cursor() as cursor:
                candidates = selection.candidates(cursor, publication.name)
                return [
                    *_retained(cursor, slot),
                    *_failover(cursor, slot),
                    *_large_values(cursor, candidates),
                ]
        finally:
            connection.close()


def _retained(cursor: Any, slot: Slot) -> Iterator[CaptureError]:
    """A capture that stands still makes the database retain its log."""

    def rows(query: str, values: Sequence[Any]) -> list[Any]:
        cursor.execute(query, values)
        return list(cursor.fetchall())

    lag = slot.retained(rows)
    if lag.is_running_out and lag.retained_bytes is not None:
        limit = (
            f"{lag.left_bytes >> 20:,} MiB more, and it loses the slot or its disk is full"
            if lag.left_bytes is not None
            else "without a limit: max_slot_wal_keep_size is not set"
        )
        yield CaptureError(
            f"PostgreSQL retains {lag.retained_bytes >> 20:,} MiB of log for the capture",
            detail=limit,
            hint="run the capture, which lets it go, or `headwater capture reset`, which drops the "
            "slot",
        )


def _failover(cursor: Any, slot: Slot) -> Iterator[CaptureError]:
    """A slot that fails over does not help if the standby is behind what we were sent."""
    if cursor.connection.server_version < FAILOVER_VERSION:
        return
    cursor.execute(
        """SELECT string_agg(s.slot_name, ', ' ORDER BY s.slot_name) FROM pg_replication_slots s
           WHERE s.slot_type = 'physical' AND NOT s.temporary
             AND current_setting('synchronized_standby_slots') = ''
             AND EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s AND failover)""",
        (slot.name,),
    )
    (standbys,) = cursor.fetchone()
    if standbys is not None:
        yield CaptureError(
            "a failover may lose what the capture already has",
            detail="synchronized_standby_slots is empty, so changes are sent to captures before "
            "standbys have them; after such a failover the capture stops and has to be reset",
            hint=f"ALTER SYSTEM SET synchronized_standby_slots = '{standbys}'; "
            "SELECT pg_reload_conf(); (the slots of the standbys that may be promoted)",
        )


def _large_values(cursor: Any, candidates: list[Candidate]) -> Iterator[CaptureError]:
    cursor.execute(_LARGE, ([candidate.oid for candidate in candidates],))
    by_oid = {candidate.oid: candidate for candidate in candidates}
    tables = [by_oid[oid] for oid, _ in cursor.fetchall()]
    if tables:
        names = ", ".join(table.id for table in tables[:_NAMED])
        more = f" and {len(tables) - _NAMED} more" if len(tables) > _NAMED else ""
        first = tables[0]
        yield CaptureError(
            f"large values of {names}{more} are read again by key",
            detail="PostgreSQL does not log a large value (TOAST) that an update leaves alone",
            hint=f"ALTER TABLE {quoted(first.schema, first.name)} REPLICA IDENTITY FULL; logs them "
            "(more log, no reading); without it a row that is updated and then deleted may have "
            "one record without them",
        )
