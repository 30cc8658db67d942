"""Brokers that are asked directly (asked_broker.py)."""

from collections.abc import Iterator

import pytest
from support.broker.asked_broker import AskedBroker

from headwater.broker.broker import BrokerOptions


@pytest.fixture
def asked(tmp_path) -> Iterator[AskedBroker]:
    broker = AskedBroker(str(tmp_path / "data"))
    yield broker
    broker.close()
    broker.runner.close()


@pytest.fixture
def guarded(tmp_path) -> Iterator[AskedBroker]:
    """With authorization; its super user is `admin`."""
    yield from _guarded(str(tmp_path / "data"))


@pytest.fixture(scope="module")
def guarded_for_all(tmp_path_factory) -> Iterator[AskedBroker]:
    """As `guarded`, one for all tests of a module: for those that leave it as it is."""
    yield from _guarded(str(tmp_path_factory.mktemp("guarded")))


def _guarded(path: str) -> Iterator[AskedBroker]:
    options = BrokerOptions(
        default_partitions=3, authorization=True, super_users=frozenset({"User:admin"})
    )
    broker = AskedBroker(path, options=options)
    yield broker
    broker.close()
    broker.runner.close()


@pytest.fixture
def asked_with_defaults(tmp_path) -> Iterator[AskedBroker]:
    """As configured with topic defaults in headwater.toml."""
    broker = AskedBroker(
        str(tmp_path / "data"), {"retention.ms": "1000", "cleanup.policy": "compact"}
    )
    yield broker
    broker.close()
    broker.runner.close()
