"""Many writes in one application: they share one tail of the log, and end together."""

import os
import sqlite3
import threading
import time
import uuid
from contextlib import closing

import pytest
from support.pipelines.project import Project, wait_for
from tiers import count

from headwater.pipelines.verification.stores import verify

WRITES = count(quick=6, full=50)
SINKS = 3  # SQLite has one writer at a time
SCHEMA = "id bigint, n bigint"


@pytest.fixture
def project(tmp_path, broker_address):
    """Half of the writes are those of one pipeline, the others have one each."""
    project = Project(tmp_path, broker_address)
    project.numbers = project.topic(f"many-{uuid.uuid4().hex[:8]}", 2)
    for sink in range(SINKS):
        project.section(
            f'[sink.s{sink}]\nkind = "sqlite"\nurl = "sqlite:///{project.directory}/s{sink}.db"'
        )
    project.names = ["together"]
    project.pipeline("together", body(project, range(WRITES // 2)))
    for number in range(WRITES // 2, WRITES):
        project.names.append(f"alone_{number}")
        project.pipeline(f"alone_{number}", body(project, [number]))
    return project


def body(project, numbers):
    lines = [f'rows = flow.changes("{project.numbers}", "{SCHEMA}")']
    for number in numbers:
        lines.append(f'some = rows.withColumn("n", F.col("n") + {number})')
        lines.append(f'flow.write(some, to="s{number % SINKS}", table="t{number}", key="id")')
    return "\n".join(lines) + "\n"


def is_complete(project, rows):
    return all(
        contents(project, number) == {at: at + number for at in range(rows)}
        for number in range(WRITES)
    )


def contents(project, number):
    path = project.directory / f"s{number % SINKS}.db"
    if not path.exists():
        return {}
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        try:
            return dict(connection.execute(f"SELECT id, n FROM t{number}"))
        except sqlite3.OperationalError:
            return {}


def sockets():
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue
    return found


def tails():
    return [thread for thread in threading.enumerate() if thread.name == "headwater-tail"]


@pytest.mark.timeout(1200)
def test_many_writes(project, spark):
    project.produce(project.numbers, *({"id": at, "n": at} for at in range(20)))
    threads, opened = threading.active_count(), sockets()
    began_s = time.monotonic()
    with project.running(spark, *project.names) as runner:
        wait_for(lambda: is_complete(project, 20), "the first rows", 600)
        ready_s = time.monotonic() - began_s
        for at in range(20, 40):
            project.produce(project.numbers, {"id": at, "n": at})
        wait_for(lambda: is_complete(project, 40), "the rows that came later")
        assert runner.errors() == []
        assert len(tails()) == 1, "one request waits for news of all writes"
        running = threading.active_count() - threads, sockets() - opened
        began_s = time.monotonic()
    stopped_s = time.monotonic() - began_s
    print(
        f"{WRITES} writes: ready after {ready_s:.1f} s, {running[0]} threads, {running[1]} sockets,"
        f" stopped after {stopped_s:.1f} s"
    )
    assert running[0] <= 3 * WRITES + 10
    assert running[1] <= 8 * WRITES + 20
    assert stopped_s < 60
    wait_for(lambda: not tails(), "the end of the tail")
    wait_for(lambda: threading.active_count() <= threads + 5, "the end of the threads")
    wait_for(lambda: sockets() <= opened + 10, "the end of the connections")
    (pipeline, *_) = project.pipelines(spark, "together")
    assert verify(pipeline, "t0").is_equal
