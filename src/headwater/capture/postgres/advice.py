"""What does not keep a capture from running, but will hurt later. For `headwater doctor`."""

from collections.abc import Iterator
from typing import Any

from headwater.capture.postgres.connection import Address
from headwater.capture.postgres.slot import FAILOVER_VERSION, Slot
from headwater.errors import CaptureError


def advice(address: Address, slot: Slot) -> list[CaptureError]:
    with address.errors():
        connection = address.connect()
        try:
            with connection.cursor() as cursor:
                return [*_failover(cursor, slot)]
        finally:
            connection.close()


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
