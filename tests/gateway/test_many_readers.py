"""Many clients of one topic share one reading, and a slow one costs the others nothing."""

import asyncio
import json
import resource
import time

import pytest
from confluent_kafka import Producer
from support.gateway.serving import TIMEOUT_S, serving
from tiers import count, in_full

from headwater.gateway.reading import feeds, subscription

RECORDS = 50


@pytest.fixture
def many_gateway(tmp_path, gateway_broker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20_000), hard))
    try:
        with serving(tmp_path, broker__bootstrap=gateway_broker) as served:
            yield served
            nothing_is_held(served.gateway)  # when the last client is gone
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def held(gateway):
    """Bytes of requests, bytes of pieces of the log, and streams."""
    return (
        gateway.budget.used_bytes,
        gateway.readers.backlog.used_bytes,
        gateway.streams.open_count,
    )


def nothing_is_held(gateway):
    until_s = time.monotonic() + TIMEOUT_S
    while held(gateway) != (0, 0, 0):
        assert time.monotonic() < until_s, held(gateway)
        time.sleep(0.02)


async def connected(address, path, **options):
    """The two ends of a stream whose head has come."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), **options)
    head = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n\r\n"
    writer.write(head.encode())
    status = await asyncio.wait_for(reader.readline(), TIMEOUT_S)
    assert status == b"HTTP/1.1 200 OK\r\n"
    await asyncio.wait_for(reader.readuntil(b"retry: 1000\n"), TIMEOUT_S)
    return reader, writer


async def offsets(reader, number):
    found = []
    while len(found) < number:
        line = await asyncio.wait_for(reader.readline(), TIMEOUT_S)
        assert line, "the stream has ended"
        if line.startswith(b"data: "):
            found.append(json.loads(line[6:])["offset"])
    return found


@pytest.mark.parametrize("clients", [200, *in_full(1000)])
def test_many_clients_get_every_record(many_gateway, topic, gateway_broker, clients, monkeypatch):
    encoded = []
    made = subscription.Entry
    monkeypatch.setattr(feeds, "Entry", lambda *args: encoded.append(1) or made(*args))

    async def run():
        streams = [
            await connected(many_gateway.address, f"/topics/{topic}") for _ in range(clients)
        ]
        producer = Producer({"bootstrap.servers": gateway_broker})
        for number in range(RECORDS):
            producer.produce(topic, f'{{"n":{number}}}')
        assert await asyncio.to_thread(producer.flush, TIMEOUT_S) == 0
        found = await asyncio.gather(*(offsets(reader, RECORDS) for reader, _ in streams))
        for _, writer in streams:
            writer.close()
        return found

    assert asyncio.run(run()) == [list(range(RECORDS))] * clients
    assert len(encoded) == RECORDS  # once for all of them


def test_a_client_that_does_not_read_delays_no_other(
    many_gateway, topic, gateway_broker, monkeypatch
):
    monkeypatch.setattr(feeds, "_HELD_BYTES", 256 << 10)
    number = count(quick=3000, full=30_000)
    value = json.dumps({"text": "x" * 1000})

    async def run():
        slow, slow_end = await connected(many_gateway.address, f"/topics/{topic}", limit=1 << 16)
        fast, fast_end = await connected(many_gateway.address, f"/topics/{topic}")
        producer = Producer({"bootstrap.servers": gateway_broker, "linger.ms": 5})
        for _ in range(number):
            producer.produce(topic, value)
        assert await asyncio.to_thread(producer.flush, TIMEOUT_S) == 0
        assert await offsets(fast, number) == list(range(number))
        assert await offsets(slow, number) == list(range(number))  # it reads only now
        for end in (slow_end, fast_end):
            end.close()

    asyncio.run(run())


def test_clients_that_begin_at_the_start_wait_for_their_turn(
    many_gateway, topic, gateway_broker, monkeypatch
):
    """There is room for one piece of the log at a time."""
    monkeypatch.setattr(many_gateway.gateway.readers.backlog, "_max_bytes", 1 << 20)
    producer = Producer({"bootstrap.servers": gateway_broker})
    for number in range(1500):
        producer.produce(topic, json.dumps({"n": number, "text": "x" * 200}))
    assert producer.flush(TIMEOUT_S) == 0

    async def run():
        streams = [
            await connected(many_gateway.address, f"/topics/{topic}?from=start") for _ in range(4)
        ]
        found = await asyncio.gather(*(offsets(reader, 1500) for reader, _ in streams))
        for _, writer in streams:
            writer.close()
        return found

    assert asyncio.run(run()) == [list(range(1500))] * 4


def test_polls_are_bounded_together(many_gateway, topic, gateway_broker, monkeypatch):
    producer = Producer({"bootstrap.servers": gateway_broker})
    for _ in range(100):
        producer.produce(topic, "x" * 1000)
    assert producer.flush(TIMEOUT_S) == 0
    with many_gateway.client() as client:
        assert len(client.get(f"/topics/{topic}").json()["records"]) == 100
        nothing_is_held(many_gateway.gateway)  # the client may have it before that is noted
        monkeypatch.setattr(many_gateway.gateway.budget, "_max_bytes", 50_000)
        assert client.get(f"/topics/{topic}").status_code == 503
        assert len(client.get(f"/topics/{topic}?limit=10").json()["records"]) == 10
