"""Every route is asked without a login, without rights, and with what it does not expect."""

import pytest
from starlette.routing import WebSocketRoute
from support.gateway.every_route import (
    EVERY_ROUTE,
    HARMLESS,
    WITHOUT_RIGHTS,
    asked,
    path_of,
)  # fmt: skip
from support.gateway.serving import serving

from headwater import config
from headwater.gateway import tokens
from headwater.gateway.app import create
from headwater.gateway.guard import OPEN, SIGNED
from headwater.gateway.routes import ROUTES
from headwater.settings import ClientSettings, Secret

# What is answered without a broker, to those who may read schemas.
CONSTANT = ("/schemas/types", "/contexts")


def every_socket():
    app = create(config.load({"gateway.listen": "127.0.0.1:0"}, environ={}, cwd="/"), ROUTES)
    app.state.gateway.close()
    return [route.path for route in app.routes if isinstance(route, WebSocketRoute)]


EVERY_SOCKET = every_socket()
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@pytest.mark.parametrize("template", EVERY_SOCKET)
def test_sockets_without_a_login_without_rights_and_of_other_sites(
    secured, useless_token, template
):
    def answers(**login):
        with secured.client(**login) as client:
            return [
                client.get(path_of(template, name), headers=HANDSHAKE)
                for name in ("closed", "missing")
            ]

    assert [answer.status_code for answer in answers()] == [401, 401]
    for login in ({"user": secured.bob}, {"token": useless_token}):
        closed, missing = answers(**login)
        assert (closed.status_code, missing.status_code) == (403, 403)
        assert closed.text.replace("closed", "missing") == missing.text
    other = {**HANDSHAKE, "Origin": "http://evil.example"}
    with secured.client(user=secured.alice) as client:
        assert client.get(path_of(template, "open"), headers=other).status_code == 403


@pytest.mark.parametrize("template", EVERY_SOCKET)
def test_odd_handshakes(client, topic, template):
    for odd in (
        {"Sec-WebSocket-Version": "7"},
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Protocol": "bearer.\xff, ,"},
        {"Host": "evil.example"},
    ):
        headers = {name: value.encode("latin-1") for name, value in {**HANDSHAKE, **odd}.items()}
        answer = client.get(f"{path_of(template, topic)}?nonsense=1", headers=headers)
        assert 400 <= answer.status_code < 500, (odd, answer.status_code)


# What needs no broker, where it has no users; and there is no store.
OF_EVENTS = ("/events", "/streams", "/categories")


def test_there_are_routes():
    assert {path for _, path in EVERY_ROUTE} >= {*OPEN, *HARMLESS, "/topics/{topic}"}


@pytest.mark.parametrize(("method", "template"), EVERY_ROUTE)
def test_without_a_login(secured, method, template):
    with secured.client() as client:
        answer = asked(client, method, path_of(template, "closed"))
        expected = 404 if template.startswith(SIGNED) else 401
        assert answer.status_code == (200 if template in OPEN else expected)


@pytest.fixture(scope="module")
def useless_token(secured):
    name, password = secured.alice
    token, text = tokens.new_token("test", ["nothing-else"], ["read", "write"], None)
    tokens.store(
        secured.broker.bootstrap, ClientSettings(username=name, password=Secret(password)), token
    )
    return text


@pytest.mark.parametrize("who", ["user", "token"])
@pytest.mark.parametrize(("method", "template"), EVERY_ROUTE)
def test_without_rights_nothing_is_learned(secured, useless_token, who, method, template):
    if template in (*OPEN, *HARMLESS):
        return
    login = {"user": secured.bob} if who == "user" else {"token": useless_token}
    with secured.client(**login) as client:
        answers = [
            asked(client, method, path_of(template, name), name) for name in ("closed", "missing")
        ]
        expected = WITHOUT_RIGHTS.get((method, template), 403)
        assert [answer.status_code for answer in answers] == [expected, expected]
        assert answers[0].text.replace("closed", "missing") == answers[1].text


@pytest.mark.parametrize(("method", "template"), EVERY_ROUTE)
def test_odd_requests(client, topic, method, template):
    """Whatever comes, the answer is an error with its reason, and never a fault of ours."""
    path = path_of(template, topic)
    for odd in (
        {"params": {"nonsense": "1"}},
        {"params": {"limit": "-1"}},
        {"params": {"from": "\x00"}, "headers": {"Accept": "\xff"}},
        {"headers": {"Content-Type": "\xff/\xff"}},
        {"headers": {"Last-Event-ID": "0:-1"}},
        {"headers": {"Headwater-Position": "\xff"}},
        {"headers": {"Idempotency-Key": "\xff" * 300}},
        {"headers": {"Authorization": "Bearer \xff"}},
        {"content": b"\x00" * 10_000},
    ):
        encoded = {name: value.encode("latin-1") for name, value in odd.get("headers", {}).items()}
        answer = client.request(method, path, **{**odd, "headers": encoded})
        assert answer.status_code < 500, (odd, answer.text)
        if answer.status_code >= 400:
            body = answer.json()  # the registry's errors have Confluent's form
            assert body.get("error") or body["message"]
    for other in {"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - {
        one for one, path_ in EVERY_ROUTE if path_ == template
    }:
        assert client.request(other, path).status_code in (404, 405)


def test_the_head_of_a_stream_is_no_stream(client, topic):
    headers = {"Accept": "text/event-stream"}
    assert client.head(f"/topics/{topic}", headers=headers).status_code == 200
    assert client.head("/topics/missing", headers=headers).status_code == 404


def test_a_gateway_whose_broker_is_away(tmp_path):
    with (
        serving(tmp_path, broker__bootstrap="127.0.0.1:1") as served,
        served.client() as client,
    ):
        for method, template in EVERY_ROUTE:
            if template not in (*OPEN, *HARMLESS, *CONSTANT):
                answer = asked(client, method, path_of(template, "closed"))
                early = {"/receivers": 400, "/webhooks/{name}": 404} if method == "POST" else {}
                away = 404 if template.startswith(OF_EVENTS) else 503
                assert answer.status_code == early.get(template, away), (method, template)
