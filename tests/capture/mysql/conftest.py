from collections.abc import Iterator

import pytest
from mariadb_server import DATABASES, MariaDbServer
from mysql_capture import ShopCapture
from mysql_server import LONG, running


@pytest.fixture(
    scope="session",
    params=["mariadb", pytest.param("mysql", marks=LONG), pytest.param("mysql-8.0", marks=LONG)],
)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MariaDbServer]:
    """MariaDB; with HEADWATER_LONG also MySQL, the newest and 8.0."""
    with running(request.param, tmp_path_factory.mktemp(request.param)) as server:
        yield server


@pytest.fixture
def shop(server: MariaDbServer) -> Iterator[str]:
    """A database of its own, by name."""
    name = f"shop{next(DATABASES)}"
    server.execute(f"CREATE DATABASE {name}")
    yield name
    server.execute(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def capture(server: MariaDbServer, shop: str) -> Iterator[ShopCapture]:
    capture = ShopCapture(server, shop)
    yield capture
    capture.close()
