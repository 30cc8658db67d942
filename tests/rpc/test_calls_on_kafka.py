"""Calls and questions on Apache Kafka: the same, with another address."""

import json
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tiers import REAL_KAFKA

from headwater.rpc.caller import Caller
from headwater.rpc.owned_rows import OwnedRows
from headwater.rpc.server import Server
from headwater.rpc.work import handler_of
from headwater.settings import ClientSettings

TIMEOUT_S = 60.0
LOGIN = ClientSettings()


@pytest.fixture(params=[REAL_KAFKA])
def kafka(request):
    return request.getfixturevalue("kafka_address")


@pytest.fixture
def kafka_caller(kafka):
    caller = Caller(kafka, LOGIN)
    yield caller
    caller.close()


def test_a_call(kafka, kafka_caller):
    name = f"echo-{uuid.uuid4().hex}"
    with Server(kafka, LOGIN, name, handler_of(lambda body: body), partitions=2) as server:
        assert server.is_ready.wait(TIMEOUT_S)
        assert kafka_caller.call(name, {"n": 1}, timeout_s=TIMEOUT_S) == {"n": 1}
        replies = [kafka_caller.submit(name, n, timeout_s=TIMEOUT_S) for n in range(50)]
        assert [call.future.result(TIMEOUT_S) for call in replies] == list(range(50))


def test_a_question(kafka, kafka_caller):
    name = f"count-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka})
    new = NewTopic(name, 3, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": kafka})
    for n in range(30):
        producer.produce(name, json.dumps({"n": n}), str(n))
    assert producer.flush(TIMEOUT_S) == 0
    rows = OwnedRows(kafka, LOGIN, name)
    with Server(kafka, LOGIN, name, rows.handler(lambda found, _: len(found)), rows=rows) as server:
        assert server.is_ready.wait(TIMEOUT_S)
        assert kafka_caller.ask(name, timeout_s=TIMEOUT_S, merge=sum) == 30
