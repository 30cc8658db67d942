"""The proof: a bank at work, while capture, broker and database are killed at random.

Every transaction is in the topics once, whole, in the order of commits, and the topics, replayed,
give the tables. HEADWATER_LONG=N makes it N kills.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import bank
import psycopg2
import pytest
from capture_harness import read
from confluent_kafka import Producer
from postgres_server import PostgresServer
from wire import wait_until

from headwater.capture.positions import SIGNALS_TOPIC, TOPIC, decode
from headwater.capture.signals import encode
from headwater.client.compacted import read_committed_latest
from headwater.errors import BrokerUnreachable
from headwater.settings import ClientSettings

KILLS = int(os.environ.get("HEADWATER_LONG", "50"))
CLIENTS = 3
READY_S = 60


class HeadwaterBroker:
    """Ours, as a process."""

    def __init__(self, data_dir: Path) -> None:
        from bench.peers.process import free_port

        self.data_dir = data_dir
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headwater.cli.main", "broker", "--listen", self.bootstrap,
             "--data-dir", str(self.data_dir)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class CaptureProcess:
    def __init__(self, source: str, bootstrap: str, log: Path) -> None:
        script = str(Path(__file__).with_name("capture_process.py"))
        self._command = [sys.executable, script, "shop", source, bootstrap, "public.*"]
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self._process is not None
        code = self._process.poll()
        assert code is None, f"it ended by itself ({code}): {self.log.read_text()[-3000:]}"
        self._process.kill()
        self._process.wait()


class Database:
    """The bank's, which crashes."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.stop(signal.SIGQUIT)


@contextlib.contextmanager
def bank_database() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        with psycopg2.connect(server.url("postgres")) as connection:
            connection.cursor().execute(bank.SCHEMA)
        connection.close()
        yield server
    finally:
        server.remove()


@contextlib.contextmanager
def at_work(url: str) -> Iterator[list[bank.Client]]:
    clients = [bank.Client(url, seed) for seed in range(CLIENTS)]
    try:
        yield clients
    finally:
        for client in clients:
            client.stop()


def kill_at_random(victims, count: int, rng: random.Random, between=lambda: None) -> None:
    """`victims`: (weight, what can be killed and started). Some live long, some hardly begin."""
    weights, targets = zip(*victims, strict=True)
    for _ in range(count):
        (target,) = rng.choices(targets, weights)
        pause_s = rng.choice([rng.uniform(0, 0.3), rng.uniform(0.3, 1.0), rng.uniform(1.0, 2.0)])
        threading.Event().wait(pause_s)
        target.kill()
        threading.Event().wait(rng.uniform(0, 0.1))
        target.start()
        between()


def finished(url: str, bootstrap: str, topic: str = "shop.public.journal") -> int:
    """Waits until all that was committed is in the topics; how many entries the journal has."""
    with psycopg2.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(
            "insert into journal (what, txid) values ('end', txid_current()) returning id"
        )
        last = cursor.fetchone()[0]
    connection.close()
    deadline_s = time.monotonic() + READY_S
    while True:
        with contextlib.suppress(AssertionError):
            if any(each.key == {"id": last} for each in read(bootstrap, topic)):
                return last
        assert time.monotonic() < deadline_s, "the last transaction is not in the topic"
        threading.Event().wait(0.2)


def wait_for_copies(bootstrap: str) -> None:
    """The first copies are done: from then on the sum of balances is what it must be."""

    def are_done() -> bool:
        with contextlib.suppress(BrokerUnreachable):
            records = read_committed_latest(bootstrap, ClientSettings(), TOPIC, patience_s=5)
            tables = decode("shop", records).tables.values()
            return len(tables) == 2 and all(e.snapshot and e.snapshot.is_done for e in tables)
        return False

    wait_until(are_done)


def ask_for_copies(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    producer.produce(SIGNALS_TOPIC, encode("x", ["public.accounts"]), "shop")
    producer.flush(0.5)


@pytest.mark.slow
@pytest.mark.timeout(1200 + 5 * KILLS)
def test_kills_of_capture_broker_and_database(tmp_path):
    rng = random.Random(os.environ.get("HEADWATER_SEED", "11"))
    with bank_database() as server:
        url = server.url("postgres")
        broker = HeadwaterBroker(tmp_path / "data")
        broker.start()
        capture = CaptureProcess(url, broker.bootstrap, tmp_path / "capture.log")
        capture.start()
        try:
            with at_work(url) as clients:
                wait_for_copies(broker.bootstrap)

                def between() -> None:
                    if rng.random() < 0.2:
                        ask_for_copies(broker.bootstrap)

                victims = [(6, capture), (2, broker), (1, Database(server))]
                kill_at_random(victims, KILLS, rng, between)
                wait_until(lambda: sum(each.committed for each in clients) > KILLS)
            finished(url, broker.bootstrap)
            accounts = read(broker.bootstrap, "shop.public.accounts")
            journal = read(broker.bootstrap, "shop.public.journal")
            transactions = bank.check(url, accounts, journal)
            assert transactions > KILLS
            print(f"{KILLS} kills, {len(journal)} in the journal, {transactions} sums checked")
        finally:
            capture.kill()
            broker.kill()
