"""Where a transaction stands in the binlog.

Of a transaction: {"server", "file", "begins", "gtids", "gtid"}: where its first event begins,
and the ids of all in front of it. Of a point between two: {"server", "file", "pos", "gtids"}.
`gtids` and `gtid` are absent on a MySQL server without GTIDs. "uncertain" names tables whose
columns behind this place are not known yet (stream/schema_history.py).

Within one server's log, file and position give the order. On another server (after a failover) only
the ids mean something; nothing is compared across servers.
"""

from headwater.capture.contract import Place
from headwater.errors import CaptureError


def order(place: Place) -> tuple[int, int]:
    """Grows along one server's log. A stream that has come to a transaction's place has sent
    everything in front of it.
    """
    try:
        position = place["begins"] if "begins" in place else place["pos"]
        return file_number(place["file"]), int(position)
    except (KeyError, ValueError, TypeError):
        raise CaptureError(
            "a place in the binlog cannot be read", detail=repr(place)[:200]
        ) from None


def file_number(name: str) -> int:
    """binlog.000123. Behind 999999 come seven digits."""
    return int(name.rpartition(".")[2])
