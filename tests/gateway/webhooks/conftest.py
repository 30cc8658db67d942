import pytest
from support.gateway.receivers import receivers
from support.gateway.serving import serving

from headwater.gateway.webhooks.administration import Administration
from headwater.gateway.webhooks.targets import parse_networks
from headwater.settings import ClientSettings

LOOPBACK = parse_networks(["127.0.0.0/8"])


@pytest.fixture(scope="session")
def sending_gateway(gateway_broker, tmp_path_factory):
    """A gateway that delivers, also to this machine."""
    with serving(
        tmp_path_factory.mktemp("sending"),
        broker__bootstrap=gateway_broker,
        gateway__webhook_allowed_networks="127.0.0.0/8",
        delivers=True,
    ) as served:
        yield served


@pytest.fixture
def api(sending_gateway):
    with sending_gateway.client() as client:
        yield client


@pytest.fixture
def administration(gateway_broker):
    return Administration(gateway_broker, ClientSettings())


@pytest.fixture
def listening():
    with receivers() as found:
        yield found
