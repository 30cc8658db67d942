"""Groups and queues: lists that stay quick, moving a group, dead letters."""

import shlex
import sys
import time
from uuid import uuid4

import pytest
from confluent_kafka import (
    AcknowledgeType,
    Consumer,
    ConsumerGroupTopicPartitions,
    Producer,
    ShareConsumer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from support.console.serving import serving
from tiers import REAL_KAFKA

from bench.peers.kafka import TOOL_JVM, kafka
from headwater.client.group_offsets import GroupOffsets
from headwater.console.pages.groups import seek_command
from headwater.console.project import overview
from headwater.console.web import cache
from headwater.settings import ClientSettings
from headwater.testing import InProcessBroker

TIMEOUT_S = 60


def unique(kind):
    return f"{kind}-{uuid4().hex[:8]}"


def wait_until(condition, what):
    end_s = time.monotonic() + TIMEOUT_S
    while not (found := condition()):
        assert time.monotonic() < end_s, f"{what} has not happened"
        time.sleep(0.05)
    return found


class Log:
    """The broker, and a console that shows it."""

    def __init__(self, bootstrap, served):
        self.bootstrap = bootstrap
        self.served = served
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def topic(self, records, partitions=1):
        name = unique("topic")
        self.admin.create_topics([NewTopic(name, partitions)])[name].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        for number in range(records):
            wait_until(lambda n=number: _produced(producer, name, n % partitions), "room")
        assert producer.flush(TIMEOUT_S) == 0
        return name

    def group(self, topic, *offsets):
        name = unique("group")
        with GroupOffsets(self.bootstrap, ClientSettings(), name) as group_offsets:
            group_offsets.commit({(topic, number): at for number, at in enumerate(offsets)})
        return name

    def committed(self, group):
        request = [ConsumerGroupTopicPartitions(group)]
        (asked,) = self.admin.list_consumer_group_offsets(request).values()
        return [
            topic_partition.offset for topic_partition in asked.result(TIMEOUT_S).topic_partitions
        ]


def _produced(producer, name, partition):
    producer.produce(name, b"x", partition=partition)
    return True


@pytest.fixture(scope="module", params=["headwater", REAL_KAFKA])
def log(request, tmp_path_factory):
    """Our broker, and Apache Kafka. Readings are renewed sooner, so that tests need not wait."""
    directory = tmp_path_factory.mktemp("broker")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(overview, "_GROUPS_AGE_S", 0.1)
        patched.setattr(overview, "_SAMPLE_S", 0.2)
        patched.setattr(cache, "_SHARE", 1.0)
        yield from _logs(request, directory, tmp_path_factory)


def _logs(request, directory, tmp_path_factory):
    if request.param == "kafka":
        with (
            kafka(directory, jvm=TOOL_JVM) as peer,
            serving(tmp_path_factory.mktemp("c"), broker__bootstrap=peer.address) as served,
        ):
            yield Log(peer.address, served)
        return
    with (
        InProcessBroker.serving(str(directory)) as broker,
        serving(tmp_path_factory.mktemp("c"), broker__bootstrap=broker.bootstrap) as served,
    ):
        yield Log(broker.bootstrap, served)


@pytest.fixture
def browser(log):
    return log.served.browser()


def listed(browser, query):
    """As soon as the reading is new enough to have them."""
    return browser.get(f"/groups.json?{query}").json["groups"]


def test_groups_by_lag_searched_and_paged(log, browser):
    topic = log.topic(30)
    mark = unique("m")
    lags = {}
    for lag in (0, 7, 30):
        name = f"{mark}-{lag}"
        with GroupOffsets(log.bootstrap, ClientSettings(), name) as group_offsets:
            group_offsets.commit({(topic, 0): 30 - lag})
        lags[name] = lag
    found = wait_until(
        lambda: len(rows := listed(browser, f"search={mark}")) == 3 and rows, "the groups"
    )
    assert [group["lag"] for group in found] == [30, 7, 0]  # who lags most comes first
    assert {group["group"]: group["lag"] for group in found} == lags
    assert {tuple(group["topics"]) for group in found} == {(topic,)}
    (second,) = listed(browser, f"search={mark}&rows=1&page=2")
    assert second["lag"] == 7
    assert [group["lag"] for group in listed(browser, f"search={mark}&sort=lag")] == [0, 7, 30]
    page = browser.get(f"/groups?search={mark}").text
    assert page.index(f"{mark}-30") < page.index(f"{mark}-7<")


def test_one_group_with_its_lag_over_time(log, browser):
    topic = log.topic(20, partitions=2)
    group = log.group(topic, 4, 10)
    shown = browser.get(f"/groups/{group}.json").json
    assert (shown["lag"], shown["state"], shown["members"]) == (6, "empty", [])
    assert [partition["lag"] for partition in shown["partitions"]] == [6, 0]
    (lag,) = wait_until(lambda: browser.get(f"/groups/{group}.json").json["plots"], "a sample")
    assert {value for value in lag["series"][0]["y"] if value is not None} == {6}


def test_a_group_of_a_pipeline_is_not_to_be_moved(log, browser):
    topic = log.topic(5)
    for name, has_form in (("headwater.orders.cache.orders", False), ("headwater.mine", True)):
        with GroupOffsets(log.bootstrap, ClientSettings(), name) as group_offsets:
            group_offsets.commit({(topic, 0): 3})
        page = browser.get(f"/groups/{name}/").text
        assert ("Move the group" in page) == has_form
        assert ("it only commits the position" in page) != has_form


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"to": "start"}, [0, 0]),
        ({"to": "end"}, [10, 10]),
        ({"to": "offset", "value": "3"}, [3, 3]),
        ({"to": "offset", "value": "99"}, [10, 10]),  # limited to the partition
        ({"to": "time", "value": "-1h"}, [0, 0]),
    ],
)
def test_moving_a_group_shows_first_what_would_change(log, browser, form, expected):
    topic = log.topic(20, partitions=2)
    group = log.group(topic, 5, 5)
    asked = browser.post(f"/groups/{group}/seek", form)
    assert asked.status == 200, asked.text
    assert "Move it" in asked.text
    assert log.committed(group) == [5, 5]
    fields = dict(_hidden(asked.text))
    assert browser.post(f"/groups/{group}/seek", fields).status == 303
    assert log.committed(group) == expected


@pytest.mark.parametrize("group", ["plain", "it's; $(reboot)", "-x", "a\nb"])
def test_a_command_to_take_along_is_no_trap(group):
    words = shlex.split(seek_command(group, "-5", "orders"))
    assert words[:4] == ["headwater", "group", "seek", "--to=-5"]
    assert words[-1] == group
    assert ("--" in words) is group.startswith("-")


def _hidden(page):
    import re

    form = page[page.index('class="actions spaced"') :]
    return re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form)


def test_a_group_that_is_active_is_not_moved(log, browser):
    topic = log.topic(10)
    group = unique("active")
    member = Consumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    member.subscribe([topic])
    try:
        message = wait_until(lambda: member.poll(0.2), "a record")
        assert message.error() is None
        member.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
        asked = browser.post(f"/groups/{group}/seek", {"to": "start"})
        assert "cannot be moved" in asked.text
        assert "Move it" not in asked.text
        refused = browser.post(f"/groups/{group}/seek", {"to": "start", "confirmed": "yes"})
        assert refused.status == 409
        assert "is active" in refused.text
        assert log.committed(group) == [5]
        shown = browser.get(f"/groups/{group}.json").json
        assert len(shown["members"]) == 1
    finally:
        member.close()


def test_what_is_no_position(log, browser):
    group = log.group(log.topic(1), 0)
    for form in ({"to": "offset", "value": "x"}, {"to": "time", "value": "soon"}, {"to": "where"}):
        assert browser.post(f"/groups/{group}/seek", form).status == 400
    assert log.committed(group) == [0]


def test_a_group_whose_name_is_awkward(log, browser):
    topic = log.topic(1)
    name = f"a/b c?{unique('x')}.json"
    with GroupOffsets(log.bootstrap, ClientSettings(), name) as group_offsets:
        group_offsets.commit({(topic, 0): 0})
    page = wait_until(
        lambda: (text := browser.get("/groups?search=a%2Fb").text).count("a/b c?") and text,
        "the group",
    )
    import re

    (href,) = re.findall(r'href="(/groups/a[^"]+)"', page)
    shown = browser.get(href)
    assert shown.status == 200
    assert name in shown.text


@pytest.fixture
def queue(log):
    """A share group that has rejected two of its three records."""
    topic, name = log.topic(3), unique("queue")
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.GROUP, name, incremental_configs=[entry])
    log.admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
    consumer = ShareConsumer(
        {
            "bootstrap.servers": log.bootstrap,
            "group.id": name,
            "share.acknowledgement.mode": "explicit",
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    taken = []
    try:

        def take():
            taken.extend(message for message in consumer.poll(0.5) if message.error() is None)
            return len(taken) >= 3

        wait_until(take, "three records")
        for number, message in enumerate(taken):
            kind = AcknowledgeType.REJECT if number < 2 else AcknowledgeType.ACCEPT
            consumer.acknowledge(message, kind)
        consumer.commit_sync()
    finally:
        consumer.close()
    return name, topic


def test_a_queue_and_its_dead_letters(log, browser, queue, monkeypatch, request):
    name, topic = queue
    is_ours = "kafka" not in request.node.name

    def row():
        rows = browser.get(f"/queues.json?search={name}").json["queues"]
        return rows[0] if rows and rows[0]["backlog"] == 0 else None

    shown = wait_until(row, "the settled queue")
    assert shown["topics"] == [topic]
    wait_until(
        lambda: (
            {"from": f"topic:{topic}", "to": f"group:{name}"}.items()
            <= next(
                (
                    edge
                    for edge in browser.get("/flow.json").json["edges"]
                    if edge["to"] == f"group:{name}"
                ),
                {},
            ).items()
        ),
        "the queue in the flow",
    )
    if not is_ours:
        return  # Apache Kafka 4.3 writes no dead letters
    wait_until(lambda: (found := row()) and found["dead_letters"] >= 2, "the dead letters")
    page = browser.get(f"/queues/{name}/").text
    assert f"{topic}.dlq" in page
    asked = browser.post(f"/queues/{name}/redrive", {"topic": topic})
    assert f"Move dead letters back to {topic}?" in asked.text
    counted = _job(browser, browser.post(f"/queues/{name}/redrive", {"topic": topic, "dry_run": 1}))
    assert counted["result"]["wanted"] == 2
    assert counted["result"]["redriven"] == 0
    moved = _job(
        browser, browser.post(f"/queues/{name}/redrive", {"topic": topic, "confirmed": "yes"})
    )
    assert moved["state"] == "done", moved
    assert moved["result"]["redriven"] == 2
    wrong = browser.post(f"/queues/{name}/redrive", {"topic": "other", "confirmed": "yes"})
    assert wrong.status == 400


def _job(browser, answer):
    """What became of it: the real command, in a process of its own."""
    assert answer.status == 303, answer.text
    path = answer.headers["location"].rstrip("/") + ".json"
    return wait_until(
        lambda: (found := browser.get(path).json)["state"] not in ("waiting", "running") and found,
        f"the end of the job ({sys.executable})",
    )
