"""Tables of a PostgreSQL database (13 and newer).

    connection   sessions, and what the server's errors mean
    values       types; Arrow columns to COPY's text and back
    tables       the table of positions, and tables as their columns change
    store        versions of a target
    writer       a batch into one transaction
    refusing     which rows of a batch do not fit
    promoting    another version under the live name
    reading      all rows at one position

One transaction has a batch's rows and its position (`__headwater_positions`, in the schema of the
table). The position's row is locked first by whoever changes anything of a version, so writers,
promotes and drops wait for each other, and for nothing else.
"""

from headwater.sinks.postgres.store import OPTIONS, TARGET_OPTIONS, PostgresStore

__all__ = ["OPTIONS", "TARGET_OPTIONS", "PostgresStore"]
