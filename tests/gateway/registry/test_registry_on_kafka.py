"""The registry on Apache Kafka: several at once, restarts, and Confluent's client."""

import threading

import pytest
from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaRegistryClient
from support.gateway.serving import serving
from tiers import REAL_KAFKA

from headwater.schemas.registry.registry import Registry
from headwater.schemas.schema import Schema
from headwater.settings import ClientSettings


@pytest.fixture(params=[REAL_KAFKA])
def any_broker(request):
    return request.getfixturevalue("kafka_address")


def record(name):
    return Schema(f'{{"type":"record","name":"{name}","fields":[]}}')


def test_several_registries_and_one_started_later(any_broker):
    registries = [Registry(any_broker, ClientSettings(), patience_s=60) for _ in range(3)]
    for registry in registries:
        registry.open()
    found = {}

    def work(number, registry):
        for turn in range(10):
            same = registry.register(f"same-{turn}", record(f"Same{turn}"))
            own = registry.register(f"own-{number}-{turn}", record(f"Own{number}_{turn}"))
            found[number, turn] = (same.id, own.id)

    threads = [
        threading.Thread(target=work, args=(number, registry))
        for number, registry in enumerate(registries)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 30
    for turn in range(10):
        assert len({found[number, turn][0] for number in range(3)}) == 1
    assert len({schema_id for pair in found.values() for schema_id in pair}) == 40
    for registry in registries:
        registry.close()
    later = Registry(any_broker, ClientSettings())
    later.open()
    assert len(later.subjects()) == 40
    later.close()


def test_confluents_client(any_broker, tmp_path):
    with (
        serving(tmp_path, broker__bootstrap=any_broker) as served,
        SchemaRegistryClient({"url": served.url}) as client,
    ):
        schema_id = client.register_schema("kafka-value", ClientSchema('"string"', "AVRO"))
        assert client.get_latest_version("kafka-value").schema_id == schema_id
        assert client.delete_subject("kafka-value") == [1]
