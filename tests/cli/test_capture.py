"""`headwater capture …` and what `headwater doctor` says of captures, with SQLite behind them."""

import contextlib
import json
import os
import pty
import signal
import sqlite3
import subprocess
import threading
import time
import urllib.request

import pytest
from confluent_kafka import TopicPartition
from support.readable import readable

from headwater.capture.contract import Lag, SourcePosition
from headwater.capture.positions import CapturePosition, Stored
from headwater.capture.settings import CaptureSettings
from headwater.inspect import captures as capture_state
from headwater.inspect.captures import CaptureState, stored_of
from headwater.inspect.kafka_cluster import KafkaCluster, Partition
from headwater.settings import ClientSettings, Secret

from .conftest import COMMAND, TIMEOUT_S, read_line, stop, unique, wait_until


class Till:
    """A database with one table, and the capture that follows it."""

    def __init__(self, directory, cli):
        self.name = unique("till")
        self.cli = cli
        self.file = directory / "till.db"
        self.config = directory / "headwater.toml"
        self.db = sqlite3.connect(self.file, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = wal")
        self.db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        self.insert(3)
        self.write("")

    def write(self, more, source=None):
        self.config.write_text(
            f'[capture.{self.name}]\nsource = "{source or f"sqlite:///{self.file}"}"\n'
            f"heartbeat_s = 0.5\n{more}\n"
        )

    def insert(self, count, item="tea"):
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO orders (item) VALUES (?)", [(item,)] * count)
        self.db.execute("COMMIT")

    @contextlib.contextmanager
    def running(self):
        process = self.cli.start("capture", "run", self.name, "--json")
        try:
            about = json.loads(read_line(process))
            yield process, about
        finally:
            if process.poll() is None:
                assert stop(process) == 0, process.stderr.read().decode()

    def state(self):
        """The output of status, read in this process: quicker than by a command."""
        settings = CaptureSettings(self.name, Secret("sqlite:///x"), heartbeat_s=0.5)
        stored = stored_of(self.name, self.cli.bootstrap, ClientSettings())
        return CaptureState(self.name, settings, stored).as_json()

    def copied(self, table="main.orders"):
        """Rows of the table's copy, None unless it is whole."""
        for state in self.state()["tables"]:
            if state["table"] == table and state["snapshot"] and state["snapshot"]["done"]:
                return state["snapshot"]["rows"]
        return None

    def values(self):
        """All committed records of the table's topic."""
        topic = f"{self.name}.main.orders"
        cluster = KafkaCluster(self.cli.bootstrap)
        if topic not in cluster.topics():
            return []
        end = cluster.bounds([Partition(topic, 0)], committed_only=True)[Partition(topic, 0)][1]
        consumer = cluster.consumer({"group.id": "x", "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = []
        while (record := consumer.poll(TIMEOUT_S)) is not None and record.offset() < end:
            if record.error() is None:
                values.append(json.loads(record.value()))
        consumer.close()
        return values


@pytest.fixture
def till(cli, tmp_path):
    till = Till(tmp_path, cli)
    yield till
    till.db.close()


def test_databases_of_captures_that_do_not_run_are_asked_at_once(monkeypatch):
    """One that does not answer is waited for; several of them take no longer."""
    barrier = threading.Barrier(3)

    class Slow:
        def lag(self, _acknowledged):
            barrier.wait(60)
            return Lag(size_bytes=7)

        def close(self):
            pass

    monkeypatch.setattr(capture_state, "source_of", lambda _: Slow())
    position = CapturePosition(SourcePosition({}), 0, has_ended=True)
    captures = [
        CaptureState(name, CaptureSettings(name, Secret("sqlite:x")), Stored(position, {}))
        for name in "abc"
    ]
    found = capture_state.with_lags_now(captures)
    assert [(capture.name, capture.lag.size_bytes) for capture in found] == [
        ("a", 7),
        ("b", 7),
        ("c", 7),
    ]
    assert capture_state.with_lags_now([]) == []


def test_a_capture_that_never_ran(till):
    (listed,) = [row for row in till.cli.json("capture", "list") if row["capture"] == till.name]
    assert (listed["state"], listed["tables"], listed["position"]) == ("never ran", [], None)
    assert f"`headwater capture run {till.name}` starts it" in till.cli(
        "capture", "status", till.name, code=3
    )


def test_run_copies_follows_and_goes_on(till):
    with till.running() as (_, about):
        assert about["capture"] == till.name
        assert about["source"] == f"sqlite:///{till.file}"
        wait_until(lambda: till.copied() == 3)
        till.insert(1, "coffee")
        wait_until(lambda: till.values()[-1]["after"]["item"] == "coffee")
        assert till.state()["state"] == "following"
        wait_until(lambda: till.state()["lag_bytes"] == 0)
    till.insert(1, "cake")
    with till.running():
        wait_until(lambda: till.values()[-1]["after"]["item"] == "cake")
        shown = [line.split() for line in till.cli("capture", "list").splitlines()]
        assert [till.name, about["source"], "following"] in [line[:3] for line in shown]
        assert f"{till.name}.main.orders" in till.cli("capture", "status", till.name)
    assert [value["op"] for value in till.values()] == ["r", "r", "r", "c", "c"]


def test_a_second_run_takes_over_and_the_first_says_so(till):
    with till.running() as (first, _):
        wait_until(lambda: till.copied() == 3)
        with till.running():
            wait_until(lambda: first.poll() is not None)
            assert first.returncode == 1
            output = json.loads(first.stderr.read().decode().splitlines()[-1])
            assert "error" in output
            till.insert(1, "milk")
            wait_until(lambda: till.values()[-1]["after"]["item"] == "milk")


def test_snapshot_again_while_running(till):
    with till.running():
        wait_until(lambda: till.copied() == 3)
        output = till.cli("capture", "snapshot", till.name, "--table", "main.orders", "--wait")
        assert output == "copied 3 rows of main.orders\n"
        assert [value["op"] for value in till.values()].count("r") == 6


def test_a_capture_that_has_ended_copies_when_it_runs_again(till):
    with till.running():
        wait_until(lambda: till.copied() == 3)
    wait_until(lambda: till.state()["state"] == "stopped")
    assert "its position was last stored" in till.cli("capture", "status", till.name, code=3)
    asked = till.cli.result("capture", "snapshot", till.name, "-t", "main.orders")
    assert asked.stdout == b"requested a snapshot of main.orders\n"
    assert b"does not run" in asked.stderr
    with till.running():
        wait_until(lambda: len(till.values()) == 6)


def test_a_snapshot_of_a_table_that_is_not_followed(till):
    output = till.cli.error("capture", "snapshot", till.name, "-t", "main.order", code=2)
    assert f"capture {till.name} does not follow a table main.order" in output
    assert "did you mean main.orders?" in output


def test_reset_deletes_the_position_and_the_next_run_copies_again(till):
    with till.running() as (process, _):
        wait_until(lambda: till.copied() == 3)
        output = till.cli.error("capture", "reset", till.name, code=2)
        assert "deletes its position and the state of 1 table" in output
        assert "--yes continues without a confirmation" in output
        assert till.copied() == 3
        till.cli("capture", "reset", till.name, "--yes")
        till.insert(1)
        assert process.wait(TIMEOUT_S) == 1
    assert till.state()["state"] == "never ran"
    left = till.db.execute("SELECT name FROM sqlite_schema WHERE name LIKE '%headwater%'")
    assert left.fetchall() == []
    with till.running():
        wait_until(lambda: till.copied() == 4)


def test_a_database_that_is_away_is_waited_for(till):
    elsewhere = till.file.with_suffix(".away")
    till.write("", source=f"sqlite:///{elsewhere}")
    with till.running() as (process, _):
        line = json.loads(read_line(process.stderr))
        assert (line["level"], "retrying in 1 s" in line["message"]) == ("warning", True)
        till.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        till.db.execute(f"VACUUM INTO '{elsewhere}'")
        wait_until(lambda: till.copied() == 3)


def test_a_mistake_in_the_configuration_ends_it(till):
    till.write("tables = ['orders']")
    output = till.cli.error("capture", "run", till.name, code=2)
    assert "headwater.toml:4" in output
    assert "a pattern of schema.table" in output


def test_a_name_that_is_not_configured(till):
    output = till.cli.error("capture", "run", till.name[:-1], code=2)
    assert f"did you mean {till.name}?" in output
    assert "there is no capture" in till.cli.error("capture", "status", "elsewhere", code=2)


def test_metrics_are_served_and_status_shows_what_the_process_reports(till):
    till.write('metrics_listen = "127.0.0.1:0"')
    with till.running() as (_, about):
        wait_until(lambda: till.copied() == 3)
        with urllib.request.urlopen(f"http://{about['metrics_listen']}/metrics") as answer:
            text = answer.read().decode()
        labels = f'{{capture="{till.name}",table="main.orders"}}'
        assert f"headwater_capture_snapshot_rows{labels} 3\n" in text
        assert f'headwater_capture_ready{{capture="{till.name}"}} 1\n' in text


def test_doctor_looks_at_captures(till):
    checks = till.cli.json("doctor", code=None)["checks"]
    mine = [check for check in checks if check["check"] == f"capture {till.name}"]
    assert [finding["level"] for finding in mine] == ["ok"]
    assert "1 table to follow" in mine[0]["found"]
    with till.running():
        wait_until(lambda: till.copied() == 3)
    query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE '%headwater%log%'"
    (log,) = till.db.execute(query).fetchone()
    till.db.execute(f'DROP TABLE "{log}"')
    checks = till.cli.json("doctor", code=1)["checks"]
    (lost,) = [
        check
        for check in checks
        if check["check"] == f"capture {till.name}" and check["level"] == "broken"
    ]
    assert "no longer goes back" in lost["found"]
    assert f"headwater capture reset {till.name}" in lost["hint"]


def test_doctor_names_a_database_that_is_not_there(till):
    till.write("", source="sqlite:////nowhere/at/all.db")
    checks = till.cli.json("doctor", code=1)["checks"]
    (broken,) = [check for check in checks if check["check"] == f"capture {till.name}"]
    assert (broken["level"], "/nowhere/at/all.db" in broken["found"]) == ("broken", True)


def test_a_terminal_sees_bars_and_what_to_try(till):
    till.insert(20_000)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "capture", "run", till.name],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=till.cli.environment | {"TERM": "xterm", "COLUMNS": "120"},
        cwd=till.cli.cwd,
    )
    os.close(theirs)
    try:
        shown = _until(ours, "rows copied")
        assert f"headwater consume {till.name}.SCHEMA.TABLE -o start" in shown
        process.send_signal(signal.SIGINT)
        assert "stopped; the next run" in _until(ours, "stopped; the next run")
        assert process.wait(TIMEOUT_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _until(terminal, text):
    shown = ""
    deadline_s = time.monotonic() + TIMEOUT_S
    while text not in shown:
        left_s = max(0, deadline_s - time.monotonic())
        assert readable(terminal, timeout_s=left_s), shown
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown
