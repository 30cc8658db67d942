"""Helpers for tests of programs that use Headwater.

A broker in the test's process, a clock that the test advances, and a file system that fails and
loses data on demand.

The pytest plugin gives the fixture `headwater_broker`.
"""

from headwater.testing.broker import InProcessBroker
from headwater.testing.clock import FakeClock
from headwater.testing.files import FaultyFiles

__all__ = ["FakeClock", "FaultyFiles", "InProcessBroker"]
