"""SQLite: triggers write every change into a log table beside the data, whoever the writer is.

source.py      the source: looks at the log, transactions, chunks, positions
reading.py     log rows as events; when to look; deleting what is in the topics
changelog.py   the log in the database, kept in step with the tables
triggers.py    the SQL of log and triggers
catalog.py     the tables as they are now
chunks.py      rows for copies
values.py      values as JSON has them
connection.py  opening the file; SQLite's errors in our words
"""

from headwater.capture.sqlite.source import SqliteSource

__all__ = ["SqliteSource"]
