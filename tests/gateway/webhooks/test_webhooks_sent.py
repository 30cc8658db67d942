"""Webhooks over the API: what receivers get, and what happens to those that fail."""

import itertools
import time

import pytest
from support.gateway.serving import TIMEOUT_S
from support.gateway.topics import read_all
from tiers import long

from headwater.sinks.notifications.standard_webhooks import secret_bytes, signature

_names = itertools.count(1)


@pytest.fixture
def add(api, listening):
    added = []

    def make(topics, **fields):
        name = f"hook-{next(_names)}"
        fields = {"name": name, "url": listening.url_of(name), "topics": topics, **fields}
        answer = api.post("/receivers", json=fields)
        assert answer.status_code == 201, answer.text
        added.append(name)
        return name, answer.json()["secret"]

    yield make
    for name in added:
        api.delete(f"/receivers/{name}")


def write(api, topic, *records):
    answer = api.post(
        f"/topics/{topic}",
        json={"records": [{"key": key, "value": value} for key, value in records]},
        headers={"Content-Type": "application/vnd.headwater.records+json"},
    )
    assert answer.status_code == 200, answer.text


def until(look, timeout_s=TIMEOUT_S):
    end_s = time.monotonic() + timeout_s
    while time.monotonic() < end_s:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not happen in time")


def values(listening, name):
    return [got.json["value"] for got in listening.got[name]]


def test_every_record_is_sent_signed_and_in_order(api, add, listening, topic):
    name, secret = add(topic)
    write(api, topic, *(("ada", number) for number in range(20)))
    listening.wait(lambda: len(listening.got[name]) >= 20, TIMEOUT_S)
    assert values(listening, name) == list(range(20))
    first = listening.got[name][0]
    assert first.json["topic"] == topic
    assert first.json["key"] == "ada"
    identity, at = first.headers["webhook-id"], first.headers["webhook-timestamp"]
    expected = signature(secret_bytes(secret), identity, at, first.body)
    assert first.headers["webhook-signature"] == f"v1,{expected}"
    assert len({got.headers["webhook-id"] for got in listening.got[name]}) == 20
    until(lambda: api.get(f"/receivers/{name}").json()["backlog"] == 0)


def test_a_filter_leaves_records_out(api, add, listening, topic):
    name, _ = add([topic], where=["$.total>=100"])
    write(
        api, topic, ("a", {"total": 5}), ("b", {"total": 100}), ("c", "no"), ("d", {"total": 7e3})
    )
    listening.wait(lambda: len(listening.got[name]) >= 2, TIMEOUT_S)
    assert values(listening, name) == [{"total": 100}, {"total": 7000.0}]
    until(lambda: api.get(f"/receivers/{name}").json()["backlog"] == 0)


def test_from_start_sends_what_is_there(api, add, listening, new_topic):
    first, second = new_topic(2), new_topic()
    write(api, first, *((str(number), number) for number in range(10)))
    write(api, second, ("x", "last"))
    name, _ = add([first, second], **{"from": "start"}, max_in_flight=4)
    listening.wait(lambda: len(listening.got[name]) >= 11, TIMEOUT_S)
    assert {str(value) for value in values(listening, name)} == {*map(str, range(10)), "last"}


def test_a_failed_request_is_repeated_with_the_same_id_and_holds_back_its_key(
    api, add, listening, topic
):
    ids = []

    def answer(number, got):
        ids.append((got.json["value"], got.headers["webhook-id"]))
        return (500, {}) if number < 2 else (200, {})

    name, _ = add(topic, max_in_flight=4)
    listening.answers[name] = answer
    write(api, topic, ("ada", 1), ("ada", 2), ("ada", 3))
    listening.wait(lambda: len(listening.got[name]) >= 3, TIMEOUT_S)
    assert values(listening, name) == [1, 2, 3]
    assert [value for value, _ in ids[:3]] == [1, 1, 1]
    assert len({identity for _, identity in ids[:3]}) == 1


@long
def test_retry_after_is_respected(api, add, listening, topic):
    times = []

    def answer(number, got):
        times.append(time.monotonic())
        return (503, {"Retry-After": "2"}) if number == 0 else (200, {})

    name, _ = add(topic)
    listening.answers[name] = answer
    write(api, topic, ("ada", 1))
    listening.wait(lambda: listening.got[name], TIMEOUT_S)
    assert times[1] - times[0] >= 2


def test_what_is_refused_for_good_becomes_a_dead_letter_that_is_redelivered(
    api, add, listening, topic, gateway_broker
):
    refuses = True

    def answer(number, got):
        return (422, {}) if refuses and got.json["value"] == "bad" else (200, {})

    name, _ = add(topic)
    listening.answers[name] = answer
    write(api, topic, ("ada", "good"), ("ada", "bad"), ("ada", "better"))
    listening.wait(lambda: len(listening.got[name]) >= 2, TIMEOUT_S)
    assert values(listening, name) == ["good", "better"]
    until(lambda: api.get(f"/receivers/{name}").json()["dead_letters"] == 1)
    (letter,) = read_all(gateway_broker, f"webhook.{name}.dlq")
    headers = dict(letter.headers)
    assert letter.key == b"ada"
    assert headers["headwater.dlq.cause"] == b"answered 422: because"
    assert headers["headwater.dlq.offset"] == b"1"
    refuses = False
    assert api.post(f"/receivers/{name}/redeliver").json()["dead_letters"] == 1
    listening.wait(lambda: len(listening.got[name]) >= 3, TIMEOUT_S)
    again = listening.got[name][-1].json
    assert (again["value"], again["topic"], again["offset"], again["headers"]) == (
        "bad", topic, 1, [],
    )  # fmt: skip
    until(lambda: api.get(f"/receivers/{name}").json()["dead_letters"] == 0)


def test_after_the_bound_records_of_a_dead_receiver_become_dead_letters(api, add, listening, topic):
    name, _ = add(topic, retry_for_s=1)
    listening.answers[name] = lambda number, got: (500, {})
    write(api, topic, ("a", 1), ("a", 2), ("b", 3))
    until(lambda: api.get(f"/receivers/{name}").json()["dead_letters"] == 3)
    shown = api.get(f"/receivers/{name}").json()
    assert shown["state"] == "failing"
    assert shown["last_error"] == "answered 500: because"
    until(lambda: api.get(f"/receivers/{name}").json()["backlog"] == 0)


def test_gone_pauses_and_resume_loses_nothing(api, add, listening, topic):
    name, _ = add(topic)
    listening.answers[name] = lambda number, got: (410, {})
    write(api, topic, ("a", 1))
    until(lambda: api.get(f"/receivers/{name}").json()["state"] == "paused")
    assert "410" in api.get(f"/receivers/{name}").json()["paused"]
    write(api, topic, ("a", 2))
    listening.answers[name] = lambda number, got: (200, {})
    api.post(f"/receivers/{name}/resume")
    listening.wait(lambda: len(listening.got[name]) >= 2, TIMEOUT_S)
    assert values(listening, name) == [1, 2]


def test_redirects_are_not_followed(api, add, listening, topic):
    name, _ = add(topic, retry_for_s=1)
    listening.answers[name] = lambda number, got: (302, {"Location": listening.url_of("other")})
    write(api, topic, ("a", 1))
    until(lambda: api.get(f"/receivers/{name}").json()["dead_letters"] == 1)
    assert not listening.asked["other"]


def test_a_test_message_says_what_the_receiver_answered(api, add, listening, topic):
    name, _ = add(topic)
    answer = api.post(f"/receivers/{name}/test").json()
    assert (answer["delivered"], answer["status"]) == (True, 204)
    listening.answers[name] = lambda number, got: (404, {})
    answer = api.post(f"/receivers/{name}/test").json()
    assert (answer["delivered"], answer["status"]) == (False, 404)


def test_lists_show_no_secrets(api, add, topic):
    name, secret = add(topic)
    text = api.get("/receivers").text + api.get(f"/receivers/{name}").text
    assert name in text
    assert secret not in text
    assert f'/{name}"' not in api.get(f"/receivers/{name}").json()["url"]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({"url": "https://10.0.0.7/x"}, 400, "no public address"),
        ({"url": "http://169.254.169.254/latest"}, 400, "no public address"),
        ({"url": "https://[::ffff:10.1.2.3]/"}, 400, "no public address"),
        ({"url": "https://[64:ff9b::a00:1]/"}, 400, "no public address"),
        ({"url": "http://8.8.8.8/"}, 400, "can be read on the way"),
        ({"url": "ftp://8.8.8.8/"}, 400, "no address"),
        ({"url": "https://u:p@8.8.8.8/"}, 400, "password"),
        ({"name": "a/b"}, 400, "name"),
        ({"topics": ["nowhere-at-all"]}, 404, "no topic"),
        ({"topics": ["__headwater_tokens"]}, 403, "internal"),
        ({"topics": []}, 400, "topics"),
        ({"where": ["total"]}, 400, "path"),
        ({"retries": 3}, 400, "unknown field"),
        ({"max_in_flight": 1.5}, 400, "number"),
        ({"max_in_flight": 1000}, 400, "in flight"),
        ({"secret": "short"}, 400, "16 bytes"),
        ({"from": "sometime"}, 400, "position"),
    ],
)
def test_wrong_webhooks_are_refused(api, topic, fields, status, said):
    given = {"name": "wrong", "url": "https://203.0.113.9/", "topics": [topic]}
    if "url" not in fields:
        given["url"] = "http://127.0.0.1:9/"
    answer = api.post("/receivers", json=given | fields)
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert api.get("/receivers/wrong").status_code == 404


def test_rights_are_those_of_the_topics(secured):
    body = {"name": "spy", "url": "https://192.0.2.1/", "topics": ["closed"]}
    with secured.client(user=secured.bob) as bob, secured.client(user=secured.alice) as alice:
        assert bob.post("/receivers", json=body).status_code == 403
        body["url"] = "https://[2600::]/"
        assert alice.post("/receivers", json=body).status_code == 201
        assert bob.get("/receivers/spy").status_code == 404
        assert bob.delete("/receivers/spy").status_code == 404
        assert bob.post("/receivers/spy/pause").status_code == 404
        assert bob.get("/receivers").json() == {"webhooks": []}
        assert alice.get("/receivers/spy").json()["owner"] == "user:alice"
        assert alice.delete("/receivers/spy").status_code == 200


def test_metrics_count_what_was_sent_repeated_and_buried(api, add, listening, topic):
    name, _ = add(topic)
    listening.answers[name] = lambda number, got: (
        422 if got.json["value"] == "bad" else 500 if number == 0 else 200, {}
    )  # fmt: skip

    def metric(kind):
        label = f'headwater_webhook_{kind}{{webhook="{name}"}} '
        for line in api.get("/metrics").text.splitlines():
            if line.startswith(label):
                return int(line.removeprefix(label))
        return None

    write(api, topic, ("a", "good"), ("b", "bad"), ("a", "more"))
    until(lambda: metric("sent_records_total") == 2 and metric("dead_letters_total") == 1)
    assert metric("retries_total") >= 1
    assert metric("failed_attempts_total") >= 2
    until(lambda: metric("backlog_records") == 0 and metric("failing") == 0)
    listening.answers[name] = lambda number, got: (500, {})
    write(api, topic, *(("c", number) for number in range(5)))
    until(lambda: metric("backlog_records") == 5 and metric("failing") == 1)
    api.delete(f"/receivers/{name}")
    until(lambda: metric("backlog_records") is None)
    assert metric("sent_records_total") == 2
