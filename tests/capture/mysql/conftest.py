from collections.abc import Iterator

import pytest
from mariadb_server import MariaDbServer, mariadb_server, shop
from mysql_capture import ShopCapture

__all__ = ["mariadb_server", "shop"]


@pytest.fixture
def capture(mariadb_server: MariaDbServer, shop: str) -> Iterator[ShopCapture]:
    capture = ShopCapture(mariadb_server, shop)
    yield capture
    capture.close()
