"""The pytest plugin: the fixture `headwater_broker`, a broker for one test."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater.testing.broker import InProcessBroker


@pytest.fixture
def headwater_broker(tmp_path: Path) -> Iterator["InProcessBroker"]:
    """A broker on a free port with an empty log; `headwater_broker.bootstrap` is its address."""
    from headwater.testing.broker import InProcessBroker

    with InProcessBroker.serving(str(tmp_path / "headwater")) as broker:
        yield broker
