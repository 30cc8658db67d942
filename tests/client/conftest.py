from collections.abc import Iterator

import pytest

from bench.peers.kafka import kafka
from bench.peers.provision import missing_tools
from headwater.testing import InProcessBroker

REAL_KAFKA = pytest.param(
    "kafka",
    marks=[
        pytest.mark.java,
        pytest.mark.skipif(
            bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"
        ),
    ],
)


@pytest.fixture(scope="session")
def headwater_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of one broker of ours for all tests of the client."""
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("headwater"))) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker.address


@pytest.fixture(params=["headwater", REAL_KAFKA])
def address(request: pytest.FixtureRequest) -> str:
    """Of our broker, and of Apache Kafka."""
    found: str = request.getfixturevalue(f"{request.param}_address")
    return found
