"""What SQLite's errors mean for who uses the database: by primary result codes."""

import enum
import sqlite3
from typing import Final

BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class SqliteFault(enum.Enum):
    """Why a statement failed."""

    LOCKED = "another connection holds a lock that ends by itself"
    DISK = "the disk is full, or does not answer"
    NO_DATABASE = "the file is no SQLite database"
    CORRUPT = "the file is damaged"
    CANNOT_OPEN = "the file, or one beside it, cannot be opened"
    NOT_WRITABLE = "the file, or its directory, cannot be written to"
    REFUSED = "the statement itself"


_FAULTS: Final = {
    **dict.fromkeys(BUSY, SqliteFault.LOCKED),
    sqlite3.SQLITE_FULL: SqliteFault.DISK,
    sqlite3.SQLITE_IOERR: SqliteFault.DISK,
    sqlite3.SQLITE_NOTADB: SqliteFault.NO_DATABASE,
    sqlite3.SQLITE_CORRUPT: SqliteFault.CORRUPT,
    sqlite3.SQLITE_READONLY: SqliteFault.NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: SqliteFault.CANNOT_OPEN,
    sqlite3.SQLITE_PERM: SqliteFault.NOT_WRITABLE,
}


def fault_of(error: sqlite3.Error) -> SqliteFault:
    # The low byte is the primary code; the rest says which lock or read it was.
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    return _FAULTS.get(code, SqliteFault.REFUSED)
