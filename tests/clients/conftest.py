import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_under_test import Broker, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all client tests."""
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def broker_address(broker: Broker) -> str:
    return broker.address


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A foreign client may leave a socket to the garbage collector; that is no failure of ours."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """What clients have left is found here, and not in the middle of somebody else's test."""
    yield
    gc.collect()
    gc.collect()  # what the first round has closed
