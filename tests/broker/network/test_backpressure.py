"""Clients that flood or sleep: they cost little, and no other client is slowed down."""

import asyncio
import contextlib
import os
import resource
import socket
import struct
import threading
import time

import pytest
from support import wire
from support.clients.broker_process import BrokerProcess
from support.wire import Wire, batch_of, framed, payload, wait_until

from headwater.broker.network import server as server_module
from headwater.protocol.messages.api_versions import ApiVersionsRequest
from headwater.protocol.messages.metadata import MetadataRequest
from headwater.settings import BrokerSettings
from headwater.testing import FaultyFiles, InProcessBroker

MIB = 1 << 20


@pytest.fixture
def process(tmp_path):
    """A broker in a process of its own, so that its memory is measured apart from the test's."""
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


def _rss_bytes(broker: BrokerProcess) -> int:
    with open(f"/proc/{broker._child.pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _fill(address: str, topic: str, size_bytes: int) -> None:
    """Batches of 1 MB."""
    with Wire(address) as client:
        client.create_topic(topic)
        batch = batch_of(*[bytes(10_000)] * 100)
        count = size_bytes // len(batch) + 1
        for _ in range(count):
            client.send(wire.produce_request(topic, batch), 9)
        for _ in range(count):
            assert client.receive().responses[0].partition_responses[0].error_code == 0


def _go_rounds(address: str, topic: str, count: int) -> float:
    """Writes and reads back; how long the slowest round took."""
    slowest_s = 0.0
    with Wire(address) as client:
        client.create_topic(topic)
        for _ in range(count):
            began_s = time.monotonic()
            offset = client.produce(topic, batch_of(b"x")).base_offset
            assert wire.records_in(client.fetch(topic, offset).records)[0].offset == offset
            slowest_s = max(slowest_s, time.monotonic() - began_s)
    return slowest_s


# ── consumers that sleep ──────────────────────────────────────────────────────────────────────


def test_consumers_that_never_read_cost_little(process):
    _fill(process.address, "big", 60 * MIB)
    wanted = wire.fetch_request("big", 0, partition_max_bytes=50 * MIB)
    before = _rss_bytes(process)
    with wire.many(process.address, 100, receive_buffer_bytes=4096) as sleepers:
        for sleeper in sleepers:
            sleeper.send(wanted, 12)
        for sleeper in sleepers:  # each has begun to get its answer
            assert sleeper.socket.recv(4, socket.MSG_PEEK)
        assert _go_rounds(process.address, "beside", 50) < 5.0
        with Wire(process.address) as reader:
            assert len(reader.fetch("big", 0, partition_max_bytes=50 * MIB).records) > 45 * MIB
        # 5 GB are asked for. A chunk and what a transport holds back, for each, is 50 MiB.
        assert _rss_bytes(process) - before < 120 * MIB
        # One that wakes up gets all of it.
        assert len(sleepers[50].receive().responses[0].partitions[0].records) > 45 * MIB


def test_a_client_that_asks_and_never_reads_is_not_worked_for(tmp_path):
    settings = BrokerSettings(listen="127.0.0.1:0", default_partitions=500)
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        with Wire(broker.bootstrap) as setup:
            setup.create_topic("wide")
        flood = framed(payload(MetadataRequest(topics=None), 12)) * 5000
        answered = broker.running.broker.metrics.requests

        def has_come_to_rest() -> bool:
            before = answered[MetadataRequest.api_key]
            time.sleep(0.2)
            return answered[MetadataRequest.api_key] == before

        with Wire(broker.bootstrap, receive_buffer_bytes=4096) as sleeper:
            sleeper.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sleeper.socket.send(flood)
            wait_until(has_come_to_rest)
            # Of 20 KB each: what the kernel takes, and no more.
            assert answered[MetadataRequest.api_key] < 500
            assert _go_rounds(broker.bootstrap, "beside", 10) < 5.0


# ── producers that flood ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("acks", "value_bytes"), [(-1, 10), (-1, 100_000), (0, 10), (0, 100_000)])
def test_a_producer_that_never_reads_is_held_back(process, acks, value_bytes):
    with Wire(process.address) as setup:
        setup.create_topic("flooded")
    before = _rss_bytes(process)
    request = framed(
        payload(wire.produce_request("flooded", batch_of(bytes(value_bytes)), acks=acks), 9)
    )
    flood = memoryview(request * max(1, 2 * MIB // len(request)))
    sent_bytes, deadline_s = 0, time.monotonic() + 2
    with Wire(process.address, receive_buffer_bytes=4096) as producer:
        producer.socket.settimeout(0.5)
        try:
            while time.monotonic() < deadline_s:
                sent_bytes += producer.socket.send(flood[sent_bytes % len(flood) :])
        except TimeoutError:
            pass  # with answers, for good; without, the disk sets the pace
        assert _go_rounds(process.address, "beside", 20) < 5.0
        assert _rss_bytes(process) - before < 96 * MIB
        if acks == 0:
            with Wire(process.address) as reader:
                count = sent_bytes // len(request)
                wait_until(lambda: reader.fetch("flooded", 0).high_watermark >= count, 60)


def test_a_slow_disk_slows_the_producer_instead_of_filling_the_memory(tmp_path):
    """The bytes of batches on their way to the disk are counted, also of clients that went."""
    files = FaultyFiles()
    files.before_sync = lambda path: time.sleep(0.02) if path.endswith(".log") else None
    settings = BrokerSettings(listen="127.0.0.1:0", max_buffered_bytes=16 * MIB)
    broker = InProcessBroker(str(tmp_path), settings, files=files)
    broker.start()
    server = broker.running.server
    request = framed(payload(wire.produce_request("slow", batch_of(bytes(500_000)), acks=0), 9))
    with Wire(broker.bootstrap) as setup:
        setup.create_topic("slow")
    most_bytes = 0
    for _ in range(40):
        with Wire(broker.bootstrap) as producer:
            producer.raw(request * 4)
            producer.socket.shutdown(socket.SHUT_WR)
            assert producer.is_ended()
        most_bytes = max(most_bytes, server.buffered_bytes)
    assert most_bytes < 16 * MIB + 4 * len(request)
    wait_until(lambda: server.buffered_bytes == 0)
    broker.stop()


def test_a_stalled_disk_ends_no_connection(tmp_path, monkeypatch):
    """Each has as much in work as it may and half a request behind it; that is not its fault."""
    monkeypatch.setattr(server_module, "SWEEP_S", 0.1)
    files, may_sync = FaultyFiles(), threading.Event()
    may_sync.set()
    files.before_sync = lambda path: may_sync.wait(60)
    settings = BrokerSettings(listen="127.0.0.1:0", max_buffered_bytes=60 * MIB)
    broker = InProcessBroker(str(tmp_path), settings, files=files)
    broker.start()
    server = broker.running.server
    request = framed(payload(wire.produce_request("slow", batch_of(bytes(900_000))), 9))

    def flood(producer: Wire) -> None:
        for _ in range(11):
            producer.raw(request)

    with Wire(broker.bootstrap) as setup:
        setup.create_topic("slow")
    with wire.many(broker.bootstrap, 9) as producers:
        may_sync.clear()
        threads = [threading.Thread(target=flood, args=(producer,)) for producer in producers]
        for thread in threads:
            thread.start()
        wait_until(lambda: server.buffered_bytes > 50 * MIB)
        swept_s = time.monotonic() + 1.0
        wait_until(lambda: time.monotonic() > swept_s)
        assert broker.running.broker.metrics.connections_refused == 0
        assert server.buffered_bytes <= 61 * MIB
        may_sync.set()
        for thread in threads:
            thread.join(60)
        for producer in producers:
            for _ in range(11):
                assert producer.receive_frame()
    wait_until(lambda: server.buffered_bytes == 0)
    broker.stop()


# ── the bound over all connections ────────────────────────────────────────────────────────────


def test_the_bound_over_all_connections_holds_and_lets_go(tmp_path):
    settings = BrokerSettings(listen="127.0.0.1:0", max_buffered_bytes=4 * MIB)
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        server = broker.running.server
        with Wire(broker.bootstrap) as setup:
            setup.create_topic("shared")
        request = framed(payload(wire.produce_request("shared", batch_of(bytes(900_000))), 9))
        with wire.many(broker.bootstrap, 20) as producers:
            for producer in producers:  # the start of a request each: 18 MB if all were taken in
                producer.socket.setblocking(False)
            unsent = {producer: memoryview(request) for producer in producers}
            deadline_s = time.monotonic() + 60
            most_bytes = 0
            while unsent:
                assert time.monotonic() < deadline_s
                for client, rest in list(unsent.items()):
                    try:
                        unsent[client] = rest[client.socket.send(rest[:50_000]) :]
                    except BlockingIOError:
                        continue
                    if not unsent[client]:
                        del unsent[client]
                most_bytes = max(most_bytes, server.buffered_bytes)
            for producer in producers:
                producer.socket.settimeout(wire.TIMEOUT_S)
                assert producer.receive_frame()
        assert most_bytes < 6 * MIB  # at the bound, each connection may add one read
        wait_until(lambda: server.buffered_bytes == 0)


def test_unfinished_requests_lose_their_room_to_those_who_wait(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(server_module, "SWEEP_S", 0.2)
    settings = BrokerSettings(listen="127.0.0.1:0", max_buffered_bytes=4 * MIB)
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        server = broker.running.server
        with Wire(broker.bootstrap) as client, wire.many(broker.bootstrap, 4) as attackers:
            client.create_topic("large")
            for attacker in attackers:
                attacker.raw(struct.pack(">i", MIB) + bytes(MIB // 2))
            wait_until(
                lambda: sum(connection.is_admitted for connection in server.connections) == 2
            )
            # Small requests pass beside them.
            assert _go_rounds(broker.bootstrap, "beside", 10) < 5.0
            # A large one waits until one of them is ended, for sending nothing.
            assert client.produce("large", batch_of(bytes(900_000))).error_code == 0
            assert "others wait for the room of its request of 1048576 bytes" in caplog.text
        wait_until(lambda: not server.connections)
        assert server.buffered_bytes == 0


def test_a_request_larger_than_all_the_room_gets_its_turn(tmp_path):
    settings = BrokerSettings(
        listen="127.0.0.1:0",
        max_buffered_bytes=MIB,
        topic_defaults={"max.message.bytes": "9999999"},
    )
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        with wire.many(broker.bootstrap, 4) as clients:
            clients[0].create_topic("large")
            for other in clients:
                other.send(wire.produce_request("large", batch_of(bytes(3_000_000))), 9)
            for other in clients:
                assert other.receive().responses[0].partition_responses[0].error_code == 0
        wait_until(lambda: not broker.running.server.connections)
        assert broker.running.server.buffered_bytes == 0


# ── retention under a slow reader ─────────────────────────────────────────────────────────────


def test_a_slow_reader_gets_whole_what_retention_deletes_meanwhile(tmp_path):
    # More than the two kernels' buffers between us take.
    defaults = {"segment.bytes": str(24 * MIB), "retention.bytes": str(2 * MIB)}
    settings = BrokerSettings(listen="127.0.0.1:0", topic_defaults=defaults)
    with InProcessBroker.serving(str(tmp_path), settings) as broker:
        _fill(broker.bootstrap, "cut", 60 * MIB)
        partition = broker.running.store.partitions["cut", 0]
        first = partition.segments[0].log_path
        with Wire(broker.bootstrap, receive_buffer_bytes=4096) as slow:
            slow.send(wire.fetch_request("cut", 0, partition_max_bytes=23 * MIB), 12)
            assert slow.socket.recv(4, socket.MSG_PEEK)
            future = _on_loop(broker, broker.running.broker.retain())
            future.result(wire.TIMEOUT_S)
            assert partition.log_start_offset > 0
            assert os.path.exists(first)
            answer = slow.receive().responses[0].partitions[0]
            offsets = [record.offset for record in wire.records_in(answer.records)]
            assert offsets == list(range(len(offsets)))
            assert len(offsets) >= 2000
            wait_until(lambda: not os.path.exists(first))
            assert slow.fetch("cut", 0).error_code == 1


def _on_loop(broker: InProcessBroker, work):
    return asyncio.run_coroutine_threadsafe(work, broker._loop)


# ── many ──────────────────────────────────────────────────────────────────────────────────────


def test_two_thousand_connections(process):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("not enough descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    before = _rss_bytes(process)
    with wire.many(process.address, 2000) as clients:
        for other in clients:
            other.send(ApiVersionsRequest(), 0)
        for other in clients:
            other.receive()
        assert _rss_bytes(process) - before < 64 * MIB
        assert _go_rounds(process.address, "beside", 20) < 5.0
