"""Latency at a steady rate: from when a record is due to its result, or from a window's end."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from bench.clients.rdkafka import LoadFailedError, create_topics
from bench.latency.events import PARTITIONS, customer_record, event_record
from bench.latency.process_tree import cpu_of, machine_cpu_s
from bench.latency.systems import Job, Running, System, started
from bench.peers.process import BrokerProcess
from bench.rounds import Measured

KEYS = 1_000
RATE_PER_S = 1_000
START_TIMEOUT_S = 240
LATE_S = 5.0  # for the last results
_DAY_MS = 86_400_000
TITLES = {
    "map": "map and filter",
    "window": "one-second window by key",
    "join": "join with a table",
}


@dataclass(frozen=True)
class Load:
    """How long a case takes."""

    warm_up_s: int
    seconds: int
    settle_s: int  # before it is idle
    idle_s: int

    @property
    def measured(self) -> range:
        """The events that count."""
        return range(self.warm_up_s * RATE_PER_S, (self.warm_up_s + self.seconds) * RATE_PER_S)

    @property
    def count(self) -> int:
        """With those of one more second: where results wait for a watermark, the last of all wait
        indefinitely.
        """
        return self.measured.stop + RATE_PER_S


def live(system: System, kind: str, broker: BrokerProcess, directory: Path, load: Load) -> Measured:
    """One system on one kind of job; topics of its own on the broker."""
    run = f"{kind}-{directory.name}"
    job = Job(
        kind, broker.address, f"in-{run}", f"table-{run}", f"out-{run}",
        window_s=1, tier=None, backlog=False, directory=directory,
    )  # fmt: skip
    create_topics(job.bootstrap, job.events, job.table, partitions=PARTITIONS)
    if not system.creates_topic:
        create_topics(job.bootstrap, job.results, partitions=PARTITIONS)
    if kind == "join":
        _write_table(job)
    output = directory.with_suffix(".results")
    with started(system, job) as running, _consumer(job, output) as consumer:
        start_s = _first_result_s(job, running, consumer) - running.started_s
        time.sleep(load.settle_s)
        idle_cores = cores(running, load.idle_s)
        idle_bytes = running.tree.pss_bytes()
        begin_s = time.time() + 1.0
        producer = _producer(job, begin_s, load)
        try:
            time.sleep(begin_s + load.warm_up_s - time.time())
            ours = [broker.child.pid, producer.pid, consumer.pid, os.getpid()]
            before = running.tree.cpu_s(), machine_cpu_s(), sum(map(cpu_of, ours)), time.time()
            time.sleep(begin_s + load.warm_up_s + load.seconds - time.time())
            after = running.tree.cpu_s(), machine_cpu_s(), sum(map(cpu_of, ours)), time.time()
            late_ms = float(producer.communicate(timeout=60)[0])
        finally:
            producer.kill()
        time.sleep(LATE_S)
        running.check()
        loaded_bytes = running.tree.pss_bytes()
    used, all_used, clients, elapsed_s = (b - a for a, b in zip(before, after, strict=True))
    found = json.loads(output.read_bytes())
    name = TITLES[kind]
    measured = (
        _windows(found, begin_s, load) if kind == "window" else _rows(found, begin_s, load, kind)
    )
    return {
        **{f"{name}, {metric}": value for metric, value in measured.items()},
        f"{name}, cores": used / elapsed_s,
        f"{name}, cores of all else on the machine": (all_used - used - clients) / elapsed_s,
        f"{name}, producer late by at most, ms": late_ms,
        f"{name}, start to first result, s": start_s,
        f"{name}, idle memory (PSS), MiB": idle_bytes / 2**20,
        f"{name}, memory under load (PSS), MiB": loaded_bytes / 2**20,
        f"{name}, idle, cores": idle_cores,
    }


def percentiles(delays_ms: list[float]) -> Measured:
    ordered = sorted(delays_ms)
    if not ordered:
        raise LoadFailedError("no results")
    return {
        "p50, ms": ordered[len(ordered) // 2],
        "p99, ms": ordered[len(ordered) * 99 // 100],
        "latest, ms": ordered[-1],
    }


def _rows(found: dict[str, Any], begin_s: float, load: Load, kind: str) -> Measured:
    seen: dict[int, float] = {}
    repeated = 0
    for at_s, row in zip(found["at_s"], found["values"], strict=True):
        if row["eid"] not in load.measured:
            continue
        repeated += row["eid"] in seen
        seen.setdefault(row["eid"], at_s)
    wanted = {event for event in load.measured if kind != "map" or event % 4}
    delays = [(at_s - begin_s - event / RATE_PER_S) * 1000 for event, at_s in seen.items()]
    return {
        **percentiles(delays),
        "results missing": len(wanted - seen.keys()),
        "results repeated": repeated,
    }


def _windows(found: dict[str, Any], begin_s: float, load: Load) -> Measured:
    """Of windows that are within the measured time."""
    first_ms = int((begin_s + load.warm_up_s) * 1000) // 1000 * 1000 + 1000
    last_ms = int((begin_s + load.warm_up_s + load.seconds) * 1000) // 1000 * 1000
    delays: list[float] = []
    counted: dict[tuple[int, int], int] = {}
    repeated = 0
    for at_s, row in zip(found["at_s"], found["values"], strict=True):
        start_ms = window_start_ms(row)
        if not first_ms <= start_ms < last_ms or row.get("diff", 1) < 0:
            continue
        window = row["k"], start_ms
        repeated += window in counted
        if window not in counted:
            delays.append(at_s * 1000 - (start_ms + 1000))
        counted[window] = row["n"]
    due = (int((begin_s + event / RATE_PER_S) * 1000) for event in range(load.count))
    wanted = sum(first_ms <= at_ms < last_ms for at_ms in due)
    return {
        **percentiles(delays),
        "events missing in results": wanted - sum(counted.values()),
        "results repeated": repeated,
    }


def window_start_ms(row: dict[str, Any]) -> int:
    if "w" in row:
        return int(row["w"])
    return int(datetime.fromisoformat(row["window_start"]).timestamp() * 1000)


def _first_result_s(job: Job, running: Running, consumer: "subprocess.Popen[str]") -> float:
    """Ten events a second to both partitions until there is a result."""
    producer = Producer({"bootstrap.servers": job.bootstrap, "linger.ms": 0})
    deadline_s = time.time() + START_TIMEOUT_S
    event = 0
    assert consumer.stdout is not None
    while not select.select([consumer.stdout], [], [], 0.1)[0]:
        running.check()
        if time.time() > deadline_s:
            text = running.output.read_text(errors="replace")[-3000:]
            raise LoadFailedError(f"no result in {START_TIMEOUT_S} s:\n{text}")
        event -= 1
        at_ms = int(time.time() * 1000)
        for number in range(PARTITIONS):
            key, value, partition = event_record(event, number, at_ms, 1)
            producer.produce(job.events, value, key, partition, timestamp=at_ms)
        producer.flush()
    return float(consumer.stdout.readline())


def cores(running: Running, seconds: float) -> float:
    before_s, began_s = running.tree.cpu_s(), time.time()
    time.sleep(seconds)
    return (running.tree.cpu_s() - before_s) / (time.time() - began_s)


def _write_table(job: Job) -> None:
    producer = Producer({"bootstrap.servers": job.bootstrap})
    yesterday_ms = int(time.time() * 1000) - _DAY_MS
    for number in range(KEYS):
        key, value, partition = customer_record(number)
        producer.produce(job.table, value, key, partition, timestamp=yesterday_ms)
    producer.flush()


def _producer(job: Job, begin_s: float, load: Load) -> "subprocess.Popen[str]":
    given = {
        "address": job.bootstrap,
        "topic": job.events,
        "begin_s": begin_s,
        "count": load.count,
        "rate_per_s": RATE_PER_S,
        "keys": KEYS,
    }
    return _client("produce", given)


@contextmanager
def _consumer(job: Job, output: Path) -> Iterator["subprocess.Popen[str]"]:
    """When this ends, the output is there."""
    given = {"address": job.bootstrap, "topic": job.results, "output": str(output)}
    child = _client("consume", given)
    try:
        yield child
        child.terminate()
        child.communicate(timeout=60)
    finally:
        child.kill()


def _client(role: str, given: dict[str, Any]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "bench.latency.clients", role, orjson.dumps(given).decode()]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
