"""Transactions: a Java producer that commits every 100 ms, and a read_committed consumer."""

import re

from bench.clients import rdkafka
from bench.clients.rdkafka import LoadFailedError
from bench.peers.kafka import WARM_JVM, run_tool
from bench.rounds import Measured, StartBroker, data_directory

SIZE_BYTES = 100
COMMIT_MS = 100


def transactions(start: StartBroker, count: int) -> Measured:
    """One partition; what librdkafka reads is read_committed by its own default."""
    with data_directory() as directory, start(directory) as broker:
        rdkafka.create_topics(broker.address, rdkafka.TOPIC)
        idle_s = broker.cpu_s
        produced = _produce_rate(broker.address, count)
        produced_s = broker.cpu_s
        consumed = rdkafka.consume_rate(broker.address, count)
        return {
            f"transactional produce, commit every {COMMIT_MS} ms, records/s": produced,
            "consume read_committed, records/s": consumed,
            f"broker CPU to produce {count:,} × {SIZE_BYTES} B in transactions, s": (
                produced_s - idle_s
            ),
        }


def _produce_rate(address: str, count: int) -> float:
    """Records per second behind the first fifth, in which the JVM warms up."""
    done = run_tool(
        "ProducerPerformance",
        *("--bootstrap-server", address, "--topic", rdkafka.TOPIC),
        *("--num-records", str(count), "--record-size", str(SIZE_BYTES), "--throughput", "-1"),
        *("--transactional-id", "bench", "--transaction-duration-ms", str(COMMIT_MS)),
        *("--warmup-records", str(count // 5)),
        jvm=WARM_JVM,
        timeout_s=600,
    )
    found = re.findall(r"(\d+) records sent.*?([\d.]+) records/sec", done.stdout)
    summary = re.findall(r"(\d+) steady state records sent.*?([\d.]+) records/sec", done.stdout)
    if done.returncode or not summary:
        raise LoadFailedError(f"{found[-1:]} {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return float(summary[-1][1])
