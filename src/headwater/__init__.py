"""Headwater keeps every derived store in step with the databases it comes from, through one log.

What needs Spark or Arrow is imported when it is first named, so `import headwater` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.pipelines.flow import Flow
    from headwater.pipelines.operators import aggregates as agg
    from headwater.pipelines.operators.enrich import enrich
    from headwater.pipelines.operators.event_windows import session, sliding
    from headwater.pipelines.operators.join_tables import join_tables
    from headwater.pipelines.operators.lookup import lookup
    from headwater.pipelines.operators.stream_join import join
    from headwater.pipelines.operators.times import event_time, processing_time
    from headwater.pipelines.operators.windows import hopping, tumbling
    from headwater.pipelines.pipeline import pipeline
    from headwater.pipelines.session import spark
    from headwater.pipelines.waiting import token_of, wait

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
    "agg": "headwater.pipelines.operators.aggregates",
    "enrich": "headwater.pipelines.operators.enrich",
    "event_time": "headwater.pipelines.operators.times",
    "hopping": "headwater.pipelines.operators.windows",
    "join": "headwater.pipelines.operators.stream_join",
    "join_tables": "headwater.pipelines.operators.join_tables",
    "lookup": "headwater.pipelines.operators.lookup",
    "pipeline": "headwater.pipelines.pipeline",
    "processing_time": "headwater.pipelines.operators.times",
    "session": "headwater.pipelines.operators.event_windows",
    "sliding": "headwater.pipelines.operators.event_windows",
    "spark": "headwater.pipelines.session",
    "token_of": "headwater.pipelines.waiting",
    "tumbling": "headwater.pipelines.operators.windows",
    "wait": "headwater.pipelines.waiting",
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
