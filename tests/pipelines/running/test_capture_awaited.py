"""Waiting until a capture has what its database has."""

import sqlite3
import time
import uuid

import pytest
from support.capture.capture_harness import read, running

from headwater.capture.settings import CaptureSettings
from headwater.capture.sources import source_of
from headwater.errors import NotReady
from headwater.pipelines.running.capture_position import await_capture
from headwater.settings import Secret
from headwater.sinks.contract import Log


@pytest.fixture
def name():
    return f"c{uuid.uuid4().hex[:8]}"


def seen_now(name: str, url: str):
    source = source_of(CaptureSettings(name, Secret(url)))
    try:
        return source.read_chunk(source.tables()[0], None, 1)
    finally:
        source.close()


def test_an_idle_capture_is_not_waited_for_until_its_heartbeat(name, postgres, broker_address):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE other (id int PRIMARY KEY)")
    log = Log(broker_address)
    settings = {"tables": ("public.t",), "heartbeat_s": 600.0}
    with running(broker_address, postgres.url, name, **settings) as capture:
        capture.wait_for_copies("public.t")
        for statement in ("INSERT INTO t VALUES (1)", "INSERT INTO other VALUES (1)"):
            postgres.run(statement)
            await_capture(log, name, seen_now(name, postgres.url), time.monotonic() + 20)
    postgres.run("INSERT INTO t VALUES (2)")
    seen = seen_now(name, postgres.url)
    with pytest.raises(NotReady, match="has not caught up with the database"):
        await_capture(log, name, seen, time.monotonic())


def test_who_looks_at_a_table_does_not_wait_for_its_writers(name, postgres):
    postgres.run("CREATE TABLE t (id int PRIMARY KEY)")
    with postgres.connect() as writer:
        writer.cursor().execute("INSERT INTO t VALUES (1)")
        assert seen_now(name, postgres.url).rows == []
        writer.rollback()
    writer.close()


def test_a_capture_of_sqlite_is_waited_for(name, tmp_path, broker_address):
    path = tmp_path / "shop.db"
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    with running(broker_address, f"sqlite:///{path}", name, heartbeat_s=600.0) as capture:
        capture.wait_for_copies("main.t")
        for number in range(3):
            database.execute("INSERT INTO t VALUES (?)", (number,))
            seen = seen_now(name, f"sqlite:///{path}")
            await_capture(Log(broker_address), name, seen, time.monotonic() + 20)
            assert len(read(broker_address, f"{name}.main.t")) == number + 1
    database.close()
