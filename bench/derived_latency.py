"""How soon a derived row is in PostgreSQL: from the moment that its record is due to be produced,
to the moment that another session of the database sees the row.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
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
START_TIMEOUT_S = 180
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


def derived_latency(seconds: int, broker_name: str = NAME) -> Measured:
    """`headwater pipeline run` in a process of its own, as a user starts it."""
    with (
        data_directory() as directory,
        postgres(directory) as database,
        BROKERS[broker_name](directory / "broker") as broker,
        _pipeline(directory, broker, database) as running,
    ):
        count = (WARM_UP_S + seconds) * ROWS_PER_S
        seen = _Seen(database, count)
        _produce(broker.address, range(1))
        seen.wait_for(0, running, START_TIMEOUT_S)
        due_s = _produce(broker.address, range(1, count))
        seen.wait_for(count - 1, running, LATE_S)
    warm = WARM_UP_S * ROWS_PER_S
    delays_ms = sorted(
        (seen_s - due) * 1000 for due, seen_s in zip(due_s[warm:], seen.at_s[warm:], strict=False)
    )
    name = f"{ROWS_PER_S:,} rows/s, produced to seen in PostgreSQL"
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


def _produce(address: str, ids: range) -> list[float]:
    """At the rate; when each was due. The first is `ids.start`, but the list begins with id 0."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0})
    began_s = time.perf_counter()
    due_s = [began_s + (number - ids.start) / ROWS_PER_S for number in range(ids.stop)]
    for number in ids:
        if (early_s := due_s[number] - time.perf_counter()) > 0:
            producer.poll(0)
            time.sleep(early_s)
        row = {"id": number, "customer": number // 7, "name": f"customer {number}", "total": 9.5}
        producer.produce("events", orjson.dumps(row), b'{"id":%d}' % number)
    producer.flush()
    return due_s


@contextmanager
def _pipeline(
    directory: Path, broker: BrokerProcess, database: Postgres
) -> Iterator[BrokerProcess]:
    create_topics(broker.address, "events")
    project = directory / "project"
    project.mkdir()
    (project / "latency.py").write_text(PIPELINE)
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
