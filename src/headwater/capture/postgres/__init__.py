"""PostgreSQL as a source: logical replication with pgoutput, snapshots with COPY.

    source.py       PostgresSource: what capture/contract.py asks for
    connection.py   connections with the same session settings, and what their errors mean
    checks.py       what must be right in the database, and the SQL that fixes it
    advice.py       what will hurt later: retained log, failover, large values
    catalog.py      tables that match, their columns and keys; type_catalog.py: their types
    chunks.py       tables read in chunks, and which transactions a read saw; copy_text.py: COPY
    storage.py      how rows are stored, to detect changes that are not logged
    values.py       from PostgreSQL's text to JSON; times.py: dates, times and intervals
    replication/    the log
      slot.py, publication.py  from which position on, and which tables
      stream.py         the replication connection; feedback.py: status updates to PostgreSQL
      pgoutput.py       the messages; relations.py: tables as they describe them
      transactions.py   from messages to events
      toast_cache.py    large values that the log leaves out; row_completion.py: read by key
      timeline.py       which cluster and timeline a position belongs to

**Positions** are {"lsn": n, "timeline": t, "system": s}: all transactions whose commit record
begins at or before n, in the log of that cluster and timeline.
"""

from headwater.capture.postgres.source import PostgresSource

__all__ = ["PostgresSource"]
