"""Live queries on Apache Kafka: the same, with another address."""

import json
import uuid

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.gateway.live_client import LiveClient
from support.gateway.serving import TIMEOUT_S, serving
from tiers import REAL_KAFKA


@pytest.fixture(params=[REAL_KAFKA])
def kafka(request):
    return request.getfixturevalue("kafka_address")


def test_rows_then_changes_over_a_restart(kafka, tmp_path):
    topic = f"live-{uuid.uuid4().hex}"
    admin = AdminClient({"bootstrap.servers": kafka})
    new = NewTopic(topic, 2, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([new])[topic].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(TIMEOUT_S)

    def write(*pairs):
        producer.begin_transaction()
        for key, row in pairs:
            producer.produce(topic, None if row is None else json.dumps(row), key)
        producer.commit_transaction(TIMEOUT_S)

    mine, path = LiveClient(), f"/live/{topic}?where=n>=5"
    write(*[(str(n), {"n": n}) for n in range(10)])
    with serving(tmp_path, broker__bootstrap=kafka) as served, served.client() as client:
        mine.read(client, path, lambda one: one.names[-1] == "ready")
        assert mine.table == {str(n): {"n": n} for n in range(5, 10)}
        write(("1", {"n": 50}), ("9", None))
        mine.read(client, path, lambda one: "1" in one.table and "9" not in one.table)
    write(("2", {"n": 60}), ("8", None))
    with serving(tmp_path, broker__bootstrap=kafka) as served, served.client() as client:
        mine.read(client, path, lambda one: one.names[-1] == "ready")
    wanted = {"1": {"n": 50}, "2": {"n": 60}, **{str(n): {"n": n} for n in range(5, 8)}}
    assert mine.table == wanted
    assert mine.names.count("reset") == 1  # it went on from its id
