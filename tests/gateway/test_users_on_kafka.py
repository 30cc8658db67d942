"""Users and ACLs where the log is Apache Kafka: its users sign in, and its ACLs count."""

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import USER
from support.gateway.events import events
from support.gateway.every_route import EVERY_ROUTE, HARMLESS, WITHOUT_RIGHTS, asked, path_of
from support.gateway.serving import TIMEOUT_S, serving

from bench.peers.kafka import TOOL_JVM, secured_kafka
from bench.peers.provision import missing_tools
from headwater.events import Event, open_store
from headwater.gateway import tokens
from headwater.gateway.guard import OPEN, SIGNED
from headwater.settings import ClientSettings, Secret

pytestmark = [
    pytest.mark.long,
    pytest.mark.java,
    pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH"),
]
ALICE, BOB = (USER, "wonderland"), ("bob", "builder")
SSE = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """`alice` may do everything; `bob` may read `open` and write to `inbox`."""
    with secured_kafka(
        tmp_path_factory.mktemp("secured-kafka"), dict([ALICE, BOB]), TOOL_JVM
    ) as address:
        admin = AdminClient(
            {
                "bootstrap.servers": address,
                "security.protocol": "sasl_plaintext",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": ALICE[0],
                "sasl.password": ALICE[1],
            }
        )
        compacted = {"cleanup.policy": "compact"}
        topics = [NewTopic(name, 1, 1, config=compacted) for name in ("open", "inbox", "closed")]
        for future in admin.create_topics(topics).values():
            future.result(TIMEOUT_S)
        rights = [
            AclBinding(
                ResourceType.TOPIC, name, ResourcePatternType.LITERAL, "User:bob", "*",
                operation, AclPermissionType.ALLOW,
            )
            for name, operation in (("open", AclOperation.READ), ("inbox", AclOperation.WRITE))
        ]  # fmt: skip
        for future in admin.create_acls(rights).values():
            future.result(TIMEOUT_S)
        yield address


@pytest.fixture(scope="module")
def served(kafka, tmp_path_factory):
    path = tmp_path_factory.mktemp("gateway")
    store = f"sqlite:///{path}/events.db"
    with open_store(store) as opened:
        opened.append("closed", [Event("Closed")])
    with serving(
        path,
        events__store=store,
        broker__bootstrap=kafka,
        client__username=ALICE[0],
        client__password=ALICE[1],
    ) as served:
        yield served


def test_only_users_with_their_password_are_answered(served):
    for user in (None, ("bob", "wrong"), ("nobody", "builder")):
        with served.client(user=user) as client:
            assert client.get("/topics/open").status_code == 401
    with served.client(user=BOB) as client:
        assert client.get("/topics/open").status_code == 200


def test_a_user_may_do_what_acls_of_kafka_say(served):
    with served.client(user=ALICE) as client:
        for topic in ("open", "closed"):
            assert client.post(f"/topics/{topic}?key=a", json={"n": 1}).status_code == 200
    with served.client(user=BOB) as client:
        assert client.get("/topics/open").json()["records"][0]["value"] == {"n": 1}
        assert client.get("/tables/open/a").json()["value"] == {"n": 1}
        with client.stream("GET", "/topics/open?from=start", headers=SSE) as stream:
            assert next(events(stream.iter_lines())).json["value"] == {"n": 1}
        with client.stream("GET", "/live/open") as stream:
            assert any("ready" in line for line in stream.iter_lines())
        for _ in range(2):
            once = client.post("/topics/inbox?key=a", json=1, headers={"Idempotency-Key": "k"})
            assert (once.status_code, once.json()["offset"]) == (200, 0)
        assert client.post("/topics/inbox?key=a", json=1).status_code == 200
        for refused in (
            client.post("/topics/open?key=a", json=1),
            client.post("/topics/open?key=a", json=1, headers={"Idempotency-Key": "k"}),
            client.get("/topics/inbox"),
            client.get("/tables/inbox"),
            client.get("/live/inbox"),
            client.get("/topics/closed", headers=SSE),
        ):
            assert refused.status_code == 403, refused.text


def test_a_token_has_its_own_rights(served, kafka):
    token, text = tokens.new_token("test", ["open"], ["read"], None)
    login = ClientSettings(username=ALICE[0], password=Secret(ALICE[1]))
    tokens.store(kafka, login, token)
    with served.client(token=text) as client:
        assert client.get("/topics/open").status_code == 200
        assert client.get("/topics/closed").status_code == 403
        assert client.post("/topics/open?key=a", json=1).status_code == 403


@pytest.mark.parametrize(("method", "template"), EVERY_ROUTE)
def test_without_rights_nothing_is_learned(served, method, template):
    if template in (*OPEN, *HARMLESS):
        return
    with served.client() as client:
        expected = 404 if template.startswith(SIGNED) else 401
        assert asked(client, method, path_of(template, "closed")).status_code == expected
    with served.client(user=BOB) as client:
        answers = [
            asked(client, method, path_of(template, name), name) for name in ("closed", "missing")
        ]
        expected = WITHOUT_RIGHTS.get((method, template), 403)
        assert [answer.status_code for answer in answers] == [expected, expected]
        assert answers[0].text.replace("closed", "missing") == answers[1].text
