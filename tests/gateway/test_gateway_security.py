"""Who may ask the gateway, and from where."""

import socket
import subprocess
import time
from contextlib import suppress

import httpx
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.broker.secured import add_user
from support.gateway.serving import TIMEOUT_S, serving

from headwater.gateway import tokens
from headwater.settings import ClientSettings
from headwater.web import connections

OPEN = ("/health", "/live", "/ready")


def test_everybody_may_ask_where_the_broker_has_no_users(client):
    answer = client.get("/")
    assert answer.status_code == 200
    assert "GET /health" in answer.json()["routes"]
    assert client.get("/metrics").text.startswith("# HELP headwater_gateway_requests_total")


def test_errors_are_json_with_their_status(client):
    answer = client.get("/nothing/here")
    assert (answer.status_code, answer.json()["error"]) == (404, "there is nothing at this address")
    assert client.delete("/health").status_code == 405
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "a:b:c", "[::1"])
def test_another_name_is_not_answered(client, host):
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code in (400, 421)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example", "Content-Type": "text/plain"},
    ],
)
def test_a_page_of_another_site_is_not_answered(client, headers):
    for method in ("GET", "POST", "OPTIONS"):
        answer = client.request(method, "/", headers=headers)
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers


def test_a_page_of_an_allowed_site_is(tmp_path, gateway_broker):
    with (
        serving(
            tmp_path,
            broker__bootstrap=gateway_broker,
            gateway__allowed_origins="https://shop.example",
        ) as served,
        served.client(Origin="https://shop.example") as client,
    ):
        assert client.options("/topics/orders").status_code == 204
        answer = client.get("/", headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"
        assert client.get("/", headers={"Origin": "https://evil.example"}).status_code == 403


def test_where_the_broker_has_users_nothing_is_answered_without_one(secured):
    with secured.client() as client:
        for path in ("/", "/metrics", "/nothing", "/topics/open", "/topics/nothing"):
            answer = client.get(path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Basic ")
        assert {client.get(path).status_code for path in OPEN} == {200}


def test_users_of_the_broker_and_wrong_passwords(secured):
    with secured.client() as client:
        assert client.get("/", auth=secured.alice).status_code == 200
        assert client.get("/", auth=secured.bob).status_code == 200
        assert client.get("/", auth=("bob", "wrong")).status_code == 401
        assert client.get("/", auth=("nobody", "builder")).status_code == 401
        for header in (
            "Basic",
            "Basic !!",
            "Basic Ym9i",
            "Digest x",
            "Bearer",
            "Basic " + "A" * 9000,
        ):
            assert client.get("/", headers={"Authorization": header}).status_code == 401


def test_who_guesses_has_to_wait(secured):
    with secured.client() as client:
        statuses = [client.get("/", auth=("guessed", str(n))).status_code for n in range(7)]
        assert statuses == [401] * 5 + [429] * 2
        assert client.get("/", auth=("guessed", "9")).headers["retry-after"]
        assert client.get("/", auth=secured.bob).status_code == 200


def login_of(secured):
    name, password = secured.alice
    from headwater.settings import Secret

    return ClientSettings(username=name, password=Secret(password))


def stored_token(secured, *topics, operations=("read", "write"), expires_ms=None):
    token, text = tokens.new_token("test", topics, operations, expires_ms)
    tokens.store(secured.broker.bootstrap, login_of(secured), token)
    return token, text


def test_a_token_authenticates_until_it_is_revoked(secured):
    token, text = stored_token(secured, "open")
    with secured.client(token=text) as client:
        assert client.get("/").status_code == 200
        wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
        assert client.get("/", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401
        tokens.revoke(secured.broker.bootstrap, login_of(secured), token.id)
        until_s = time.monotonic() + TIMEOUT_S
        while client.get("/").status_code == 200:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        assert client.get("/").status_code == 401


def test_a_token_that_has_expired(secured):
    _, text = stored_token(secured, "open", expires_ms=int(time.time() * 1000) - 1)
    with secured.client(token=text) as client:
        assert client.get("/").status_code == 401


def test_tokens_where_the_broker_has_no_users(tmp_path, gateway_broker):
    token, text = tokens.new_token("test", ["*"], ["read"], None)
    tokens.store(gateway_broker, ClientSettings(), token)
    with serving(
        tmp_path, broker__bootstrap=gateway_broker, gateway__require_authentication=True
    ) as served:
        with served.client() as client:
            answer = client.get("/")
            assert (answer.status_code, answer.headers["www-authenticate"]) == (
                401,
                'Bearer realm="headwater"',
            )
        with served.client(token=text) as client:
            assert client.get("/").status_code == 200


def test_a_gateway_without_a_login_of_its_own_says_so(tmp_path, secured):
    with (
        serving(
            tmp_path, broker__listen=secured.broker.bootstrap, broker__authentication="sasl"
        ) as served,
        served.client() as client,
    ):
        assert client.get("/", auth=secured.bob).status_code == 200
        answer = client.get("/", headers={"Authorization": "Bearer hw_x"})
        assert answer.status_code == 503
        assert "[client]" in answer.json()["detail"]


def test_a_broker_that_is_away(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with (
        serving(tmp_path, broker__listen=address, broker__authentication="sasl") as served,
        served.client(user=("ada", "x")) as client,
    ):
        answer = client.get("/")
        assert (answer.status_code, answer.json()["error"]) == (503, "the broker does not answer")
        assert client.get("/ready").status_code == 200


def test_a_head_that_does_not_end(tmp_path, gateway_broker, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_LIMIT_S", 0.3)
    monkeypatch.setattr(connections, "_CHECK_INTERVAL_S", 0.05)
    with serving(tmp_path, broker__bootstrap=gateway_broker) as served:
        host, _, port = served.address.rpartition(":")
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            assert connection.recv(100) == b""


def test_a_body_that_breaks_before_and_after_its_answer_has_begun(gateway, topic, caplog):
    """It ends its connection, and is no fault of ours that the log would have to explain."""
    host, _, port = gateway.address.rpartition(":")
    for path, expected in ((f"/topics/{topic}", 400), (f"/topics/{topic}?progress_s=0.1", 200)):
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-ndjson\r\n"
            "Transfer-Encoding: chunked\r\n\r\n2\r\n1\n\r\n"
        )
        with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            connection.sendall(head.encode())
            answer = connection.recv(4096) if expected == 200 else b""
            connection.sendall(b"this is no size of a chunk\r\n")
            with suppress(ConnectionResetError):
                while more := connection.recv(4096):
                    answer += more
        assert answer.startswith(b"HTTP/1.1 %d " % expected), answer
        assert answer.count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_curl(gateway):
    command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"{gateway.url}/health"]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"200"


def test_path_tricks(client, gateway):
    for path in ("/topics/..%2f..", "/topics/%2e%2e", "/topics/a%00b", "/health/../metrics/x"):
        raw = httpx.URL(gateway.url).copy_with(raw_path=path.encode())
        assert client.get(raw).status_code in (400, 404)


def test_what_the_login_of_the_gateway_needs(tmp_path, secured):
    """As docs/security.md says: no more rights than these."""
    add_user(secured.broker, "gate", "keeper")
    _, text = stored_token(secured, "inbox", "table", operations=("read", "write"))
    made = secured.admin.create_topics([NewTopic("table", 1, config={"cleanup.policy": "compact"})])
    made["table"].result(TIMEOUT_S)
    topic, id_ = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    read, write, create = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
    rights = [
        AclBinding(kind, name, pattern, "User:gate", "*", operation, AclPermissionType.ALLOW)
        for kind, name, pattern, operations in (
            (topic, "__headwater_tokens", literal, (read,)),
            (topic, "__headwater_requests", literal, (create, read, write)),
            (topic, "inbox", literal, (write,)),
            (topic, "table", literal, (read, write)),
            (id_, "headwater-gateway-", prefixed, (write,)),
        )
        for operation in operations
    ]
    for future in secured.admin.create_acls(rights).values():
        future.result(TIMEOUT_S)
    with serving(
        tmp_path,
        broker__listen=secured.broker.bootstrap,
        broker__authentication="sasl",
        client__username="gate",
        client__password="keeper",
    ) as served:
        with served.client(token=text) as client:
            for _ in range(2):
                answer = client.post("/topics/inbox", json=1, headers={"Idempotency-Key": "gate"})
                assert answer.status_code == 200, answer.text
            assert client.post("/topics/table?key=k", json={"n": 1}).status_code == 200
            assert client.get("/tables/table/k").json()["value"] == {"n": 1}
            assert client.get("/topics/inbox").status_code == 403  # the login may only write
        with served.client(user=secured.bob) as client:
            answer = client.post("/topics/inbox", json=1, headers={"Idempotency-Key": "gate"})
            assert answer.status_code == 200, answer.text


@pytest.fixture
def impatient(tmp_path, gateway_broker, monkeypatch):
    """A gateway with deadlines that a test can wait for, and that a busy machine meets."""
    monkeypatch.setattr(connections, "BODY_LIMIT_S", 2)
    monkeypatch.setattr(connections, "READING_LIMIT_S", 0.5)
    monkeypatch.setattr(connections, "_CHECK_INTERVAL_S", 0.05)
    with serving(tmp_path, broker__bootstrap=gateway_broker) as served:
        yield served


def test_a_body_may_trickle_but_not_stop(impatient, topic):
    def lines(pauses):
        for pause_s in pauses:
            yield b"1\n"
            time.sleep(pause_s)

    path, kind = f"/topics/{topic}", {"Content-Type": "application/x-ndjson"}
    with impatient.client() as client:
        answer = client.post(path, content=lines([0.5] * 5), headers=kind)
        assert answer.json()["written"] == 5
        with pytest.raises(httpx.TransportError):
            client.post(path, content=lines([0.1, 4, 0]), headers=kind)
        assert client.get("/health").status_code == 200


def test_a_client_that_takes_nothing_is_disconnected(impatient, topic):
    """It goes on by its id, from where it stopped."""
    with impatient.client() as client:
        kind = {"Content-Type": "application/x-ndjson"}
        lines = b'"' + b"x" * 1000 + b'"\n'
        for _ in range(4):
            client.post(f"/topics/{topic}", content=lines * 4000, headers=kind)
    host, _, port = impatient.address.rpartition(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(TIMEOUT_S)
        connection.connect((host, int(port)))
        head = f"GET /topics/{topic}?from=start HTTP/1.1\r\nHost: {impatient.address}\r\n"
        connection.sendall(f"{head}Accept: text/event-stream\r\n\r\n".encode())
        until_s = time.monotonic() + TIMEOUT_S
        while impatient.gateway.streams.open_count == 0:
            assert time.monotonic() < until_s
            time.sleep(0.01)
        while impatient.gateway.streams.open_count:
            assert time.monotonic() < until_s
            time.sleep(0.05)
    assert impatient.gateway.readers.backlog.used_bytes == 0
