"""Webhooks in the console: their state, and what can be done with them."""

from uuid import uuid4

import pytest
from confluent_kafka import Producer
from support.console.serving import serving
from support.gateway.receivers import receivers
from support.shared_broker import shared_broker

from headwater.client.topics import NewTopic, ensure_topics
from headwater.gateway.webhooks.administration import Administration
from headwater.gateway.webhooks.definitions import Webhook
from headwater.gateway.webhooks.targets import parse_networks
from headwater.settings import ClientSettings

LOOPBACK = "127.0.0.0/8"


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    with shared_broker(tmp_path_factory.mktemp("broker")) as bootstrap:
        ensure_topics(bootstrap, ClientSettings(), [NewTopic("orders", 1)])
        yield bootstrap


@pytest.fixture
def browser(log, tmp_path):
    with serving(
        tmp_path, broker__bootstrap=log, gateway__webhook_allowed_networks=LOOPBACK
    ) as served:
        yield served.browser()


@pytest.fixture
def administration(log):
    return Administration(log, ClientSettings())


def added(administration, url):
    name = f"hook-{uuid4().hex[:6]}"
    webhook = Webhook(name, url, ("orders",))
    return administration.add(webhook, "end", parse_networks([LOOPBACK]))


def test_a_webhook_is_paused_resumed_tested_and_removed(log, administration, browser):
    with receivers() as listening:
        webhook = added(administration, listening.url_of("console"))
        producer = Producer({"bootstrap.servers": log})
        producer.produce("orders", b"1")
        producer.flush()
        page = browser.get("/webhooks")
        assert webhook.name in page.text
        assert webhook.secrets[0] not in page.text
        address = f"/webhooks/{webhook.name}"
        shown = browser.get(f"{address}.json").json
        assert (shown["state"], shown["backlog"]) == ("delivering", 1)
        assert browser.post(f"{address}/pause").status == 303
        assert administration.one(webhook.name).paused
        assert "Resume" in browser.get(f"{address}/").text
        assert browser.post(f"{address}/resume").status == 303
        assert not administration.one(webhook.name).paused
        assert "answered 204" in browser.post(f"{address}/test").text
        assert listening.asked["console"] == 1
        listening.answers["console"] = lambda number, got: (500, {})
        assert "did not arrive: answered 500" in browser.post(f"{address}/test").text
        assert "Remove it" in browser.post(f"{address}/remove").text
        assert browser.post(f"{address}/remove", {"confirmed": "yes"}).status == 303
        assert webhook.name not in administration.all()


def test_forms_without_a_token_change_nothing(administration, browser):
    webhook = added(administration, "http://127.0.0.1:9/")
    assert browser.post(f"/webhooks/{webhook.name}/pause", token=False).status == 403
    assert not administration.one(webhook.name).paused
    assert browser.get("/webhooks/none-of-these/").status in (404, 409)
    administration.remove(webhook.name)
