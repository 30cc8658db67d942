"""Servers that the tests of sinks share; each is started when the first test asks for it."""

from collections.abc import Iterator

import pytest
from mysql_server import server, shop
from opensearch_server import opensearch_server
from postgres_server import postgres, postgres_server
from redis_server import redis_server

from bench.peers.kafka import kafka
from headwater.testing import InProcessBroker

pytest.register_assert_rewrite("sink_contract", "sink_rows", "sink_killing")

__all__ = [
    "opensearch_server", "postgres", "postgres_server", "redis_server", "server", "shop",
]  # fmt: skip


@pytest.fixture(scope="session")
def topic_headwater(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker of ours."""
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("topics"))) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def topic_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Apache Kafka."""
    with kafka(tmp_path_factory.mktemp("topics-kafka")) as broker:
        yield broker.address
