"""Batches that Spark's tasks stage: their rows do not pass through the driver."""

import random
import uuid

import pytest
from support.pipelines.project import Project, wait_for
from support.pipelines.spark_killing import Victim
from support.sinks.topic_places import read_messages
from tiers import kills, long

from headwater.pipelines.running import staging_tasks
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.pipelines.running.rebuilding import rebuild
from headwater.pipelines.verification.stores import verify

SCHEMA = "id bigint, city string, total decimal(10,2)"
BATCH_ROWS = 400
KILLS = kills(quick=4, full=24)
MOST_BACKLOG = 100  # more is a query's


@pytest.fixture
def project(tmp_path, broker_address, postgres):
    project = Project(tmp_path, broker_address)
    project.section(f'[sink.warehouse]\nkind = "postgres"\nurl = "{postgres.url}"')
    project.section(f'[sink.lake]\nkind = "delta"\nurl = "{tmp_path}/lake"')
    project.orders = project.topic(f"orders-{uuid.uuid4().hex[:8]}", 3)
    project.pipeline(
        "copies",
        f"""
        orders = flow.changes("{project.orders}", "{SCHEMA}")
        flow.write(orders, to="warehouse", table="orders", key="id")
        events = orders.where("_op != 'd'").select("id", "city", "_position")
        flow.write(events, to="warehouse", table="events")
        flow.write(events, to="lake", table="events")
        options = {{"partitions": "3"}}
        flow.write(orders, to="topic", table="{project.orders}-out", key="id", options=options)
        """,
        batch_rows=str(BATCH_ROWS),
        bad_rows="dead-letter",
    )
    return project


@pytest.fixture
def staged(monkeypatch):
    """The ids of batches that tasks have staged, and whether the driver had to apply them."""
    monkeypatch.setattr(staging_tasks, "_FEWEST_RECORDS", 0)
    seen, is_staged = [], BatchApplier._is_staged

    def noted(applier, batch, frame):
        found = is_staged(applier, batch, frame)
        seen.append((batch.id, found))
        return found

    monkeypatch.setattr(BatchApplier, "_is_staged", noted)
    return seen


def some(project, rng, count, ids=300):
    rows = []
    for _ in range(count):
        row = {"id": rng.randrange(ids)}
        if rng.random() < 0.2:
            rows.append(row | {"_deleted": True})
        else:
            total = f"{rng.randrange(10_000) / 100:.2f}"
            rows.append(row | {"city": rng.choice(["Wien", "Graz", None]), "total": total})
    project.produce(project.orders, *rows)


def test_a_rebuild_whose_rows_tasks_stage(project, spark, staged, monkeypatch):
    def collected(frame):
        raise AssertionError("rows were collected in the driver")

    rng = random.Random(1)
    some(project, rng, BATCH_ROWS + 100)
    (pipeline,) = project.pipelines(spark, "copies")
    with monkeypatch.context() as patched:
        frames = type(pipeline.flow().writes[0].frame)
        collect = frames.toArrow
        patched.setattr(
            frames,
            "toArrow",
            lambda frame: collect(frame) if "token" in frame.columns else collected(frame),
        )
        rebuild(pipeline)
    assert len(staged) >= 8
    assert all(found for _, found in staged)
    for write in pipeline.flow().writes:
        assert verify(pipeline, write.name).is_equal


@long  # tests/sinks has it without Spark
def test_rows_that_a_table_refuses_are_dead_letters_once(project, spark, staged):
    """Their batch is applied by the driver; the others stay in tasks."""
    rng = random.Random(2)
    some(project, rng, BATCH_ROWS)
    project.produce(project.orders, {"id": 7, "city": "no \0 text", "total": "1.00"})
    some(project, rng, 10)
    (pipeline,) = project.pipelines(spark, "copies")
    rebuild(pipeline)
    assert {found for _, found in staged} == {True, False}
    letters = read_messages(project.bootstrap, "copies.dlq")
    stores = [dict(letter.headers())["headwater.dlq.store"] for letter in letters]
    assert sorted(stores) == [b"copies/warehouse/events", b"copies/warehouse/orders"]


@pytest.mark.slow
@long  # test_postgres_kills.py dies at every step, without Spark
@pytest.mark.timeout(300 + 240 * KILLS)
def test_killed_while_tasks_stage(project, spark, staged):
    """In front of and behind the staging of a batch, and at steps of its commit; workers, too."""
    rng, victims = random.Random(KILLS), []
    try:
        for number in range(KILLS):
            some(project, rng, 3 * BATCH_ROWS)
            at = ("begun", "arrow", "applied", "step")[number % 4]
            death = {"at": at, "write": "warehouse/orders", "batch": rng.choice([1, 2])}
            death |= {"step": rng.randrange(20) if at == "step" else None, "all": number % 3 == 0}
            victim = Victim(
                project, "copies", death=death, most_backlog=MOST_BACKLOG, fewest_staged=1
            )
            victims.append(victim)
            wait_for(lambda v=victim: v.process.poll() is not None, "its death", 240)
            assert victim.process.returncode == -9, victim.said()
        for victim in victims:
            victim.wait_until_gone()
    finally:
        for victim in victims:
            victim.end()
    with project.running(spark, "copies"):
        project.wait_until_at_end(spark, project.orders, "copies")
    (pipeline,) = project.pipelines(spark, "copies")
    for write in pipeline.flow().writes:
        verdict = verify(pipeline, write.name)
        assert verdict.is_equal
        assert verdict.version == 1
