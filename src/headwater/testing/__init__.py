"""Helpers for tests of programs that use Headwater.

`run` derives what a pipeline writes from rows of a test (`topic` describes them). Then there are a
broker in the test's process, a clock that the test advances, and a file system that fails and loses
data on demand.

The pytest plugin gives the fixture `headwater_broker`.
"""

from typing import TYPE_CHECKING

from headwater.lazy_imports import lazy_names
from headwater.testing.broker import InProcessBroker
from headwater.testing.clock import FakeClock
from headwater.testing.files import FaultyFiles

if TYPE_CHECKING:
    from headwater.testing.pipelines import Results, run
    from headwater.testing.topic_rows import topic

__all__ = ["FakeClock", "FaultyFiles", "InProcessBroker", "Results", "run", "topic"]

# They need Spark, and are imported when they are first named.
_HOMES = {
    "Results": "headwater.testing.pipelines",
    "run": "headwater.testing.pipelines",
    "topic": "headwater.testing.topic_rows",
}

__getattr__ = lazy_names(__name__, _HOMES)
