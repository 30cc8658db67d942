"""GET /topics/T: events, lines and polls from any position, filtered and decoded."""

import json
import subprocess
import time
from itertools import islice

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from support.gateway.events import events
from support.gateway.serving import TIMEOUT_S

from headwater.gateway.reading import feeds

SSE = {"Accept": "text/event-stream"}
NDJSON = {"Accept": "application/x-ndjson"}


@pytest.fixture
def write(gateway_broker):
    producer = Producer({"bootstrap.servers": gateway_broker, "linger.ms": 1})

    def send(topic, *values, **options):
        for value in values:
            producer.produce(topic, value, **options)
        assert producer.flush(TIMEOUT_S) == 0

    return send


def stream(client, path, count, headers=SSE):
    """The first events of a stream."""
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        return list(islice(events(answer.iter_lines()), count))


def test_events_from_the_start(client, topic, write):
    write(topic, '{"n":1}', key="a", headers=[("source", b"shop")], timestamp=1_700_000_000_000)
    write(topic, "two")
    one, two = stream(client, f"/topics/{topic}?from=start", 2)
    assert one.json == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1_700_000_000_000,
        "key": "a",
        "value": {"n": 1},
        "headers": [["source", "shop"]],
    }
    assert (one.name, one.id, two.id, two.json["value"]) == ("message", "0:1", "0:2", "two")


def test_events_as_they_are_written(client, topic, write):
    with client.stream("GET", f"/topics/{topic}", headers=SSE) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        found = events(answer.iter_lines())
        for number in range(3):
            if number == 0:  # the head has come, so the position is fixed
                write(topic, "0")
            else:
                write(topic, str(number))
            assert next(found).json["value"] == number


def test_a_client_goes_on_where_it_stopped(client, new_topic, write):
    topic = new_topic(partitions=3)
    for partition in range(3):
        write(topic, *map(str, range(10)), partition=partition)
    seen, last_id = [], None
    for _ in range(6):
        headers = {**SSE, **({"Last-Event-ID": last_id} if last_id else {})}
        for event in stream(client, f"/topics/{topic}?from=start", 5, headers):
            seen.append((event.json["partition"], event.json["offset"]))
            last_id = event.id
    assert sorted(seen) == [(partition, offset) for partition in range(3) for offset in range(10)]
    assert last_id == "0:10,1:10,2:10"
    for partition in range(3):
        assert [at for at in seen if at[0] == partition] == [(partition, n) for n in range(10)]


@pytest.mark.parametrize(
    ("position", "values"),
    [
        ("start", [0, 1, 2, 3, 4]),
        ("end", []),
        ("-2", [3, 4]),
        ("-99", [0, 1, 2, 3, 4]),
        ("0:3", [3, 4]),
        ("@1700000002000", [2, 3, 4]),
        ("@2023-11-14T22:13:23Z", [3, 4]),
        ("@-1h", []),
    ],
)
def test_positions(client, topic, write, position, values):
    for number in range(5):
        write(topic, str(number), timestamp=1_700_000_000_000 + number * 1000)
    answer = client.get(f"/topics/{topic}", params={"from": position}).json()
    assert [record["value"] for record in answer["records"]] == values
    assert answer["next"] == "0:5"


@pytest.mark.parametrize("position", ["", "yesterday", "+3", "7", "0:", "0:1,", "@", "x" * 10_000])
def test_what_is_no_position(client, topic, position):
    assert client.get(f"/topics/{topic}", params={"from": position}).status_code == 400


def test_positions_that_the_topic_does_not_have(client, topic):
    assert client.get(f"/topics/{topic}?from=7:0").status_code == 400
    behind = client.get(f"/topics/{topic}?from=0:1000")
    assert (behind.status_code, "the log ends at 0" in behind.text) == (409, True)


def test_what_retention_has_deleted_is_reported(client, topic, write, admin):
    from confluent_kafka import TopicPartition

    write(topic, *map(str, range(10)))
    (deleted,) = admin.delete_records([TopicPartition(topic, 0, 4)]).values()
    deleted.result(TIMEOUT_S)
    lost, first = stream(client, f"/topics/{topic}?from=0:1", 2)
    assert (lost.name, lost.json) == ("lost", {"partition": 0, "from": 1, "to": 4})
    assert first.json["offset"] == 4
    answer = client.get(f"/topics/{topic}?from=0:1").json()
    assert (answer["lost"], len(answer["records"])) == ([{"partition": 0, "from": 1, "to": 4}], 6)


def test_lines(client, topic, write):
    write(topic, *map(str, range(2500)))
    answer = client.get(f"/topics/{topic}?from=start&until=end", headers=NDJSON)
    assert answer.headers["content-type"] == "application/x-ndjson"
    values = [json.loads(line)["value"] for line in answer.text.splitlines()]
    assert values == list(range(2500))
    some = client.get(f"/topics/{topic}?from=0:100&limit=3&format=ndjson").text.splitlines()
    assert [json.loads(line)["offset"] for line in some] == [100, 101, 102]


def test_a_poll_waits_for_records(client, topic, write):
    empty = client.get(f"/topics/{topic}?from=end").json()
    assert empty == {"records": [], "next": "0:0"}
    begun_s = time.monotonic()
    assert client.get(f"/topics/{topic}?from=end&wait_s=0.3").json()["records"] == []
    assert time.monotonic() - begun_s >= 0.3
    write(topic, "1", "2", "3")
    first = client.get(f"/topics/{topic}?from=0:0&wait_s=30&limit=2").json()
    assert ([record["value"] for record in first["records"]], first["next"]) == ([1, 2], "0:2")
    rest = client.get(f"/topics/{topic}?from={first['next']}&wait_s=30").json()
    assert ([record["value"] for record in rest["records"]], rest["next"]) == ([3], "0:3")


def test_a_poll_ends_when_a_record_comes(gateway, topic, write):
    with gateway.client() as client:
        process = subprocess.Popen(
            ["curl", "-s", f"{gateway.url}/topics/{topic}?from=end&wait_s=50"],
            stdout=subprocess.PIPE,
        )
        until_s = time.monotonic() + TIMEOUT_S
        while "headwater_gateway_streams 0" in client.get("/metrics").text:
            assert time.monotonic() < until_s
            time.sleep(0.02)
        write(topic, "now")
        output, _ = process.communicate(timeout=60)
    assert [record["value"] for record in json.loads(output)["records"]] == ["now"]


VALUES = ['{"n":1,"city":"Wien"}', '{"n":2,"city":"Graz","tags":["a","b"]}', '{"n":"3"}', "text"]


@pytest.mark.parametrize(
    ("query", "offsets"),
    [
        ({"where": "$.n=1"}, [0]),
        ({"where": "$.n>=1"}, [0, 1]),
        ({"where": "$.n != 1"}, [1, 2]),
        ({"where": "$.city=Wien"}, [0]),
        ({"where": '$.city == "Graz"'}, [1]),
        ({"where": "$['city']>Graz"}, [0]),
        ({"where": "$.city"}, [0, 1]),
        ({"where": "$.tags[-1]=b"}, [1]),
        ({"where": "$.tags[2]"}, []),
        ({"where": '$.n="3"'}, [2]),
        ({"where": "$=text"}, [3]),
        ({"where": ["$.n>0", "$.n<2"]}, [0]),
        ({"key": "k1"}, [1]),
        ({"header": "h:2"}, [2]),
        ({"header": "h"}, [0, 1, 2, 3]),
        ({"header": "other"}, []),
        ({"key": "k1", "where": "$.n=1"}, []),
    ],
)
def test_filters(client, gateway_broker, write, filtered_topic, query, offsets):
    answer = client.get(f"/topics/{filtered_topic}", params=query).json()
    assert [record["offset"] for record in answer["records"]] == offsets
    assert answer["next"] == "0:4"  # what was passed over counts as read


@pytest.fixture(scope="module")
def filtered_topic(admin, gateway_broker):
    from confluent_kafka.admin import NewTopic

    name = "filtered"
    admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": gateway_broker})
    for number, value in enumerate(VALUES):
        producer.produce(name, value, key=f"k{number}", headers=[("h", b"%d" % number)])
    assert producer.flush(TIMEOUT_S) == 0
    return name


@pytest.mark.parametrize(
    "query",
    [
        {"where": "n=1"},
        {"where": "$.n~1"},
        {"where": "$.n="},
        {"where": "$..n"},
        {"where": "$[*]=1"},
        {"where": "$.n=[1]"},
        {"where": ["$.n"] * 21},
        {"where": "$" + "[0]" * 60},
        {"wehre": "$.n"},
        {"limit": "0"},
        {"wait_s": "61"},
        {"format": "xml"},
        {"decode": "hex"},
        {"until": "tomorrow"},
    ],
)
def test_what_is_refused(client, topic, query):
    assert client.get(f"/topics/{topic}", params=query).status_code == 400


def test_a_filter_in_a_stream_moves_the_id_on(client, topic, write):
    write(topic, *(f'{{"n":{number}}}' for number in range(50)))
    path = f"/topics/{topic}?from=start&where=$.n%3E=48"
    assert [event.id for event in stream(client, path, 2)] == ["0:49", "0:50"]


def test_a_stream_in_which_nothing_passes_shows_that_it_lives(client, topic, write, monkeypatch):
    monkeypatch.setattr("headwater.gateway.reading.routes._HEARTBEAT_S", 0.2)
    path = f"/topics/{topic}?where=$.never"
    with client.stream("GET", path, headers=SSE) as answer:
        lines = answer.iter_lines()
        beats, last_id = 0, ""
        while beats < 3 or last_id == "0:0":
            write(topic, "1")
            line = next(lines)
            beats += line == ": still here"
            last_id = line.removeprefix("id: ") if line.startswith("id: ") else last_id


def test_values_that_are_no_json(client, topic, write):
    write(topic, b"\xff\xfe", '{\n "a": 1\n}', '"x"', None, b"", key=b"\xff")
    records = client.get(f"/topics/{topic}").json()["records"]
    assert [record["value"] for record in records] == [
        {"base64": "//4="}, {"a": 1}, "x", None, "",
    ]  # fmt: skip
    assert records[0]["key"] == {"base64": "/w=="}
    lines = client.get(f"/topics/{topic}?format=ndjson&from=start&limit=2").text.splitlines()
    assert len(lines) == 2
    raw = client.get(f"/topics/{topic}?decode=none").json()["records"]
    assert [record["value"] for record in raw[1:3]] == ['{\n "a": 1\n}', '"x"']


def test_lines_can_be_written_to_another_topic(client, topic, new_topic, write):
    write(topic, b"\xff", "{ }", None, key="k", headers=[("h", b"\x00\xff")])
    lines = client.get(f"/topics/{topic}?format=ndjson&from=start&until=end&decode=none").content
    copy = new_topic()
    kind = {"Content-Type": "application/vnd.headwater.records+ndjson"}
    assert client.post(f"/topics/{copy}", content=lines, headers=kind).json()["written"] == 3
    again = client.get(f"/topics/{copy}?format=ndjson&from=start&until=end&decode=none").text
    assert again.replace(copy, topic) == lines.decode()


def test_only_committed_records_are_sent(client, topic, gateway_broker):
    producer = Producer({"bootstrap.servers": gateway_broker, "transactional.id": f"t-{topic}"})
    producer.init_transactions(TIMEOUT_S)
    for value, end in ((b"1", producer.abort_transaction), (b"2", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(TIMEOUT_S)
        end(TIMEOUT_S)
    records = client.get(f"/topics/{topic}").json()["records"]
    assert [(record["offset"], record["value"]) for record in records] == [(2, 2)]
    assert [event.json["value"] for event in stream(client, f"/topics/{topic}?from=start", 1)] == [
        2
    ]


def test_partitions_that_are_added(client, topic, write, admin, gateway_broker, monkeypatch):
    monkeypatch.setattr("headwater.gateway.reading.subscription._LOOK_S", 0.05)
    monkeypatch.setattr("headwater.gateway.access._TOPIC_AGE_S", 0.0)
    with client.stream("GET", f"/topics/{topic}", headers=SSE) as answer:
        found = events(answer.iter_lines())
        write(topic, "1", partition=0)
        assert next(found).json["partition"] == 0
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(TIMEOUT_S)
        fresh = Producer({"bootstrap.servers": gateway_broker})  # which knows the partitions
        fresh.produce(topic, "2", partition=1)
        assert fresh.flush(TIMEOUT_S) == 0
        event = next(found)
        assert (event.json["partition"], event.id) == (1, "0:1,1:1")


def test_a_topic_that_is_deleted_ends_its_streams(client, topic, write, admin, monkeypatch):
    monkeypatch.setattr("headwater.gateway.access._TOPIC_AGE_S", 0.0)
    monkeypatch.setattr("headwater.gateway.reading.subscription._LOOK_S", 0.05)
    with client.stream("GET", f"/topics/{topic}", headers=SSE) as answer:
        found = events(answer.iter_lines())
        write(topic, "1")
        next(found)
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        (error,) = found
        assert (error.name, "there is no topic" in error.json["error"]) == ("error", True)


def test_clients_that_fall_behind_lose_nothing(client, topic, write, monkeypatch):
    """The feed holds next to nothing, so that every client falls behind."""
    monkeypatch.setattr(feeds, "_HELD_BYTES", 2000)
    with client.stream("GET", f"/topics/{topic}", headers=SSE) as answer:
        found = events(answer.iter_lines())
        for number in range(6):
            write(topic, *(str(number * 100 + one) for one in range(100)))
        values = [event.json["value"] for event in islice(found, 600)]
    assert values == list(range(600))


def test_rights(secured):
    with secured.client(user=secured.bob) as client:
        assert client.get("/topics/open").status_code == 200
        denied, missing = client.get("/topics/closed"), client.get("/topics/missing")
        assert denied.status_code == missing.status_code == 403
        assert denied.text.replace("closed", "missing") == missing.text
        assert client.get("/topics/__consumer_offsets").status_code == 403
    with secured.client(user=secured.alice) as client:
        assert client.get("/topics/missing").status_code == 404


def test_a_right_that_is_taken_ends_the_stream(secured, monkeypatch):
    from confluent_kafka.admin import (
        AclBinding,
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        NewTopic,
        ResourcePatternType,
        ResourceType,
    )

    monkeypatch.setattr("headwater.gateway.access._TOPIC_AGE_S", 0.0)
    monkeypatch.setattr("headwater.gateway.reading.subscription._LOOK_S", 0.05)
    secured.admin.create_topics([NewTopic("lent", 1)])["lent"].result(TIMEOUT_S)
    right = (
        ResourceType.TOPIC, "lent", ResourcePatternType.LITERAL, "User:bob", "*",
        AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip
    for future in secured.admin.create_acls([AclBinding(*right)]).values():
        future.result(TIMEOUT_S)
    with (
        secured.client(user=secured.bob) as client,
        client.stream("GET", "/topics/lent", headers=SSE) as answer,
    ):
        found = events(answer.iter_lines())
        for future in secured.admin.delete_acls([AclBindingFilter(*right)]).values():
            future.result(TIMEOUT_S)
        (error,) = found
        assert (error.name, "no right" in error.json["error"]) == ("error", True)
