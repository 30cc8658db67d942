"""The former name of `headwater.sinks.tantivy.store`, for projects that import `search`."""

from headwater.sinks.tantivy.store import search

__all__ = ["search"]
