"""Headwater keeps every derived store in step with the databases it comes from, through one log.

What needs Spark or Arrow is imported when it is first named, so `import headwater` stays light.
"""

from typing import TYPE_CHECKING

from headwater.lazy_imports import lazy_names

if TYPE_CHECKING:
    from headwater import rpc, testing
    from headwater.inspect.previewing import flow, preview
    from headwater.inspect.subjects import personal_topics
    from headwater.inspect.waiting import token_of, wait
    from headwater.pipelines.flow import Flow
    from headwater.pipelines.operators.aggregates import api as agg
    from headwater.pipelines.operators.joins.enrich import enrich
    from headwater.pipelines.operators.joins.lookup import lookup
    from headwater.pipelines.operators.joins.stream_join import join
    from headwater.pipelines.operators.joins.tables.join_tables import join_tables
    from headwater.pipelines.operators.patterns.builder import pattern
    from headwater.pipelines.operators.patterns.match import match
    from headwater.pipelines.operators.patterns.stored.definitions import PATTERNS
    from headwater.pipelines.operators.patterns.stored.match_stored import match_stored
    from headwater.pipelines.operators.processing.process import process
    from headwater.pipelines.operators.selection.deduplicate import deduplicate
    from headwater.pipelines.operators.selection.top import top
    from headwater.pipelines.operators.time.event_time import event_time, processing_time
    from headwater.pipelines.operators.windows.api import hopping, tumbling
    from headwater.pipelines.operators.windows.event_windows import session, sliding
    from headwater.pipelines.pipeline import pipeline
    from headwater.pipelines.search.api import search
    from headwater.pipelines.search.stored_searches import SEARCHES
    from headwater.pipelines.session import spark
    from headwater.pipelines.views.query import sql

__all__ = [
    "PATTERNS",
    "SEARCHES",
    "Flow",
    "agg",
    "deduplicate",
    "enrich",
    "event_time",
    "flow",
    "hopping",
    "join",
    "join_tables",
    "lookup",
    "match",
    "match_stored",
    "pattern",
    "personal_topics",
    "pipeline",
    "preview",
    "process",
    "processing_time",
    "rpc",
    "search",
    "session",
    "sliding",
    "spark",
    "sql",
    "testing",
    "token_of",
    "top",
    "tumbling",
    "wait",
]
__version__ = "0.1.0"

_HOMES = {
    "PATTERNS": "headwater.pipelines.operators.patterns.stored.definitions",
    "SEARCHES": "headwater.pipelines.search.stored_searches",
    "Flow": "headwater.pipelines.flow",
    "agg": "headwater.pipelines.operators.aggregates.api",
    "deduplicate": "headwater.pipelines.operators.selection.deduplicate",
    "enrich": "headwater.pipelines.operators.joins.enrich",
    "event_time": "headwater.pipelines.operators.time.event_time",
    "flow": "headwater.inspect.previewing",
    "hopping": "headwater.pipelines.operators.windows.api",
    "join": "headwater.pipelines.operators.joins.stream_join",
    "join_tables": "headwater.pipelines.operators.joins.tables.join_tables",
    "lookup": "headwater.pipelines.operators.joins.lookup",
    "match": "headwater.pipelines.operators.patterns.match",
    "match_stored": "headwater.pipelines.operators.patterns.stored.match_stored",
    "pattern": "headwater.pipelines.operators.patterns.builder",
    "personal_topics": "headwater.inspect.subjects",
    "pipeline": "headwater.pipelines.pipeline",
    "preview": "headwater.inspect.previewing",
    "process": "headwater.pipelines.operators.processing.process",
    "processing_time": "headwater.pipelines.operators.time.event_time",
    "rpc": "headwater.rpc",
    "search": "headwater.pipelines.search.api",
    "session": "headwater.pipelines.operators.windows.event_windows",
    "sliding": "headwater.pipelines.operators.windows.event_windows",
    "spark": "headwater.pipelines.session",
    "sql": "headwater.pipelines.views.query",
    "testing": "headwater.testing",
    "token_of": "headwater.inspect.waiting",
    "top": "headwater.pipelines.operators.selection.top",
    "tumbling": "headwater.pipelines.operators.windows.api",
    "wait": "headwater.inspect.waiting",
}
_MODULES = {"agg", "rpc", "testing"}

__getattr__ = lazy_names(__name__, _HOMES, _MODULES)
