import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for `bench.peers`
sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `wire` and `certificates`
sys.path.append(str(Path(__file__).resolve().parents[1] / "broker/security"))  # for `secured`

from broker_under_test import Broker, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all client tests."""
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def broker_address(broker: Broker) -> str:
    return broker.address
