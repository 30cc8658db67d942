"""librdkafka as the load: rdkafka_performance, our latency client, topics and connections."""

import json
import re
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.peers.provision import latency_client, rdkafka_performance

TOPIC = "bench"
QUIET = {"log_level": 2}  # a broker that is stopped on purpose is no news


class LoadFailedError(Exception):
    """A client did not do all of its work; the text is what it said."""


def create_topics(address: str, *names: str, partitions: int = 1, timeout_s: float = 120) -> None:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    wanted = [NewTopic(name, partitions, 1) for name in names]
    for created in admin.create_topics(wanted, operation_timeout=timeout_s).values():
        created.result(timeout_s)


def produce_rate(address: str, count: int, size_bytes: int) -> float:
    """Records per second, from the first call of produce() to the last acknowledgement."""
    said = _performance(address, "-P", "-s", str(size_bytes), "-c", str(count), "-a", "1")
    found = re.search(r"(\d+) delivered .*?(\d+) failed\) in \d+ms: (\d+) msgs/s", said)
    if found is None or int(found[1]) != count or int(found[2]) != 0:
        raise LoadFailedError(said)
    return float(found[3])


def consume_rate(address: str, count: int, start: str = "beginning") -> float:
    """Records per second, reading `count` of them; a start of "-n" is n before the end."""
    said = _performance(address, "-C", "-o", start, "-c", str(count))
    found = re.search(r"(\d+) messages \(\d+ bytes\) consumed in \d+ms: (\d+) msgs/s", said)
    if found is None or int(found[1]) < count:
        raise LoadFailedError(said)
    return float(found[2])


def _performance(address: str, *args: str) -> str:
    command = [str(rdkafka_performance()), "-b", address, "-t", TOPIC, "-p", "0", "-q", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    return done.stdout + (done.stderr if done.returncode else "")


def latency(
    address: str, rate_per_s: int, seconds: int, size_bytes: int, linger_ms: int
) -> dict[str, float]:
    """Percentiles in microseconds, from produce() to the consumer's poll()."""
    plan = [str(number) for number in (rate_per_s, seconds, size_bytes, linger_ms)]
    done = subprocess.run(
        [str(latency_client()), address, TOPIC, *plan],
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    if done.returncode != 0:
        raise LoadFailedError(done.stderr)
    return dict(json.loads(done.stdout))


def write_to_each(address: str, topics: list[str], partitions: int) -> None:
    """One record to every partition."""
    producer = Producer({"bootstrap.servers": address, "acks": 1, **QUIET})
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    for topic in topics:
        for partition in range(partitions):
            producer.produce(topic, b"x" * 100, partition=partition, on_delivery=delivered)
            producer.poll(0)
    left = producer.flush(120)
    if left or failures:
        raise LoadFailedError(f"{left} not delivered, {len(failures)} failed: {failures[:1]}")


@contextmanager
def connections_held(address: str, count: int) -> Iterator[None]:
    """That many connections, each of which has asked for ApiVersions and stays."""
    host, _, port = address.rpartition(":")
    request = struct.pack(">hhih5s", 18, 0, 1, 5, b"bench")
    with ExitStack() as held:
        for _ in range(count):
            connection = held.enter_context(socket.create_connection((host, int(port)), timeout=30))
            connection.sendall(struct.pack(">i", len(request)) + request)
            if not connection.recv(4):
                raise LoadFailedError("the broker has closed the connection")
        yield
