"""A broker for all tests of direct messaging that do not break it."""

import itertools

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.direct.topic_reading import TIMEOUT_S, Reading
from support.shared_broker import shared_broker

_names = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("direct-broker")) as address:
        yield address


@pytest.fixture(scope="session")
def admin(broker):
    return AdminClient({"bootstrap.servers": broker})


@pytest.fixture
def topic(admin):
    name = f"direct-{next(_names)}"
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    return name


@pytest.fixture
def reading(broker):
    opened = []

    def read(topic):
        opened.append(Reading(broker, topic))
        return opened[-1]

    yield read
    for one in opened:
        one.close()
