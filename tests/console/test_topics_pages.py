"""Pages of topics without a browser: lists, records, exports, and their JSON."""

import http.client
import json
import re
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.console.serving import serving
from tiers import REAL_KAFKA, representative

from headwater.console.topics import tail
from headwater.console.topics.topic_list import Partition, Reading, Topic
from headwater.console.web.access import Access
from headwater.protocol.erased_records import ERASED_HEADER

TIMEOUT_S = 60.0
COUNT = 60


@pytest.fixture(scope="module", params=["headwater", REAL_KAFKA])
def looking(request, tmp_path_factory):
    """A browser on a console for our broker, and for Apache Kafka; both have the same topic."""
    is_ours = request.param == "headwater"
    address = request.getfixturevalue("console_broker" if is_ours else "console_kafka")
    prepare(address)
    with serving(tmp_path_factory.mktemp("c"), broker__bootstrap=address) as served:
        yield served.browser()


def prepare(address):
    admin = AdminClient({"bootstrap.servers": address})
    topic = NewTopic("browsed", 3, config={"retention.ms": "-1"})
    admin.create_topics([topic])["browsed"].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": address, "compression.type": "lz4"})
    for number in range(COUNT):
        producer.produce(
            "browsed",
            f"value {number}",
            f"key {number}",
            partition=number % 3,
            timestamp=1_700_000_000_000 + number * 1000,
            headers={"n": str(number)},
        )
    assert producer.flush(TIMEOUT_S) == 0


def values(answer):
    return [int(record["value"].split()[1]) for record in answer.json["records"]]


@representative
def test_a_topic_with_its_partitions_and_configuration(looking):
    topic = looking.get("/topics/browsed.json").json
    assert topic["records"] == COUNT
    assert [
        (partition["start_offset"], partition["end_offset"]) for partition in topic["partitions"]
    ] == [(0, 20)] * 3
    assert all(partition["leader"] is not None for partition in topic["partitions"])
    assert topic["size_bytes"] > 0
    changed = {
        config["name"]: config["value"] for config in topic["configs"] if config["is_changed"]
    }
    assert changed == {"retention.ms": "-1"}
    (listed,) = [
        topic
        for topic in looking.get("/topics.json?search=browsed").json["topics"]
        if topic["topic"] == "browsed"
    ]
    assert (listed["partitions"], listed["records"]) == (3, COUNT)


def test_the_newest_records_of_all_partitions_and_the_older_ones(looking):
    seen = []
    path = "/topics/browsed/records.json?rows=25"
    answer = looking.get(path)
    while len(seen) <= COUNT:
        seen += values(answer)
        older = answer.json["older"]
        if older is None:
            break
        answer = looking.get(f"{path}&before={older}")
    assert seen == list(reversed(range(COUNT)))


def test_records_from_the_start_on_and_back_again(looking):
    path = "/topics/browsed/records.json?at=oldest&rows=25"
    answer = looking.get(path)
    seen = values(answer)
    while answer.json["newer"] is not None and len(seen) <= COUNT:
        answer = looking.get(f"{path}&from={answer.json['newer']}")
        seen += values(answer)
    assert seen == list(range(COUNT))


@pytest.mark.parametrize(
    ("query", "first", "count"),
    [
        ("at=offset&value=19", 57, 3),
        ("at=offset&value=10&partition=1", 31, 10),
        ("at=offset&value=9999", None, 0),
        ("at=time&value=1700000050000", 50, 10),
        ("at=time&value=2023-11-14T22:14:10Z", 50, 10),
        ("at=newest&partition=2", 59, 20),
    ],
)
def test_records_by_offset_and_time(looking, query, first, count):
    found = values(looking.get(f"/topics/browsed/records.json?{query}"))
    assert len(found) == count
    assert (found or [None])[0] == first


@pytest.mark.parametrize("query", ["at=offset&value=ten", "at=time&value=soon"])
def test_what_is_no_position_is_refused(looking, query):
    answer = looking.get(f"/topics/browsed/records.json?{query}")
    assert answer.status == 400
    assert answer.json["error"].startswith("no ")


def test_one_record_and_its_bytes(looking):
    record = looking.get("/topics/browsed/records/1/3.json").json
    assert (record["key"], record["value"]) == ("key 10", "value 10")
    assert record["headers"] == [["n", "10"]]
    assert record["shown"]["value"] == {"form": "text", "text": "value 10"}
    value = looking.get("/topics/browsed/records/1/3/value")
    assert value.body == b"value 10"
    assert value.headers["content-disposition"].startswith("attachment")
    assert looking.get("/topics/browsed/records/1/20.json").status == 404
    assert looking.get("/topics/browsed/records/7/0.json").status == 404
    assert looking.get("/topics/nowhere/records.json").status == 404


def test_an_erased_record_is_no_tombstone(console_broker, tmp_path):
    producer = Producer({"bootstrap.servers": console_broker})
    producer.produce("erased-shown", None, b"key")
    producer.produce("erased-shown", None, None, headers={ERASED_HEADER: None})  # what is left
    assert producer.flush(TIMEOUT_S) == 0
    with serving(tmp_path, broker__bootstrap=console_broker) as served:
        browser = served.browser()
        page = browser.get("/topics/erased-shown/records").text
        assert re.findall(r'<span class="badge">(tombstone|erased)</span>', page) in (
            ["tombstone", "erased"],
            ["erased", "tombstone"],
        )
        assert "a tombstone" in browser.get("/topics/erased-shown/records/0/0/").text
        assert "erased: its contents" in browser.get("/topics/erased-shown/records/0/1/").text


def test_an_export_has_every_record(looking):
    lines = looking.get("/topics/browsed/export").body.splitlines()
    records = [json.loads(line) for line in lines]
    assert len(records) == COUNT
    assert records[0] == {
        "topic": "browsed", "partition": 0, "offset": 0, "timestamp": 1_700_000_000_000,
        "key": "key 0", "value": "value 0", "headers": [["n", "0"]],
    }  # fmt: skip
    raw = looking.get("/topics/browsed/export?format=raw&partition=1").body
    assert raw == b"".join(b"value %d\n" % number for number in range(1, COUNT, 3))
    since = looking.get("/topics/browsed/export?since=1700000050000").body.splitlines()
    assert len(since) == 10


def test_a_search_by_key(looking):
    path = looking.post("/topics/browsed/search", {"key": "key 33"}).headers["location"]
    deadline_s = time.monotonic() + TIMEOUT_S
    while (search := looking.get(f"{path.rstrip('/')}.json").json)["state"] == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert [record["value"] for record in search["records"]] == ["value 33"]


def events(looking, query):
    """The first event of a live tail."""
    connection = http.client.HTTPConnection(looking.address, timeout=TIMEOUT_S)
    connection.request("GET", f"/topics/browsed/tail/events?{query}")
    answer = connection.getresponse()
    try:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.readline() == b"event: records\n"
        return json.loads(answer.readline().removeprefix(b"data: "))
    finally:
        connection.close()


def test_a_live_tail_streams_what_is_written(looking):
    news = events(looking, "after=0:18,1:20,2:20")
    assert (news["records"], news["left_out"]) == (2, 0)
    assert "value 57" in news["html"]
    assert news["after"] == "0:20,1:20,2:20"


def test_a_live_tail_leaves_out_what_is_too_much_and_says_how_much(looking, monkeypatch):
    monkeypatch.setattr(tail, "MOST_AT_ONCE", 6)
    news = events(looking, "after=0:0,1:0,2:0")
    assert (news["records"], news["left_out"]) == (6, COUNT - 6)
    assert "value 59" in news["html"]
    assert events(looking, "after=0:0,1:0,2:0&contains=value%2058")["records"] == 1


def test_deleting_wants_the_name(browser, console_broker):
    admin = AdminClient({"bootstrap.servers": console_broker})
    admin.create_topics([NewTopic("not-by-accident", 1)])["not-by-accident"].result(TIMEOUT_S)
    path = "/topics/not-by-accident/delete"
    for fields in ({}, {"typed": "not-by-accident"}, {"confirmed": "yes", "typed": "not-by"}):
        answer = browser.post(path, fields)
        assert answer.status == 200
        assert "Type <strong" in answer.text
    assert browser.get("/topics/not-by-accident.json").status == 200
    assert browser.post(path, {"confirmed": "yes", "typed": "not-by-accident"}).status == 303
    assert browser.get("/topics/not-by-accident.json").status == 404


def test_json_by_the_address_and_by_what_is_accepted(looking):
    by_address = looking.get("/topics.json?search=browsed").json
    accepted = looking.get("/topics?search=browsed", Accept="application/json").json
    assert by_address["topics"][0]["topic"] == accepted["topics"][0]["topic"] == "browsed"
    page = looking.get("/topics", Accept="text/html,application/json;q=0.9")
    assert page.text.startswith("<!doctype html>")


def test_a_topic_that_is_newer_than_the_reading(browser, console_broker):
    admin = AdminClient({"bootstrap.servers": console_broker})
    for number in range(3):
        assert browser.get("/topics.json").status == 200
        name = f"brand-new-{number}"
        admin.create_topics([NewTopic(name, 1)])[name].result(TIMEOUT_S)
        assert browser.get(f"/topics/{name}.json").status == 200
    assert browser.get("/topics/no%20name!.json").status == 404


# With a reading that no broker would give


def reading_of(names):
    partition = Partition(0, 1, (1,), (1,), 0, 7, 100)
    topics = {
        name: Topic(name, name.startswith("__"), (partition,), number, number, number * 10, None)
        for number, name in enumerate(sorted(names))
    }
    return Reading(time.time(), "c", {1: "127.0.0.1:1"}, topics)


@pytest.fixture
def faked(monkeypatch):
    def fake(names):
        reading = reading_of(names)

        async def topics(self):
            return reading

        monkeypatch.setattr(Access, "topics", topics)

    return fake


def test_ten_thousand_topics_come_in_pages(browser, faked):
    faked([f"topic-{number:05d}" for number in range(10_000)] + ["__internal"])
    page = browser.get("/topics.json").json
    assert (page["found"], page["pages"], len(page["topics"])) == (10_000, 200, 50)
    last = browser.get("/topics.json?page=200").json["topics"]
    assert last[-1]["topic"] == "topic-09999"
    assert len(browser.get("/topics").body) < 60_000
    found = browser.get("/topics.json?search=0123%20topic&sort=-records").json
    assert [topic["topic"] for topic in found["topics"]] == [
        "topic-01239", "topic-01238", "topic-01237", "topic-01236", "topic-01235", "topic-01234",
        "topic-01233", "topic-01232", "topic-01231", "topic-01230", "topic-00123",
    ]  # fmt: skip
    assert browser.get("/topics.json?internal=1").json["found"] == 10_001
    largest = browser.get("/topics.json?sort=-size&rows=2").json["topics"]
    assert [topic["topic"] for topic in largest] == ["topic-09999", "topic-09998"]


@pytest.mark.parametrize("query", ["page=0", "page=-1", "page=9999", "page=x", "sort=nothing"])
def test_wrong_pages_are_the_nearest_right_ones(browser, faked, query):
    faked(["a", "b"])
    assert len(browser.get(f"/topics.json?{query}").json["topics"]) == 2


def test_markup_in_names_is_shown_as_text(browser, faked):
    mean = '"><img src=x onerror=alert(1)>'
    faked([mean])
    page = browser.get(f"/topics?search={'%3Cscript%3E'}").text
    assert "<script>" not in page
    page = browser.get("/topics").text
    assert mean not in page
    assert "&lt;img" in page
    href = re.search(r'href="(/topics/%22[^"]*)"', page)[1]
    assert "<" not in href


def test_all_browsers_share_one_reading(tmp_path, console_broker):
    with serving(tmp_path, broker__bootstrap=console_broker) as served:
        for _ in range(20):
            assert served.browser().get("/topics").status == 200
        text = served.browser().get("/metrics").text
        asked = int(re.search(r"headwater_console_readings_total (\d+)", text)[1])
        assert 1 <= asked <= 8  # topics, history, and what is sampled
