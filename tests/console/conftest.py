import pytest
from serving import serving

from headwater.testing import InProcessBroker


@pytest.fixture(scope="session")
def console_broker(tmp_path_factory):
    """One broker for all tests of the console that do not break it."""
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("console-broker"))) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def console(console_broker, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("console"), broker__bootstrap=console_broker) as served:
        yield served


@pytest.fixture
def browser(console):
    return console.browser()
