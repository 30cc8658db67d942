"""Standby status updates: up to which LSN the topics are durable, reported to PostgreSQL.

psycopg2 sends them too, but reports more than it was asked to: on a keepalive it confirms the end
of the log by itself, if the last message began in front of what was confirmed before. Of a long
transaction a message may begin anywhere, so that confirms commits that are not in the topics yet;
and on an idle server the slot moves on in front of the stored position, which after a crash looks
as if another client had read it. As long as psycopg2 is never given a position it confirms none
once a message was read. So status updates go to libpq without it.
"""

import ctypes
import struct
import time
from functools import cache
from typing import Any, Final

import psycopg2

from headwater.capture.postgres.replication.pgoutput import EPOCH_2000_US
from headwater.errors import SourceUnreachable

# Standby status update: "r", written, flushed, applied, clock (µs since 2000), reply wanted.
_STATUS: Final = struct.Struct(">cQQQqB")


def send_status(connection: Any, lsn: int, *, asks: bool) -> None:
    """All in front of `lsn` is durable; 0 confirms nothing. `asks`: PostgreSQL replies at once with
    how far it is. For the thread that reads from the connection.
    """
    if connection.closed:
        raise SourceUnreachable("the connection to PostgreSQL is closed")
    clock_us = time.time_ns() // 1000 - EPOCH_2000_US
    status = _STATUS.pack(b"r", lsn, lsn, lsn, clock_us, asks)
    libpq = _libpq()
    # 0: its buffer is full, since PostgreSQL reads nothing; the next status reports the same or
    # more.
    if libpq.PQputCopyData(connection.pgconn_ptr, status, len(status)) < 0 or (
        libpq.PQflush(connection.pgconn_ptr) < 0
    ):
        raise SourceUnreachable("the connection to PostgreSQL is closed")


@cache
def _libpq() -> ctypes.CDLL:
    """The one that psycopg2 was linked with: its symbols are found through it."""
    libpq = ctypes.CDLL(psycopg2._psycopg.__file__)  # noqa: SLF001
    libpq.PQputCopyData.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
    libpq.PQflush.argtypes = (ctypes.c_void_p,)
    return libpq
