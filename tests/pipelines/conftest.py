"""Servers for the tests of the pipelines."""

from collections.abc import Iterator

import pytest
from support.capture.mariadb_server import mariadb_server, shop
from support.capture.postgres_server import postgres, postgres_server
from support.shared_broker import shared_broker

__all__ = ["mariadb_server", "postgres", "postgres_server", "shop"]


@pytest.fixture(scope="session")
def broker_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with shared_broker(tmp_path_factory.mktemp("pipelines")) as address:
        yield address
