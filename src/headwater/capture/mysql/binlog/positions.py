"""Positions in the binlog: of a transaction, and between two.

Of a transaction: {"server", "file", "begins", "gtids", "gtid"}: where its first event begins,
and the ids of all in front of it. Of a point between two: {"server", "file", "pos", "gtids"}.
`gtids` and `gtid` are absent on a MySQL server without GTIDs. "uncertain" names tables whose
columns behind this position are not resolved yet (stream/schema_history.py).

Within one server's log, file and position give the order. On another server (after a failover) only
the ids mean something; nothing is compared across servers.
"""

from headwater.capture.contract import LogPosition
from headwater.errors import CaptureError


def order(position: LogPosition) -> tuple[int, int]:
    """Grows along one server's log. A stream that has come to a transaction's position has sent
    everything in front of it.
    """
    try:
        offset = position["begins"] if "begins" in position else position["pos"]
        return file_number(position["file"]), int(offset)
    except (KeyError, ValueError, TypeError):
        raise CaptureError(
            "a position in the binlog cannot be read", detail=repr(position)[:200]
        ) from None


def file_number(name: str) -> int:
    """binlog.000123. Behind 999999 come seven digits."""
    return int(name.rpartition(".")[2])
