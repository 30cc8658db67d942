"""Bytes that no honest client sends: they end their own connection and touch nothing else."""

import logging
import os
import random
import re
import socket
import struct
import threading
import time
import urllib.request
from typing import get_args, get_origin
from uuid import UUID

import pytest
from support import wire
from support.clients.broker_process import BrokerProcess
from support.wire import Wire, batch_of, framed, payload, wait_until
from tiers import long

from headwater.broker.api import load_all
from headwater.broker.api.registry import APIS
from headwater.broker.network import server as server_module
from headwater.broker.network.envelope import MAX_ELEMENTS
from headwater.protocol import schema
from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.messages.metadata import MetadataRequest
from headwater.protocol.schema import Message
from headwater.settings import BrokerSettings
from headwater.testing import FakeClock, InProcessBroker

load_all()

SEED = 20261115


def _rss_bytes(process: int | str = "self") -> int:
    with open(f"/proc/{process}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Neighbour(threading.Thread):
    """A well-behaved client that writes and reads back all the while."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._wire = Wire(address)
        self._wire.create_topic("neighbour")
        self._over = threading.Event()
        self.rounds = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self.go_round()
        except BaseException as error:
            self.error = error

    def go_round(self) -> None:
        value = b"%d" % self.rounds
        answer = self._wire.produce("neighbour", batch_of(value))
        assert (answer.error_code, answer.base_offset) == (0, self.rounds)
        read = self._wire.fetch("neighbour", self.rounds)
        assert [record.value for record in wire.records_in(read.records)] == [value]
        self.rounds += 1

    def finish(self) -> None:
        """Fails unless all went well until now, and still does."""
        self._over.set()
        self.join(60)
        assert self.error is None, repr(self.error)
        self.go_round()
        self._wire.close()


@pytest.fixture
def broker(headwater_broker, caplog):
    """With a neighbour beside every attack; it must not notice."""
    caplog.set_level(logging.WARNING)
    neighbour = Neighbour(headwater_broker.bootstrap)
    neighbour.start()
    yield headwater_broker
    neighbour.finish()


def _refused(broker) -> int:
    return broker.running.broker.metrics.connections_refused


def _is_refused(broker, caplog, data: bytes, reason: str) -> None:
    """The bytes end their connection, with that reason in the log and a count."""
    before = _refused(broker)
    with Wire(broker.bootstrap) as attacker:
        attacker.raw(data)
        assert attacker.is_ended()
    wait_until(lambda: _refused(broker) > before)
    assert re.search(reason, caplog.text), caplog.text


# ── sizes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size_bytes", [2**31 - 1, -1, -(2**31), 0, 7, 104_857_601])
def test_a_length_that_cannot_be(broker, caplog, size_bytes):
    data = struct.pack(">i", size_bytes) + b"x" * 100
    _is_refused(broker, caplog, data, rf"a request of {size_bytes} bytes")


def test_an_announced_length_costs_nothing_until_it_comes(broker):
    before = _rss_bytes()
    with wire.many(broker.bootstrap, 100) as attackers:
        for attacker in attackers:
            attacker.raw(struct.pack(">i", 100 << 20) + b"\x00")
        server = broker.running.server
        wait_until(
            lambda: (
                sum(connection.receiver.frame_bytes > 0 for connection in server.connections) == 100
            )
        )
        assert _rss_bytes() - before < 64 << 20
    wait_until(lambda: len(server.connections) == 1)
    assert server.buffered_bytes < 1 << 20


HUGE_COUNT = 2**31 - 1


@pytest.mark.parametrize(
    ("version", "topics"),
    [
        (1, struct.pack(">i", HUGE_COUNT)),
        (1, struct.pack(">i", HUGE_COUNT) + b"\x00\x00" * 1000),
        (12, b"\xff\xff\xff\xff\x0f" + b"\x00" * 1000),
        (12, b"\xff\xff\xff\xff\xff\xff\xff\x7f"),
    ],
)
def test_an_array_that_is_longer_than_its_request(broker, caplog, version, topics):
    head = struct.pack(">hhih", MetadataRequest.api_key, version, 1, -1)
    data = head + (b"\x00" if version >= 9 else b"") + topics
    _is_refused(broker, caplog, framed(data), "array of|varint longer|message ends|inside")


def test_an_array_of_millions_is_refused_before_it_is_read(broker, caplog):
    # Each topic takes 2 bytes on the wire and would take fifty times that in memory.
    count = 5_000_000
    head = struct.pack(">hhih", MetadataRequest.api_key, 1, 1, -1)
    data = head + struct.pack(">i", count) + b"\x00\x00" * count
    before = _rss_bytes()
    began_s = time.monotonic()
    _is_refused(broker, caplog, framed(data), f"more than {MAX_ELEMENTS} elements")
    assert time.monotonic() - began_s < 20
    assert _rss_bytes() - before < 128 << 20


def test_many_arrays_together_are_bounded_too(broker, caplog):
    # 1000 topics of 1000 partitions each, of a fetch that forgets them.
    topic = struct.pack(">h", 0) + struct.pack(">i", 1000) + bytes(4 * 1000)
    data = (
        struct.pack(">hhih", 1, 7, 1, -1)
        + struct.pack(">iiiibiii", -1, 0, 0, 0, 0, 0, -1, 0)
        + struct.pack(">i", 1000)
        + topic * 1000
    )
    _is_refused(broker, caplog, framed(data), f"more than {MAX_ELEMENTS} elements")


# ── contents ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (struct.pack(">hhih", 999, 0, 1, -1), "API key 999 is not served"),
        (struct.pack(">hhih", -1, 0, 1, -1), "API key -1 is not served"),
        (struct.pack(">hhih", 0, 99, 1, -1), "Produce version 99 is not served"),
        (struct.pack(">hhih", 0, 2, 1, -1), "Produce version 2 is not served"),
        (struct.pack(">hhih", 1, -1, 1, -1), "Fetch version -1 is not served"),
        (struct.pack(">hhih", 3, 1, 1, 30_000), "30000 bytes wanted"),
        (struct.pack(">hhih", 3, 1, 1, 2) + b"\xff\xfe", "not UTF-8"),
        (struct.pack(">hhi", 3, 1, 1), "message ends"),
    ],
)
def test_a_request_that_makes_no_sense(broker, caplog, data, reason):
    _is_refused(broker, caplog, framed(data), reason)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "the client speaks HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "the client speaks TLS"),
        (b"EHLO broker\r\n", "a request of 1162366031 bytes"),
    ],
)
def test_other_protocols_are_refused(broker, caplog, data, reason):
    _is_refused(broker, caplog, data, reason)


def test_bytes_behind_a_request_are_ignored_as_in_kafka(broker):
    with Wire(broker.bootstrap) as client:
        client.raw(framed(payload(ApiVersionsRequest(), 0) + b"and more"))
        client.receive_frame()
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_an_unknown_version_of_api_versions_is_answered(broker):
    with Wire(broker.bootstrap) as client:
        client.raw(framed(struct.pack(">hhih", 18, 77, 5, -1) + b"\x00"))
        frame = client.receive_frame()
        assert frame[:6] == struct.pack(">ih", 5, 35)
        assert client.ask(ApiVersionsRequest(), 0).error_code == 0


def test_what_follows_a_malformed_request_is_not_begun(broker, caplog):
    with Wire(broker.bootstrap) as attacker:
        attacker.create_topic("untouched")
        good = framed(payload(wire.produce_request("untouched", batch_of(b"x")), 9))
        attacker.raw(framed(struct.pack(">hhih", 999, 0, 1, -1)) + good * 100)
        assert attacker.is_ended()
    with Wire(broker.bootstrap) as client:
        assert client.fetch("untouched", 0).high_watermark == 0


# ── timing ────────────────────────────────────────────────────────────────────────────────────


def test_a_request_that_comes_byte_by_byte_is_answered(broker):
    with Wire(broker.bootstrap) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(payload(ApiVersionsRequest(), 0)):
            client.raw(bytes([byte]))
        client.receive_frame()


def test_requests_by_the_hundred_are_answered_in_order(broker):
    with Wire(broker.bootstrap) as client:
        topic = client.create_topic("pipelined")
        assert len(topic.partitions) == 1
        for number in range(300):
            match number % 3:
                case 0:
                    client.send(wire.produce_request("pipelined", batch_of(b"x")), 9)
                case 1:
                    client.send(wire.fetch_request("pipelined", 0), 12)
                case 2:
                    client.send(ApiVersionsRequest(), 0)
        for number in range(300):  # `receive` compares the correlation ids
            answer = client.receive()
            if number % 3 == 0:
                assert answer.responses[0].partition_responses[0].base_offset == number // 3
            if number % 3 == 1:  # a fetch sees what was written before it
                assert answer.responses[0].partitions[0].high_watermark >= number // 3 + 1


@pytest.fixture
def quick_sweeps(monkeypatch):
    monkeypatch.setattr(server_module, "SWEEP_S", 0.05)


@pytest.fixture
def timed(quick_sweeps, tmp_path):
    """A broker, and what turns its clock (on its own event loop, where the timers belong)."""
    clock = FakeClock(int(time.time() * 1000))
    broker = InProcessBroker(
        str(tmp_path / "log"), BrokerSettings(listen="127.0.0.1:0"), clock=clock
    )
    broker.start()

    def advance(seconds: float) -> None:
        broker._loop.call_soon_threadsafe(clock.advance, seconds)

    yield broker, advance
    broker.stop()


@pytest.mark.parametrize("part", [b"\x00", struct.pack(">i", 100), struct.pack(">ih", 100, 3)])
def test_half_a_request_and_silence(timed, caplog, part):
    broker, advance = timed
    with Wire(broker.bootstrap) as attacker, Wire(broker.bootstrap) as client:
        client.ask(ApiVersionsRequest(), 0)
        attacker.raw(part)
        connections = broker.running.server.connections
        wait_until(lambda: any(connection.is_in_frame for connection in connections))
        advance(29)
        attacker.socket.settimeout(0.3)
        assert not attacker.is_ended()
        advance(2)
        attacker.socket.settimeout(wire.TIMEOUT_S)
        assert attacker.is_ended()
        assert "half a request, then silence" in caplog.text
        client.ask(ApiVersionsRequest(), 0)


def test_an_idle_connection_is_let_go_without_blame(timed, caplog):
    broker, advance = timed
    with Wire(broker.bootstrap) as idle, Wire(broker.bootstrap) as busy:
        idle.ask(ApiVersionsRequest(), 0)
        advance(599)
        busy.ask(ApiVersionsRequest(), 0)
        advance(2)
        assert idle.is_ended()
        busy.ask(ApiVersionsRequest(), 0)
        assert _refused(broker) == 0


# ── numbers ───────────────────────────────────────────────────────────────────────────────────


def test_connections_beyond_the_limit_are_refused(tmp_path, caplog):
    settings = BrokerSettings(listen="127.0.0.1:0", max_connections=20)
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        with wire.many(broker.bootstrap, 20) as clients:
            for other in clients:
                other.ask(ApiVersionsRequest(), 0)
            with Wire(broker.bootstrap) as late:
                assert late.is_ended()
            assert "more than 20 connections" in caplog.text
            assert _refused(broker) == 1
            for other in clients:
                other.ask(ApiVersionsRequest(), 0)
        wait_until(lambda: not broker.running.server.connections)
        with Wire(broker.bootstrap) as client:  # there is room again
            client.ask(ApiVersionsRequest(), 0)


def test_a_flood_of_bad_connections_does_not_flood_the_log(broker, caplog):
    for _ in range(200):
        with Wire(broker.bootstrap) as attacker:
            attacker.raw(struct.pack(">i", -5))
    wait_until(lambda: _refused(broker) == 200)
    assert caplog.text.count("connection ended") < 100


def test_a_clients_words_cannot_forge_a_line_of_the_log(broker, caplog):
    with Wire(broker.bootstrap) as attacker:
        name = "x\n12:00:00 error all is lost" + "\x1b[31m" + "y" * 10_000
        request = wire.produce_request(name, batch_of(b"x"), acks=0)
        attacker.send(request, 9, is_answered=False)
        assert attacker.is_ended()
    (line,) = [message for message in caplog.messages if "all is lost" in message]
    assert line.isprintable()
    assert len(line) < 600


# ── fuzz ──────────────────────────────────────────────────────────────────────────────────────


def _fuzz(address: str, frames: list[bytes]) -> None:
    """Sends each on a connection of its own, a hundred at a time, and waits for what it does."""
    for start in range(0, len(frames), 100):
        part = frames[start : start + 100]
        with wire.many(address, len(part)) as attackers:
            for attacker, frame in zip(attackers, part, strict=True):
                attacker.raw(frame)
                attacker.socket.shutdown(socket.SHUT_WR)
            for attacker in attackers:
                try:
                    while attacker.socket.recv(1 << 16):
                        pass
                except ConnectionResetError:
                    pass


def _random_frames(chance: random.Random) -> list[bytes]:
    frames = []
    for api in APIS.values():
        for _ in range(12):
            version = chance.randint(api.first, api.last)
            head = struct.pack(">hhih", api.key, version, 1, -1)
            frames.append(framed(head + b"\x00" + chance.randbytes(chance.randint(0, 200))))
    return frames


def _mutated_frames(chance: random.Random) -> list[bytes]:
    frames = []
    for api in APIS.values():
        for version in range(api.first, api.last + 1):
            for _ in range(8):
                valid = payload(_filled(api.request, version, chance), version)
                frames += [framed(valid), framed(_mutated(valid, chance))]
    for version in range(3, 14):
        valid = payload(wire.produce_request("fuzzed", batch_of(b"a", b"b")), version)
        frames += [framed(_mutated(valid, chance)) for _ in range(20)]
    for version in range(4, 19):
        valid = payload(wire.fetch_request("neighbour", 0, session_id=0, session_epoch=0), version)
        frames += [framed(_mutated(valid, chance)) for _ in range(20)]
    return frames


def test_random_bytes_for_every_api(broker, caplog):
    _fuzz(broker.bootstrap, _random_frames(random.Random(SEED)))
    assert "Traceback" not in caplog.text, caplog.text


def test_mutated_requests_of_every_api(broker, caplog):
    _fuzz(broker.bootstrap, _mutated_frames(random.Random(SEED + 1)))
    assert "Traceback" not in caplog.text, caplog.text


@long
def test_a_broker_process_bears_it_too(tmp_path):
    """It has another event loop, and its memory can be measured apart from the test's."""
    with BrokerProcess(tmp_path / "data") as process:
        neighbour = Neighbour(process.address)
        neighbour.start()
        chance = random.Random(SEED + 2)
        _fuzz(process.address, _random_frames(chance))
        before = _rss_bytes(process._child.pid)
        for _ in range(3):
            _fuzz(process.address, _random_frames(chance) + _mutated_frames(chance))
        assert _rss_bytes(process._child.pid) - before < 48 << 20
        neighbour.finish()
    logged = (tmp_path / "data.log").read_text()
    assert "connection ended" in logged
    assert "Traceback" not in logged, logged[-5000:]


def _filled(message: type[Message], version: int, chance: random.Random) -> Message:
    """A message that can be sent, with something in every field, be it sense or nonsense."""
    return message(
        **{
            field.name: _value(field.type, field.nullable, version, chance)
            for field in schema._present(message, version)
        }
    )


def _value(kind, nullable: bool, version: int, chance: random.Random):
    if nullable and chance.random() < 0.2:
        return None
    if isinstance(kind, schema.Kind):
        return chance.choice(_VALUES[type(kind.zero)])
    if get_origin(kind) is list:
        bare, element_nullable, _ = schema._split(get_args(kind)[0])
        return [
            _value(bare, element_nullable, version, chance) for _ in range(chance.randint(0, 2))
        ]
    return _filled(kind, version, chance)


_VALUES = {
    int: [-1, 0, 1, 2, 5, 100, 127],  # fits in a byte
    float: [0.0, -1.5, float("nan")],
    str: ["", "fuzzed", "x" * 300, "a/../b", "\u2603", "__consumer_offsets"],
    bytes: [b"", b"x" * 20, bytes(batch_of(b"x", timestamp_ms=0))],
    bool: [True, False],
    UUID: [UUID(int=0), UUID(int=1)],
}


def _mutated(valid: bytearray, chance: random.Random) -> bytes:
    """Behind the API key and version some bytes are changed, cut away or put in."""
    data = bytearray(valid)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(8, len(data))
        match chance.randint(0, 3):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = chance.randbytes(chance.randint(1, 8))
            case 2 if at < len(data):
                data[at] ^= 1 << chance.randint(0, 7)
            case 3:
                data[at : at + 4] = chance.choice([b"\x7f\xff\xff\xff", b"\xff" * 4, bytes(4)])
    return bytes(data)


def test_the_endpoint_for_metrics_bears_noise(tmp_path):
    settings = BrokerSettings(listen="127.0.0.1:0", metrics_listen="127.0.0.1:0")
    chance = random.Random(SEED)
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        for data in (b"\x00" * 100, b"GET", chance.randbytes(50_000), b"POST / HTTP/1.1\r\n\r\n"):
            with Wire(broker.metrics_address) as attacker:
                try:
                    attacker.raw(data)
                    attacker.socket.shutdown(socket.SHUT_WR)
                    while attacker.socket.recv(1 << 16):
                        pass
                except OSError:
                    pass
        with urllib.request.urlopen(f"http://{broker.metrics_address}/live") as answer:
            assert answer.status == 200
