"""Servers that the tests of sinks share; each is started when the first test asks for it."""

from collections.abc import Iterator

import pytest
from support.capture.mysql_server import server, shop
from support.capture.postgres_server import postgres, postgres_server
from support.sinks.opensearch_server import opensearch_server
from support.sinks.redis_server import redis_server
from tiers import long

from headwater.testing import InProcessBroker

MATRICES = (
    "test_values_are_read_back_as_they_were",
    "test_a_key_of_any_type",
    "test_kills_at_random",
    "test_a_writer_that_was_stopped_and_wakes_up",
)

pytest.register_assert_rewrite(
    "support.sinks.sink_contract", "support.sinks.sink_rows", "support.sinks.sink_killing"
)

__all__ = [
    "opensearch_server", "postgres", "postgres_server", "redis_server", "server", "shop",
]  # fmt: skip


@pytest.fixture(scope="session")
def topic_headwater(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker of ours."""
    with InProcessBroker.serving(str(tmp_path_factory.mktemp("topics"))) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def topic_kafka(kafka_address: str) -> str:
    """The address of Apache Kafka."""
    return kafka_address


def pytest_collection_modifyitems(items):
    """In the full tier every store has each value alone, and kills of all kinds. In the quick one
    that is so for two stores; for the others `test_rows_of_all_types_at_once`,
    `test_a_zombie_cannot_write` and `test_kills_at_every_step` stand for it.
    """
    for item in items:
        is_whole = getattr(getattr(item, "cls", None), "has_all_of_it", True)
        if getattr(item, "originalname", None) in MATRICES and not is_whole:
            item.add_marker(long)
