"""Catching up: how fast a topic that was filled before is worked off, by a window and a join."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import orjson
from confluent_kafka import Producer

from bench.clients.rdkafka import LoadFailedError, create_topics
from bench.latency.clients import Results
from bench.latency.events import PARTITIONS, customer_record, event_record, key_of
from bench.latency.live import window_start_ms
from bench.latency.systems import Job, Running, System, started
from bench.peers.process import BrokerProcess
from bench.rounds import Measured

KEYS = 10_000
EVENTS_PER_S = 10_000  # of their own time
WINDOW_S = 10
TIER = 3  # one result of the join in ten
EVENTS, TABLE = "backlog", "backlog-table"
_START_S = 300.0  # until the first result
_SILENCE_S = 60.0  # without a result that is nearer to the end
_LONGEST_S = 900.0  # for all of it
_REPORT_S = 10.0
_FIRST_S = 0.5  # so long the first results last, unless there is a pause before
TITLES = {"window": f"catching up, {WINDOW_S}-second window by key", "join": "catching up, join"}


@dataclass(frozen=True)
class Backlog:
    count: int
    joined: int  # results of the join


def fill(broker: BrokerProcess, count: int) -> Backlog:
    create_topics(broker.address, EVENTS, TABLE, partitions=PARTITIONS)
    producer = bulk_producer(broker)
    first_ms = (int(time.time()) - 3600) // WINDOW_S * WINDOW_S * 1000
    for number in range(KEYS):
        key, value, partition = customer_record(number)
        producer.produce(TABLE, value, key, partition, timestamp=first_ms - 86_400_000)
    joined = 0
    for event in range(count):
        number = key_of(event, KEYS)
        joined += number % 10 == TIER
        at_ms = first_ms + event * 1000 // EVENTS_PER_S
        key, value, partition = event_record(event, number, at_ms, event & 1023)
        producer.produce(EVENTS, value, key, partition, timestamp=at_ms)
        if event % 10_000 == 0:
            make_room(producer)
    last_ms = first_ms + count * 1000 // EVENTS_PER_S + 60_000
    for partition in range(PARTITIONS):  # closes all windows; not counted
        key, value, _ = event_record(count + partition, partition - PARTITIONS, last_ms, 0)
        producer.produce(EVENTS, value, key, partition, timestamp=last_ms)
    producer.flush()
    return Backlog(count, joined)


def bulk_producer(broker: BrokerProcess) -> Producer:
    return Producer(
        {
            "bootstrap.servers": broker.address,
            "linger.ms": 50,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 1_000_000,
        }
    )


def make_room(producer: Producer) -> None:
    """Waits until its queue has room for many records."""
    producer.poll(0)
    while len(producer) > 500_000:
        producer.poll(0.05)


def catch_up(
    system: System, kind: str, broker: BrokerProcess, directory: Path, backlog: Backlog
) -> Measured:
    job = Job(
        kind, broker.address, EVENTS, TABLE, f"out-{kind}-{directory.name}",
        window_s=WINDOW_S, tier=TIER, backlog=True, directory=directory,
    )  # fmt: skip
    if not system.creates_topic:
        create_topics(job.bootstrap, job.results, partitions=PARTITIONS)
    with started(system, job) as running:
        results = Results(job.bootstrap, job.results, check=running.check)
        if kind == "window":
            read = Progress(backlog.count, _Windows().count)
        else:
            read = Progress(backlog.joined, len)
        read.all(results, running)
        cpu_s = running.tree.cpu_s()
    return read.figures(TITLES[kind], backlog.count, running.started_s, cpu_s)


class Progress:
    """What was read of the results, and when.

    Results that come first belong to all that was worked off before them. So the rate counts only
    those behind the first ones, by the time behind them: a system that writes once a second, or
    once in half a million records, is measured as one that writes continuously.
    """

    def __init__(self, expected: int, count: Callable[[list[bytes]], int]) -> None:
        """`count`: by how much these results bring it nearer to what is expected."""
        self.expected = expected
        self._count = count
        self.done = 0
        self.done_first = 0  # of the first ones
        self.first_s = 0.0
        self.first_until_s = 0.0
        self.begin_s = self.last_s = time.time()  # last_s: of the last one that was nearer
        self._results = 0

    def all(self, results: Results, running: Running) -> None:
        """Until everything is there, or no result brings it nearer for a while. Reports on the way:
        a system that is slow still has results, one that waits has none.
        """
        is_first = True
        report_s = self.begin_s + _REPORT_S
        while self.done < self.expected and time.time() < self._deadline_s():
            running.check()
            values = results.several()
            if time.time() > report_s:
                print(f"    {self}", file=sys.stderr, flush=True)
                report_s += _REPORT_S
            if values:
                self._results += len(values)
                done = self._count(values)
                self.done += done
                if done or not self.first_s:
                    self.last_s = time.time()
                self.first_s = self.first_s or self.last_s
            if self.first_s and is_first:
                self.first_until_s, self.done_first = self.last_s, self.done
                is_first = bool(values) and self.last_s < self.first_s + _FIRST_S
        if not self.first_s:
            text = running.output.read_text(errors="replace")[-3000:]
            raise LoadFailedError(f"no result in {_START_S} s:\n{text}")
        if self.done < self.expected:
            print(f"    given up: {self}", file=sys.stderr, flush=True)

    def __str__(self) -> str:
        now_s = time.time()
        return (
            f"{self.done:,} of {self.expected:,} after {now_s - self.begin_s:.0f} s,"
            f" {self._results:,} results; nearer {now_s - self.last_s:.0f} s ago"
        )

    def _deadline_s(self) -> float:
        silence_s = _SILENCE_S if self.first_s else _START_S
        return min(self.last_s + silence_s, self.begin_s + _LONGEST_S)

    def figures(self, name: str, records: int, started_s: float, cpu_s: float) -> Measured:
        measured = {
            f"{name}, with the start, records/s": records / (self.last_s - started_s),
            f"{name}, first result after, s": self.first_s - started_s,
            f"{name}, CPU, s": cpu_s,
            f"{name}, share of results missing": 1 - self.done / self.expected,
        }
        if self.done > self.done_first:  # else all came at once, and only the start was measured
            share = (self.done - self.done_first) / self.expected
            seconds = self.last_s - self.first_until_s
            measured = {f"{name}, records/s": records * share / seconds, **measured}
        return measured


class _Windows:
    """Events in windows; a window may be written again."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, int], int] = {}

    def count(self, values: list[bytes]) -> int:
        done = 0
        for value in values:
            row = orjson.loads(value)
            if row.get("diff", 1) < 0 or row["k"] < 0:
                continue
            window = row["k"], window_start_ms(row)
            done += row["n"] - self._windows.get(window, 0)
            self._windows[window] = row["n"]
        return done
