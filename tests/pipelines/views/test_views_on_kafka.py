"""Views on Apache Kafka: from a capture to a store and a topic, and the changes of that topic."""

import uuid

import pytest
from support.capture.capture_harness import running
from support.pipelines.project import Project, wait_for
from tiers import REAL_KAFKA

from headwater.inspect.view_rows import parse_moment, view_contents
from headwater.pipelines.verification.stores import verify


@pytest.fixture(params=[REAL_KAFKA])
def project(request, tmp_path):
    return Project(tmp_path, request.getfixturevalue(f"{request.param}_address"))


@pytest.mark.timeout(600)
def test_a_view_and_the_changes_of_it(project, postgres, spark):
    name = f"c{uuid.uuid4().hex[:8]}"
    totals = f"totals_{name}"
    postgres.run("CREATE TABLE accounts (id int PRIMARY KEY, country text, balance int)")
    postgres.run("INSERT INTO accounts SELECT i, 'c' || i % 3, 10 FROM generate_series(1, 30) i")
    (project.directory / "totals.sql").write_text(
        f"SELECT country, count(*) AS n, sum(balance) AS total FROM {name}.public.accounts"
        " GROUP BY country"
    )
    project.section(
        f'[view.{totals}]\nfile = "totals.sql"\ninto = "topic"\n'
        'options = { "cleanup.policy" = "delete", "retention.ms" = "-1", value = "debezium" }'
    )
    (project.directory / "all.sql").write_text(f"SELECT sum(total) AS total FROM {totals}")
    project.section('[view.all]\nfile = "all.sql"\ninto = "cache"')
    (project.directory / "churn.sql").write_text(
        f"SELECT country, count_if(_op = 'c') AS new, count_if(_op = 'd') AS gone"
        f" FROM CHANGES OF {totals} GROUP BY country"
    )
    project.section('[view.churn]\nfile = "churn.sql"\ninto = "cache"')

    (project.directory / "events.sql").write_text(
        f"SELECT _op AS op, count(*) AS n FROM CHANGES OF {name}.public.accounts GROUP BY _op"
    )
    project.section('[view.events]\nfile = "events.sql"\ninto = "cache"')

    def churn():
        return project.rows("SELECT country, new, gone FROM churn ORDER BY country")

    with running(project.bootstrap, postgres.url, name, tables=["public.*"]) as capture:
        capture.wait_for_copies("public.accounts")
        with project.running(spark, totals, "all", "churn", "events"):
            wait_for(lambda: project.rows('SELECT total FROM "all"') == [(300,)], "the total")
            wait_for(lambda: len(churn()) == 3, "the first changes")
            for number in range(1, 20):  # each is a transaction: the total never changes
                postgres.transaction(
                    f"UPDATE accounts SET balance = balance - 1 WHERE id = {number}",
                    f"UPDATE accounts SET balance = balance + 1 WHERE id = {number + 1}",
                )
                assert project.rows('SELECT total FROM "all"') == [(300,)]
            postgres.run("DELETE FROM accounts WHERE country = 'c0'")
            wait_for(lambda: churn() == [("c0", 1, 1), ("c1", 1, 0), ("c2", 1, 0)], "all changes")
            events = [("d", 10), ("r", 30), ("u", 38)]
            wait_for(lambda: sorted(project.rows("SELECT * FROM events")) == events, "all events")
            project.wait_until_at_end(spark, f"{name}.public.accounts", totals, "all")
    wanted = postgres.run("SELECT country, count(*), sum(balance) FROM accounts GROUP BY country")
    loaded = project.config()
    with view_contents(loaded, loaded.pipelines[totals], None) as (contents, _):
        rows = [tuple(row.values()) for batch in contents.rows for row in batch.to_pylist()]
    assert sorted(rows) == sorted(wanted)
    with view_contents(loaded, loaded.pipelines[totals], parse_moment("3")) as (contents, _):
        first = [row for batch in contents.rows for row in batch.to_pylist()]
    assert {row["country"]: row["total"] for row in first} == {"c0": 100, "c1": 100, "c2": 100}
    for view in (totals, "all", "churn", "events"):
        (pipeline,) = project.pipelines(spark, view)
        assert verify(pipeline, view).is_equal
