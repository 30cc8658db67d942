"""Searches: what they find, that they can be cancelled, and that they end."""

import json
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headwater.console.topics.search import MOST_FOUND, path_steps
from headwater.errors import UsageError

TIMEOUT_S = 60.0
TOPIC = "searched"


@pytest.fixture(scope="module")
def topic(console_broker):
    admin = AdminClient({"bootstrap.servers": console_broker})
    admin.create_topics([NewTopic(TOPIC, 3)])[TOPIC].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": console_broker})
    for number in range(3000):
        order = {"id": number, "country": ["AT", "DE", "FR"][number % 3], "flag": number == 1,
                 "items": [{"sku": f"S{number % 10}"}]}  # fmt: skip
        producer.produce(
            TOPIC,
            json.dumps(order),
            f"key-{number}",
            partition=number % 3,
            headers={"source": "shop"} if number % 1000 == 0 else None,
            timestamp=1_700_000_000_000 + number,
        )
    producer.produce(TOPIC, None, "gone", partition=0)
    producer.produce(TOPIC, b"\xff not JSON, nor UTF-8: Needle", b"\x00raw", partition=1)
    assert producer.flush(TIMEOUT_S) == 0
    return TOPIC


def found(browser, topic, **fields):
    """The end of a search that a form has started."""
    answer = browser.post(f"/topics/{topic}/search", fields)
    assert answer.status == 303, answer.text
    path = answer.headers["location"]
    deadline_s = time.monotonic() + TIMEOUT_S
    while (search := browser.get(f"{path.rstrip('/')}.json").json)["state"] == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return search


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"key": "key-17"}, 1),
        ({"key": "key-17", "key_is": "part"}, 111),
        ({"key": "gone"}, 1),
        ({"value": '"id": 1234,'}, 1),
        ({"value": "needle"}, 0),
        ({"value": "needle", "ignore_case": "1"}, 1),
        ({"path": "country", "path_value": "AT", "value": '"id": 29'}, 36),
        ({"path": "$.items[0].sku", "path_value": "S3"}, 300),
        ({"path": "flag", "path_value": "true"}, 1),
        ({"path": "flag", "path_value": "1"}, 0),
        ({"path": "id", "path_value": "12"}, 1),
        ({"path": "items[7]"}, 0),
        ({"header": "source"}, 3),
        ({"header": "source", "header_value": "sho"}, 3),
        ({"header": "source", "header_value": "shop!"}, 0),
        ({"header": "other"}, 0),
        ({"value": "AT", "partition": "1"}, 0),
        ({"value": "country", "since": "1700000002990"}, 10),
    ],
)
def test_what_is_wanted_is_found(browser, topic, fields, count):
    search = found(browser, topic, **fields)
    assert (search["state"], search["found"]) == ("done", count)
    assert search["scanned"] == search["total"]


def test_the_newest_are_found_first_and_enough_is_enough(browser, topic):
    search = found(browser, topic, value="country")
    assert (search["state"], search["found"]) == ("enough", MOST_FOUND)
    first = search["records"][0]
    assert json.loads(first["value"])["id"] >= 2997
    page = browser.get(f"/topics/{topic}/search/{search['id']}/?page=2")
    assert page.status == 200
    assert "Page 2 of 20" in page.text


def test_nothing_to_look_for_is_no_search(browser, topic):
    assert browser.post(f"/topics/{topic}/search", {}).status == 400
    assert browser.post(f"/topics/{topic}/search", {"path": "a..b["}).status == 400


def test_the_search_of_another_topic_is_not_found_here(browser, topic):
    search = found(browser, topic, key="gone")
    assert browser.get(f"/topics/nowhere/search/{search['id']}.json").status == 404
    assert browser.get(f"/topics/{topic}/search/other.json").status == 404


def test_a_search_that_is_cancelled_ends(console, browser, topic):
    """A slow one: no other client uses the broker, so its thread is held where it reads."""
    from headwater.console.topics import search as searching

    held = searching.matching

    def slowly(*arguments):
        time.sleep(0.2)
        return held(*arguments)

    searching.matching = slowly
    try:
        answer = browser.post(f"/topics/{topic}/search", {"value": "nothing of this"})
        path = answer.headers["location"]
        browser.post(f"{path}cancel")
        deadline_s = time.monotonic() + TIMEOUT_S
        while (state := browser.get(f"{path.rstrip('/')}.json").json["state"]) == "running":
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert state == "cancelled"
    finally:
        searching.matching = held


@pytest.mark.parametrize(
    ("path", "steps"),
    [("a", ["a"]), ("$.a.b", ["a", "b"]), ("a[0].b", ["a", 0, "b"]), ("[2]", [2])],
)
def test_paths(path, steps):
    assert path_steps(path) == steps


@pytest.mark.parametrize("path", ["", "$", "a[", "a[b]", "a..b"])
def test_what_is_no_path(path):
    with pytest.raises(UsageError):
        path_steps(path)
