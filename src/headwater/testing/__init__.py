"""For tests of whatever uses Headwater: a broker in the test's process, a clock whose hands the
test turns, and a file system that fails and loses data on demand.

The pytest plugin gives the fixture `headwater_broker`.
"""

from headwater.testing.broker import InProcessBroker
from headwater.testing.clock import FakeClock
from headwater.testing.files import FaultyFiles

__all__ = ["FakeClock", "FaultyFiles", "InProcessBroker"]
