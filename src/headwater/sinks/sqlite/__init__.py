"""Tables of a SQLite database.

    database   the file: connections, transactions, and the mapping of SQLite's errors
    values     types; Arrow columns to SQLite's values, and back
    tables     the table of positions, and tables as their columns change
    store      versions of a target
    writer     a batch into one transaction

One transaction has a batch's rows and its position. The file is in WAL mode: readers see the state
of the last batch and block no writer, nor are blocked; a batch is on disk (synchronous =
FULL) before `apply` returns. Tables are STRICT. What SQLite has no type for is text: dates and
times in ISO 8601, UTC with a Z; exact numbers with all their digits; lists, structs and maps as
JSON.
"""

from headwater.sinks.sqlite.store import OPTIONS, TARGET_OPTIONS, SqliteStore

__all__ = ["OPTIONS", "TARGET_OPTIONS", "SqliteStore"]
