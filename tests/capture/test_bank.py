"""The proof: a bank at work, while capture, broker and database are killed at random.

Every transaction is in the topics once, whole, in the order of commits, and the topics, replayed,
give the tables. The full tier kills more often, HEADWATER_LONG=N makes it N kills.
"""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
from support.capture import bank
from support.capture.capture_harness import read
from support.capture.killing import (
    KILLS,
    READY_S,
    CaptureProcess,
    HeadwaterBroker,
    KafkaBroker,
    ask_for_copies,
    copies,
    kill_at_random,
    wait_for_copies,
)
from support.capture.postgres_server import PostgresServer
from support.wire import wait_until
from tiers import IS_FULL, count, long

from bench.peers.kafka import TOOL_JVM, kafka
from bench.peers.provision import missing_tools

CLIENTS = 3


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
            if any(record.key == {"id": last} for record in read(bootstrap, topic)):
                return last
        assert time.monotonic() < deadline_s, "the last transaction is not in the topic"
        threading.Event().wait(0.2)


def prove(broker, directory: Path, kills: int, broker_weight: int) -> None:
    rng = random.Random(os.environ.get("HEADWATER_SEED", "11"))
    with bank_database() as server:
        url = server.url("postgres")
        capture = CaptureProcess(url, broker.bootstrap, directory / "capture.log")
        capture.start()
        try:
            wait_for_copies(broker.bootstrap)
            with at_work(url) as clients:

                def between() -> None:
                    if rng.random() < 0.2:
                        ask_for_copies(broker.bootstrap, "public.accounts")

                victims = [(6, capture), (broker_weight, broker), (1, Database(server))]
                kill_at_random(victims, kills, rng, between)
                wait_until(lambda: sum(client.committed for client in clients) > kills)
            finished(url, broker.bootstrap)
            accounts = read(broker.bootstrap, "shop.public.accounts")
            journal = read(broker.bootstrap, "shop.public.journal")
            transactions = bank.check(url, accounts, journal)
            assert transactions > kills
            print(f"{kills} kills, {len(journal)} in the journal, {transactions} sums checked")
        finally:
            capture.kill()


@pytest.mark.slow
@pytest.mark.timeout(300 + 5 * KILLS)
def test_kills_of_capture_broker_and_database(tmp_path):
    broker = HeadwaterBroker(tmp_path / "data")
    broker.start()
    try:
        prove(broker, tmp_path, KILLS, broker_weight=2)
    finally:
        broker.kill()


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.skipif(bool(missing_tools("java", "mvn")), reason="needs java and mvn on the PATH")
@long
def test_the_same_on_apache_kafka(tmp_path):
    """Kafka itself is killed in the full tier only: tests/client/test_killed_kafka.py shows how
    it can lose the markers of a transaction that it has acknowledged, and a position with them.
    """
    with kafka(tmp_path / "kafka", jvm=TOOL_JVM) as process:
        broker = KafkaBroker(process)
        try:
            prove(broker, tmp_path, max(KILLS // 4, 4), broker_weight=int(IS_FULL))
        finally:
            broker.kill()


@pytest.mark.slow
def test_kills_during_the_first_copy(tmp_path):
    """Rows are changed, added and deleted all the while: all are copied, and none goes back."""
    rows, kills = 20_000, count(quick=3, full=6)
    rng = random.Random(7)
    broker = HeadwaterBroker(tmp_path / "data")
    broker.start()
    with bank_database() as server:
        url = server.url("postgres")
        with psycopg2.connect(url) as connection:
            connection.cursor().execute(
                "create table big (id text primary key, version int not null, filler text);"
                f"insert into big select md5(n::text), 0, repeat('x', 500)"
                f" from generate_series(1, {rows}) n"
            )
        connection.close()
        capture = CaptureProcess(url, broker.bootstrap, tmp_path / "capture.log", chunk_rows=50)
        stop = threading.Event()
        changer = threading.Thread(target=change_rows, args=(url, rows, stop))
        try:
            changer.start()
            capture.start()
            for number in range(kills):
                rows_then = sum(copy.rows for copy in copies(broker.bootstrap).values())
                wait_until(
                    lambda: sum(e.rows for e in copies(broker.bootstrap).values()) > rows_then  # noqa: B023
                )
                threading.Event().wait(rng.uniform(0, 0.3))
                capture.kill()
                assert number > 2 or not copies(broker.bootstrap)["public.big"].is_done
                capture.start()
            wait_for_copies(broker.bootstrap, tables=3)
        finally:
            stop.set()
            changer.join()
        try:
            finished(url, broker.bootstrap)
            versions: dict[str, int] = {}
            for record in read(broker.bootstrap, "shop.public.big"):
                key = record.key["id"]
                if record.value is None or record.op == "d":
                    versions.pop(key, None)
                    continue
                version = record.value["after"]["version"]
                assert version >= versions.get(key, 0), "a row went back in time"
                versions[key] = version
            with psycopg2.connect(url) as connection, connection.cursor() as cursor:
                cursor.execute("select id, version from big")
                assert versions == dict(cursor.fetchall())
            connection.close()
        finally:
            capture.kill()
            broker.kill()


def change_rows(url: str, rows: int, stop: threading.Event) -> None:
    rng = random.Random(3)
    connection = psycopg2.connect(url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        while not stop.wait(0.001):
            number = rng.randrange(rows)
            what = rng.choice(
                [
                    "update big set version = version + 1 where id = md5(%s::text)",
                    "delete from big where id = md5(%s::text)",
                    "insert into big values (md5('+' || %s), 0, 'y') on conflict do nothing",
                ]
            )
            cursor.execute(what, (number,))
    connection.close()
