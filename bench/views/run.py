"""One system: it works off a backlog of orders, and then follows changes at a steady rate."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.clients.rdkafka import create_topics
from bench.latency.catch_up import Progress, bulk_producer, make_room
from bench.latency.clients import Results
from bench.latency.events import PARTITIONS
from bench.latency.live import LATE_S, RATE_PER_S, Load, cores, percentiles
from bench.latency.process_tree import cpu_of, machine_cpu_s
from bench.latency.systems import Job, Running, System, started
from bench.peers.process import BrokerProcess
from bench.rounds import Measured
from bench.views.orders import ORDERS_PER_CUSTOMER, Expected, customer_record, order_record


@dataclass(frozen=True)
class Changes:
    """What the live producer writes (producer.py)."""

    address: str
    topic: str
    begin_s: float
    count: int
    rate_per_s: int
    keys: int
    first: int


def run(
    system: System, broker: BrokerProcess, directory: Path, keys: int, records: int, load: Load
) -> Measured:
    """With topics of its own on the broker. Each order is in the backlog at least once."""
    backlog = max(records, keys)
    orders, customers, revenue = (
        f"{name}-{keys}-{directory.name}" for name in ("orders", "customers", "revenue")
    )
    job = Job(
        "view", broker.address, orders, customers, revenue,
        window_s=0, tier=None, backlog=True, directory=directory,
    )  # fmt: skip
    _fill(broker, job, keys, backlog)
    if not system.creates_topic:
        create_topics(job.bootstrap, job.results, partitions=PARTITIONS)
    expected = Expected(keys, backlog + load.count)
    name = f"{keys // 1000:,}k keys"
    with started(system, job) as running:
        results = Results(job.bootstrap, job.results, check=running.check)
        progress = Progress(backlog, expected.count)
        progress.all(results, running)
        caught_up = progress.figures(
            f"{name}, catching up",
            backlog + keys // ORDERS_PER_CUSTOMER,
            running.started_s,
            running.tree.cpu_s(),
        )
        time.sleep(load.settle_s)
        idle_cores = cores(running, load.idle_s)
        idle_bytes = running.tree.pss_bytes()
        changes = Changes(
            job.bootstrap, job.events, time.time() + 1, load.count, RATE_PER_S, keys, backlog
        )
        live = _live(running, broker, results, expected, changes, load)
        loaded_bytes = running.tree.pss_bytes()
        state_bytes = _state_bytes(directory)
    return caught_up | {
        **{f"{name}, {metric}": value for metric, value in live.items()},
        f"{name}, idle, cores": idle_cores,
        f"{name}, memory after the backlog (PSS), MiB": idle_bytes / 2**20,
        f"{name}, memory under load (PSS), MiB": loaded_bytes / 2**20,
        f"{name}, state, bytes per order": state_bytes / keys,
    }


def _fill(broker: BrokerProcess, job: Job, keys: int, backlog: int) -> None:
    create_topics(broker.address, job.events, job.table, partitions=PARTITIONS)
    producer = bulk_producer(broker)
    for number in range(keys // ORDERS_PER_CUSTOMER):
        key, value, partition = customer_record(number)
        producer.produce(job.table, value, key, partition)
    for event in range(backlog):
        key, value, partition = order_record(event, keys)
        producer.produce(job.events, value, key, partition)
        if event % 10_000 == 0:
            make_room(producer)
    producer.flush()


def _live(
    running: Running,
    broker: BrokerProcess,
    results: Results,
    expected: Expected,
    changes: Changes,
    load: Load,
) -> Measured:
    """From the moment that a change is due to the first result that contains it."""
    command = [sys.executable, "-m", "bench.views.producer", json.dumps(asdict(changes))]
    producer = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    read: list[tuple[float, bytes]] = []

    def read_until(until_s: float) -> tuple[float, ...]:
        while time.time() < until_s:
            value = results.next()
            if value is not None:
                read.append((time.time(), value))
        clients = sum(map(cpu_of, (broker.child.pid, producer.pid, os.getpid())))
        return running.tree.cpu_s(), machine_cpu_s(), clients, time.time()

    try:
        before = read_until(changes.begin_s + load.warm_up_s)
        after = read_until(changes.begin_s + load.warm_up_s + load.seconds)
        read_until(changes.begin_s + load.count / RATE_PER_S + 0.5)
        late_ms = float(producer.communicate(timeout=60)[0])
    finally:
        producer.kill()
    until_s = time.time() + LATE_S
    while time.time() < until_s:
        if (value := results.next()) is not None:
            read.append((time.time(), value))
    running.check()
    used, all_used, clients, elapsed_s = (b - a for a, b in zip(before, after, strict=True))
    expected.results = expected.untrue = 0  # those of the backlog were of parts of the tables
    delays_ms = _delays_ms(read, expected, changes, load)
    return {
        **percentiles(delays_ms),
        "changes missing in results": load.seconds * RATE_PER_S - len(delays_ms),
        "results of no state that the tables had, %": 100 * expected.untrue / expected.results,
        "cores": used / elapsed_s,
        "cores of all else on the machine": (all_used - used - clients) / elapsed_s,
        "producer late by at most, ms": late_ms,
    }


def _delays_ms(
    read: list[tuple[float, bytes]], expected: Expected, changes: Changes, load: Load
) -> list[float]:
    found: list[float] = []
    for at_s, value in read:
        numbers = expected.seen(value) - changes.first
        measured = numbers[np.isin(numbers, load.measured)]
        found += ((at_s - changes.begin_s - measured / RATE_PER_S) * 1000).tolist()
    return found


def _state_bytes(directory: Path) -> int:
    """Of Flink's newest complete checkpoint, which is a full one; or of all files of our operators'
    state: the last two batches, and what is not yet compacted.
    """
    checkpoints = sorted(
        (path.stat().st_mtime, path.parent) for path in directory.glob("state/*/chk-*/_metadata")
    )
    if checkpoints:
        return _size_bytes(checkpoints[-1][1])
    return sum(map(_size_bytes, directory.glob("data/**/operators")))


def _size_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
