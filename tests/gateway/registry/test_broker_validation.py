"""Topics with headwater.schema.validation: what Kafka clients may write to them."""

import json
import threading

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.schema_registry import Schema
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from support.gateway.serving import TIMEOUT_S
from support.gateway.topics import read_all

from headwater.schemas.wire_format import framed

ORDER = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


class Producing:
    """What a producer was answered, by the value of each record."""

    def __init__(self, broker, **settings):
        self.errors = {}
        self._producer = Producer(
            {"bootstrap.servers": broker, "linger.ms": 50, "acks": "all", **settings}
        )

    def send(self, topic, *pairs):
        for key, value in pairs:
            self._producer.produce(topic, key=key, value=value, on_delivery=self._delivered)
        assert self._producer.flush(TIMEOUT_S) == 0
        return [self.errors[key, value] for key, value in pairs]

    def _delivered(self, error, message):
        self.errors[message.key(), message.value()] = None if error is None else error.code()


@pytest.fixture
def checked(new_topic):
    def create(parts="value", **configs):
        return new_topic(**{"headwater.schema.validation": parts}, **configs)

    return create


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_only_ids_of_the_subject_are_taken(gateway_broker, checked, registry, codec):
    topic, other = checked(), checked()
    serializer = AvroSerializer(registry, ORDER)
    value = serializer({"id": 7}, SerializationContext(topic, MessageField.VALUE))
    foreign = registry.register_schema(f"{other}-value", Schema('"string"', "AVRO"))
    producing = Producing(gateway_broker, **{"compression.type": codec})
    answered = producing.send(
        topic,
        (b"1", value),
        (b"2", b'{"id": 7}'),
        (b"3", framed(foreign, b"\x02x")),
        (b"4", None),
        (b"5", b""),
        (b"6", framed(1 << 30, b"?")),
    )
    bad, innocent = KafkaError.INVALID_RECORD, KafkaError._INVALID_DIFFERENT_RECORD
    assert answered == [innocent, bad, bad, innocent, bad, bad]
    assert producing.send(topic, (b"1", value), (b"4", None)) == [None, None]
    assert [record.key for record in read_all(gateway_broker, topic)] == [b"1", b"4"]


def test_an_id_counts_as_soon_as_the_registry_has_answered(gateway_broker, checked, registry):
    topic = checked()
    producing = Producing(gateway_broker, **{"linger.ms": 0})
    for number in range(5):
        symbols = [f"S{n}" for n in range(number + 1)]
        text = json.dumps({"type": "enum", "name": f"E{id(topic)}", "symbols": symbols})
        schema_id = registry.register_schema(f"{topic}-value", Schema(text, "AVRO"))
        assert producing.send(topic, (None, framed(schema_id, bytes([number])))) == [None]
    registry.delete_subject(f"{topic}-value")
    (answer,) = producing.send(topic, (None, framed(schema_id, b"\x00late")))
    assert answer == KafkaError.INVALID_RECORD


def test_keys_and_both(gateway_broker, checked, registry):
    topic = checked("both", cleanup_policy="compact")
    key = registry.register_schema(f"{topic}-key", Schema('"long"', "AVRO"))
    value = registry.register_schema(f"{topic}-value", Schema('"string"', "AVRO"))
    producing = Producing(gateway_broker)
    good = (framed(key, b"\x02"), framed(value, b"\x02x"))
    assert producing.send(topic, good) == [None]
    for pair in ((b"plain", good[1]), (good[0], b"plain"), (good[1], good[0]), (None, good[1])):
        assert producing.send(topic, pair) == [KafkaError.INVALID_RECORD], pair


def test_large_batches_are_checked_beside_the_requests_of_others(
    gateway_broker, checked, registry, topic
):
    """More than is checked at once: the batch is refused as a whole, others are not held up."""
    validated = checked(max_message_bytes="20000000")
    schema_id = registry.register_schema(f"{validated}-value", Schema('"bytes"', "AVRO"))
    large = {"batch.num.messages": 50_000, "linger.ms": 500, "message.max.bytes": 20_000_000}
    producing = Producing(gateway_broker, **large)
    pairs = [(b"%d" % n, framed(schema_id, b"\x0axxxxx")) for n in range(20_000)]
    thread = threading.Thread(target=producing.send, args=(validated, *pairs))
    thread.start()
    assert Producing(gateway_broker).send(topic, (b"other", b"plain")) == [None]
    thread.join(TIMEOUT_S)
    assert set(producing.errors.values()) == {None}
    producing.errors.clear()
    pairs[17_000] = (b"bad", b"plain")
    answered = producing.send(validated, *pairs)
    assert answered[17_000] == KafkaError.INVALID_RECORD


def test_transactions_and_records_of_the_gateway_itself(gateway_broker, client, checked, registry):
    """JSON without an id is stored with the id of its schema, so the broker takes it."""
    topic = checked()
    registry.register_schema(f"{topic}-value", Schema('{"type": "object"}', "JSON"))
    assert client.post(f"/topics/{topic}", json={"a": 1}).status_code == 200
    once = {"Idempotency-Key": f"k-{topic}"}
    assert client.post(f"/topics/{topic}", json={"a": 2}, headers=once).status_code == 200
    producer = Producer({"bootstrap.servers": gateway_broker, "transactional.id": f"t-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b'{"a": 3}')
    producer.flush(TIMEOUT_S)
    producer.abort_transaction(TIMEOUT_S)
    found = client.get(f"/topics/{topic}").json()["records"]
    assert [record["value"] for record in found] == [{"a": 1}, {"a": 2}]
    assert all(record.value[:1] == b"\0" for record in read_all(gateway_broker, topic))
