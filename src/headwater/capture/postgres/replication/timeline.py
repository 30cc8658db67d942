"""The timeline of a position: which history of the log it belongs to.

An LSN means something only within one cluster and one timeline. A standby that is promoted begins a
new timeline at the last record that it has; if the old primary had sent us more than that, our
position lies on a branch that no longer exists, although the new log soon has the same LSN too.
Every position therefore names the cluster and its timeline, and both are compared before it is
used.
"""

from typing import Any, NamedTuple

import psycopg2.errors
import psycopg2.extras

from headwater.capture.contract import LogPosition
from headwater.capture.postgres.connection import Address, lsn_number, lsn_text


class Timeline(NamedTuple):
    system: str  # identifier of the cluster
    number: int

    def position(self, lsn: int) -> LogPosition:
        return {"lsn": lsn, "timeline": self.number, "system": self.system}


def current_timeline(connection: Any) -> Timeline:
    """Of a replication connection's server."""
    with connection.cursor() as cursor:
        cursor.execute("IDENTIFY_SYSTEM")
        system, number, *_ = cursor.fetchone()
        return Timeline(str(system), int(number))


def branched_off(address: Address, position: LogPosition) -> str | None:
    """Why `position` is not in the past of the server that answers now; None if it is. A position
    that an earlier version stored names no timeline and is believed.
    """
    with address.errors():
        connection = address.connect(psycopg2.extras.LogicalReplicationConnection)
        try:
            return branched_off_of(connection, position)
        finally:
            connection.close()


def branched_off_of(connection: Any, position: LogPosition) -> str | None:
    """The same, of a replication connection's server."""
    if "timeline" not in position:
        return None
    now = current_timeline(connection)
    if now.system != position["system"]:
        return (
            f"this is another PostgreSQL cluster (system identifier {now.system}, "
            f"before {position['system']})"
        )
    then, lsn = int(position["timeline"]), int(position["lsn"])
    if now.number == then:
        return None
    history: dict[int, int] = {}
    if now.number > 1:  # the first has none
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"TIMELINE_HISTORY {now.number}")
                history = _switches(cursor.fetchone()[1])
        except psycopg2.errors.UndefinedFile:
            return f"where timeline {now.number} of the database began is no longer in its history"
    if then not in history:
        return f"timeline {now.number} of the database did not begin on ours, {then}"
    # The record at `lsn` is in both if it begins in front of where the branch does.
    if lsn >= history[then]:
        return (
            f"the database was switched to timeline {now.number} at {lsn_text(history[then])}, "
            f"and lacks what we have from there to {lsn_text(lsn)} (a standby was promoted before "
            "it had all, or a backup restored)"
        )
    return None


def _switches(history: str | bytes | memoryview) -> dict[int, int]:
    """Where each earlier timeline was left. A line has its number, an LSN, and a reason."""
    text = history if isinstance(history, str) else bytes(history).decode(errors="replace")
    lines = (line.split() for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {int(line[0]): lsn_number(line[1]) for line in lines if len(line) >= 2}
