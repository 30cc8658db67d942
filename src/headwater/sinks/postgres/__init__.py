"""Tables of a PostgreSQL database (13 and newer).

    connection   sessions, and the mapping of server errors
    values       types; Arrow columns to COPY's text and back
    tables       the table of positions, and tables as their columns change
    store        versions of a target
    writer       a batch into one transaction
    refusing     finds the rows of a batch that do not fit
    promoting    gives another version the live name
    reading      all rows at one position

One transaction has a batch's rows and its position (`__headwater_positions`, in the schema of the
table). Every change of a version locks the position's row first, so writers, promotes and drops
wait for each other, and for nothing else.
"""

from headwater.sinks.postgres.store import OPTIONS, TARGET_OPTIONS, PostgresStore

__all__ = ["OPTIONS", "TARGET_OPTIONS", "PostgresStore"]
