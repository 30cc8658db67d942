"""`python -m bench.live_queries`: how long a change takes from its commit to all subscribers.

Broker and gateway are processes of their own; subscribers are raw sockets in this process. Each
change is written when all subscribers have got the one before. The latency of a subscriber is from
the broker's acknowledgement to the arrival of its event.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.gateway import _connected, _print, _processes, _quantile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--subscribers", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, _processes(Path(directory)) as running:
        broker, address, _ = running
        admin = AdminClient({"bootstrap.servers": broker})
        new = NewTopic("rows", 1, 1, config={"cleanup.policy": "compact"})
        admin.create_topics([new])["rows"].result(60)
        producer = Producer({"bootstrap.servers": broker, "linger.ms": 0})
        for number in range(options.rows):
            producer.produce("rows", json.dumps({"n": number, "city": "Wien"}), str(number))
        producer.flush(60)
        asyncio.run(_run(options, producer, address))


async def _run(options: argparse.Namespace, producer: Producer, address: str) -> None:
    begun_s = time.monotonic()
    path = f"/live/rows?where=n>={options.rows - 100}"  # a hundred of them
    streams = [await _subscribed(address, path) for _ in range(options.subscribers)]
    readers = [reader for reader, _ in streams]
    await asyncio.gather(*(reader.readuntil(b"event: ready\n") for reader in readers))
    count = options.subscribers
    _print(f"{count} subscribers: all ready after, s", time.monotonic() - begun_s)
    latencies: list[float] = []
    for change in range(options.changes):
        row = json.dumps({"n": options.rows + change, "city": "Graz"})
        producer.produce("rows", row, str(options.rows - 1))
        await asyncio.to_thread(producer.flush, 60)
        written_s = time.monotonic()
        arrived = await asyncio.gather(*map(_changed, readers))
        latencies += [max(0.0, at_s - written_s) for at_s in arrived]
    latencies.sort()
    _print(f"{count} subscribers: commit to event, p50, ms", _quantile(latencies, 0.50) * 1000)
    _print(f"{count} subscribers: commit to event, p99, ms", _quantile(latencies, 0.99) * 1000)
    for _, writer in streams:
        writer.close()


async def _subscribed(address: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await _connected(address)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
    return reader, writer


async def _changed(reader: asyncio.StreamReader) -> float:
    await reader.readuntil(b"event: changed\n")
    return time.monotonic()


if __name__ == "__main__":
    main()
