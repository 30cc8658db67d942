"""Who may read and append which events over HTTP."""

import time

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from support.gateway.event_store import append, filled, followed, gateway_of, positions, read
from support.gateway.serving import TIMEOUT_S

from headwater.gateway import tokens
from headwater.settings import ClientSettings, Secret


@pytest.fixture(scope="module")
def secured_events(secured, tmp_path_factory):
    """Bob may read the events of accounts, and append to orders."""
    path = tmp_path_factory.mktemp("secured-events")
    rights = [
        AclBinding(
            ResourceType.TOPIC, f"outbox.event.{category}", ResourcePatternType.LITERAL,
            "User:bob", "*", operation, AclPermissionType.ALLOW,
        )
        for category, operation in (("account", AclOperation.READ), ("order", AclOperation.WRITE))
    ]  # fmt: skip
    for future in secured.admin.create_acls(rights).values():
        future.result(TIMEOUT_S)
    name, password = secured.alice
    with gateway_of(
        path,
        broker__bootstrap=secured.broker.bootstrap,
        broker__authentication="sasl",
        client__username=name,
        client__password=password,
    ) as served:
        with served.client(user=secured.alice) as alice:
            filled(alice)
        yield served


def test_the_right_to_a_category_is_that_to_its_topic(secured, secured_events):
    with secured_events.client(user=secured.bob) as bob:
        assert len(read(bob, category="account")["events"]) == 5
        assert len(read(bob, "/events/account-1")["events"]) == 1
        assert bob.get("/events/account-99").status_code == 404
        append(bob, "order-7", {"type": "Placed"})
        for method, path, body in (
            ("GET", "/events", None),
            ("GET", "/streams", None),
            ("GET", "/events?category=order", None),
            ("GET", "/events/order-7", None),
            ("GET", "/events/order-99", None),
            ("GET", "/events?format=sse", None),
            ("GET", "/events/order-7/state", None),
            ("POST", "/events/account-1", {"events": [{"type": "A"}]}),
            ("POST", "/events", {"streams": [
                {"stream": "order-1", "events": [{"type": "A"}]},
                {"stream": "account-1", "events": [{"type": "A"}]},
            ]}),
            # Whether it matches would say what is in other categories.
            ("POST", "/events/order-1", {
                "events": [{"type": "A"}], "condition": {"query": [{"types": ["A"]}]},
            }),
        ):  # fmt: skip
            answer = bob.request(method, path, json=body)
            assert answer.status_code == 403, (method, path, answer.text)
        names = [one["category"] for one in read(bob, "/categories")["categories"]]
        assert names == ["account"]
    with secured_events.client(user=secured.alice) as alice:
        assert positions(read(alice)) == list(range(1, 17))


def test_tokens_for_events(secured, secured_events):
    name, password = secured.alice
    token, text = tokens.new_token("test", ["outbox.event.order"], ["read"], None)
    login = ClientSettings(username=name, password=Secret(password))
    tokens.store(secured.broker.bootstrap, login, token)
    with secured_events.client(token=text) as client:
        assert len(read(client, "/events/order-1")["events"]) == 2
        assert client.post("/events/order-1", json={"events": []}).status_code == 403
        assert client.get("/events/account-1").status_code == 403
        assert client.get("/events").status_code == 403


def test_a_subscription_ends_when_a_category_comes_that_may_not_be_read(secured, secured_events):
    rights = [
        AclBinding(
            ResourceType.TOPIC, "outbox.event.", ResourcePatternType.PREFIXED, "User:bob", "*",
            AclOperation.READ, AclPermissionType.ALLOW,
        ),
        AclBinding(
            ResourceType.TOPIC, "outbox.event.secret", ResourcePatternType.LITERAL, "User:bob",
            "*", AclOperation.READ, AclPermissionType.DENY,
        ),
    ]  # fmt: skip
    for future in secured.admin.create_acls(rights).values():
        future.result(TIMEOUT_S)
    try:
        with secured_events.client(user=secured.bob) as bob:
            deadline_s = time.monotonic() + TIMEOUT_S  # rights are asked for every two seconds
            while bob.get("/events?limit=1").status_code != 200:
                assert time.monotonic() < deadline_s
                time.sleep(0.1)
        with (
            followed(secured_events, "/events", user=secured.bob) as found,
            secured_events.client(user=secured.alice) as alice,
        ):
            append(alice, "order-1", {"type": "Paid"})
            assert next(found).json["stream"] == "order-1"
            append(alice, "secret-1", {"type": "Known"})
            last = next(found)
            assert last.name == "error"
            assert "no right" in last.json["error"]
    finally:
        for future in secured.admin.delete_acls(
            [
                _filter("outbox.event.", ResourcePatternType.PREFIXED),
                _filter("outbox.event.secret", ResourcePatternType.LITERAL),
            ]
        ).values():
            future.result(TIMEOUT_S)


def _filter(name, pattern):
    return AclBindingFilter(
        ResourceType.TOPIC, name, pattern, "User:bob", "*", AclOperation.READ,
        AclPermissionType.ANY,
    )  # fmt: skip
