"""The event store in the console: categories, streams, and the state after each event."""

from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.serving import TIMEOUT_S, serving

from headwater.console.project import event_store
from headwater.events import Event, open_store

BANK = Path(__file__).parents[2] / "examples" / "bank" / "bank.py"
AWAY = "127.0.0.1:1"  # the pages of events need no broker


def write_project(path):
    (path / "headwater.toml").write_text(
        f'[events]\nstore = "sqlite:///{path}/events.db"\n'
        f'[events.deciders]\naccount = "{BANK}:Account"\nbroken = "broken.py:Broken"\n'
    )
    (path / "broken.py").write_text("1 / 0\n")


@pytest.fixture
def store(tmp_path):
    write_project(tmp_path)
    with open_store(f"sqlite:///{tmp_path}/events.db") as store:
        account = {"account": "eva"}
        store.append("account-eva", [Event("Opened", account, ["branch:7"], {"by": "otto"})])
        for amount in (100, 20, 3):
            store.append("account-eva", [Event("Deposited", {**account, "amount": amount})])
        store.append("order-1/2", [Event("Placed", {"text": "<b>&</b>"})], command_id="c-1")
        yield store


@pytest.fixture
def browser(tmp_path, store):
    with serving(tmp_path, broker__bootstrap=AWAY) as served:
        yield served.browser()


def test_categories_and_streams(store, browser):
    page = browser.get("/events")
    assert page.status == 200
    shown = browser.get("/events.json").json
    assert shown["categories"] == [
        {"category": "account", "streams": 1, "events": 4, "has_decider": True},
        {"category": "order", "streams": 1, "events": 1, "has_decider": False},
    ]
    assert shown["streams"] == [
        {"stream": "account-eva", "version": 4}, {"stream": "order-1/2", "version": 1},
    ]  # fmt: skip
    assert 'href="/events/order-1%2F2/"' in page.text
    for number in range(60):
        store.append(f"user-{number:02d}", [Event("Registered")])
    first = browser.get("/events.json?category=user&rows=40").json
    assert (len(first["streams"]), first["next"]) == (40, "user-39")
    rest = browser.get("/events.json?category=user&rows=40&after=user-39").json
    assert ([row["stream"] for row in rest["streams"]][-1], rest["next"]) == ("user-59", None)
    assert browser.get("/events.json?stream=user-57").json["streams"][0]["stream"] == "user-57"
    found = browser.get("/events?stream=account-eva")
    assert (found.status, found.headers["location"]) == (303, "/events/account-eva/")
    assert browser.get("/events?category=none").status == 404


def test_a_history_with_the_state_after_each_event(browser):
    shown = browser.get("/events/account-eva.json").json
    assert [event["version"] for event in shown["events"]] == [4, 3, 2, 1]
    assert [event["state"] for event in shown["events"]] == [123, 120, 100, 0]
    assert shown["events"][3]["tags"] == ["branch:7"]
    assert (shown["decider"], shown["last_version"]) == ("Account", 4)
    older = browser.get("/events/account-eva.json?version=2&rows=1").json
    assert [(event["version"], event["state"]) for event in older["events"]] == [(2, 100)]
    assert (older["older"], older["newer"]) == (1, 3)
    page = browser.get("/events/account-eva/").text
    for text in ("Opened", "branch:7", "State after it", "position 4", "&#34;by&#34;:&#34;otto"):
        assert text in page


def test_a_category_without_a_decider_shows_events_only(browser):
    page = browser.get("/events/order-1%2F2/")
    assert page.status == 200
    assert "State after it" not in page.text
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in page.text
    assert "c-1" in page.text
    assert "No decider folds events of order" in page.text
    assert "state" not in browser.get("/events/order-1%2F2.json").json["events"][0]


def test_what_cannot_be_folded_is_said(store, browser):
    store.append("account-eva", [Event("Deposited", {"amount": "much"})])
    shown = browser.get("/events/account-eva.json").json
    assert "does not fit its type Deposited" in shown["fold_error"]["error"]
    assert [event.get("state") for event in shown["events"]] == [None, 123, 120, 100, 0]
    store.append("broken-1", [Event("A")])
    page = browser.get("/events/broken-1/")
    assert page.status == 200
    assert "broken.py cannot be run" in page.text.lower()


def test_long_streams_and_large_events_are_bounded(store, browser, monkeypatch):
    store.append("blob-1", [Event("A", "x" * 1_000_000)] * 1)
    for _ in range(3):
        store.append("blob-1", [Event("A", "x" * 1_000_000)])
    assert 1 <= len(browser.get("/events/blob-1.json").json["events"]) <= 3
    assert len(browser.get("/events/blob-1/").body) < 200_000
    monkeypatch.setattr(event_store, "_MOST_FOLDED", 3)
    shown = browser.get("/events/account-eva.json").json
    assert "first 3 events" in shown["no_states"]
    early = browser.get("/events/account-eva.json?version=3").json
    assert [event["state"] for event in early["events"]] == [120, 100, 0]


def test_what_is_not_there(browser, tmp_path):
    for path in ("/events/none-1/", "/events/-/", "/events/%00/"):
        assert browser.get(path).status == 404
    for path in ("/events?rows=x", "/events/account-eva/?version=x", "/events?after=%00"):
        assert browser.get(path).status == 200


def test_without_a_store(tmp_path):
    with serving(tmp_path, broker__bootstrap=AWAY) as served:
        assert "No event store is configured" in served.browser().get("/events").text
    with serving(
        tmp_path, broker__bootstrap=AWAY, events__store=f"sqlite:///{tmp_path}/none.db"
    ) as served:
        assert "No events yet" in served.browser().get("/events").text
        assert served.browser().get("/events/account-1/").status == 404
        assert not (tmp_path / "none.db").exists()


def test_users_see_the_categories_whose_topics_they_may_read(tmp_path, store):
    with secured_broker(tmp_path / "broker") as broker:
        add_user(broker, "bob", "builder")
        admin = AdminClient(
            {
                "bootstrap.servers": broker.bootstrap,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": USER,
                "sasl.password": PASSWORD,
            }
        )
        may_read = AclBinding(
            ResourceType.TOPIC, "outbox.event.account", ResourcePatternType.LITERAL, "User:bob",
            "*", AclOperation.READ, AclPermissionType.ALLOW,
        )  # fmt: skip
        for future in admin.create_acls([may_read]).values():
            future.result(TIMEOUT_S)
        with serving(
            tmp_path, broker__listen=broker.bootstrap, broker__authentication="sasl"
        ) as served:
            for name, password, categories in (
                ("bob", "builder", ["account"]),
                (USER, PASSWORD, ["account", "order"]),
            ):
                browser = served.browser()
                fields = {"name": name, "password": password, "next": "/events"}
                assert browser.post("/sign-in", fields).status == 303
                shown = browser.get("/events.json").json
                assert [row["category"] for row in shown["categories"]] == categories
                assert ("events" in shown) == (name == USER)
                assert len(shown["streams"]) == (2 if name == USER else 0)
                assert browser.get("/events/account-eva/").status == 200
                closed = 200 if name == USER else 403
                assert browser.get("/events/order-1%2F2/").status == closed
                missing = 404 if name == USER else 403
                assert browser.get("/events/order-9/").status == missing
