"""The replication slot: the position from which PostgreSQL retains its log for us."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import psycopg2
import psycopg2.errors

from headwater.capture.contract import Lag, SourcePosition
from headwater.capture.postgres.connection import lsn_number, lsn_text
from headwater.errors import PositionLost, SourceRefused, SourceUnreachable

_HOLDER_PATIENCE_S: Final = 3.0  # for an old process to release it by itself
_CREATE_TIMEOUT_S: Final = 60
FAILOVER_VERSION: Final = 170000


_RETAINED: Final = """
SELECT pg_current_wal_lsn() - restart_lsn, safe_wal_size,
    CASE WHEN inet_server_addr() IS NOT DISTINCT FROM inet_client_addr()
         THEN (SELECT setting FROM pg_settings WHERE name = 'data_directory') END
FROM pg_replication_slots WHERE slot_name = %s
"""


class Slot:
    def __init__(self, name: str, capture: str) -> None:
        self.name = name
        self._capture = capture

    def open(self, cursor: Any, after: SourcePosition | None) -> tuple[int, bool]:
        """The LSN up to which all commits are behind us, and whether the slot is new. Creates it
        if there is no position yet. Raises PositionLost if the slot no longer reaches `after`.
        """
        cursor.execute(
            """SELECT plugin, slot_type, database = current_database(), wal_status,
                   confirmed_flush_lsn::text, pg_current_wal_lsn()::text
               FROM pg_replication_slots WHERE slot_name = %s""",
            (self.name,),
        )
        row = cursor.fetchone()
        if row is None:
            if after is not None:
                raise self.lost("the replication slot is dropped")
            return self._create(cursor) - 1, True
        plugin, kind, ours, wal_status, confirmed_text, end_text = row
        if kind != "logical" or plugin != "pgoutput" or not ours:
            raise SourceRefused(
                "a replication slot of this name serves something else",
                detail=f"{self.name}: {kind}, plugin {plugin}",
                hint='set `slot = "…"` in the options of the capture to another name',
            )
        if wal_status == "lost" or confirmed_text is None:
            if after is not None:
                raise self.lost(
                    "the replication slot is invalid: PostgreSQL has removed log that it needed "
                    "(max_slot_wal_keep_size)"
                )
            self.drop(cursor)
            return self._create(cursor) - 1, True
        confirmed = lsn_number(confirmed_text)
        if after is None:
            return confirmed - 1, False
        at = int(after.at["lsn"])
        # Commits in front of `confirmed` will not be sent.
        if confirmed > at + (after.changes is None):
            raise self.lost(
                f"the replication slot has moved on to {confirmed_text} without us "
                f"(we are at {lsn_text(at)})"
            )
        if at > lsn_number(end_text):
            raise self.lost(
                f"the database has gone back in time: its log ends at {end_text}, "
                f"we are at {lsn_text(at)}"
            )
        return at, False

    def retained(self, rows: Callable[[str, Sequence[Any]], list[Any]]) -> Lag:
        """The log that PostgreSQL retains for the slot, and by how much it may grow."""
        found = rows(_RETAINED, (self.name,))
        if not found or found[0][0] is None:
            return Lag()
        retained, safe_bytes, directory = found[0]
        limits = [
            int(limit)
            for limit in (safe_bytes, _free_bytes(directory) if directory else None)
            if limit is not None
        ]
        left_bytes = max(0, min(limits)) if limits else None
        return Lag(retained_bytes=max(0, int(retained)), left_bytes=left_bytes)

    def free(self, cursor: Any) -> None:
        """Waits until no process holds the slot; one that does not release it is ended. (Who calls
        this has fenced it: whatever it still sends to the topics is refused.)
        """
        deadline = time.monotonic() + _HOLDER_PATIENCE_S
        while (pid := self._holder(cursor)) is not None:
            if time.monotonic() > deadline:
                cursor.execute("SELECT pg_terminate_backend(%s)", (pid,))
                deadline = time.monotonic() + _HOLDER_PATIENCE_S
            time.sleep(0.05)

    def drop(self, cursor: Any) -> None:
        self.free(cursor)
        cursor.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_name = %s AND database = current_database()",
            (self.name,),
        )

    def _holder(self, cursor: Any) -> int | None:
        cursor.execute(
            "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s AND active",
            (self.name,),
        )
        row = cursor.fetchone()
        return None if row is None else row[0]

    def _create(self, cursor: Any) -> int:
        """PostgreSQL waits for all transactions that are in progress; not indefinitely here."""
        failover = cursor.connection.server_version >= FAILOVER_VERSION
        cursor.execute(f"SET statement_timeout = '{_CREATE_TIMEOUT_S}s'")
        try:
            # failover: a standby that synchronises slots (PostgreSQL 17) can take over with it.
            options = ("pgoutput", False, False, True) if failover else ("pgoutput", False, False)
            cursor.callproc("pg_create_logical_replication_slot", (self.name, *options))
            lsn: str = cursor.fetchone()[1]
        except psycopg2.errors.QueryCanceled:
            raise SourceUnreachable(
                "the replication slot is not ready",
                detail=f"transactions that began before have not ended for {_CREATE_TIMEOUT_S} s",
                hint="SELECT pid, xact_start, query FROM pg_stat_activity "
                "WHERE backend_xid IS NOT NULL ORDER BY xact_start;",
            ) from None
        finally:
            if not cursor.connection.closed:
                cursor.execute("SET statement_timeout = 0")
        return lsn_number(lsn)

    def lost(self, what: str) -> PositionLost:
        return PositionLost(
            what,
            detail=f"slot {self.name}; changes since then may be missing in the topics",
            hint=f"headwater capture reset {self._capture} (then a new snapshot brings the topics "
            "up to date)",
        )


def _free_bytes(data_directory: str) -> int | None:
    """Of the disk that holds the log, if the server runs on this machine."""
    for directory in (Path(data_directory) / "pg_wal", Path(data_directory)):
        with suppress(OSError):
            disk = os.statvfs(directory)
            return disk.f_bavail * disk.f_frsize
    return None
