import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clients.broker_under_test import Broker, running_broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all client tests."""
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="session")
def broker_address(broker: Broker) -> str:
    return broker.address


LEFT_OPEN = r"Exception ignored in. <(socket\.socket|ssl\.SSLSocket|function _SelectorTransport)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A foreign client may leave a socket to the garbage collector; that is no failure of ours."""
    here = Path(__file__).parent
    ignored = f"ignore:{LEFT_OPEN}:pytest.PytestUnraisableExceptionWarning"
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(autouse=True, scope="module")
def collected() -> Iterator[None]:
    """What clients have left is found here, and not in the middle of another test."""
    yield
    gc.collect()
    gc.collect()  # what the first round has closed
