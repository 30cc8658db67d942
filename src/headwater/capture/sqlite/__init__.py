"""SQLite: triggers write every change into a log table beside the data, for any writer.

    source.py      SqliteSource: what capture/contract.py asks for
    triggers.py    the SQL of log and triggers
    changelog.py   the log in the database, updated with the tables
    catalog.py     the tables as they are now
    log_reader.py  log rows as events
    file_watch.py  when there may be new ones
    log_cleaner.py deletes those that are in the topics
    chunks.py      rows for copies
    values.py      values as JSON has them
    connection.py  opening the file; SQLite's errors as ours

A position is {"id": last log id of a transaction, "first": its first, "log": which log it is}.
"""

from headwater.capture.sqlite.source import SqliteSource

__all__ = ["SqliteSource"]
