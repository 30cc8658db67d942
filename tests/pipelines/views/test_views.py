"""[view.NAME]: from captured tables, by a SQL file, to a store."""

import shutil
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from support.capture.capture_harness import running
from support.pipelines.project import Project, wait_for
from tiers import long

from headwater.errors import PipelineError
from headwater.pipelines.engine import local_run
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.running import status
from headwater.pipelines.verification.stores import verify
from headwater.pipelines.views.explain import explained
from headwater.pipelines.views.plan_steps import Step

REVENUE = """
-- What every country has ordered.
SELECT country, count(*) AS orders, sum(total) AS total, max(total) AS highest
FROM {name}.public.orders JOIN {name}.public.customers c ON orders.customer_id = c.id
GROUP BY country
"""


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


@pytest.mark.timeout(600)
def test_a_view_follows_its_tables_over_restarts(project, postgres, spark, monkeypatch):
    name = f"c{uuid.uuid4().hex[:8]}"
    postgres.run("CREATE TABLE customers (id int PRIMARY KEY, country text)")
    postgres.run("CREATE TABLE orders (id int PRIMARY KEY, customer_id int, total numeric(10,2))")
    postgres.run("INSERT INTO customers SELECT i, (ARRAY['de', 'fr', 'at'])[i % 3 + 1]"
                 " FROM generate_series(1, 30) i")  # fmt: skip
    postgres.run("INSERT INTO orders SELECT i, i % 40, i FROM generate_series(1, 200) i")
    (project.directory / "revenue.sql").write_text(REVENUE.format(name=name))
    project.section('[view.revenue]\nfile = "revenue.sql"\ninto = "cache"')

    def wanted():
        return postgres.run(
            "SELECT country, count(*), sum(total), max(total) FROM orders o"
            " JOIN customers c ON o.customer_id = c.id GROUP BY country ORDER BY country"
        )

    def stored():
        found = project.rows("SELECT country, orders, total, highest FROM revenue ORDER BY country")
        return [(row[0], row[1], *(round(float(n), 2) for n in row[2:])) for row in found]

    def is_up_to_date():
        now = [(row[0], row[1], *(round(float(n), 2) for n in row[2:])) for row in wanted()]
        return stored() == now

    with running(project.bootstrap, postgres.url, name, tables=["public.*"]) as capture:
        capture.wait_for_copies("public.orders", "public.customers")
        with project.running(spark, "revenue"):
            wait_for(is_up_to_date, "the first result")
            postgres.run("UPDATE orders SET customer_id = 1, total = total + 1 WHERE id < 20")
            postgres.run("DELETE FROM orders WHERE total > 190")
            postgres.run("UPDATE customers SET country = 'ch' WHERE id IN (1, 5)")
            wait_for(is_up_to_date, "the result after changes")
            # What the console shows: the plan, and what goes through each step of it.
            plan = wait_for(lambda: status.read_view(project.state_dir, "revenue"), "the plan")
            wait_for(
                lambda: (measured(project, plan, "join").rows_out_per_s or 0) > 150, "its rows"
            )
            assert measured(project, plan, "group").state_rows > 4  # groups, and their totals
        # The next batches are too large for the driver: tasks go on with the driver's state.
        monkeypatch.setattr(local_run, "MOST_BACKLOG", 5)
        postgres.run("INSERT INTO orders SELECT i, i % 40, i FROM generate_series(1000, 1400) i")
        postgres.run("DELETE FROM customers WHERE id = 5")
        with project.running(spark, "revenue"):
            wait_for(is_up_to_date, "the result after a restart")
        (pipeline,) = project.pipelines(spark, "revenue")
        assert verify(pipeline, "revenue").is_equal
        stores = {step.does: (step.key, step.stores) for step in steps_of(pipeline, project)}
        assert stores[f"table {name}.public.customers"] == ("id", "its rows: id, country")
        assert stores[f"table {name}.public.orders"] == ("id", "its rows: id, customer_id, total")
        assert stores["write to cache/revenue"] == ("country", "")
        traced = why(pipeline, "revenue", {"country": "ch"}, limit=1000)
        assert traced.row["orders"] == wanted()[1][1]
        assert not traced.untraced
        read = {cause.row["id"] for cause in traced.causes if "total" in cause.row}
        assert read == {
            row[0] for row in postgres.run("SELECT id FROM orders WHERE customer_id = 1")
        }


def measured(project, plan, kind):
    """A step of the plan, with rates as if its state had begun a second ago."""
    (write,) = status.read(project.state_dir, "revenue").writes.values()
    operators = write.get("operators", {})
    nothing = {name: {} for name in operators}
    steps = Step.from_json(plan).with_state(operators).with_rates(nothing, operators, 1)
    return next(step for step in steps if step.kind == kind)


def steps_of(pipeline, project):
    reader = LiveReader(pipeline.spark, pipeline.environment.log, pipeline.settings)
    waiting, found = [explained(pipeline, pipeline.settings, project.directory, reader)], []
    while waiting:
        found.append(waiting.pop())
        waiting += found[-1].inputs
    return found


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_there_without_rows_and_now_in_the_driver_and_in_tasks(project, spark, monkeypatch):
    """VALUES, an aggregate of no rows and a condition on now(), over batches of both kinds."""
    topic = project.topic(f"t{uuid.uuid4().hex[:8]}", partitions=2)
    (project.directory / "kinds.sql").write_text(f"""
        SELECT v.name, count(*) AS n, sum(id) AS total,
               (SELECT count(*) FROM {topic} WHERE id > 5000) AS high
        FROM {topic} JOIN (VALUES (0, 'even'), (1, 'odd')) AS v(k, name) ON id % 2 = v.k
        WHERE at > now() - interval 1 hour GROUP BY v.name""")
    project.section(
        '[view.kinds]\nfile = "kinds.sql"\ninto = "cache"\n'
        f'schemas = {{ {topic} = "id int, at timestamp" }}'
    )
    (project.directory / "high.sql").write_text(
        f"SELECT count(*) AS n, max(id) AS last FROM {topic} WHERE id > 5000"
    )
    project.section(
        '[view.high]\nfile = "high.sql"\ninto = "cache"\n'
        f'schemas = {{ {topic} = "id int, at timestamp" }}'
    )
    # Steps that are there several times, first rows, and rows that are not in others.
    (project.directory / "often.sql").write_text(f"""
        WITH t AS (SELECT id % 10 AS digit, count(*) AS n FROM {topic} GROUP BY id % 10)
        SELECT a.digit, a.n, b.n AS next, (SELECT max(n) FROM t) AS most
        FROM t a LEFT JOIN t b ON b.digit = a.digit + 1
        WHERE a.digit NOT IN (SELECT digit FROM t WHERE n % 2 = 1)
        ORDER BY a.n DESC, a.digit LIMIT 3""")
    project.section(
        '[view.often]\nfile = "often.sql"\ninto = "cache"\n'
        f'schemas = {{ {topic} = "id int, at timestamp" }}'
    )
    sent = []

    def produce(numbers):
        now = datetime.now(UTC)
        for number in numbers:
            is_old = number % 5 == 0
            at = now - timedelta(hours=2) if is_old else now
            project.produce(topic, {"id": number, "at": at.isoformat()})
            sent.append((number, is_old))

    def wanted():
        high = sum(number > 5000 for number, _ in sent)
        kinds = [[n for n, is_old in sent if n % 2 == k and not is_old] for k in (0, 1)]
        return [
            (name, len(of), sum(of), high) for name, of in zip(("even", "odd"), kinds, strict=True)
        ]

    def is_up_to_date():
        found = project.rows("SELECT name, n, total, high FROM kinds ORDER BY name")
        high = project.rows("SELECT n, last FROM high")
        numbers = [number for number, _ in sent if number > 5000]
        often = project.rows("SELECT digit, n, next, most FROM often ORDER BY n DESC, digit")
        return (
            found == wanted()
            and high == [(len(numbers), max(numbers, default=None))]
            and often == wanted_often()
        )

    def wanted_often():
        times = Counter(number % 10 for number, _ in sent)
        even = sorted((-n, digit) for digit, n in times.items() if n % 2 == 0)
        most = max(times.values())
        return [(digit, -n, times.get(digit + 1), most) for n, digit in even[:3]]

    produce(range(23))
    with project.running(spark, "kinds", "high", "often"):
        wait_for(is_up_to_date, "the first result")
    # The next batches are too large for the driver.
    monkeypatch.setattr(local_run, "MOST_BACKLOG", 5)
    produce(range(4990, 5050))
    with project.running(spark, "kinds", "high", "often"):
        wait_for(is_up_to_date, "the result of tasks")
    (pipeline,) = project.pipelines(spark, "high")
    assert verify(pipeline, "high").is_equal
    (often,) = project.pipelines(spark, "often")
    assert verify(often, "often").is_equal
    traced = why(pipeline, "high", {"n": "49"}, limit=1000)
    assert {cause.row["id"] for cause in traced.causes} == set(range(5001, 5050))


@long
def test_rows_leave_when_their_time_has_come(project, spark):
    """Without another record."""
    topic = project.topic(f"t{uuid.uuid4().hex[:8]}")
    (project.directory / "recent.sql").write_text(
        f"SELECT id FROM {topic} WHERE at > now() - interval 3 seconds"
    )
    project.section(
        '[view.recent]\nfile = "recent.sql"\ninto = "cache"\nkey = ["id"]\n'
        f'schemas = {{ {topic} = "id int, at timestamp" }}'
    )
    with project.running(spark, "recent"):
        until = datetime.now(UTC) + timedelta(hours=1)
        project.produce(topic, {"id": 1, "at": until.isoformat()})
        wait_for(lambda: project.rows("SELECT id FROM recent") == [(1,)], "the first row")
        project.produce(topic, {"id": 2, "at": datetime.now(UTC).isoformat()})
        wait_for(lambda: len(project.rows("SELECT id FROM recent")) == 2, "the second row")
        wait_for(lambda: project.rows("SELECT id FROM recent") == [(1,)], "the second row's end")
    # As of the time of the last batch, not of now: the first row is still there.
    (pipeline,) = project.pipelines(spark, "recent")
    assert verify(pipeline, "recent").is_equal
    project.execute("INSERT INTO recent (id) VALUES (2)")
    verdict = verify(pipeline, "recent")
    assert (verdict.count, verdict.unexpected) == (1, 1)
    shutil.rmtree(project.state_dir / "recent")
    with pytest.raises(PipelineError, match=r"uses now\(\)"):
        verify(pipeline, "recent")
