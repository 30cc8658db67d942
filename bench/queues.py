"""Share groups: Kafka's own share-consumer benchmark against records that are there already."""

import re

from bench.clients import rdkafka
from bench.clients.rdkafka import LoadFailedError
from bench.peers.kafka import WARM_JVM, run_tool
from bench.rounds import Measured, StartBroker, data_directory

SIZE_BYTES = 100
GROUP = "bench-queue"
CONSUMERS = (1, 4)


def queues(start: StartBroker, count: int) -> Measured:
    """One partition, read by one consumer and by several at a time, each group from its start."""
    with data_directory() as directory, start(directory) as broker:
        rdkafka.create_topics(broker.address, rdkafka.TOPIC)
        _produce(broker.address, count)
        measured: Measured = {}
        for consumers in CONSUMERS:
            group = f"{GROUP}-{consumers}"
            _begin_at_the_start(broker.address, group)
            before_s = broker.cpu_s
            rate = _consume_rate(broker.address, group, count, consumers)
            several = "s" if consumers > 1 else ""
            measured[f"queue, {consumers} consumer{several}, records/s"] = rate
            if consumers == 1:
                measured[f"broker CPU to consume {count:,} × {SIZE_BYTES} B as a queue, s"] = (
                    broker.cpu_s - before_s
                )
        return measured


def _produce(address: str, count: int) -> None:
    done = run_tool(
        "ProducerPerformance",
        *("--bootstrap-server", address, "--topic", rdkafka.TOPIC),
        *("--num-records", str(count), "--record-size", str(SIZE_BYTES), "--throughput", "-1"),
        jvm=WARM_JVM,
        timeout_s=300,
    )
    if done.returncode:
        raise LoadFailedError(f"{done.stdout[-2000:]} {done.stderr[-2000:]}")


def _begin_at_the_start(address: str, group: str) -> None:
    done = run_tool(
        "kafka.admin.ConfigCommand",
        *("--bootstrap-server", address, "--alter", "--entity-type", "groups"),
        *("--entity-name", group, "--add-config", "share.auto.offset.reset=earliest"),
    )
    if done.returncode:
        raise LoadFailedError(f"{done.stdout[-2000:]} {done.stderr[-2000:]}")


def _consume_rate(address: str, group: str, count: int, consumers: int) -> float:
    """Records per second, without the time that joining the group takes."""
    done = run_tool(
        "ShareConsumerPerformance",
        *("--bootstrap-server", address, "--topic", rdkafka.TOPIC, "--group", group),
        *("--num-records", str(count), "--threads", str(consumers), "--hide-header"),
        *("--timeout", "60000"),
        jvm=WARM_JVM,
        timeout_s=300,
    )
    # start, end, MB, MB/s, records/s, records, fetch time (ms): the last two are what was done.
    found = re.findall(
        r"^[^,]+, [^,]+, [\d.]+, [\d.]+, ([\d.]+), (\d+), \d+$", done.stdout, re.MULTILINE
    )
    if done.returncode or not found or int(found[-1][1]) < count:
        raise LoadFailedError(f"{done.stdout[-2000:]} {done.stderr[-2000:]}")
    return float(found[-1][0])
