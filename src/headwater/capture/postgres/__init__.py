"""PostgreSQL as a source: logical replication with pgoutput, snapshots with COPY.

    source.py       PostgresSource: what capture/contract.py asks for
    connection.py   connections with the same session settings, and what their errors mean
    checks.py       what must be right in the database, and the SQL that mends it
    advice.py       what will hurt later: log that is kept, failover, large values
    publication.py  which tables are sent; slot.py: from where on
    timeline.py     which cluster and timeline a place belongs to
    catalog.py      tables that match, their columns and keys; typecatalog.py: their types
    stream.py       from messages to events; pgoutput.py: the messages; toast.py: values left out
    completing.py   rows read again for values that the log left out
    feedback.py     how far we are, told to PostgreSQL
    chunks.py       tables read in chunks, and which transactions a read saw; copy_text.py: COPY
    storage.py      how rows are held, to notice what the log does not tell
    values.py       from PostgreSQL's text to JSON; times.py: dates, times and intervals

**Places** are {"lsn": n, "timeline": t, "system": s}: all transactions whose commit record begins
at or before n, in the log of that cluster and timeline.
"""

from headwater.capture.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
