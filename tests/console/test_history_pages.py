"""Plots on pages: one choice of the range for all, small lines in lists, whose history it is."""

import time
from itertools import pairwise

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.serving import serving

from headwater.console.history.ranges import FINE_S
from headwater.console.history.store import History

TIMEOUT_S = 60.0
TOPIC = "plotted"


@pytest.fixture(scope="module")
def served(console_broker, tmp_path_factory):
    """With samples of a topic every quarter of a minute, up to ten minutes ago."""
    admin = AdminClient({"bootstrap.servers": console_broker})
    admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result(TIMEOUT_S)
    with serving(tmp_path_factory.mktemp("c"), broker__bootstrap=console_broker) as console:
        cluster = console.browser().get("/cluster.json").json["cluster_id"]
        # Another than the one that records now: samples of the past come after none.
        history = History(tmp_path_factory.mktemp("h") / "history.db")
        console.console.histories._histories[cluster] = history
        now = time.time()
        for number in range(40, 0, -1):
            values = {f"topic.rate/{TOPIC}": float(number), f"topic.size/{TOPIC}": 1024.0}
            history.add(values, now - 600 - number * FINE_S)
        yield console


def plots_of(browser, query=""):
    shown = browser.get(f"/topics/{TOPIC}.json{query}").json["plots"]
    return {plot["title"]: plot for plot in shown}


def test_a_topic_with_its_rate_and_size_over_time(served):
    browser = served.browser()
    rate = plots_of(browser)["Records per second"]
    known = [value for value in rate["series"][0]["y"] if value]
    assert known[:3] == [40, 39, 38]
    assert rate["unit"] == "/s"
    assert {at - before for before, at in pairwise(rate["x"])} == {FINE_S}
    page = browser.get(f"/topics/{TOPIC}/").text
    assert 'aria-label="Size on disk: size' in page
    assert "<polyline" in browser.get("/topics").text


def test_the_choice_of_the_range_holds_for_all_pages(served):
    browser = served.browser()
    current = 'aria-current="true">'
    assert f"{current}1 hour" in browser.get(f"/topics/{TOPIC}/").text
    assert f"{current}1 week" in browser.get(f"/topics/{TOPIC}/?range=1w").text
    assert f"{current}1 week" in browser.get("/cluster").text
    assert f"{current}1 week" in browser.get(f"/topics/{TOPIC}/?range=nonsense").text
    steps = plots_of(browser)["Records per second"]["x"]
    assert all((at - before) % 1800 == 0 for before, at in pairwise(steps))
    assert f"{current}1 hour" in served.browser().get("/cluster").text  # another browser


@pytest.mark.parametrize("has_login", [True, False])
def test_whose_login_samples_where_users_sign_in(tmp_path, has_login):
    """The console's own, for all; without one, each user's, in memory."""
    with secured_broker(tmp_path / "broker") as broker:
        add_user(broker, "bob", "builder")
        login = {"client__username": USER, "client__password": PASSWORD} if has_login else {}
        with serving(
            tmp_path,
            broker__listen=broker.bootstrap,
            broker__data_dir=str(tmp_path / "broker"),
            broker__authentication="sasl",
            **login,
        ) as console:
            alice = console.browser()
            assert alice.post("/sign-in", {"name": USER, "password": PASSWORD}).status == 303
            assert alice.get("/cluster").status == 200
            if not has_login:
                until_s = time.monotonic() + TIMEOUT_S
                while not alice.get("/cluster.json").json["plots"]:
                    assert time.monotonic() < until_s
                    time.sleep(0.1)
            files = list((tmp_path / "broker" / "console").glob("*.db"))
            assert bool(files) == has_login
