"""Topics changed on their pages: configs, partitions, the oldest records; who writes and reads."""

import itertools
import re
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 60.0
NAME = "set-up"
_numbers = itertools.count()


@pytest.fixture
def topic(console_broker):
    """With ten records, five in each of two partitions."""
    name = f"{NAME}-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": console_broker})
    admin.create_topics([NewTopic(name, 2)])[name].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": console_broker, "enable.idempotence": True})
    for number in range(10):
        producer.produce(
            name, f"v{number}", partition=number % 2, timestamp=1_700_000_000_000 + number * 1000
        )
    assert producer.flush(TIMEOUT_S) == 0
    return name


def configs_of(browser, topic):
    shown = browser.get(f"/topics/{topic}/settings.json").json["configs"]
    return {config["name"]: (config["value"], config["is_changed"]) for config in shown}


def change(browser, path, confirmed=True, **fields):
    return browser.post(path, {**fields, **({"confirmed": "yes"} if confirmed else {})})


def test_a_config_is_set_after_a_question_and_taken_back(browser, topic):
    fields = {"name": "retention.ms", "value": "7d"}
    path = f"/topics/{topic}/config"
    asked = change(browser, path, confirmed=False, **fields)
    assert asked.status == 200
    assert "to 604800000." in asked.text
    assert "is deleted within minutes" in asked.text
    assert configs_of(browser, topic)["retention.ms"][1] is False
    assert change(browser, path, **fields).status == 303
    assert configs_of(browser, topic)["retention.ms"] == ("604800000", True)
    assert change(browser, path, name="retention.ms", unset="1").status == 303
    assert configs_of(browser, topic)["retention.ms"][1] is False


@pytest.mark.parametrize(
    ("path", "fields", "status", "words"),
    [
        ("config", {"name": "no.such", "value": "1"}, 400, "no config no.such"),
        ("config", {"name": "retention.ms", "value": ""}, 400, "no value for retention.ms"),
        ("config", {"name": "retention.ms", "value": "soon"}, 400, "wrong value"),
        ("config", {"name": "cleanup.policy", "value": "shred"}, 409, "INVALID_CONFIG"),
        ("partitions", {"partitions": "2"}, 400, "whole number from 3"),
        ("partitions", {"partitions": "x"}, 400, "whole number from 3"),
        ("trim", {"to": "time", "value": "soon"}, 400, "not a position"),
        ("trim", {"to": "end", "partition": "7"}, 400, "no partition 7"),
        ("trim", {"to": "offset", "value": "0"}, 409, "no records in front"),
    ],
)
def test_mistakes_change_nothing(browser, topic, path, fields, status, words):
    answer = change(browser, f"/topics/{topic}/{path}", **fields)
    assert answer.status == status
    assert words in answer.text
    shown = browser.get(f"/topics/{topic}.json").json
    assert (len(shown["partitions"]), shown["records"]) == (2, 10)


def test_partitions_are_added(browser, topic):
    path = f"/topics/{topic}/partitions"
    assert "may go to another partition" in change(browser, path, False, partitions="4").text
    assert change(browser, path, partitions="4").status == 303
    assert len(browser.get(f"/topics/{topic}.json").json["partitions"]) == 4


def test_the_oldest_records_are_deleted_up_to_what_was_shown(browser, topic):
    path = f"/topics/{topic}/trim"
    asked = change(browser, path, False, to="time", value="1700000004000")
    assert "4 records in 2 partitions" in asked.text
    offsets = re.search(r'name="offsets" value="([^"]+)"', asked.text)[1]
    assert offsets == "0:2,1:2"
    without_name = change(browser, path, offsets=offsets)
    assert "The name does not match" in without_name.text
    assert change(browser, path, offsets=offsets, typed=topic).status == 303
    starts = [
        part["start_offset"] for part in browser.get(f"/topics/{topic}.json").json["partitions"]
    ]
    assert starts == [2, 2]


@pytest.mark.parametrize("path", ["config", "partitions", "trim"])
def test_changes_need_the_token_of_the_page(browser, topic, path):
    fields = {"name": "retention.ms", "value": "7d", "partitions": "3", "to": "end"}
    answer = browser.post(f"/topics/{topic}/{path}", {**fields, "confirmed": "yes"}, token=False)
    assert answer.status == 403


def test_who_writes_and_who_reads(console_broker, browser, topic):
    consumer = Consumer({"bootstrap.servers": console_broker, "group.id": f"of-{topic}"})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()
    producer = Producer({"bootstrap.servers": console_broker, "enable.idempotence": True})
    producer.produce(topic, "now", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    until_s = time.monotonic() + TIMEOUT_S
    while not (shown := browser.get(f"/topics/{topic}.json").json)["readers"]:
        assert time.monotonic() < until_s  # groups are read every five seconds
        time.sleep(0.1)
    (reader,) = shown["readers"]
    assert (reader["kind"], reader["name"], reader["lag"]) == ("group", f"of-{topic}", 4)
    assert [writer["kind"] for writer in shown["writers"]] == ["producer"] * 2
    assert "last record" in shown["writers"][0]["note"]
    page = browser.get(f"/topics/{topic}/").text
    assert f'href="/groups/of-{topic}/"' in page
    assert browser.get(f"/topics/{topic}/settings").status == 200


def test_a_group_is_deleted_when_its_name_was_typed(console_broker, browser, topic):
    group = f"deleted-{topic}"
    consumer = Consumer({"bootstrap.servers": console_broker, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()
    path = f"/groups/{group}/delete"
    assert "Type <strong" in change(browser, path).text
    assert browser.get(f"/groups/{group}.json").json["lag"] == 3
    assert change(browser, path, typed=group).status == 303
    assert browser.get(f"/groups/{group}.json").status == 404
    assert change(browser, path, typed=group).status == 404
