"""Client quotas: set through Kafka's APIs, stored over a restart, felt by clients as pauses."""

import time

import pytest
from confluent_kafka import Producer
from support.wire import Wire, batch_of, fetch_request, produce_request

from headwater.protocol.error_codes import ErrorCode
from headwater.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasRequestOpData,
)
from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasRequestComponentData,
)
from headwater.protocol.messages.metadata import MetadataRequest
from headwater.testing import InProcessBroker

EXACT, DEFAULT, SPECIFIED = range(3)


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker.serving(str(tmp_path)) as broker:
        yield broker


def altering(entity: dict, validate_only: bool = False, **quotas) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequestEntryData(
                entity=[
                    AlterClientQuotasRequestEntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
                ops=[
                    AlterClientQuotasRequestOpData(key=key, value=value or 0.0, remove=not value)
                    for key, value in quotas.items()
                ],
            )
        ],
        validate_only=validate_only,
    )


def alter(client: Wire, entity: dict, **quotas) -> None:
    (answer,) = client.ask(altering(entity, **quotas), 1).entries
    assert (answer.error_code, answer.error_message) == (0, None)


def described(client: Wire, *components, strict: bool = False) -> dict:
    request = DescribeClientQuotasRequest(
        components=[
            DescribeClientQuotasRequestComponentData(entity_type=kind, match_type=how, match=name)
            for kind, how, name in components
        ],
        strict=strict,
    )
    answer = client.ask(request, 1)
    assert answer.error_code == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in entry.entity): {
            value.key: value.value for value in entry.values
        }
        for entry in answer.entries
    }


def test_quotas_survive_a_restart_and_can_be_removed(broker):
    with Wire(broker.bootstrap) as client:
        alter(client, {"client-id": "loader"}, producer_byte_rate=1000.0, consumer_byte_rate=5.5)
        alter(client, {"user": None}, request_percentage=50.0)
    broker.restart(crash=True)
    with Wire(broker.bootstrap) as client:
        loader = (("client-id", "loader"),)
        assert described(client) == {
            loader: {"producer_byte_rate": 1000.0, "consumer_byte_rate": 5.5},
            (("user", None),): {"request_percentage": 50.0},
        }
        alter(client, {"client-id": "loader"}, producer_byte_rate=None)
        assert described(client)[loader] == {"consumer_byte_rate": 5.5}
        alter(client, {"client-id": "loader"}, consumer_byte_rate=None)
        assert list(described(client)) == [(("user", None),)]


def test_describe_filters_as_kafka_does(broker):
    with Wire(broker.bootstrap) as client:
        for entity in (
            {"user": "ann"},
            {"user": "ann", "client-id": "a"},
            {"user": "ann", "client-id": None},
            {"user": None},
            {"client-id": "a"},
        ):
            alter(client, entity, producer_byte_rate=1.0)

        def found(*components, strict=False):
            return sorted(map(dict, described(client, *components, strict=strict)), key=str)

        ann = {"user": "ann"}
        assert len(found()) == 5
        assert found(("user", EXACT, "ann"), strict=True) == [ann]
        assert found(("user", EXACT, "ann")) == sorted(
            [ann, {**ann, "client-id": "a"}, {**ann, "client-id": None}], key=str
        )
        assert found(("user", DEFAULT, None)) == [{"user": None}]
        assert len(found(("user", SPECIFIED, None))) == 4
        assert found(("user", EXACT, "ann"), ("client-id", DEFAULT, None)) == [
            {**ann, "client-id": None}
        ]


@pytest.mark.parametrize(
    ("entity", "quotas", "said"),
    [
        ({"ip": "127.0.0.1"}, {"connection_creation_rate": 1.0}, "quotas of ip are not supported"),
        ({"user": "ann"}, {"controller_mutation_rate": 1.0}, "no quota controller_mutation_rate"),
        ({"user": "ann"}, {"producer_byte_rate": -1.0}, "cannot be -1.0"),
        ({"user": "ann"}, {"producer_byte_rate": float("nan")}, "cannot be nan"),
        ({"user": "ann"}, {"request_percentage": 101.0}, "cannot be 101.0"),
        ({}, {"producer_byte_rate": 1.0}, "once"),
        ({"user": ""}, {"producer_byte_rate": 1.0}, "empty"),
    ],
)
def test_wrong_quotas_are_refused_and_change_nothing(broker, entity, quotas, said):
    with Wire(broker.bootstrap) as client:
        (answer,) = client.ask(altering(entity, **quotas), 1).entries
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert said in answer.error_message
        assert described(client) == {}


def test_validate_only_changes_nothing(broker):
    with Wire(broker.bootstrap) as client:
        request = altering({"user": "ann"}, validate_only=True, producer_byte_rate=1.0)
        assert client.ask(request, 1).entries[0].error_code == 0
        assert described(client) == {}


def test_a_producer_over_its_quota_is_throttled_and_is_not_read_meanwhile(broker):
    with Wire(broker.bootstrap) as client, Wire(broker.bootstrap) as other:
        client.create_topic("t")
        batch = batch_of(b"x" * 10_000)
        alter(client, {"client-id": "wire"}, producer_byte_rate=float(len(batch)))
        assert client.ask(produce_request("t", batch), 9).throttle_time_ms == 0
        # A second's worth is used up: the next batch costs about one more.
        answer = client.ask(produce_request("t", batch), 9)
        assert 500 <= answer.throttle_time_ms <= 1_100
        began_s = time.monotonic()
        other.ask(ApiVersionsRequest(), 0)  # no other client waits
        assert time.monotonic() - began_s < 0.4
        client.ask(ApiVersionsRequest(), 0)
        assert time.monotonic() - began_s >= 0.4


def test_the_long_run_rate_of_a_real_client_is_the_quota(broker):
    rate = 200_000
    with Wire(broker.bootstrap) as client:
        client.create_topic("t")
        alter(client, {"client-id": None}, producer_byte_rate=float(rate))
    failed = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "client.id": "fast", "batch.num.messages": 50}
    )
    began_s = time.monotonic()
    for _ in range(600):
        producer.produce("t", b"x" * 1_000, on_delivery=lambda error, _: failed.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    took_s = time.monotonic() - began_s
    assert failed == [None] * 600
    # 600 KB at 200 KB/s, the first second free; the last pause is not waited for.
    assert took_s >= 1.0


def test_a_consumer_over_its_quota_gets_its_records_and_then_a_pause(broker):
    with Wire(broker.bootstrap) as client:
        client.create_topic("t")
        client.produce("t", batch_of(b"x" * 20_000))
        alter(client, {"client-id": "wire"}, consumer_byte_rate=10_000.0)
        answer = client.ask(fetch_request("t", 0), 12)
        assert len(answer.responses[0].partitions[0].records) > 20_000
        assert 900 <= answer.throttle_time_ms <= 1_200
        began_s = time.monotonic()
        client.ask(ApiVersionsRequest(), 0)
        assert time.monotonic() - began_s >= 0.8


def test_the_most_specific_quota_holds(broker):
    with Wire(broker.bootstrap) as client:
        client.create_topic("t")
        batch = batch_of(b"x" * 1_000)
        alter(client, {"client-id": "wire"}, producer_byte_rate=1.0)
        alter(client, {"user": "ANONYMOUS"}, producer_byte_rate=1e9)
        assert client.ask(produce_request("t", batch), 9).throttle_time_ms == 0
        alter(client, {"user": "ANONYMOUS", "client-id": "wire"}, producer_byte_rate=1.0)
        assert client.ask(produce_request("t", batch), 9).throttle_time_ms == 10_000


def test_requests_have_a_quota_of_time(broker):
    with Wire(broker.bootstrap) as client:
        for number in range(50):
            client.create_topic(f"t{number}")
        alter(client, {"client-id": "wire"}, request_percentage=0.001)
        for _ in range(20):
            if client.ask(MetadataRequest(topics=None), 9).throttle_time_ms:
                return
        pytest.fail("twenty times all metadata took less than 10 µs")
