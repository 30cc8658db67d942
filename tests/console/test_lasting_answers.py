"""Tails and exports: bounded, and given back however they end."""

import asyncio
import socket
import time

import pytest
from confluent_kafka import Producer

from headwater.errors import NotReady
from headwater.web.live import Stream, StreamLimit

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def topic(console_broker):
    producer = Producer({"bootstrap.servers": console_broker})
    for _ in range(40):
        producer.produce("lasting", b"x" * 500_000)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    return "lasting"


def opened(console, path):
    """A connection that has asked, and never reads."""
    host, _, port = console.address.rpartition(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((host, int(port)))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {console.address}\r\n\r\n".encode())
    return connection


def wait_until(condition):
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("path", "kind", "most"), [("export", "exports", 8), ("tail/events", "tails", 32)]
)
def test_so_many_at_once_and_given_back_when_they_leave(console, browser, topic, path, kind, most):
    streams = getattr(console.console, kind)
    address = f"/topics/{topic}/{path}"
    browser.get(f"/topics/{topic}.json")  # all ask at the same time, of what is cached
    connections = [opened(console, address) for _ in range(most + 5)]
    try:
        wait_until(lambda: streams.open_count == most)
        answer = browser.get(address)
        assert (answer.status, f"{most} " in answer.text) == (503, True)
        assert streams.open_count == most
    finally:
        for connection in connections:
            connection.close()
    wait_until(lambda: streams.open_count == 0)


def test_a_client_that_disconnected_before_the_start_is_not_counted():
    async def disconnected():
        return {"type": "http.disconnect"}

    async def source():
        while True:
            yield b"x"
            await asyncio.sleep(0)

    async def send(message):
        await asyncio.sleep(0)

    streams = StreamLimit(1, 1, "things")
    streams.acquire("")
    with pytest.raises(NotReady):
        streams.acquire("")
    answer = Stream(source(), lambda: streams.release(""), media_type="text/plain", headers={})
    asyncio.run(asyncio.wait_for(answer({"type": "http"}, disconnected, send), TIMEOUT_S))
    assert streams.open_count == 0


def test_a_user_leaves_places_to_the_others():
    streams = StreamLimit(3, 2, "things")
    streams.acquire("alice")
    streams.acquire("alice")
    with pytest.raises(NotReady, match="alice has 2 things open"):
        streams.acquire("alice")
    streams.acquire("bob")
    with pytest.raises(NotReady, match="3 things are open"):
        streams.acquire("carol")
    streams.release("alice")
    streams.acquire("alice")
    for user in ("alice", "alice", "bob"):
        streams.release(user)
    assert streams.open_count == 0
    for _ in range(3):  # without sign-in there are no users
        streams.acquire("")
    with pytest.raises(NotReady):
        streams.acquire("")
