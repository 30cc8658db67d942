"""`headwater pipeline run --once`: until the stores have the log as it was."""

import threading

import pytest
from support.pipelines.project import Project, wait_for

from headwater.cli import main
from headwater.errors import HeadwaterError, PipelineError, RequestRefused
from headwater.pipelines.running import status
from headwater.pipelines.running.once import run_once
from headwater.pipelines.running.runner import Runner

TWO = """
    rows = flow.changes("{topic}", "id bigint, name string")
    flow.write(rows, to="cache", table="latest", key="id")
    flow.write(flow.changes(pattern="{topic}-.*", schema="id int"), "cache", "others", "id")
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


def test_it_ends_when_all_stores_have_the_log(spark, project):
    project.topic("once")
    project.topic("once-a", 2)
    project.topic("once-empty")
    project.pipeline("once", TWO.format(topic="once"))
    project.produce("once", *({"id": n % 5, "name": f"{n}"} for n in range(100)))
    project.produce("once-a", *({"id": n} for n in range(10)))
    run_once(Runner(project.pipelines(spark, "once")))
    latest = project.rows("SELECT id, name FROM latest ORDER BY id")
    assert latest == [(n, f"{95 + n}") for n in range(5)]
    assert len(project.rows("SELECT id FROM others")) == 10

    project.produce("once", {"id": 1, "name": "new"}, {"id": 0, "_deleted": True})
    run_once(Runner(project.pipelines(spark, "once")))
    assert project.rows("SELECT id, name FROM latest WHERE id < 2") == [(1, "new")]
    run_once(Runner(project.pipelines(spark, "once")))  # there is nothing to do


def test_a_write_that_fails_ends_it(spark, project):
    project.topic("poison")
    body = """
    @F.udf("int")
    def refused(number):
        raise ValueError("no number is good")
    rows = flow.changes("poison", "id bigint")
    flow.write(rows.withColumn("x", refused("id")), to="cache", table="poison", key="id")
    """
    project.pipeline("poison", body)
    project.produce("poison", {"id": 1})
    with pytest.raises(HeadwaterError, match="no number is good"):
        run_once(Runner(project.pipelines(spark, "poison")))


def test_one_that_runs_elsewhere_is_not_run_again(spark, project, capsys):
    project.topic("elsewhere")
    project.pipeline("twice", 'flow.write(flow.changes("elsewhere", "id int"), "cache", "e", "id")')
    with project.running(spark, "twice"):
        wait_for(lambda: status.read(project.state_dir, "twice").is_running, "its status")
        assert main.run(["pipeline", "run", "--once", "--config", str(project.file)]) == 1
    assert "headwater wait twice" in capsys.readouterr().err


def test_a_topic_that_is_not_there_is_an_error(spark, project):
    project.pipeline("lacking", 'flow.write(flow.changes("lacking", "id int"), "cache", "l", "id")')
    with pytest.raises(RequestRefused, match="lacking"):
        run_once(Runner(project.pipelines(spark, "lacking")))


def test_one_that_is_stopped_before_the_end_says_so(spark, project):
    project.topic("stopped")
    body = """
    import time
    @F.udf("int")
    def slow(number):
        time.sleep(0.2)
        return number
    rows = flow.changes("stopped", "id bigint").withColumn("x", slow("id"))
    flow.write(rows, to="cache", table="stopped", key="id")
    """
    project.pipeline("stopped", body, batch_rows="5")
    project.produce("stopped", *({"id": n} for n in range(5000)))
    runner = Runner(project.pipelines(spark, "stopped"))
    failures = []

    def run():
        try:
            run_once(runner)
        except PipelineError as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_for(lambda: project.rows("SELECT id FROM stopped"), "the first batch")
    runner.stop.set()
    thread.join()
    (error,) = failures
    assert "stopped before the end" in str(error)
    assert "stopped/cache/stopped" in error.detail
