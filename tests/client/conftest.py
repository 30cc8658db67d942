from collections.abc import Iterator

import pytest
from support.shared_broker import shared_broker
from tiers import REAL_KAFKA


@pytest.fixture(scope="session")
def headwater_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one broker of ours for all tests of the client."""
    with shared_broker(tmp_path_factory.mktemp("headwater")) as address:
        yield address


@pytest.fixture(params=["headwater", REAL_KAFKA])
def address(request: pytest.FixtureRequest) -> str:
    """Of our broker, and of Apache Kafka."""
    found: str = request.getfixturevalue(f"{request.param}_address")
    return found
