"""A broker for all tests of the pipelines."""

from collections.abc import Iterator

import pytest

from headwater.testing import InProcessBroker


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("pipelines"))) as broker:
        yield broker.bootstrap
