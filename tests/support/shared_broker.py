"""One broker of ours for the tests of a session, in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.broker import broker as broker_module
from headwater.testing import InProcessBroker


@contextmanager
def shared_broker(directory: Path) -> Iterator[str]:
    """Its address. Tests write records with old timestamps, and a session may last longer than
    the interval of retention checks: there are none here.
    """
    broker = InProcessBroker(str(directory))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(broker_module, "RETENTION_S", 1e9)  # it is read at the start
        broker.start()
    try:
        yield broker.bootstrap
    finally:
        broker.stop()
