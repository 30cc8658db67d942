from collections.abc import Iterator

import pytest
from support.capture.mariadb_server import MariaDbServer
from support.capture.mysql_capture import ShopCapture
from support.capture.mysql_server import server, shop

__all__ = ["server", "shop"]


@pytest.fixture
def capture(server: MariaDbServer, shop: str) -> Iterator[ShopCapture]:
    capture = ShopCapture(server, shop)
    yield capture
    capture.close()
