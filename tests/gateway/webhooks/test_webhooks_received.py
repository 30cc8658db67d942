"""Webhooks of others: who has signed them is stored once, everybody else is refused."""

import base64
import hashlib
import hmac
import json
import time
from uuid import uuid4

import pytest
from support.gateway.serving import serving
from support.gateway.topics import read_all

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
OLD_SECRET = "whsec_" + base64.b64encode(b"o" * 32).decode()


@pytest.fixture(scope="module")
def inbox(gateway_broker, tmp_path_factory):
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": gateway_broker})
    topics = ["in-standard", "in-github", "in-stripe"]
    for future in admin.create_topics([NewTopic(name, 2) for name in topics]).values():
        future.result(60)
    place = tmp_path_factory.mktemp("inbox")
    (place / "secrets").write_text(f"{SECRET}\n{OLD_SECRET}\n")
    (place / "headwater.toml").write_text(
        f"""
        [gateway.webhook.standard]
        topic = "in-standard"
        verify = "standard"
        secret_file = "{place / "secrets"}"
        headers = ["X-Source"]
        [gateway.webhook.github]
        topic = "in-github"
        verify = "github"
        secret = "hush"
        key = "$.repository.id"
        headers = ["X-GitHub-Event"]
        max_bytes = 1000
        [gateway.webhook.stripe]
        topic = "in-stripe"
        verify = "stripe"
        secret = "whsec_literally"
        [gateway.webhook.lost]
        topic = "there-is-no-such-topic"
        verify = "github"
        secret = "hush"
        """
    )
    with serving(place, broker__bootstrap=gateway_broker) as served, served.client() as client:
        client.bootstrap = gateway_broker
        yield client


def standard(body, *secrets, identity=None, at=None):
    identity = identity or f"msg_{uuid4().hex}"
    at = str(int(time.time()) if at is None else at)
    signatures = []
    for secret in secrets:
        key = base64.b64decode(secret.removeprefix("whsec_"))
        digest = hmac.new(key, f"{identity}.{at}.".encode() + body, hashlib.sha256).digest()
        signatures.append(f"v1,{base64.b64encode(digest).decode()}")
    return {
        "webhook-id": identity,
        "webhook-timestamp": at,
        "webhook-signature": " ".join(["v1a,other", *signatures]),
    }


def hexed(secret, data):
    return hmac.new(secret.encode(), data, hashlib.sha256).hexdigest()


def stored(inbox, topic, identity):
    return [
        record
        for record in read_all(inbox.bootstrap, topic)
        if dict(record.headers)["webhook-id"] == identity.encode()
    ]


@pytest.mark.parametrize("secrets", [(SECRET,), (OLD_SECRET,), ("whsec_AAAA", SECRET)])
def test_standard_webhooks_are_stored_as_they_came(inbox, secrets):
    body = b'{"a":  1}\xff'
    headers = standard(body, *secrets)
    answer = inbox.post("/webhooks/standard", content=body, headers={**headers, "X-Source": "shop"})
    assert answer.status_code == 200, answer.text
    (record,) = stored(inbox, "in-standard", headers["webhook-id"])
    assert record.value == body
    assert record.key == headers["webhook-id"].encode()
    assert dict(record.headers)["x-source"] == b"shop"
    assert dict(record.headers)["webhook-received-by"] == b"standard"


def test_a_repeated_delivery_is_stored_once(inbox):
    identity = f"msg_{uuid4().hex}"
    for attempt in range(3):  # each with a time and a signature of its own
        headers = standard(b"{}", SECRET, identity=identity, at=int(time.time()) - attempt)
        answer = inbox.post("/webhooks/standard", content=b"{}", headers=headers)
        assert answer.status_code == 200
        assert answer.headers.get("idempotent-replayed") == ("true" if attempt else None)
    assert len(stored(inbox, "in-standard", identity)) == 1


@pytest.mark.parametrize(("at", "status"), [(-290, 200), (-400, 400), (400, 400), (-(10**9), 400)])
def test_the_replay_window(inbox, at, status):
    headers = standard(b"{}", SECRET, at=int(time.time()) + at)
    answer = inbox.post("/webhooks/standard", content=b"{}", headers=headers)
    assert answer.status_code == status, answer.text
    assert len(stored(inbox, "in-standard", headers["webhook-id"])) == (status == 200)


def test_wrong_signatures_are_refused(inbox):
    good = standard(b"{}", SECRET)
    for body, headers in (
        (b"{ }", good),
        (b"{}", standard(b"{}", "whsec_" + base64.b64encode(b"x" * 32).decode())),
        (b"{}", {**good, "webhook-id": "msg_other"}),
        (b"{}", {**good, "webhook-timestamp": str(int(time.time()) - 1000)}),
        (b"{}", {**good, "webhook-signature": ""}),
        (b"{}", {**good, "webhook-signature": "v1,"}),
        (b"{}", {**good, "webhook-signature": "v2," + good["webhook-signature"][13:]}),
        (b"{}", {}),
    ):
        answer = inbox.post("/webhooks/standard", content=body, headers=headers)
        assert answer.status_code == 401, answer.text
    assert not stored(inbox, "in-standard", good["webhook-id"])


def test_github(inbox):
    body = json.dumps({"repository": {"id": 77}}).encode()
    identity = str(uuid4())
    headers = {
        "X-GitHub-Delivery": identity,
        "X-GitHub-Event": "push",
        "X-Hub-Signature-256": f"sha256={hexed('hush', body)}",
    }
    for _ in range(2):
        assert inbox.post("/webhooks/github", content=body, headers=headers).status_code == 200
    (record,) = stored(inbox, "in-github", identity)
    assert (record.key, record.value) == (b"77", body)
    assert dict(record.headers)["x-github-event"] == b"push"
    wrong = {**headers, "X-Hub-Signature-256": f"sha256={hexed('loud', body)}"}
    assert inbox.post("/webhooks/github", content=body, headers=wrong).status_code == 401
    without = {"X-Hub-Signature-256": headers["X-Hub-Signature-256"]}
    assert inbox.post("/webhooks/github", content=body, headers=without).status_code == 400


def test_stripe(inbox):
    identity = f"evt_{uuid4().hex}"
    body = json.dumps({"id": identity, "type": "charge.succeeded"}).encode()

    def signed(at, secret="whsec_literally"):
        right = hexed(secret, f"{at}.".encode() + body)
        return {"Stripe-Signature": f"t={at},v1={'0' * 64},v1={right},v0=abc"}

    now = int(time.time())
    assert inbox.post("/webhooks/stripe", content=body, headers=signed(now)).status_code == 200
    assert inbox.post("/webhooks/stripe", content=body, headers=signed(now - 5)).status_code == 200
    assert len(stored(inbox, "in-stripe", identity)) == 1
    assert (
        inbox.post("/webhooks/stripe", content=body, headers=signed(now - 999)).status_code == 400
    )
    wrong = signed(now, "whsec_other")
    assert inbox.post("/webhooks/stripe", content=body, headers=wrong).status_code == 401


def test_other_requests(inbox):
    assert inbox.post("/webhooks/github", content=b"x" * 1001).status_code == 413
    assert inbox.post("/webhooks/none", content=b"{}").status_code == 404
    assert inbox.get("/webhooks/github").status_code == 405
    headers = {"X-GitHub-Delivery": "1", "X-Hub-Signature-256": f"sha256={hexed('hush', b'{}')}"}
    assert inbox.post("/webhooks/lost", content=b"{}", headers=headers).status_code == 404
