"""Requests to receivers: which addresses are allowed, and answers that are none."""

import asyncio
import ipaddress
import socket
import threading
from contextlib import contextmanager, suppress

import pytest

from headwater.errors import UsageError
from headwater.gateway.webhooks.posting import NoAnswer, Poster
from headwater.gateway.webhooks.targets import (
    ForbiddenTarget,
    check,
    parse_networks,
    parse_target,
    resolve,
)

LOOPBACK = parse_networks(["127.0.0.0/8"])


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0",
        "100.64.0.1", "224.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1",
        "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
        "2002:7f00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    target = parse_target("https://shop.example/")
    with pytest.raises(ForbiddenTarget):
        check(ipaddress.ip_address(address), target, ())
    everywhere = parse_networks(["0.0.0.0/0", "::/0"])
    check(ipaddress.ip_address(address), target, everywhere)


def test_public_addresses_need_https():
    for address in ("8.8.8.8", "2606:4700::1111"):
        check(ipaddress.ip_address(address), parse_target("https://shop.example/"), ())
        with pytest.raises(ForbiddenTarget):
            check(ipaddress.ip_address(address), parse_target("http://shop.example/"), ())


@pytest.mark.parametrize(
    "url",
    [
        "", "shop.example", "ftp://shop.example/", "https://", "https://:443/", "https://a b/",
        "https://shop.example:0/", "https://shop.example:99999/", "https://me@shop.example/",
        "https://shop.example/\r\nHost: other", "https://" + "a" * 3000,
    ],
)  # fmt: skip
def test_what_is_no_address(url):
    with pytest.raises(UsageError):
        parse_target(url)


def test_a_name_is_checked_by_what_it_resolves_to():
    with pytest.raises(ForbiddenTarget):
        asyncio.run(resolve(parse_target("https://localhost/"), ()))
    for odd in ("https://0x7f000001/", "https://2130706433/", "https://127.1/"):
        with pytest.raises((ForbiddenTarget, OSError)):
            asyncio.run(resolve(parse_target(odd), ()))


@contextmanager
def answering(*pieces, closes=True):
    """Answers every connection with this, whatever it asks."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve():
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection, suppress(OSError):
                    connection.recv(1 << 16)
                    for piece in pieces:
                        connection.sendall(piece)
                    if not closes:
                        ended.wait(60)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    finally:
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(60)


def posted(url, timeout_s=30.0):
    async def post():
        poster = Poster(parse_target(url), LOOPBACK, timeout_s)
        try:
            return await poster.post(b"{}", {})
        finally:
            poster.close()

    return asyncio.run(post())


@pytest.mark.parametrize(
    "pieces",
    [
        (),
        (b"\xff" * 1000,),
        (b"HTTP/1.1 200",),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,),
        (b"SSH-2.0-OpenSSH_9.9\r\n",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n",),
    ],
)
def test_answers_that_are_none(pieces):
    with answering(*pieces) as url, pytest.raises(NoAnswer):
        posted(url)


def test_one_that_never_answers_is_not_waited_for():
    with answering(closes=False) as url, pytest.raises(NoAnswer, match="no answer for"):
        posted(url, 0.5)


def test_a_body_without_an_end_is_not_read():
    with answering(b"HTTP/1.1 500 No\r\n\r\n", b"z" * 1_000_000, closes=False) as url:
        answer = posted(url)
    assert answer.status == 500
    assert answer.text == "z" * 300
