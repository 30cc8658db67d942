"""The broker's view of `_schemas`: the same ids as the registry has, whatever was written there."""

import json

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.broker.admission.schema_ids import SubjectIds
from headwater.schemas.registry.registry import Registry
from headwater.schemas.schema import Schema
from headwater.schemas.wire_format import framed
from headwater.settings import ClientSettings
from headwater.testing import InProcessBroker

TIMEOUT_S = 60


def key(kind, subject=None, **more):
    return json.dumps({"keytype": kind, "subject": subject, **more}).encode()


def version(number, schema_id, *, subject="s", deleted=False):
    value = {"subject": subject, "version": number, "id": schema_id, "deleted": deleted}
    return key("SCHEMA", subject, version=number), json.dumps(value).encode()


def test_records_of_every_kind():
    ids = SubjectIds()
    for number in (1, 2, 3):
        ids.apply(*version(number, 10 + number))
    assert ids.of("s") == {11, 12, 13}
    ids.apply(*version(1, 11, deleted=True))
    assert ids.of("s") == {12, 13}
    ids.apply(key("SCHEMA", "s", version=2), None)
    assert ids.of("s") == {13}
    ids.apply(*version(4, 14))
    ids.apply(key("DELETE_SUBJECT", "s"), b'{"subject": "s", "version": 3}')
    assert ids.of("s") == {14}
    ids.apply(key("CLEAR_SUBJECT", "s"), b'{"subject": "s"}')
    assert ids.of("s") == set() == ids.of("other")
    for broken in ((b"", b""), (b"\xff", b"{}"), (key("SCHEMA", 3), b"{}"), (key("NOOP"), b"[]")):
        ids.apply(*broken)
    ids.apply(key("SCHEMA", "s", version=5), b"no JSON")
    assert ids.of("s") == set()


def answer(bootstrap, topic, value):
    codes = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    producer.produce(
        topic, value, on_delivery=lambda error, _: codes.append(error and error.code())
    )
    assert producer.flush(TIMEOUT_S) == 0
    return codes[0]


def test_ids_hold_over_restarts_and_without_a_registry_there_are_none(tmp_path):
    with InProcessBroker.serving(str(tmp_path)) as broker:
        topic = NewTopic("t", 1, config={"headwater.schema.validation": "value"})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([topic])["t"].result(TIMEOUT_S)
        assert answer(broker.bootstrap, "t", framed(1, b"x")) == KafkaError.INVALID_RECORD
        registry = Registry(broker.bootstrap, ClientSettings())
        registry.open()
        first = registry.register("t-value", Schema('"string"')).id
        assert answer(broker.bootstrap, "t", framed(first, b"x")) is None
        registry.close()
    with InProcessBroker.serving(str(tmp_path)) as broker:
        assert answer(broker.bootstrap, "t", framed(first, b"x")) is None
        assert answer(broker.bootstrap, "t", framed(first + 1, b"x")) == KafkaError.INVALID_RECORD
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["_schemas"])["_schemas"].result(TIMEOUT_S)
        assert answer(broker.bootstrap, "t", framed(first, b"x")) == KafkaError.INVALID_RECORD
        registry = Registry(broker.bootstrap, ClientSettings())
        registry.open()
        registry.register("other", Schema('"bytes"'))
        again = registry.register("t-value", Schema('"string"')).id
        registry.close()
        assert answer(broker.bootstrap, "t", framed(again, b"x")) is None
        if again != first:
            refused = answer(broker.bootstrap, "t", framed(first, b"x"))
            assert refused == KafkaError.INVALID_RECORD
