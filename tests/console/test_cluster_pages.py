"""The cluster's pages: brokers, transactions, users, ACLs, quotas; and who may change them."""

import re

import pytest
from confluent_kafka import Producer
from support.broker.secured import PASSWORD, USER, add_user, secured_broker
from support.console.serving import serving

TIMEOUT_S = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """`alice` may do everything, `bob` nothing."""
    with secured_broker(tmp_path_factory.mktemp("secured")) as broker:
        add_user(broker, "bob", "builder")
        with serving(
            tmp_path_factory.mktemp("c"),
            broker__listen=broker.bootstrap,
            broker__authentication="sasl",
        ) as console:
            yield console


def signed_in(served, name, password):
    browser = served.browser()
    assert browser.post("/sign-in", {"name": name, "password": password}).status == 303
    return browser


@pytest.fixture
def alice(served):
    return signed_in(served, USER, PASSWORD)


@pytest.fixture
def bob(served):
    return signed_in(served, "bob", "builder")


def change(browser, path, **fields):
    return browser.post(path, {**fields, "confirmed": "yes"})


def test_brokers_and_what_they_store(browser):
    shown = browser.get("/cluster.json").json
    (broker,) = shown["brokers"]
    assert broker["leads"] == broker["stores"] == shown["partitions"]
    assert shown["without_leader"] == 0
    assert broker["address"] in browser.get("/cluster").text


def test_a_transaction_that_is_under_way(console_broker, browser):
    producer = Producer({"bootstrap.servers": console_broker, "transactional.id": "left-open"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("in-a-transaction", b"x")
    producer.flush(TIMEOUT_S)
    page = "/cluster/transactions"
    (shown,) = browser.get(f"{page}.json?search=left-open").json["transactions"]
    assert shown["state"] == "Ongoing"
    assert shown["open_s"] is not None
    assert shown["topics"] == {"in-a-transaction": [0]}
    assert 'href="/topics/in-a-transaction/"' in browser.get(f"{page}?search=left-open").text
    producer.abort_transaction(TIMEOUT_S)


def test_a_user_is_created_gets_another_password_and_is_deleted(served, alice):
    path = "/cluster/users/password"
    new = {"name": "carol", "password": "first", "again": "first", "is_new": "1"}
    assert alice.post(path, {**new, "again": "other"}).status == 400
    assert alice.post(path, new).status == 303
    assert alice.post(path, new).status == 409
    carol = signed_in(served, "carol", "first")
    assert carol.get("/cluster/users.json").status == 403
    names = [row["user"] for row in alice.get("/cluster/users.json").json["users"]]
    assert names == [USER, "bob", "carol"]
    other = {"name": "carol", "password": "second", "again": "second"}
    assert alice.post(path, other).status == 303
    signed_in(served, "carol", "second")
    assert "Type <strong" in change(alice, "/cluster/users/delete", name="carol").text
    deleted = change(alice, "/cluster/users/delete", name="carol", typed="carol")
    assert deleted.status == 303
    assert "carol" not in alice.get("/cluster/users").text
    assert alice.post(path, other).status == 409


def test_an_acl_is_added_and_removed_after_a_question(alice):
    fields = {
        "principal": "bob", "permission": "allow", "operation": "read", "resource": "topic",
        "name": "orders", "pattern": "prefixed",
    }  # fmt: skip
    asked = alice.post("/cluster/acls/add", fields)
    assert "User:bob may read: topic those that begin with orders" in asked.text
    assert alice.get("/cluster/acls.json").json["acls"] == []
    assert change(alice, "/cluster/acls/add", **fields).status == 303
    (acl,) = alice.get("/cluster/acls.json?search=bob").json["acls"]
    assert acl == {**fields, "principal": "User:bob", "host": "*"}
    assert change(alice, "/cluster/acls/remove", **acl).status == 303
    assert alice.get("/cluster/acls.json").json["acls"] == []
    assert change(alice, "/cluster/acls/remove", **acl).status == 409


@pytest.mark.parametrize(
    "wrong", [{"operation": "sing"}, {"name": ""}, {"principal": ""}, {"resource": "moon"}]
)
def test_an_acl_of_wrong_words_is_refused(alice, wrong):
    fields = {
        "principal": "bob", "permission": "allow", "operation": "read", "resource": "topic",
        "name": "orders",
    }  # fmt: skip
    assert change(alice, "/cluster/acls/add", **{**fields, **wrong}).status == 400


def test_a_quota_is_set_and_removed(alice):
    fields = {"user": "bob", "quota": "producer_byte_rate", "value": "1048576"}
    assert (
        "user bob: producer_byte_rate = 1.04858e" in alice.post("/cluster/quotas/set", fields).text
    )
    assert change(alice, "/cluster/quotas/set", **fields).status == 303
    (quota,) = alice.get("/cluster/quotas.json").json["quotas"]
    assert (quota["entity"], quota["value"]) == ({"user": "bob"}, 1048576)
    assert "1.0 MiB/s" in alice.get("/cluster/quotas").text
    assert change(alice, "/cluster/quotas/set", **fields, remove="1").status == 303
    assert alice.get("/cluster/quotas.json").json["quotas"] == []
    assert change(alice, "/cluster/quotas/set", **{**fields, "value": "much"}).status == 400
    assert change(alice, "/cluster/quotas/set", **{**fields, "user": ""}).status == 400


@pytest.mark.parametrize("page", ["users", "acls", "quotas"])
def test_who_may_not_see_them_sees_nothing(bob, page):
    answer = bob.get(f"/cluster/{page}")
    assert answer.status == 403
    assert USER not in re.sub(r"<header.*</header>", "", answer.text, flags=re.DOTALL)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("users/password", {"name": "x", "password": "y", "again": "y", "is_new": "1"}),
        ("users/delete", {"name": USER, "typed": USER}),
        (
            "acls/add",
            {
                "principal": "bob", "permission": "allow", "operation": "all",
                "resource": "cluster",
            },
        ),
        ("quotas/set", {"user": "bob", "quota": "producer_byte_rate", "value": "9"}),
        ("processes/restart", {"child": "broker"}),
    ],
)  # fmt: skip
def test_who_may_not_change_them_changes_nothing(alice, bob, path, fields):
    assert change(bob, f"/cluster/{path}", **fields).status == 403
    assert alice.post(f"/cluster/{path}", {**fields, "confirmed": "yes"}, token=False).status == 403
    names = [row["user"] for row in alice.get("/cluster/users.json").json["users"]]
    assert names == [USER, "bob"]
    assert alice.get("/cluster/acls.json").json["acls"] == []


def test_logs_and_figures_of_all_topics_are_for_operators(alice, bob):
    assert bob.get("/cluster/logs").status == 403
    assert bob.get("/cluster.json").json["plots"] is None
    assert "Over time" not in bob.get("/cluster").text
    assert alice.get("/cluster.json").json["plots"] is not None
