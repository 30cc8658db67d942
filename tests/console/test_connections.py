"""A client that holds silent connections open does not delay the answers to other clients."""

import re
import socket
import time
from contextlib import ExitStack

import pytest
from confluent_kafka import Producer
from support.certificates import Authority
from support.console.serving import serving

from headwater.web import connections

TIMEOUT_S = 60.0
HEAD = b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n"
FORM = (
    b"POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n"
)


@pytest.fixture
def impatient(monkeypatch):
    """Deadlines that a test can wait for, and that a busy machine meets."""
    for name in ("HEAD_LIMIT_S", "BODY_LIMIT_S", "READING_LIMIT_S"):
        monkeypatch.setattr(connections, name, 1.5)
    monkeypatch.setattr(connections, "_CHECK_INTERVAL_S", 0.05)


@pytest.fixture
def impatient_console(tmp_path, console_broker, impatient):
    with serving(tmp_path, broker__bootstrap=console_broker) as served:
        yield served


def connected(served, source="127.0.0.1", receive_bytes=None):
    connection = socket.socket()
    connection.settimeout(TIMEOUT_S)
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.bind((source, 0))
    host, _, port = served.address.rpartition(":")
    connection.connect((host, int(port)))
    return connection


def ends(connection, drip=b""):
    """Waits until the console has ended it; meanwhile sends a byte now and then."""
    until_s = time.monotonic() + TIMEOUT_S
    connection.settimeout(0.05)
    while time.monotonic() < until_s:
        try:
            if drip:
                connection.sendall(drip)
            if not connection.recv(65536):
                return True
        except TimeoutError:
            continue
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("begin", "drip"),
    [
        (b"", b""),  # silent
        (b"GET /live HTTP/1.1\r\nX: ", b"x"),  # a head that does not end
        (HEAD + b"\r\n" + b"GET / HTTP/1.1\r\nX: ", b"x"),  # the second one
        (HEAD + b"Content-Length: 1000000\r\n\r\n", b"x"),  # a body that is not expected
        (FORM + b"Content-Length: 50000\r\n\r\n", b"x"),
        (FORM + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    ],
)
def test_a_request_that_does_not_come_ends_its_connection(impatient_console, begin, drip, caplog):
    with connected(impatient_console) as connection:
        connection.sendall(begin)
        assert ends(connection, drip)
    assert impatient_console.browser().get("/live").status == 200
    assert not [record for record in caplog.records if record.exc_info]


def test_forms_that_do_not_end_are_bounded_together(tmp_path, monkeypatch):
    monkeypatch.setattr("headwater.console.web.security._MAX_BUFFERED_BYTES", 3_050_000)
    with serving(tmp_path) as served:
        token = served.browser().token()
        fields = {"csrf": token, "name": "x" * 100_000}
        with ExitStack() as stack:
            for _ in range(3):
                connection = stack.enter_context(connected(served))
                connection.sendall(FORM + b"Content-Length: 2000000\r\n\r\n" + b"x" * 1_000_000)
            wait_until(lambda: served.browser().post("/sign-in", fields, token=False).status == 503)
        # They have ended.
        wait_until(lambda: served.browser().post("/sign-in", fields, token=False).status == 403)


def test_a_connection_that_asks_again_and_again_goes_on(impatient_console):
    with connected(impatient_console) as connection, connection.makefile("rb") as answers:
        until_s = time.monotonic() + 3 * connections.HEAD_LIMIT_S
        while time.monotonic() < until_s:
            connection.sendall(HEAD + b"\r\n")
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            while (line := answers.readline()) != b"\r\n":
                if found := re.match(rb"content-length: (\d+)", line):
                    size_bytes = int(found[1])
            assert answers.read(size_bytes) == b"alive\n"
            time.sleep(0.1)


def test_one_who_does_not_read_gives_the_place_back(impatient_console, console_broker):
    """An export of 20 MB, of which nothing is taken."""
    producer = Producer({"bootstrap.servers": console_broker})
    for _ in range(40):
        producer.produce("unread", b"x" * 500_000)
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    console = impatient_console.console
    with connected(impatient_console, receive_bytes=4096) as connection:
        connection.sendall(b"GET /topics/unread/export HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_until(lambda: console.requests.get(200))  # it has begun
        wait_until(lambda: console.exports.open_count == 0)


def test_a_tail_that_is_not_read_gives_the_place_back(
    impatient_console, console_broker, monkeypatch
):
    monkeypatch.setattr("headwater.console.pages.topics.tail._PAUSE_S", 0.01)
    producer = Producer({"bootstrap.servers": console_broker})
    producer.produce("unread-tail", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    console = impatient_console.console

    def write():
        for _ in range(200):
            producer.produce("unread-tail", b"x" * 400)
        assert producer.flush(TIMEOUT_S) == 0

    with connected(impatient_console, receive_bytes=4096) as connection:
        connection.sendall(
            b"GET /topics/unread-tail/tail/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        )
        wait_until(lambda: console.tails.open_count == 1)
        wait_until(lambda: write() or console.tails.open_count == 0)


def test_a_quiet_tail_goes_on(impatient_console, console_broker):
    """It waits for records, not for its reader."""
    producer = Producer({"bootstrap.servers": console_broker})
    producer.produce("quiet", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    with connected(impatient_console) as connection:
        connection.sendall(b"GET /topics/quiet/tail/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        with connection.makefile("rb") as events:
            while b"event: records" not in events.readline():
                pass
            time.sleep(3 * connections.READING_LIMIT_S)  # a pause that would end it
            producer.produce("quiet", b"the second record")
            assert producer.flush(TIMEOUT_S) == 0
            while b"the second record" not in events.readline():
                pass


def test_many_silent_connections_keep_no_client_out(tmp_path, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 40)
    monkeypatch.setattr(connections, "HEAD_LIMIT_S", 600)  # the bound ends them, not the deadline
    with serving(tmp_path) as served, ExitStack() as stack:
        other = stack.enter_context(connected(served, "127.0.0.2"))
        other.sendall(HEAD)
        silent = [stack.enter_context(connected(served)) for _ in range(100)]
        for _ in range(100):
            assert served.browser().get("/live").status == 200
        # The room is shared by address: one that fills its half does not end another's.
        other.sendall(b"\r\n")
        assert other.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")
        assert ends(silent[0])
        # All together they are bounded, too: those of the address with the most end first.
        crowd = [stack.enter_context(connected(served, f"127.0.1.{n}")) for n in range(1, 100)]
        assert served.browser().get("/live").status == 200
        assert ends(crowd[0])


def test_connections_without_a_tls_handshake_end(tmp_path, impatient, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 40)
    authority = Authority(tmp_path)
    certificate, key = authority.issue("console", CN="console")
    with (
        serving(tmp_path, console__tls_cert=certificate, console__tls_key=key) as served,
        ExitStack() as stack,
    ):
        silent = [stack.enter_context(connected(served)) for _ in range(100)]
        assert all(map(ends, silent))


def wait_until(condition):
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)
