"""The former name of `headwater.sinks.tantivy.store`: projects import `search` from here."""

from headwater.sinks.tantivy.store import search

__all__ = ["search"]
