"""The former name of `headwater.sinks.tantivy.store`, for projects that import `search` from here."""

from headwater.sinks.tantivy.store import search

__all__ = ["search"]
