"""Pipelines whose driver, JVM, workers or store are killed: each record counts exactly once.

The full tier has all of it; HEADWATER_LONG=N kills N times.
"""

import contextlib
import os
import random
import shutil
import signal
import time
import uuid
from collections import Counter

import orjson
import pytest
from support.pipelines.project import Project, wait_for
from support.pipelines.spark_killing import Producing, Victim
from support.sinks.topic_places import read_messages
from tiers import kills, long

from headwater.pipelines.running import status
from headwater.pipelines.verification.stores import verify

KILLS = kills(quick=3, full=20)
WORKER_KILLS = 2 if KILLS < 10 else 4  # of each driver that is killed from outside
SCHEMA = "id bigint, country string, total decimal(10,2), number bigint"


@pytest.fixture
def project(tmp_path, broker_address, postgres):
    """One application: a copy in SQLite and one in PostgreSQL, each record into a topic, sums."""
    project = Project(tmp_path, broker_address)
    project.section(f'[sink.warehouse]\nkind = "postgres"\nurl = "{postgres.url}"')
    project.orders = project.topic(f"orders-{uuid.uuid4().hex[:8]}", 2)
    project.copied = project.topic(f"copied-{uuid.uuid4().hex[:8]}")
    project.pipeline(
        "copies",
        f"""
        orders = flow.changes("{project.orders}", "{SCHEMA}")
        flow.write(orders, to="cache", table="orders", key="id")
        flow.write(orders, to="warehouse", table="orders", key="id")
        positions = orders.select("id", "_position.partition", "_position.offset")
        flow.write(positions, to="topic", table="{project.copied}")
        """,
        batch_rows="5000",
    )
    project.pipeline(
        "sums",
        f"""
        orders = flow.changes("{project.orders}", "{SCHEMA}").where("_op != 'd'")
        sums = orders.groupBy("country").agg(F.sum("total").alias("total"), F.count("*").alias("n"))
        flow.write(sums, to="warehouse", table="sums", key="country")
        """,
        batch_rows="5000",
    )
    return project


def proven(project, spark) -> None:
    """Runs to the end, and compares everything with the log."""
    with project.running(spark, "copies", "sums"):
        project.wait_until_at_end(spark, project.orders, "copies", "sums")
    for pipeline in project.pipelines(spark, "copies", "sums"):
        for write in pipeline.flow().writes:
            verdict = verify(pipeline, write.name)
            assert verdict.is_equal, verdict
            assert verdict.rows
            assert verdict.version == 1, "nothing was rebuilt"
    copied = Counter(
        (row["partition"], row["offset"])
        for message in read_messages(project.bootstrap, project.copied)
        for row in [orjson.loads(message.value())]
    )
    written = {
        (partition, message.offset())
        for partition in (0, 1)
        for message in read_messages(project.bootstrap, project.orders, partition)
    }
    assert [position for position, count in copied.items() if count > 1] == []
    assert set(copied) == written


def chosen(project, rng: random.Random):
    """How the next one dies: at a step of a batch (pipeline_process.py), or as `kill` does it."""
    copied = f"topic/{project.copied}"
    yield {"at": "applied", "write": copied, "batch": 2}
    yield {"at": "store and driver"}
    yield {"at": "JVM"}
    while True:
        at = rng.choice(["begun", "arrow", "step", "step", "applied"])
        write = rng.choice(["cache/orders", "warehouse/orders", "warehouse/sums", copied])
        step = rng.randrange(16) if at == "step" else None
        batch, both = rng.choice([1, 1, 2, 5]), rng.random() < 0.3
        yield {"at": at, "write": write, "step": step, "batch": batch, "all": both}
        yield {"at": rng.choice(["driver", "driver", "driver and JVM", "JVM", "store and driver"])}


@pytest.mark.slow
@long  # test_operator_kills.py kills, too
@pytest.mark.timeout(120 + 240 * KILLS)
def test_killed_again_and_again(project, postgres_server, spark):
    rng, deaths = random.Random(KILLS), Counter()
    victims = []
    try:
        with Producing(project, project.orders).going_on():
            for _, death in zip(range(KILLS), chosen(project, rng), strict=False):
                victim = Victim(
                    project, "copies", "sums", death=death if "write" in death else None
                )
                victims.append(victim)
                if "write" not in death:
                    deaths["worker"] += kill_workers(project, victim, rng)
                kill(project, victim, death, postgres_server, rng)
                deaths[death["at"]] += 1
                print(f"{time.strftime('%X')} {deaths.total()} killed: {dict(deaths)}")
        for victim in victims:
            victim.wait_until_gone()
    finally:
        for victim in victims:
            victim.end()
    proven(project, spark)


def kill_workers(project, victim, rng) -> int:
    """Python processes of Spark's, one after another: the pipelines notice, and go on."""
    for _ in range(WORKER_KILLS):
        wait_for_batch(project, victim)
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(victim.workers()), signal.SIGKILL)
    return WORKER_KILLS


def kill(project, victim, death, server, rng) -> None:
    if "write" in death:
        assert victim.wait() == -signal.SIGKILL, victim.said()
        return
    wait_for_batch(project, victim)
    time.sleep(rng.uniform(0, 1))
    if death["at"] == "JVM":  # it is useless without, and says so
        os.kill(victim.jvm(), signal.SIGKILL)
        assert victim.wait() == 1, victim.said()
        assert "error: Spark has ended" in victim.said()
        assert not status.read(project.state_dir, "copies").is_running
        return
    if death["at"] == "store and driver":
        server.stop(signal.SIGQUIT)
        time.sleep(rng.uniform(0, 2))
        server.start()
        time.sleep(rng.uniform(0, 1))
    victim.kill(with_jvm=death["at"] == "driver and JVM")
    assert not status.read(project.state_dir, "copies").is_running


def wait_for_batch(project, victim) -> None:
    began = commits(project)
    victim.wait_until(lambda: commits(project) > began, "a batch")


def commits(project) -> int:
    """How many batches Spark has committed, of all writes."""
    written = project.state_dir.rglob("commits")
    return sum(
        max((int(name) + 1 for name in os.listdir(directory) if name.isdigit()), default=0)
        for directory in written
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@long
def test_a_driver_that_stood_still_and_wakes_up(project, spark):
    """In the middle of a transaction of PostgreSQL. The state was copied to another machine, where
    the pipelines go on: what wakes up writes nothing more, and ends by itself.
    """
    producing = Producing(project, project.orders)
    producing.some(200)
    death = {"at": "step", "step": 5, "write": "warehouse/orders", "batch": 2}
    sleeper = Victim(project, "copies", "sums", death=death | {"how": signal.SIGSTOP})
    try:
        wait_for(lambda: commits(project) > 0 or producing.some(1), "a batch")
        wait_for(lambda: sleeper.is_stopped() or producing.some(5), "its sleep")
        with project.running(spark, "copies") as refused:
            wait_for(lambda: len(refused.errors()) == 3, "errors")
            assert all("is run by another process" in str(error) for error in refused.errors())
        shutil.copytree(project.state_dir, project.directory / "moved")
        project.section('[spark]\nstate_dir = "moved"')
        producing.some(300)
        with project.running(spark, "copies", "sums") as successor:
            project.wait_until_at_end(spark, project.orders, "copies", "sums")
            os.kill(sleeper.process.pid, signal.SIGCONT)
            wait_for(lambda: sleeper.process.poll() is not None or producing.some(5), "its end")
            assert sleeper.process.returncode == 1
            assert successor.errors() == []
    finally:
        sleeper.end()
    proven(project, spark)
