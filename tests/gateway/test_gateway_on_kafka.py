"""The gateway does on Apache Kafka what it does on our own broker."""

import time
from itertools import islice

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from support.gateway.events import events
from support.gateway.serving import TIMEOUT_S, serving
from support.gateway.topics import read_all
from tiers import REAL_KAFKA

from headwater.gateway import tokens
from headwater.settings import ClientSettings

SSE = {"Accept": "text/event-stream"}
NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(params=[REAL_KAFKA])
def any_broker(request):
    return request.getfixturevalue("kafka_address")


@pytest.fixture
def any_topic(any_broker, tmp_path):
    def create(partitions=1, **configs):
        name = f"{tmp_path.name}-{partitions}-{len(configs)}"
        admin = AdminClient({"bootstrap.servers": any_broker})
        configs = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, config=configs)])[name].result(TIMEOUT_S)
        return name

    return create


@pytest.fixture
def any_client(any_broker, tmp_path):
    with serving(tmp_path, broker__bootstrap=any_broker) as served, served.client() as client:
        yield client


def test_in_and_out(any_broker, any_client, any_topic):
    topic = any_topic(partitions=3)
    lines = "".join(f'{{"id":{number}}}\n' for number in range(1000))
    answer = any_client.post(f"/topics/{topic}?key_field=id", content=lines, headers=NDJSON)
    assert answer.json()["written"] == 1000
    for _ in range(2):
        keyed = {**NDJSON, "Idempotency-Key": "once"}
        again = any_client.post(f"/topics/{topic}?key_field=id", content=lines, headers=keyed)
        assert again.json()["written"] == 1000
    found = read_all(any_broker, topic)
    assert len(found) == 2000
    with any_client.stream("GET", f"/topics/{topic}?from=start", headers=SSE) as stream:
        seen = list(islice(events(stream.iter_lines()), 2000))
    assert len({(event.json["partition"], event.json["offset"]) for event in seen}) == 2000
    assert sorted(int(event.json["key"]) for event in seen) == sorted([*range(1000)] * 2)
    # The same partition for the same key, with an Idempotency-Key and without.
    by_key = {}
    for event in seen:
        by_key.setdefault(event.json["key"], set()).add(event.json["partition"])
    assert {len(partitions) for partitions in by_key.values()} == {1}
    polled = any_client.get(f"/topics/{topic}?from={seen[999].id}&limit=5000").json()
    assert len(polled["records"]) == 1000
    assert polled["next"] == any_client.get(f"/topics/{topic}?from=end").json()["next"]


def test_events_as_they_are_written(any_client, any_topic):
    topic = any_topic()
    with any_client.stream("GET", f"/topics/{topic}", headers=SSE) as stream:
        found = events(stream.iter_lines())
        for number in range(3):
            headers = {"Idempotency-Key": str(number)} if number % 2 else {}
            assert any_client.post(f"/topics/{topic}", json=number, headers=headers).is_success
            assert next(found).json["value"] == number


def test_partitions_that_are_added(any_broker, any_client, any_topic, monkeypatch):
    monkeypatch.setattr("headwater.gateway.reading.subscription._LOOK_S", 0.2)
    monkeypatch.setattr("headwater.gateway.access._TOPIC_AGE_S", 0.0)
    topic = any_topic()
    admin = AdminClient({"bootstrap.servers": any_broker})
    with any_client.stream("GET", f"/topics/{topic}", headers=SSE) as stream:
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
        until_s = time.monotonic() + TIMEOUT_S
        while any_client.post(f"/topics/{topic}?partition=1", json=1).status_code != 200:
            assert time.monotonic() < until_s
        assert next(events(stream.iter_lines())).json["partition"] == 1


def test_tables_and_errors(any_client, any_topic):
    topic = any_topic(cleanup_policy="compact")
    for number in range(3):
        written = any_client.post(f"/topics/{topic}?key=k", json={"n": number})
        position = {"Headwater-Position": written.headers["headwater-position"]}
        row = any_client.get(f"/tables/{topic}/k", headers=position).json()
        assert row["value"] == {"n": number}
    assert any_client.get(f"/tables/{topic}?where=n=2").json()["rows"][0]["key"] == "k"
    assert any_client.post("/topics/missing", json=1).status_code == 404
    assert any_client.get("/topics/missing").status_code == 404
    assert any_client.post(f"/topics/{topic}", json=1).status_code == 409  # without a key


def test_tokens(any_broker, any_client):
    token, text = tokens.new_token("test", ["a*"], ["read"], None)
    tokens.store(any_broker, ClientSettings(), token)
    headers = {"Authorization": f"Bearer {text}"}
    assert any_client.get("/", headers=headers).status_code == 200
    assert any_client.get("/topics/b", headers=headers).status_code == 403
