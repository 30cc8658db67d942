import itertools

import pytest
from support.shared_broker import shared_broker

from headwater.rpc.caller import Caller
from headwater.rpc.server import Server
from headwater.rpc.work import handler_of
from headwater.settings import ClientSettings

_names = itertools.count(1)
TIMEOUT_S = 60.0


@pytest.fixture(scope="session")
def rpc_broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("rpc-broker")) as address:
        yield address


@pytest.fixture(scope="session")
def caller(rpc_broker):
    caller = Caller(rpc_broker, ClientSettings())
    yield caller
    caller.close()


@pytest.fixture
def name():
    return f"service-{next(_names)}"


@pytest.fixture
def serve(rpc_broker, name):
    """Starts a server for the function, and waits until it has partitions."""
    servers = []

    def started(function, **options):
        server = Server(
            rpc_broker, ClientSettings(), name, handler_of(function), partitions=4, **options
        )
        servers.append(server)
        server.start()
        assert server.is_ready.wait(TIMEOUT_S)
        return server

    yield started
    for server in servers:
        server.close()
