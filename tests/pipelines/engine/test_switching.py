"""A write in the driver and as a query: one checkpoint, the same rows, at any death."""

import orjson
import pytest
from support.pipelines.clocked import ONE_WRITE, Clocked, run_to_end
from support.pipelines.project import wait_for
from tiers import in_full, some

from headwater.pipelines.engine import local_run, tailed_source
from headwater.pipelines.engine.local_plan import NotLocal
from headwater.pipelines.engine.local_state import LocalState
from headwater.pipelines.engine.offset_log import OffsetLog
from headwater.pipelines.running import status, write_run
from headwater.pipelines.running.batch_applier import BatchApplier
from headwater.pipelines.verification.stores import verify

# Two sources, one of them read twice by a union, a window, and rows that are late.
TWICE = """
    rows = flow.changes("{topic}", "id bigint, name string, n bigint, at timestamp")
    both = rows.where("n % 2 = 0").union(rows.where("n % 2 = 1"))
    at = hw.event_time("at", delay="10 seconds", future=None)
    windows = hw.tumbling(both, at, "1 minute", by="name", late="side", name="tumbling-1")
    sums = windows.agg(total=hw.agg.sum("n"), rows=hw.agg.count())
    flow.write(sums, to="cache", table="sums", key=["name", "window_start"])
"""


def as_query(monkeypatch, *, is_query):
    def not_local(_):
        raise NotLocal("as a query")

    monkeypatch.setattr(write_run, "plan_locally", not_local if is_query else PLAN_LOCALLY)


PLAN_LOCALLY = write_run.plan_locally


def started_queries(monkeypatch):
    """Of every query, whether it ends at the current end of the log."""
    queries = []
    start = write_run.WriteRun._start_query

    def counted(run, *, until_now):
        queries.append(until_now)
        start(run, until_now=until_now)

    monkeypatch.setattr(write_run.WriteRun, "_start_query", counted)
    return queries


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "body"), [("twice", TWICE), *in_full(("switched", ONE_WRITE))])
def test_switching_between_driver_and_query(
    spark, tmp_path, broker_address, monkeypatch, name, body
):
    project = Clocked(tmp_path, broker_address, name, body)
    queries = started_queries(monkeypatch)
    at_s = 0
    for is_query in some(False, True, False, False, True, quick=3):
        as_query(monkeypatch, is_query=is_query)
        project.at(0, at_s, at_s + 1, at_s + 75, at_s + 3)
        project.at(1, at_s + 2, at_s + 80)
        at_s += 70
        queries.clear()
        run_to_end(spark, project)
        assert bool(queries) == is_query
        assert project.sums_in("sums") == project.expected_sums()
    (pipeline,) = project.pipelines(spark, name)
    assert verify(pipeline, "cache/sums").is_equal
    assert len(project.published()) == len(project.expected_late())


BOTH_LATE = """
    rows = flow.changes("{topic}", "id bigint, name string, n bigint, at timestamp")
    even = rows.where("n % 2 = 0")
    odd = rows.where("n % 2 = 1").selectExpr(
        "id AS other", "name AS title", "at AS then", "_position", "_op", "_at")
    pairs = hw.join(
        even, odd, on=[("name", "title")], within="3 seconds", late="side", name="join-1",
        left_time=hw.event_time("at", delay="10 seconds", future=None),
        right_time=hw.event_time("then", delay="10 seconds", future=None),
    )
    flow.write(pairs, to="cache", table="pairs", key=["id", "other"])
"""


@pytest.mark.timeout(600)
def test_late_rows_of_both_sides_of_a_join_in_one_batch(
    spark, tmp_path, broker_address, monkeypatch
):
    """Also if the batch runs again as a query, they are published once, each as its own side."""
    project = Clocked(tmp_path, broker_address, "both_late", BOTH_LATE)
    project.at(0, 300, 301)
    project.at(1, 300, 301)
    run_to_end(spark, project)
    late = [2, 4, 5, 6, 7, 9]
    for partition in (0, 1):
        project.at(partition, *late)

    def dying(*_):
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(OffsetLog, "commit", dying)
        with project.running(spark, project.name) as runner:
            wait_for(runner.errors, "a death behind the store's commit")
    as_query(monkeypatch, is_query=True)
    run_to_end(spark, project)
    published = [
        (message.partition(), about["side"], orjson.loads(message.value()))
        for message in project.published()
        for about in [{name.split(".")[-1]: text.decode() for name, text in message.headers()}]
    ]
    columns = {"left": {"id", "name", "n", "at"}, "right": {"other", "title", "then"}}
    assert all(columns[side] <= row.keys() for _, side, row in published)
    assert not any(
        columns["left" if side == "right" else "right"] & row.keys() for _, side, row in published
    )
    seconds = sorted(
        (partition, side, int(row.get("at", row.get("then"))[17:19]))
        for partition, side, row in published
    )
    assert seconds == sorted(
        (partition, "right" if at_s % 2 else "left", at_s) for partition in (0, 1) for at_s in late
    )


@pytest.mark.timeout(600)
def test_a_backlog_is_caught_up_by_a_query(spark, tmp_path, broker_address, monkeypatch):
    monkeypatch.setattr(local_run, "MOST_BACKLOG", 5)
    queries = started_queries(monkeypatch)
    project = Clocked(tmp_path, broker_address, "behind", ONE_WRITE)
    project.at(0, *range(0, 200, 7))
    project.at(1, *range(0, 200, 9))
    with project.running(spark, "behind"):
        project.wait_until_at_end(spark, project.events, "behind")
        assert queries == [True]

        def reported():
            """Of the query's last batch, although the driver has taken over since."""
            found = status.read(project.state_dir, "behind").writes["cache/sums"]
            events = found["operators"].get("tumbling-1", {}).get("events")
            return events == sum(map(len, project.made.values())) and found.get("batch", 0) > 0

        wait_for(reported, "the status of the query's batches")
        project.at(0, 250)  # goes on in the driver
        project.at(1, 250)
        project.wait_until_at_end(spark, project.events, "behind")
        assert queries == [True]
    assert project.sums_in("sums") == project.expected_sums()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("bound", ["MOST_ROWS", *in_full("MOST_BYTES")])
def test_a_batch_of_a_query_that_is_too_large_for_the_driver(
    spark, tmp_path, broker_address, monkeypatch, bound
):
    """It died in front of the store. The driver leaves it to a query again, and goes on itself."""
    project = Clocked(tmp_path, broker_address, f"oversize_{bound.lower()}", ONE_WRITE)
    project.at(0, 0)
    run_to_end(spark, project)
    project.at(0, *range(0, 200, 2))
    project.at(1, *range(1, 200, 2))

    def dying(*_):
        raise Died

    with monkeypatch.context() as patched:
        as_query(patched, is_query=True)
        patched.setattr(BatchApplier, "_apply_once", dying)
        with project.running(spark, project.name) as runner:
            wait_for(runner.errors, "a death in front of the store")
    started = []
    start = write_run.WriteRun._start_query

    def counted(run, *, until_now):
        started.append(until_now)
        start(run, until_now=until_now)

    with monkeypatch.context() as patched:
        patched.setattr(write_run.WriteRun, "_start_query", counted)
        patched.setattr(tailed_source, bound, 20 if bound == "MOST_ROWS" else 4000)
        with project.running(spark, project.name):
            project.wait_until_at_end(spark, project.events, project.name)
            assert started == [True]
            project.at(0, 250)
            project.at(1, 250)
            project.wait_until_at_end(spark, project.events, project.name)
            assert started == [True]
    assert project.sums_in("sums") == project.expected_sums()


STEPS = [
    (OffsetLog, "plan"),
    (local_run.TailedSource, "read_batch"),
    (local_run.LocalBatch, "rows"),
    (LocalState, "commit"),
    (BatchApplier, "_apply_once"),
    (OffsetLog, "commit"),
]


class Died(Exception):
    pass


@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "behind"])
def test_a_death_at_any_step_loses_and_repeats_nothing(
    spark, tmp_path, broker_address, monkeypatch, is_done
):
    """The run ends at the step, and another one takes over from what is on disk."""
    monkeypatch.setattr("headwater.pipelines.running.managed_write._FIRST_PAUSE_S", 0.05)
    project = Clocked(tmp_path, broker_address, f"dying_{is_done}".lower(), ONE_WRITE)
    died = []
    with project.running(spark, project.name):
        for number, (owner, name) in enumerate(STEPS):
            step = getattr(owner, name)

            def dying(self, *given, step=step, name=name, **named):
                is_time = len(died) < number + 1  # noqa: B023
                if is_time and not is_done:
                    died.append(name)
                    raise Died(name)
                result = step(self, *given, **named)
                if is_time:
                    died.append(name)
                    raise Died(name)
                return result

            with monkeypatch.context() as patched:
                patched.setattr(owner, name, dying)
                project.at(0, 70 * number, 70 * number + 65)
                project.at(1, 70 * number + 1, 70 * number + 66)
                project.wait_until_at_end(spark, project.events, project.name)
        project.wait_until_at_end(spark, project.events, project.name)
    assert died == [name for _, name in STEPS]
    assert project.sums_in("sums") == project.expected_sums()
    (pipeline,) = project.pipelines(spark, project.name)
    assert verify(pipeline, "cache/sums").is_equal


@pytest.mark.timeout(600)
def test_a_partition_that_is_idle_lets_windows_close_without_records(
    spark, tmp_path, broker_address
):
    body = ONE_WRITE.replace('delay="10 seconds"', 'delay="10 seconds", idle="1 second"')
    project = Clocked(tmp_path, broker_address, "idle", body)
    project.at(0, 1, 2, 200)
    project.at(1, 3)  # holds the watermark back until it is idle
    with project.running(spark, "idle"):
        project.wait_until_at_end(spark, project.events, "idle")
        wait_for(lambda: project.sums_in("sums"), "the window")
    assert project.sums_in("sums") == {("n0", 0): (2, 1), ("n1", 0): (4, 2)}
