"""`python -m bench.gateway`: the gateway in front of our broker, each in its own process.

    POST, single     one record in each request, some clients with connections that stay open
    POST, keyed      the same with an Idempotency-Key
    POST, batch      1,000 NDJSON lines in each request
    POST, stream     one request of many lines
    SSE              so many clients follow one topic: records/s over all, memory of each

Clients are raw sockets in this process, so that they cost little. Latency is from the first byte of
a request to the last of its answer. Client, gateway and broker share the cores of the machine.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

VALUE = b'{"id":123456,"city":"Wien","total":12.5,"note":"' + b"x" * 52 + b'"}'  # 100 bytes
COMMAND = (sys.executable, "-m", "headwater.cli.main")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--readers", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, _processes(Path(directory)) as running:
        broker, address, pid = running
        admin = AdminClient({"bootstrap.servers": broker})
        for topic in ("single", "keyed", "batch", "stream", "followed"):
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)
        asyncio.run(_run(options, broker, address, pid))


@contextmanager
def _processes(directory: Path) -> Iterator[tuple[str, str, int]]:
    """The broker's address, the gateway's, and the gateway's process id."""
    broker = subprocess.Popen(
        [*COMMAND, "broker", "--json", "--listen", "127.0.0.1:0", "--data-dir", "data"],
        stdout=subprocess.PIPE, cwd=directory,
    )  # fmt: skip
    assert broker.stdout is not None
    listen = json.loads(broker.stdout.readline())["listen"]
    gateway = subprocess.Popen(
        [*COMMAND, "gateway", "--json", "--listen", "127.0.0.1:0", "-b", listen],
        stdout=subprocess.PIPE, cwd=directory,
    )  # fmt: skip
    assert gateway.stdout is not None
    ready = json.loads(gateway.stdout.readline())
    try:
        yield listen, ready["listen"], ready["pid"]
    finally:
        for process in (gateway, broker):
            process.terminate()
            process.wait(60)


async def _run(options: argparse.Namespace, broker: str, address: str, pid: int) -> None:
    await _followed(options, broker, address, pid)  # first, while the gateway holds nothing else
    lines = (VALUE + b"\n") * 1000
    for name, topic, body, kind, records in (
        ("single", "single", VALUE, "application/json", 1),
        ("keyed", "keyed", VALUE, "application/json", 1),
        ("batch", "batch", lines, "application/x-ndjson", 1000),
    ):
        latencies = await _posts(options, address, topic, body, kind)
        requests_per_s = len(latencies) / options.seconds
        _print(f"POST, {name}: requests/s", requests_per_s)
        _print(f"POST, {name}: records/s", requests_per_s * records)
        _print(f"POST, {name}: p50, ms", _quantile(latencies, 0.50) * 1000)
        _print(f"POST, {name}: p99, ms", _quantile(latencies, 0.99) * 1000)
    _print("POST, stream: records/s", await _stream(address, lines, 300))


async def _posts(
    options: argparse.Namespace, address: str, topic: str, body: bytes, kind: str
) -> list[float]:
    latencies: list[float] = []
    until_s = time.monotonic() + options.seconds

    async def client(number: int) -> None:
        reader, writer = await _connected(address)
        count = 0
        while time.monotonic() < until_s:
            key = f"Idempotency-Key: {number}-{count}\r\n" if topic == "keyed" else ""
            count += 1
            head = (
                f"POST /topics/{topic} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {kind}\r\n"
                f"{key}Content-Length: {len(body)}\r\n\r\n"
            )
            begun_s = time.monotonic()
            writer.write(head.encode() + body)
            await _answer(reader)
            latencies.append(time.monotonic() - begun_s)
        writer.close()

    await asyncio.gather(*(client(number) for number in range(options.clients)))
    return sorted(latencies)


async def _stream(address: str, lines: bytes, chunks: int) -> float:
    reader, writer = await _connected(address)
    begun_s = time.monotonic()
    writer.write(
        f"POST /topics/stream HTTP/1.1\r\nHost: {address}\r\n"
        "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    )
    for _ in range(chunks):
        writer.write(b"%x\r\n%b\r\n" % (len(lines), lines))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    answer = json.loads(await _answer(reader))
    assert answer["written"] == chunks * 1000, answer
    return float(answer["written"] / (time.monotonic() - begun_s))


async def _followed(options: argparse.Namespace, broker: str, address: str, pid: int) -> None:
    streams = []
    before_bytes = 0
    for number in range(options.readers):
        if number == 1:  # the first one also makes the feed
            before_bytes = _resident_bytes(pid)
        reader, writer = await _connected(address)
        writer.write(
            f"GET /topics/followed HTTP/1.1\r\nHost: {address}\r\n"
            "Accept: text/event-stream\r\n\r\n".encode()
        )
        await reader.readuntil(b"retry: 1000\n")
        streams.append((reader, writer))
    per_client_bytes = (_resident_bytes(pid) - before_bytes) / (options.readers - 1)
    count = 2000
    producer = Producer({"bootstrap.servers": broker})
    begun_s = time.monotonic()
    for _ in range(count):
        producer.produce("followed", VALUE)
    await asyncio.to_thread(producer.flush, 60)
    await asyncio.gather(*(_events(reader, count) for reader, _ in streams))
    took_s = time.monotonic() - begun_s
    _print(f"SSE, {options.readers} clients: records/s, over all", count * options.readers / took_s)
    _print(f"SSE, {options.readers} clients: memory of each, KiB", per_client_bytes / 1024)
    for _, writer in streams:
        writer.close()
    latencies = await _latencies(broker, address)
    _print("SSE: from producer to client, p50, ms", _quantile(latencies, 0.5) * 1000)
    _print("SSE: from producer to client, p99, ms", _quantile(latencies, 0.99) * 1000)


async def _latencies(broker: str, address: str) -> list[float]:
    """One client, one record at a time."""
    reader, writer = await _connected(address)
    writer.write(
        f"GET /topics/followed HTTP/1.1\r\nHost: {address}\r\n"
        "Accept: text/event-stream\r\n\r\n".encode()
    )
    await reader.readuntil(b"retry: 1000\n")
    producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
    found = []
    for _ in range(200):
        begun_s = time.monotonic()
        producer.produce("followed", VALUE)
        producer.poll(0)
        await _events(reader, 1)
        found.append(time.monotonic() - begun_s)
    producer.flush(60)
    writer.close()
    return sorted(found)


async def _events(reader: asyncio.StreamReader, count: int) -> None:
    while count:
        line = await reader.readline()
        assert line, "the stream has ended"
        count -= line.startswith(b"data: ")


async def _connected(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port), limit=1 << 20)


async def _answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(
        int(line.partition(b":")[2])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length")
    )
    return await reader.readexactly(length)


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _print(name: str, value: float) -> None:
    print(f"{name:55} {value:12,.1f}", flush=True)


if __name__ == "__main__":
    main()
