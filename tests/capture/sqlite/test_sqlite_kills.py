"""A bank at work while its clients and the capture are killed: nothing lost, nothing twice, and the
sum of balances is constant wherever a transaction ends.
"""

import json
import random
import sqlite3
import subprocess
import sys
import threading
from contextlib import ExitStack, closing
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from support import SUPPORT
from support.capture import sqlite_bank
from support.capture.capture_harness import Seen
from support.capture.capture_harness import read as read_topic
from support.wire import wait_until
from tiers import long

from headwater.schema_lookup.lookup import SchemaLookup
from headwater.schema_lookup.sources import TopicSource
from headwater.settings import ClientSettings
from headwater.testing import InProcessBroker

KILLS = 20


class Process:
    def __init__(self, *command: str, log: Path) -> None:
        self._command = [sys.executable, *command]
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def kill(self) -> None:
        assert self.is_alive()
        self.stop()

    def is_alive(self) -> bool:
        code = self._process.poll()
        assert code is None, f"it ended by itself ({code}): {self._log.read_text()[-3000:]}"
        return True

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", pytest.param("avro", marks=long)])
def test_kills_of_clients_and_capture(tmp_path: Path, monkeypatch, form: str):
    monkeypatch.setenv("CAPTURE_FORMAT", form)
    rng = random.Random(7)
    path = tmp_path / "bank.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sqlite_bank.SCHEMA)
    with InProcessBroker.serving(str(tmp_path / "broker")) as broker, ExitStack() as stack:
        lookup = SchemaLookup(TopicSource(broker.bootstrap, ClientSettings()))
        stack.callback(lookup.close)

        def decode(data: bytes | None) -> Any:
            if data is None or form == "json":
                return None if data is None else json.loads(data)
            return lookup.decode(data).value

        def read(topic: str) -> list[Seen]:
            return read_topic(broker.bootstrap, topic, decode=decode)

        def entries(op: str) -> list[int]:
            return [record.key["id"] for record in read("bank.main.journal") if record.op == op]

        def started(name: str, *command: str) -> Process:
            process = Process(*command, log=tmp_path / name)
            stack.callback(process.stop)
            return process

        script, source = str(SUPPORT / "capture" / "capture_process.py"), f"sqlite:///{path}"
        capture = started("capture.log", script, "bank", source, broker.bootstrap, "9", "main.*")
        script = str(SUPPORT / "capture" / "sqlite_bank.py")
        clients = [started(f"client{n}.log", script, str(path), str(n)) for n in range(2)]
        wait_until(lambda: capture.is_alive() and len(read("bank.main.journal")) > 20)
        for _ in range(KILLS):
            victim = rng.choice([capture, capture, *clients])
            threading.Event().wait(rng.uniform(0, 0.6))
            victim.kill()
            victim.start()
        for client in clients:
            client.kill()
        with closing(sqlite3.connect(path)) as connection:
            journal = [row[0] for row in connection.execute("SELECT id FROM journal ORDER BY id")]
            accounts = connection.execute("SELECT id, balance, number FROM accounts").fetchall()
        wait_until(lambda: journal[-1] in entries("c"))
        created, copied = (entries(op) for op in "cr")
        assert created == sorted(set(created)), "not once, or not in the order of commits"
        assert copied == sorted(set(copied)), "copied twice"
        assert {*created, *copied} == {*journal}
        topic = "bank.main.accounts"
        wait_until(lambda: _replayed(read(topic)) == sorted(accounts))


def _replayed(records: list[Seen]) -> list[tuple[int, int, int]]:
    """The table that the topic gives. Looks at the sum after each transaction."""
    table: dict[int, dict[str, int]] = {}
    records = [record for record in records if record.value is not None]
    copied = max(number for number, record in enumerate(records) if record.op == "r")
    transactions = set()
    number = 0
    for txid, group in groupby(records, key=lambda record: record.value["source"]["txId"]):
        assert txid is None or txid not in transactions, "a transaction came in parts"
        transactions.add(txid)
        for record in group:
            number += 1
            key = record.key["id"]
            if record.op == "d":
                assert number <= copied or key in table, "it was not there to be deleted"
                table.pop(key, None)
            else:
                table[key] = record.value["after"]
        if number > copied:
            total = sum(row["balance"] for row in table.values())
            assert total == sqlite_bank.ACCOUNTS * sqlite_bank.MONEY, f"{total} after {txid}"
    return sorted((row["id"], row["balance"], row["number"]) for row in table.values())
