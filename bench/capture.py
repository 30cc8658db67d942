"""Change data capture: a table's snapshot, a backlog of changes, and single commits as they come.

What a consumer sees counts: a row is there when a read_committed consumer can read it.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import psycopg2
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.clients.rdkafka import LoadFailedError
from bench.peers import debezium, headwater
from bench.peers.postgres import DATABASE, USER, Postgres, binaries, postgres
from bench.peers.process import BrokerProcess
from bench.rounds import Measured, StartBroker, data_directory

TABLE = "orders"
TOPIC = f"bench.public.{TABLE}"
CREATE = f"""
CREATE TABLE {TABLE} (
    id bigint PRIMARY KEY, customer int NOT NULL, product text NOT NULL,
    amount numeric(10, 2) NOT NULL, note text, created timestamptz NOT NULL
)
"""
FILL = f"""
INSERT INTO {TABLE}
SELECT g, g %% 5000, 'product ' || g %% 100, (g %% 10000) / 100.0, 'note for the order ' || g, now()
FROM generate_series(%s, %s) g
"""
TRANSACTION_ROWS = 1_000
COMMITS_PER_S = 100
TIMEOUT_S = 900


def capture(start: StartBroker, rows: int, seconds: int) -> Measured:
    """One table in an otherwise idle PostgreSQL on the same machine."""
    with (
        data_directory() as directory,
        postgres(directory) as database,
        start(directory / "broker") as broker,
    ):
        connection = psycopg2.connect(database.dsn)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(CREATE)
            cursor.execute(FILL, (1, rows))
            cursor.execute(f"ANALYZE {TABLE}")
        follow = _FOLLOW[broker.name]
        folder = directory / "capture"
        folder.mkdir()

        with _following(lambda: follow(folder, broker.address, database)) as running:
            snapshot = Arrival(broker.address, running, first_offset=0)
            snapshot.wait_for(rows, behind=rows - 1)
            snapshot_rss = running.peak_rss_bytes
        _write_backlog(database, rows)
        ceiling_s = _drain(database)
        end = _end(broker.address)
        with _following(lambda: follow(folder, broker.address, database)) as running:
            backlog = Arrival(broker.address, running, first_offset=end)
            backlog.wait_for(2 * rows, behind=2 * rows - 1)
            delays_ms = sorted(_delays_ms(broker.address, database, 2 * rows, seconds))
            backlog_rss = running.peak_rss_bytes
        connection.close()
    shown = f"{rows / 1_000_000:g} M"
    backlog_name = f"catch up on {shown} changes in transactions of {TRANSACTION_ROWS:,}"
    commits = f"single commits, {COMMITS_PER_S}/s, commit to consumer"
    return {
        f"snapshot of {shown} rows, rows/s": rows / snapshot.from_first_s,
        f"snapshot of {shown} rows with the start, rows/s": rows / snapshot.from_start_s,
        f"{backlog_name}, rows/s": rows / backlog.from_first_s,
        f"{backlog_name} with the start, rows/s": rows / backlog.from_start_s,
        "the same backlog by pg_recvlogical, rows/s": rows / ceiling_s,
        f"{commits}, p50, ms": delays_ms[len(delays_ms) // 2],
        f"{commits}, p99, ms": delays_ms[len(delays_ms) * 99 // 100],
        "capture RSS at peak, snapshot, MiB": snapshot_rss / 2**20,
        "capture RSS at peak, changes, MiB": backlog_rss / 2**20,
    }


class Arrival:
    """When rows come to be readable, counted from the start of the capture's process."""

    def __init__(self, address: str, running: BrokerProcess, first_offset: int) -> None:
        self._address = address
        self._running = running
        self._first_offset = first_offset
        self._started_s = time.perf_counter()
        self.from_first_s = 0.0
        self.from_start_s = 0.0

    def wait_for(self, last_id: int, behind: int) -> None:
        """Until the row of this id can be read. It stands at the offset `behind` or later: only
        the end of the topic is read, so that the consumer costs the capture nothing.
        """
        with _consumer(self._address) as consumer:
            while (end := _offset_end(consumer)) <= self._first_offset:
                self._check()
                time.sleep(0.01)
            first_s = time.perf_counter()
            while end <= behind:
                self._check()
                time.sleep(0.02)
                end = _offset_end(consumer)
            consumer.assign([TopicPartition(TOPIC, 0, behind)])
            while last_id not in (row_id for row_id, _s in _ids(consumer)):
                self._check()
        last_s = time.perf_counter()
        self.from_first_s, self.from_start_s = last_s - first_s, last_s - self._started_s

    def _check(self) -> None:
        if self._running.child.poll() is not None:
            text = self._running.output.read_text()[-3000:]
            raise LoadFailedError(f"{self._running.name} ended:\n{text}")
        if time.perf_counter() - self._started_s > TIMEOUT_S:
            text = self._running.output.read_text()[-3000:]
            raise LoadFailedError(f"{self._running.name} is not done in {TIMEOUT_S} s:\n{text}")


def _delays_ms(address: str, database: Postgres, last_id: int, seconds: int) -> list[float]:
    """From the moment that a commit is issued to a consumer that has the record."""
    issued_s: dict[int, float] = {}
    count = seconds * COMMITS_PER_S
    writer = threading.Thread(target=_commit_singly, args=(database, last_id, count, issued_s))
    delays = []
    with _consumer(address) as consumer:
        consumer.assign([TopicPartition(TOPIC, 0, _offset_end(consumer))])
        deadline_s = time.perf_counter() + seconds + 60
        writer.start()
        while len(delays) < count:
            for row_id, seen_s in _ids(consumer):
                if row_id in issued_s:
                    delays.append((seen_s - issued_s[row_id]) * 1000)
            if time.perf_counter() > deadline_s:
                raise LoadFailedError(f"{len(delays)} of {count} single commits arrived")
    writer.join()
    return delays


def _commit_singly(
    database: Postgres, last_id: int, count: int, issued_s: dict[int, float]
) -> None:
    connection = psycopg2.connect(database.dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        began_s = time.perf_counter()
        for number in range(1, count + 1):
            due_s = began_s + number / COMMITS_PER_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
            issued_s[last_id + number] = time.perf_counter()
            cursor.execute(FILL, (last_id + number, last_id + number))
    connection.close()


def _write_backlog(database: Postgres, rows: int) -> None:
    connection = psycopg2.connect(database.dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE PUBLICATION ceiling FOR TABLE {TABLE}")
        cursor.execute("SELECT pg_create_logical_replication_slot('ceiling', 'pgoutput')")
        for first in range(rows + 1, 2 * rows + 1, TRANSACTION_ROWS):
            cursor.execute(FILL, (first, min(first + TRANSACTION_ROWS - 1, 2 * rows)))
    connection.close()


def _drain(database: Postgres) -> float:
    """How long PostgreSQL's own client takes for the backlog: the ceiling of everybody."""
    connection = psycopg2.connect(database.dsn)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_flush_lsn()")
        (end,) = cursor.fetchone()
        cursor.execute("SELECT pg_logical_emit_message(true, 'bench', 'end')")
    began_s = time.perf_counter()
    subprocess.run(
        [binaries() / "pg_recvlogical", "-h", "127.0.0.1", "-p", str(database.port), "-U", USER,
         "-d", DATABASE, "--slot", "ceiling", "--start", "--endpos", end, "-f", os.devnull,
         "-o", "proto_version=1", "-o", "publication_names=ceiling"],
        check=True, capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    drained_s = time.perf_counter() - began_s
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_drop_replication_slot('ceiling')")
    connection.close()
    return drained_s


@contextmanager
def _following(start: Callable[[], BrokerProcess]) -> Iterator[BrokerProcess]:
    running = start()
    try:
        yield running
    finally:
        if running.child.poll() is None:
            running.stop()


def _start_headwater(folder: Path, bootstrap: str, database: Postgres) -> BrokerProcess:
    settings = folder / "headwater.toml"
    settings.write_text(
        f'[capture.bench]\nsource = "{database.url}"\ntables = ["public.{TABLE}"]\n'
    )
    command = [str(Path(sys.executable).with_name("headwater")), "capture", "run", "bench",
               "--config", str(settings), "--bootstrap", bootstrap]  # fmt: skip
    output = folder / "capture.out"
    with output.open("ab") as sink:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    return BrokerProcess(headwater.NAME, bootstrap, child, output)


def _start_debezium(folder: Path, bootstrap: str, database: Postgres) -> BrokerProcess:
    return debezium.start_connect(folder, bootstrap, database, TABLE)


_FOLLOW = {headwater.NAME: _start_headwater, debezium.NAME: _start_debezium}


@contextmanager
def _consumer(address: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 500,
            "fetch.min.bytes": 1,
            "topic.metadata.refresh.interval.ms": 500,
            "allow.auto.create.topics": False,
            "log_level": 0,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _offset_end(consumer: Consumer) -> int:
    """The end of the topic for this consumer: its last stable offset; 0 while there is no topic."""
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=5)[1])
    except KafkaException:
        return 0


def _end(address: str) -> int:
    with _consumer(address) as consumer:
        return _offset_end(consumer)


def _ids(consumer: Consumer) -> Iterator[tuple[int, float]]:
    """The ids of the rows that have come since the last call, and when."""
    message = consumer.poll(0.1)
    while message is not None:
        if message.error() is None and message.value() is not None:
            yield orjson.loads(message.value())["after"]["id"], time.perf_counter()
        message = consumer.poll(0)
