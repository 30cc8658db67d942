"""What a connection makes of whatever answers; the broker is a script here."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headwater.client.connection import Connection
from headwater.errors import MalformedMessage, RequestRefused
from headwater.protocol.messages.api_versions import (
    ApiVersionsResponse,
    ApiVersionsResponseApiVersion,
    ApiVersionsResponseFinalizedFeatureKey,
)
from headwater.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headwater.protocol.messages.metadata import MetadataRequest, MetadataResponse

Answer = Callable[[int, int, int], bytes]  # (api key, version, correlation id) to what is sent


@contextmanager
def scripted(answer: Answer) -> Iterator[str]:
    """The address of what answers each request of one connection so, and ends it after b""."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, peer.makefile("rb") as requests, contextlib.suppress(ConnectionError):
            while size := requests.read(4):
                head = requests.read(*struct.unpack(">i", size))
                said = answer(*struct.unpack_from(">hhi", head))
                if not said:
                    return
                peer.sendall(said)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()
        thread.join()


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def capabilities(correlation_id: int, version: int = 3, **fields) -> bytes:
    keys = [
        ApiVersionsResponseApiVersion(key=3, min_version=0, max_version=99),
        ApiVersionsResponseApiVersion(key=26, min_version=0, max_version=2),
    ]
    body = ApiVersionsResponse(api_keys=keys, **fields).encode(version)
    return framed(struct.pack(">i", correlation_id) + bytes(body))


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", MalformedMessage),
        (struct.pack(">i", -5), MalformedMessage),
        (framed(struct.pack(">i", 77) + bytes(20)), MalformedMessage),  # of another request
        (framed(struct.pack(">i", 1) + b"\x00\x00\xff"), MalformedMessage),  # cut short
        (b"", ConnectionError),
        (b"\x00\x00\x00\x40half", TimeoutError),
    ],
)
def test_what_is_no_answer(said: bytes, error: type[Exception]) -> None:
    with (
        scripted(lambda *_: said) as address,
        Connection(address, timeout_s=0.5) as connection,
        pytest.raises(error),
    ):
        connection.exchange(MetadataRequest(topics=[]), MetadataResponse, 12)


def test_a_broker_that_drips_does_not_hold_us_for_longer_than_the_timeout() -> None:
    def drip(*_: int) -> bytes:
        time.sleep(0.1)
        return struct.pack(">i", 1 << 20)

    with scripted(drip) as address, Connection(address, timeout_s=0.4) as connection:
        for _ in range(100):
            connection.send(MetadataRequest(topics=[]), MetadataResponse, 12)
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.receive()
        assert time.monotonic() - began_s < 5  # and not 10


def test_the_highest_version_that_both_have() -> None:
    asked = []

    def answer(key: int, version: int, correlation_id: int) -> bytes:
        asked.append((key, version))
        if key == 18:
            features = [
                ApiVersionsResponseFinalizedFeatureKey(name="some.version", max_version_level=2)
            ]
            return capabilities(correlation_id, finalized_features=features)
        return framed(struct.pack(">i", correlation_id) + EndTxnResponse().encode(version))

    with scripted(answer) as address, Connection(address, timeout_s=60) as connection:
        connection.ask(EndTxnRequest(), EndTxnResponse, first=0, last=5)
        connection.ask(EndTxnRequest(), EndTxnResponse, first=0, last=1)
        with pytest.raises(RequestRefused, match="does not serve EndTxn"):
            connection.ask(EndTxnRequest(), EndTxnResponse, first=3, last=5)
        assert connection.feature("some.version") == 2
        assert connection.feature("another.version") == 0
    assert asked == [(18, 3), (26, 2), (26, 1)]


def test_a_broker_that_does_not_know_our_api_versions() -> None:
    def answer(key: int, version: int, correlation_id: int) -> bytes:
        refusal = 35 if version == 3 else 0  # in version 0, whatever was asked for (KIP-511)
        return capabilities(correlation_id, 0, error_code=refusal)

    with scripted(answer) as address, Connection(address, timeout_s=60) as connection:
        assert connection.version(MetadataRequest, 4, 12) == 12
        assert connection.feature("transaction.version") == 0


def test_answers_come_in_the_order_of_the_requests(headwater_address: str) -> None:
    with Connection(headwater_address) as connection:
        for version in (9, 12, 1, 10):
            connection.send(MetadataRequest(topics=[]), MetadataResponse, version)
        assert [len(connection.receive().brokers) for _ in range(4)] == [1] * 4
