"""The bank on MariaDB and MySQL: transfers and changes of keys and tables, while capture, broker
and database are killed. Every transaction is in the topics once, whole, in the order of the binlog.
"""

import random
import re
import signal
import threading
import time
from contextlib import closing
from itertools import groupby

import pymysql
import pytest
from support.capture.capture_harness import read
from support.capture.killing import (
    KILLS,
    READY_S,
    CaptureProcess,
    HeadwaterBroker,
    ask_for_copies,
    kill_at_random,
    wait_for_copies,
)
from support.capture.mariadb_server import MariaDbServer
from support.capture.mysql_server import KINDS, server_of
from tiers import count

ACCOUNTS, MONEY = 30, 1_000
# A killed process must not lose what it has committed.
DURABLE = {"sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1"}
COMPRESSED = {
    "mariadb": {"log_bin_compress": "1"},
    "mysql": {"binlog_transaction_compression": "ON"},
    "mysql-8.0": {},
}
ROLLED_BACK = (pymysql.err.IntegrityError, ZeroDivisionError)


class Client:
    def __init__(self, server: MariaDbServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    with closing(self._server.connect("bank")) as connection:
                        connection.autocommit(False)
                        while not self._stop.wait(self._random.random() * 0.01):
                            self._transact(connection)
                except (pymysql.err.OperationalError, pymysql.err.InterfaceError):
                    self._stop.wait(0.05)
        except BaseException as error:
            self.failure = error

    def _transact(self, connection) -> None:
        rng = self._random
        try:
            with connection.cursor() as cursor:
                cursor.execute("insert into journal (what) values ('x')")
                cursor.execute("select id from accounts order by rand() limit 2 for update")
                first, second = sorted(row[0] for row in cursor.fetchall())
                kind = rng.random()
                if kind < 0.7:
                    amount = rng.randrange(50)
                    for account, change in ((first, amount), (second, -amount)):
                        cursor.execute(
                            "update accounts set balance = balance + %s where id = %s",
                            (change, account),
                        )
                elif kind < 0.8:
                    cursor.execute("insert into accounts values (%s, 0)", (rng.randrange(10_000),))
                elif kind < 0.9:
                    cursor.execute(
                        "update accounts set id = %s where id = %s", (rng.randrange(10_000), first)
                    )
                else:
                    cursor.execute("select balance from accounts where id = %s", (first,))
                    ((balance,),) = cursor.fetchall()
                    cursor.execute("delete from accounts where id = %s", (first,))
                    cursor.execute(
                        "update accounts set balance = balance + %s where id = %s",
                        (balance, second),
                    )
                    cursor.execute("select count(*) from accounts")
                    if cursor.fetchone()[0] < 10 or rng.random() < 0.2:
                        raise ZeroDivisionError
            connection.commit()
        except ROLLED_BACK:
            connection.rollback()


class Database:
    def __init__(self, server: MariaDbServer) -> None:
        self._server = server

    def kill(self) -> None:
        self._server.stop(signal.SIGKILL)

    def start(self) -> None:
        self._server.start()


@pytest.mark.slow
@pytest.mark.timeout(300 + 5 * KILLS)
@pytest.mark.parametrize("kind", KINDS)
def test_kills_of_capture_broker_and_database(tmp_path, kind):
    rng = random.Random(3)
    kills = max(KILLS // 3, count(quick=5, full=15))
    server = server_of(kind, tmp_path / "server", DURABLE | COMPRESSED[kind])
    broker = HeadwaterBroker(tmp_path / "data")
    try:
        server.start()
        server.execute("create database bank")
        server.execute(
            "create table accounts (id int primary key, balance bigint not null)",
            "create table journal (id bigint auto_increment primary key, what text)",
            *(f"insert into accounts values ({n}, {MONEY})" for n in range(ACCOUNTS)),
            database="bank",
        )
        broker.start()
        capture = CaptureProcess(
            server.url("bank"), broker.bootstrap, tmp_path / "capture.log", tables="bank.*"
        )
        capture.start()
        wait_for_copies(broker.bootstrap)
        clients = [Client(server, seed) for seed in range(3)]

        def between() -> None:
            if rng.random() < 0.3:
                ask_for_copies(broker.bootstrap, "bank.accounts")

        try:
            kill_at_random([(5, capture), (2, broker), (2, Database(server))], kills, rng, between)
        finally:
            for client in clients:
                client.stop()
        try:
            check(server, broker.bootstrap, kills)
        finally:
            capture.kill()
    finally:
        broker.kill()
        server.close()


def check(server: MariaDbServer, bootstrap: str, kills: int) -> None:
    server.execute("insert into journal (what) values ('end')", database="bank")
    expected = {row[0] for row in server.execute("select id from journal", database="bank")}
    deadline_s = time.monotonic() + READY_S
    while (journal := read(bootstrap, "shop.bank.journal"))[-1].value["after"]["what"] != "end":
        assert time.monotonic() < deadline_s, "the last transaction is not in the topic"
        threading.Event().wait(0.1)
    ids = [record.key["id"] for record in journal if record.op == "c"]
    assert len(ids) == len(set(ids))
    assert set(ids) | {record.key["id"] for record in journal if record.op == "r"} == expected

    accounts = read(bootstrap, "shop.bank.accounts")
    gtids = [gtid for gtid, _ in _transactions(accounts) if gtid is not None]
    assert len(gtids) > kills
    assert len(gtids) == len(set(gtids)), "a transaction came twice, or not as a whole"
    numbers = [int(re.split("[-:]", gtid)[-1]) for gtid in gtids]
    assert numbers == sorted(numbers)

    table: dict[int, int] = {}
    for number, (gtid, records) in enumerate(_transactions(accounts)):
        for record in records:
            if record.op == "d":
                del table[record.key["id"]]
            elif record.op == "r" and number:
                assert table[record.key["id"]] == record.value["after"]["balance"]
            elif record.value is not None:
                table[record.key["id"]] = record.value["after"]["balance"]
        assert sum(table.values()) == ACCOUNTS * MONEY, gtid
    rows = server.execute("select id, balance from accounts", database="bank")
    assert table == dict(rows)


def _transactions(records):
    """Runs of records of one source transaction; copies have none."""

    def gtid(record):
        nonlocal current
        if record.value is not None:
            current = None if record.op == "r" else record.value["source"]["gtid"]
        return current

    current = None
    return [(transaction, list(group)) for transaction, group in groupby(records, gtid)]
