from collections.abc import Iterator

import pytest
from mariadb_server import MariaDbServer
from mysql_capture import ShopCapture
from mysql_server import server, shop

__all__ = ["server", "shop"]


@pytest.fixture
def capture(server: MariaDbServer, shop: str) -> Iterator[ShopCapture]:
    capture = ShopCapture(server, shop)
    yield capture
    capture.close()
