"""SQLite: triggers write every change into a log table beside the data, whoever the writer is."""

from headwater.capture.sqlite.source import SqliteSource

__all__ = ["SqliteSource"]
