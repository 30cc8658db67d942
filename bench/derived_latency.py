"""How soon a derived row is in PostgreSQL: from the moment that its record is due to be produced,
to the moment that another session of the database sees the row. Rows of windows count from the end
of their window.

    python -m bench.derived_latency [--window] [--seconds 30] [--warm-up 40]
"""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import psycopg2
from confluent_kafka import Producer

from bench.clients.rdkafka import LoadFailedError, create_topics
from bench.peers.headwater import NAME
from bench.peers.postgres import Postgres, postgres
from bench.peers.process import BrokerProcess
from bench.rounds import BROKERS, Measured, data_directory

ROWS_PER_S = 1_000
WARM_UP_S = 40  # until the JVM has compiled what a batch runs through
START_TIMEOUT_S = 600
LATE_S = 30
PIPELINE = """
import headwater as hw


@hw.pipeline
def latency(flow: hw.Flow) -> None:
    events = flow.changes("events", "id bigint, customer bigint, name string, total double")
    rows = events.selectExpr(
        "id", "customer", "upper(name) AS name", "total * 1.19 AS total", "_op", "_position"
    )
    flow.write(rows, to="warehouse", table="derived", key="id")
"""
WINDOW_PIPELINE = """
import headwater as hw


@hw.pipeline
def latency(flow: hw.Flow) -> None:
    events = flow.changes("events", "id bigint, customer bigint, total double, at timestamp")
    by_time = hw.event_time("at", delay="0 seconds")
    windows = hw.tumbling(events, by_time, "1 second", by="customer").agg(
        n=hw.agg.count(), total=hw.agg.sum("total")
    )
    flow.write(windows, to="warehouse", table="derived", key=["window_start", "customer"])
"""


def derived_latency(seconds: int, broker_name: str = NAME, warm_up_s: int = WARM_UP_S) -> Measured:
    """`headwater pipeline run` in a process of its own, as a user starts it."""
    with (
        data_directory() as directory,
        postgres(directory) as database,
        BROKERS[broker_name](directory / "broker") as broker,
        _pipeline(directory, broker, database, PIPELINE) as running,
    ):
        count = (warm_up_s + seconds) * ROWS_PER_S
        seen = _Seen(database, count)
        _produce(broker.address, range(1))
        seen.wait_for(0, running, START_TIMEOUT_S)
        due_s = _produce(broker.address, range(1, count))
        seen.wait_for(count - 1, running, LATE_S)
    warm = warm_up_s * ROWS_PER_S
    delays_ms = [
        (seen_s - due) * 1000 for due, seen_s in zip(due_s[warm:], seen.at_s[warm:], strict=False)
    ]
    return _percentiles(f"{ROWS_PER_S:,} rows/s, produced to seen in PostgreSQL", delays_ms)


def window_latency(seconds: int, warm_up_s: int = WARM_UP_S) -> Measured:
    """One-second windows of 1,000 keys, which are all in each window."""
    with (
        data_directory() as directory,
        postgres(directory) as database,
        BROKERS[NAME](directory / "broker") as broker,
        _pipeline(directory, broker, database, WINDOW_PIPELINE) as running,
    ):
        seen = _SeenWindows(database)
        _produce_until(broker.address, lambda: bool(seen.at_s), running)
        began_s = time.time()
        _produce(broker.address, range((warm_up_s + seconds) * ROWS_PER_S))
        time.sleep(1)
        seen.stop()
    first_s, last_s = began_s + warm_up_s + 1, began_s + warm_up_s + seconds - 1
    delays_ms = [
        (at_s - end_s) * 1000
        for end_s, rows in seen.at_s.items()
        if first_s < end_s < last_s
        for at_s, count in rows
        for _ in range(count)
    ]
    return _percentiles(f"{ROWS_PER_S:,} rows/s, end of a window to seen in PostgreSQL", delays_ms)


def _percentiles(name: str, delays_ms: list[float]) -> Measured:
    delays_ms = sorted(delays_ms)
    return {
        f"{name}, p50, ms": delays_ms[len(delays_ms) // 2],
        f"{name}, p99, ms": delays_ms[len(delays_ms) * 99 // 100],
    }


class _Seen:
    """When each row was seen first. Rows come in the order of their ids."""

    def __init__(self, database: Postgres, count: int) -> None:
        self.at_s: list[float] = []
        self._count = count
        self._dsn = database.dsn
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def wait_for(self, last: int, running: BrokerProcess, timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while len(self.at_s) <= last:
            if running.child.poll() is not None or time.monotonic() > deadline_s:
                self._stopped.set()
                text = running.output.read_text()[-3000:]
                raise LoadFailedError(f"{len(self.at_s)} of {last + 1} rows arrived:\n{text}")
            time.sleep(0.05)

    def _look(self) -> None:
        connection = psycopg2.connect(self._dsn)
        connection.autocommit = True
        with connection.cursor() as cursor:
            while len(self.at_s) < self._count and not self._stopped.is_set():
                try:
                    cursor.execute("SELECT max(id) FROM derived")
                except psycopg2.errors.UndefinedTable:
                    time.sleep(0.1)
                    continue
                (last,) = cursor.fetchone()
                if last is not None and last >= len(self.at_s):
                    self.at_s += [time.perf_counter()] * (last + 1 - len(self.at_s))
                time.sleep(0.002)
        connection.close()


class _SeenWindows:
    """When rows of each window were seen first: by the end of the window, when and how many."""

    def __init__(self, database: Postgres) -> None:
        self.at_s: dict[float, list[tuple[float, int]]] = {}
        self._dsn = database.dsn
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _look(self) -> None:
        connection = psycopg2.connect(self._dsn)
        connection.autocommit = True
        with connection.cursor() as cursor:
            while not self._stopped.wait(0.002):
                try:
                    cursor.execute(
                        "SELECT extract(epoch FROM window_start) + 1, count(*) FROM derived"
                        " WHERE window_start > now() - interval '5 seconds' GROUP BY window_start"
                    )
                except psycopg2.errors.UndefinedTable:
                    self._stopped.wait(0.1)
                    continue
                now_s = time.time()
                for end_s, count in cursor.fetchall():
                    rows = self.at_s.setdefault(float(end_s), [])
                    if new := count - sum(seen for _, seen in rows):
                        rows.append((now_s, new))
        connection.close()


def _produce_until(address: str, is_done: Callable[[], bool], running: BrokerProcess) -> None:
    """Second by second at the rate."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not is_done():
        if running.child.poll() is not None or time.monotonic() > deadline_s:
            raise LoadFailedError(f"no row has arrived:\n{running.output.read_text()[-3000:]}")
        _produce(address, range(ROWS_PER_S))


def _produce(address: str, ids: range) -> list[float]:
    """At the rate; when each was due. The first is `ids.start`, but the list begins with id 0."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    began_s, wall_s = time.perf_counter(), time.time()
    due_s = [began_s + (number - ids.start) / ROWS_PER_S for number in range(ids.stop)]
    for number in ids:
        if (early_s := due_s[number] - time.perf_counter()) > 0:
            producer.poll(0)
            time.sleep(early_s)
        row = {
            "id": number,
            "customer": number % ROWS_PER_S,
            "name": f"customer {number}",
            "total": 9.5,
            "at": int((wall_s + due_s[number] - began_s) * 1000),
        }
        producer.produce("events", orjson.dumps(row), b'{"id":%d}' % number)
    producer.flush()
    return due_s


@contextmanager
def _pipeline(
    directory: Path, broker: BrokerProcess, database: Postgres, pipeline: str
) -> Iterator[BrokerProcess]:
    create_topics(broker.address, "events")
    project = directory / "project"
    project.mkdir()
    (project / "latency.py").write_text(pipeline)
    (project / "headwater.toml").write_text(
        f'[broker]\nbootstrap = "{broker.address}"\ndata_dir = "data"\n'
        f'[sink.warehouse]\nkind = "postgres"\nurl = "{database.url}"\n'
        '[pipeline.latency]\nfile = "latency.py"\n'
    )
    command = [str(Path(sys.executable).with_name("headwater")), "pipeline", "run",
               "--config", str(project / "headwater.toml")]  # fmt: skip
    output = project / "pipeline.out"
    with output.open("ab") as sink:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    running = BrokerProcess(NAME, broker.address, child, output)
    try:
        yield running
    finally:
        if child.poll() is None:
            running.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.derived_latency", description=__doc__)
    parser.add_argument("--window", action="store_true", help="through a one-second window by key")
    parser.add_argument("--seconds", type=int, default=30, help="that are measured")
    parser.add_argument("--warm-up", type=int, default=WARM_UP_S, metavar="SECONDS")
    options = parser.parse_args()
    measure = window_latency if options.window else derived_latency
    for metric, value in measure(options.seconds, warm_up_s=options.warm_up).items():
        print(f"{metric}: {value:.1f}")


if __name__ == "__main__":
    main()
