"""Headwater keeps every derived store in step with the databases it comes from, through one log.

What needs Spark or Arrow is imported when it is first named, so `import headwater` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.inspect.waiting import token_of, wait
    from headwater.pipelines.flow import Flow
    from headwater.pipelines.operators.aggregates import api as agg
    from headwater.pipelines.operators.joins.enrich import enrich
    from headwater.pipelines.operators.joins.join_tables import join_tables
    from headwater.pipelines.operators.joins.lookup import lookup
    from headwater.pipelines.operators.joins.stream_join import join
    from headwater.pipelines.operators.time.event_time import event_time, processing_time
    from headwater.pipelines.operators.windows.api import hopping, tumbling
    from headwater.pipelines.operators.windows.event_windows import session, sliding
    from headwater.pipelines.pipeline import pipeline
    from headwater.pipelines.session import spark

__all__ = [
    "Flow",
    "agg",
    "enrich",
    "event_time",
    "hopping",
    "join",
    "join_tables",
    "lookup",
    "pipeline",
    "processing_time",
    "session",
    "sliding",
    "spark",
    "token_of",
    "tumbling",
    "wait",
]
__version__ = "0.1.0"

_HOMES = {
    "Flow": "headwater.pipelines.flow",
    "agg": "headwater.pipelines.operators.aggregates.api",
    "enrich": "headwater.pipelines.operators.joins.enrich",
    "event_time": "headwater.pipelines.operators.time.event_time",
    "hopping": "headwater.pipelines.operators.windows.api",
    "join": "headwater.pipelines.operators.joins.stream_join",
    "join_tables": "headwater.pipelines.operators.joins.join_tables",
    "lookup": "headwater.pipelines.operators.joins.lookup",
    "pipeline": "headwater.pipelines.pipeline",
    "processing_time": "headwater.pipelines.operators.time.event_time",
    "session": "headwater.pipelines.operators.windows.event_windows",
    "sliding": "headwater.pipelines.operators.windows.event_windows",
    "spark": "headwater.pipelines.session",
    "token_of": "headwater.inspect.waiting",
    "tumbling": "headwater.pipelines.operators.windows.api",
    "wait": "headwater.inspect.waiting",
}
_MODULES = {"agg"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        from headwater.extras import explained

        missing = explained(error, f"headwater.{name}")
        raise missing or error from error
    value = globals()[name] = home if name in _MODULES else getattr(home, name)
    return value
