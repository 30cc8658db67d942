"""Idempotency-Key: a request that is repeated is written once."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import OFFSET_END, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.gateway.serving import TIMEOUT_S, serving
from support.gateway.topics import read_all
from tiers import REAL_KAFKA

from headwater.client.reading.fetching import Fetcher
from headwater.errors import HeadwaterError
from headwater.gateway.answers import Refusal
from headwater.gateway.writing import once, shards
from headwater.inspect.record_json import Record
from headwater.settings import ClientSettings

NDJSON = {"Content-Type": "application/x-ndjson"}


@pytest.fixture(params=["headwater", REAL_KAFKA])
def any_broker(request):
    name = "gateway_broker" if request.param == "headwater" else "kafka_address"
    return request.getfixturevalue(name)


def keyed(client, topic, key, **options):
    headers = {"Idempotency-Key": key, **options.pop("headers", {})}
    return client.post(f"/topics/{topic}", headers=headers, **options)


def test_a_repeat_is_answered_as_the_first_time(client, topic, gateway_broker):
    first = keyed(client, topic, "one", json={"n": 1})
    assert first.status_code == 200
    assert "idempotent-replayed" not in first.headers
    client.post(f"/topics/{topic}", json={"n": 2})
    again = keyed(client, topic, "one", json={"n": 1})
    assert again.json() == first.json() == {"topic": topic, "partition": 0, "offset": 0}
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["headwater-position"] == first.headers["headwater-position"]
    assert [record.value for record in read_all(gateway_broker, topic)] == [
        b'{"n":1}',
        b'{"n":2}',
    ]


def test_it_holds_over_a_restart_of_the_gateway(any_broker, tmp_path):
    topic = f"restarted-{tmp_path.name}"
    admin = AdminClient({"bootstrap.servers": any_broker})
    admin.create_topics([NewTopic(topic, 3)])[topic].result(TIMEOUT_S)
    lines = "".join(f'{{"id":{number}}}\n' for number in range(50))
    answers = []
    for _ in range(2):
        with (
            serving(tmp_path, broker__bootstrap=any_broker) as served,
            served.client() as client,
        ):
            for _ in range(2):
                answer = keyed(client, f"{topic}?key_field=id", "k", content=lines, headers=NDJSON)
                assert answer.status_code == 200, answer.text
                answers.append(answer.json())
    assert answers[0]["written"] == 50
    assert answers == [answers[0]] * 4
    keys = [record.key for record in read_all(any_broker, topic)]
    assert sorted(keys, key=int) == [b"%d" % number for number in range(50)]


def test_a_full_memory_refuses_new_keys_until_old_ones_are_deleted(
    gateway_broker, tmp_path, topic, admin, monkeypatch
):
    monkeypatch.setattr(shards, "MOST_MARKERS", 5)
    monkeypatch.setattr(shards, "_PRUNE_PAUSE_S", 0.0)
    everything = [
        TopicPartition(shards.TOPIC, number, OFFSET_END) for number in range(shards.SHARDS)
    ]

    def delete_markers():
        """As retention does after a day."""
        for future in admin.delete_records(everything).values():
            future.result(TIMEOUT_S)

    with serving(tmp_path, broker__bootstrap=gateway_broker) as served, served.client() as client:

        def post(number):
            headers = {"Idempotency-Key": f"full-{number}"}
            return client.post(f"/topics/{topic}", json=number, headers=headers)

        assert post(0).status_code in (200, 503)  # the topic is there now
        delete_markers()
        first = post(1)
        assert first.status_code == 200, first.text
        answers = [post(number) for number in range(2, 40)]
        refused = [number for number, answer in enumerate(answers, 2) if answer.is_error]
        assert len(refused) >= 39 - 5 * shards.SHARDS
        assert answers[refused[0] - 2].status_code == 503
        assert "idempotency keys are stored" in answers[refused[0] - 2].text
        again = post(1)
        assert (again.json(), again.headers["Idempotent-Replayed"]) == (first.json(), "true")
        delete_markers()
        assert post(refused[0]).status_code == 200


def test_two_gateways_share_the_keys(gateway, topic, gateway_broker, tmp_path):
    """Each fences the other, and reads what it has written."""
    with (
        serving(tmp_path, broker__bootstrap=gateway_broker) as second,
        gateway.client() as one,
        second.client() as other,
    ):
        for number in range(6):
            answers = [
                keyed(client, topic, f"shared-{number}", json=number).json()
                for client in (one, other, one)
            ]
            assert answers == [{"topic": topic, "partition": 0, "offset": answers[0]["offset"]}] * 3
    values = [record.value for record in read_all(gateway_broker, topic)]
    assert values == [b"%d" % number for number in range(6)]


def test_repeats_at_the_same_time(gateway, topic, gateway_broker):
    together = threading.Barrier(8)

    def post(_):
        with gateway.client() as client:
            together.wait(TIMEOUT_S)
            return keyed(client, topic, "same", json={"n": 1})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(post, range(8)))
    assert {answer.text for answer in answers} == {answers[0].text}
    assert sum("idempotent-replayed" not in answer.headers for answer in answers) == 1
    assert len(read_all(gateway_broker, topic)) == 1


def test_many_requests_at_the_same_time(gateway, new_topic, gateway_broker):
    """They share transactions; each gets the positions of its own records."""
    topic = new_topic(partitions=2)

    def post(number):
        with gateway.client() as client:
            lines = "".join(f'{{"id":"{number}-{one}"}}\n' for one in range(1 + number % 3))
            answer = keyed(
                client, f"{topic}?partition={number % 2}", f"n{number}",
                content=lines, headers=NDJSON,
            )  # fmt: skip
            return number, answer.json()

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(post, range(48)))
    with Fetcher(gateway_broker, ClientSettings()) as fetcher:
        for number, answer in answers:
            (stretch,) = answer["partitions"]
            found = fetcher.records(
                topic, stretch["partition"], stretch["first"], stretch["last"] + 1
            )
            assert [json.loads(record.value)["id"] for record in found] == [
                f"{number}-{one}" for one in range(1 + number % 3)
            ]
    assert len(read_all(gateway_broker, topic)) == sum(1 + number % 3 for number in range(48))


def test_one_that_is_refused_does_not_hold_up_the_others(client, topic, new_topic, gateway_broker):
    keyed(client, topic, "first", json=0)  # so that the topic of markers is there
    compacted = new_topic(cleanup_policy="compact")

    def request(key, topic, value, fingerprint="f"):
        identity = once.identity_of("test", topic, key)
        return shards.Request(identity, fingerprint, topic, 1, [Record(None, value)])

    shard = shards.Shard(gateway_broker, ClientSettings(), 0)
    try:
        results = shard.write(
            [
                request("a", topic, b"a"),
                request("b", compacted, b"refused: it has no key"),
                request("c", topic, b"c"),
                request("a", topic, b"a"),
                request("c", topic, b"other", "g"),
            ]
        )
        (first, is_first_repeated), refused, (third, _), (again, is_repeated), other = results
        assert (is_first_repeated, is_repeated) == (False, True)
        assert isinstance(refused, HeadwaterError)
        assert isinstance(other, Refusal)
        assert first.token(topic) == again.token(topic) != third.token(topic)
    finally:
        shard.close()
    values = [record.value for record in read_all(gateway_broker, topic)]
    assert values == [b"0", b"a", b"c"]
    assert read_all(gateway_broker, compacted) == []


def test_another_request_with_the_same_key(client, topic):
    assert keyed(client, topic, "used", json=1).status_code == 200
    answer = keyed(client, topic, "used", json=2)
    assert (answer.status_code, "another request" in answer.text) == (422, True)
    assert keyed(client, f"{topic}?key=a", "used", json=1).status_code == 422


def test_a_bad_line_writes_nothing_and_uses_no_key(client, topic, gateway_broker):
    bad = keyed(client, topic, "lines", content="1\n2\n{", headers=NDJSON)
    assert (bad.status_code, bad.json()["line"]) == (400, 3)
    good = keyed(client, topic, "lines", content="1\n2\n3", headers=NDJSON)
    assert good.json()["written"] == 3
    assert len(read_all(gateway_broker, topic)) == 3


def test_what_the_topic_refuses_is_aborted(client, new_topic, gateway_broker):
    topic = new_topic(cleanup_policy="compact")
    refused = keyed(client, topic, "compacted", json=1)  # without a key
    assert refused.status_code == 409
    assert keyed(client, f"{topic}?key=a", "compacted-2", json=1).status_code == 200
    assert len(read_all(gateway_broker, topic)) == 1


def test_keys_of_one_user_are_not_those_of_another(secured):
    """The broker says what a user may do; the gateway's own login writes."""
    with secured.client(user=secured.bob) as bob, secured.client(user=secured.alice) as alice:
        first = keyed(bob, "inbox", "mine", json=1)
        assert first.status_code == 200
        assert keyed(bob, "inbox", "mine", json=1).json() == first.json()
        other = keyed(alice, "inbox", "mine", json=1)
        assert other.json()["offset"] > first.json()["offset"]
        assert keyed(bob, "open", "mine", json=1).status_code == 403
        assert keyed(bob, "closed", "mine", json=1).status_code == 403


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_keys_that_are_none(client, topic, key):
    assert keyed(client, topic, key, json=1).status_code == 400


def test_identities_differ():
    parts = [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ("", "ab", "c")]
    assert len({once.identity_of(*part) for part in parts}) == 4
