"""WebSockets: records both ways, by a real client; who may open one; and how it is bounded."""

import base64
import json
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer
from support.gateway.serving import TIMEOUT_S, serving
from support.gateway.topics import read_all
from support.wire import wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from headwater.gateway import tokens
from headwater.settings import ClientSettings, Secret
from headwater.web import connections


class Client:
    def __init__(self, connection):
        self.connection = connection

    def next(self):
        return json.loads(self.connection.recv(TIMEOUT_S))

    def send(self, message):
        self.connection.send(message if isinstance(message, str | bytes) else json.dumps(message))

    def records(self, number):
        """The next ones, without positions in between."""
        found = []
        while len(found) < number:
            message = self.next()
            if "record" in message:
                found.append(message)
        return found

    def answer(self):
        while True:
            message = self.next()
            if "written" in message or "error" in message:
                return message


@pytest.fixture
def opened(gateway):
    with ExitStack() as stack:

        def open_(topic, query="", served=gateway, **options):
            url = f"ws://{served.address}/topics/{topic}{query}"
            connecting = connect(url, open_timeout=TIMEOUT_S, proxy=None, **options)
            return Client(stack.enter_context(connecting))

        yield open_


def denied(open_, *args, **options):
    with pytest.raises(InvalidStatus) as caught:
        open_(*args, **options)
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]


def produce(broker, topic, *values):
    producer = Producer({"bootstrap.servers": broker})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(TIMEOUT_S) == 0


def test_records_come_out_and_a_client_goes_on_where_it_was(opened, gateway_broker, topic):
    produce(gateway_broker, topic, '{"n": 1}', '{"n": 2}')
    client = opened(topic, "?from=start")
    assert client.next() == {"position": "0:0"}
    first, second = client.records(2)
    assert (first["position"], first["record"]["value"]) == ("0:1", {"n": 1})
    assert second["record"]["offset"] == 1
    produce(gateway_broker, topic, '{"n": 3}')
    assert client.records(1)[0]["record"]["value"] == {"n": 3}
    client.connection.close()
    again = opened(topic, f"?from={first['position']}&where=$.n%3E=3")
    assert [message["record"]["value"]["n"] for message in again.records(1)] == [3]


def test_records_go_in_and_are_answered_when_they_are_durable(opened, gateway_broker, topic):
    client = opened(topic)
    client.next()
    client.send({"id": 7, "records": [{"key": "a", "value": {"n": 1}}, {"value": "x"}]})
    seen = [client.next() for _ in range(3)]
    (answer,) = [message for message in seen if "written" in message]
    assert answer == {
        "id": 7,
        "written": [{"partition": 0, "offset": 0}, {"partition": 0, "offset": 1}],
    }
    assert [m["record"]["value"] for m in seen if "record" in m] == [{"n": 1}, "x"]
    assert [record.key for record in read_all(gateway_broker, topic)] == [b"a", None]
    for bad, error in (
        ("no JSON", "it is not JSON"),
        ("[]", "it is not of the form"),
        ({"id": 8, "records": [{"value": 1}, {"partition": 9, "value": 1}]}, "record 2"),
        ({"id": 9, "other": 1}, "record 1 cannot be taken"),
    ):
        client.send(bad)
        answer = client.answer()
        assert answer["error"].startswith(error)
        assert answer.get("id") == (bad["id"] if isinstance(bad, dict) else None)
    client.send({"records": [{"value": None, "key": "a"}]})
    assert client.answer() == {"written": [{"partition": 0, "offset": 2}]}
    client.send(b"\x00")
    assert "not bytes" in client.answer()["error"]
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            client.next()
    assert caught.value.rcvd.code == 1003


def test_a_client_that_only_writes_gets_no_records(opened, topic):
    client = opened(topic, "?from=none")
    for number in range(50):
        client.send({"id": number, "records": [{"value": number}]})
    answers = [client.next() for _ in range(50)]
    assert [answer["id"] for answer in answers] == list(range(50))
    assert [answer["written"][0]["offset"] for answer in answers] == list(range(50))


def test_a_limit_ends_it_and_wrong_parameters_are_refused(opened, gateway_broker, topic):
    produce(gateway_broker, topic, *(str(n) for n in range(5)))
    client = opened(topic, "?from=start&limit=3")
    assert [message["record"]["value"] for message in client.records(3)] == [0, 1, 2]
    with pytest.raises(ConnectionClosed) as caught:
        client.next()
    assert caught.value.rcvd.code == 1000
    assert denied(opened, "missing") == (404, "there is no topic missing")
    assert denied(opened, topic, "?format=sse")[0] == 400
    assert denied(opened, topic, "?from=nonsense")[0] == 400
    assert denied(opened, "__headwater_tokens")[0] == 403


def test_pages_of_other_sites_and_other_names_are_refused(opened, gateway, topic, tmp_path):
    def origin(value):
        return {"additional_headers": {"Origin": value}}

    own = f"http://{gateway.address}"
    assert opened(topic, **origin(own)).next() == {"position": "0:0"}
    for other in ("http://evil.example", "null", "https://127.0.0.1.evil.example"):
        status, error = denied(opened, topic, **origin(other))
        assert (status, error) == (403, "pages of other sites are not answered")
    host = {"additional_headers": {"Host": "evil.example"}}
    with pytest.raises(InvalidStatus) as caught:
        opened(topic, **host)
    assert caught.value.response.status_code in (400, 421)


def test_logins_tokens_and_rights(opened, secured):
    name, password = secured.alice
    login = ClientSettings(username=name, password=Secret(password))
    reader, read_only = tokens.new_token("r", ["open"], ["read"], None)
    tokens.store(secured.broker.bootstrap, login, reader)
    assert denied(opened, "open", served=secured.served)[0] == 401
    bearer = {"additional_headers": {"Authorization": f"Bearer {read_only}"}}
    assert denied(opened, "closed", served=secured.served, **bearer)[0] == 403
    assert denied(opened, "open", "?from=none", served=secured.served, **bearer)[0] == 403
    client = opened("open", served=secured.served, **bearer)
    client.next()
    client.send({"id": 1, "records": [{"value": 1}]})
    assert client.answer()["error"] == "no right to write topic open"
    protocols = {"subprotocols": ["headwater", f"bearer.{read_only}"]}
    browser = opened("open", served=secured.served, **protocols)
    assert browser.connection.subprotocol == "headwater"
    user, password = secured.bob
    basic = base64.b64encode(f"{user}:{password}".encode()).decode()
    bob = {"additional_headers": {"Authorization": f"Basic {basic}"}, "served": secured.served}
    assert opened("open", **bob).next()["position"]
    assert denied(opened, "inbox", **bob)[0] == 403, "bob may only write to it"
    writer = opened("inbox", "?from=none", **bob)
    writer.send({"records": [{"value": 1}]})
    assert len(writer.answer()["written"]) == 1
    tokens.revoke(secured.broker.bootstrap, login, reader.id)
    assert "revoked" in wait_for_end(client)["detail"]


def wait_for_end(client):
    last = {}
    with pytest.raises(ConnectionClosed) as caught:
        while True:
            last = client.next()
    assert caught.value.rcvd.code == 1008
    return last


def test_messages_are_bounded_and_a_client_that_does_not_read_holds_up_nobody(
    opened, gateway_broker, gateway, new_topic
):
    topic = new_topic()
    client = opened(topic, "?from=none")
    client.send(json.dumps({"records": [{"value": "x" * 1_100_000}]}))
    with pytest.raises(ConnectionClosed) as caught:
        client.next()
    assert caught.value.rcvd.code == 1009
    produce(gateway_broker, topic, *("y" * 500_000 for _ in range(40)))
    slow = opened(topic, "?from=start", max_queue=1)
    other = opened(topic, "?from=start")
    assert len(other.records(40)) == 40
    assert len(slow.records(40)) == 40, "it is slow, and loses nothing"


def test_connections_are_counted_until_their_end(tmp_path, gateway_broker, topic):
    with serving(tmp_path, broker__bootstrap=gateway_broker) as served:
        streams = served.gateway.streams
        for _ in range(3):
            with connect(f"ws://{served.address}/topics/{topic}", proxy=None) as connection:
                connection.recv(TIMEOUT_S)
                assert streams.open_count == 1
            wait_until(lambda: streams.open_count == 0, TIMEOUT_S, "the end")
        with socket.create_connection(tuple(served.address.split(":"))) as raw:
            raw.sendall(handshake(served.address, f"/topics/{topic}"))
            assert raw.recv(4096).startswith(b"HTTP/1.1 101")
            raw.sendall(b"\xff" * 100)
            while raw.recv(4096):
                pass
        wait_until(lambda: streams.open_count == 0, TIMEOUT_S, "the end of the broken one")
        assert 'route="WEBSOCKET /topics/{topic}",status="101"' in served.gateway.exposition()


def test_a_gateway_that_stops_ends_them(tmp_path, gateway_broker, topic):
    with serving(tmp_path, broker__bootstrap=gateway_broker) as served:
        begun, ended = threading.Event(), threading.Event()

        def read():
            with connect(f"ws://{served.address}/topics/{topic}", proxy=None) as connection:
                connection.recv(TIMEOUT_S)
                begun.set()
                with pytest.raises(ConnectionClosed):
                    while True:
                        connection.recv(TIMEOUT_S)
                ended.set()

        threading.Thread(target=read, daemon=True).start()
        assert begun.wait(TIMEOUT_S)
    assert ended.wait(TIMEOUT_S)


def test_a_quiet_one_stays_and_one_that_does_not_read_ends(
    tmp_path, gateway_broker, new_topic, monkeypatch
):
    """The limits of a request's head and body are none of a WebSocket's; that of an answer is."""
    topic = new_topic()
    for name in ("HEAD_LIMIT_S", "BODY_LIMIT_S", "READING_LIMIT_S"):
        monkeypatch.setattr(connections, name, 0.4)
    monkeypatch.setattr(connections, "_CHECK_INTERVAL_S", 0.05)
    with serving(tmp_path, broker__bootstrap=gateway_broker) as served:
        with connect(f"ws://{served.address}/topics/{topic}", proxy=None) as quiet:
            quiet.recv(TIMEOUT_S)
            end_s = time.monotonic() + 2.0  # five times as long as a request may take
            wait_until(lambda: time.monotonic() > end_s, TIMEOUT_S)
            quiet.send(json.dumps({"id": 1, "records": [{"value": 1}]}))
            while "written" not in json.loads(quiet.recv(TIMEOUT_S)):
                pass
        produce(gateway_broker, topic, *("y" * 900_000 for _ in range(40)))
        streams = served.gateway.streams
        with socket.create_connection(tuple(served.address.split(":"))) as deaf:
            deaf.sendall(handshake(served.address, f"/topics/{topic}?from=start"))
            wait_until(lambda: streams.open_count == 1, TIMEOUT_S, "its beginning")
            wait_until(lambda: streams.open_count == 0, TIMEOUT_S, "its end")


def handshake(address, path):
    return (
        f"GET {path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()
