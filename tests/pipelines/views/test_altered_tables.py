"""ALTER TABLE of a captured table under views that run."""

import sqlite3
import uuid

import pytest
from support.capture.capture_harness import running
from support.pipelines.project import Project, wait_for

from headwater.pipelines.running import status
from headwater.pipelines.verification.stores import verify


@pytest.mark.long
@pytest.mark.timeout(600)
def test_views_follow_the_columns_of_their_table(tmp_path, broker_address, postgres, spark):
    """One that reads some columns, one that reads all, and one in a topic."""
    project = Project(tmp_path, broker_address)
    name = f"c{uuid.uuid4().hex[:8]}"
    queries = {
        "totals": f"SELECT status, count(*) AS n,\n  sum(qty) AS qty\n"
        f"FROM {name}.public.orders GROUP BY status",
        "everything": f"SELECT * FROM {name}.public.orders",
    }
    for view, query in queries.items():
        (tmp_path / f"{view}.sql").write_text(query)
        project.section(f'[view.{view}]\nfile = "{view}.sql"\ninto = "cache"')
    streamed = f"s{name}"
    project.section(f'[view.{streamed}]\nfile = "totals.sql"\ninto = "topic"')
    postgres.run("CREATE TABLE orders (id int PRIMARY KEY, status text, qty int)")
    postgres.run("INSERT INTO orders SELECT i, 'new', i FROM generate_series(1, 5) i")

    def totals():
        return project.rows("SELECT status, n, qty FROM totals ORDER BY status")

    def everything():
        connection = sqlite3.connect(project.store, timeout=60)
        connection.row_factory = sqlite3.Row
        try:
            found = connection.execute("SELECT * FROM everything ORDER BY id").fetchall()
        finally:
            connection.close()
        return [dict(row) for row in found]

    def number_of_versions(view):
        (pipeline,) = project.pipelines(spark, view)
        found = status.read(project.state_dir, pipeline.name)
        return found.writes[f"cache/{view}"]["version"]

    def failure(view):
        """None while it does not fail."""
        writes = status.read(project.state_dir, view).writes.values()
        return next((one["error"] for one in writes if one.get("state") == "failed"), None)

    with running(project.bootstrap, postgres.url, name, tables=["public.*"]) as capture:
        capture.wait_for_copies("public.orders")
        with project.running(spark, "totals", "everything", streamed):
            wait_for(lambda: totals() == [("new", 5, 15)], "the first result")
            what = "the table of all rows"
            wait_for(lambda: project.rows("SELECT count(*) FROM everything") == [(5,)], what)

            postgres.run("ALTER TABLE orders ADD note text")
            postgres.run("INSERT INTO orders VALUES (6, 'new', 6, 'six')")
            wait_for(lambda: totals() == [("new", 6, 21)], "the result after a new column")
            wait_for(
                lambda: [row.get("note") for row in everything()] == [None] * 5 + ["six"],
                "the new column",
            )
            assert number_of_versions("totals") == 1  # it does not read the column

            postgres.run("ALTER TABLE orders DROP note")
            postgres.run("INSERT INTO orders VALUES (7, 'new', 7)")
            wait_for(lambda: totals() == [("new", 7, 28)], "the result without the column")
            wait_for(lambda: len(everything()) == 7, "all rows without the column")
            assert number_of_versions("totals") == 1
            project.wait_until_at_end(spark, f"{name}.public.orders", streamed)
            assert failure(streamed) is None

            postgres.run("ALTER TABLE orders ALTER qty TYPE bigint")
            postgres.run("INSERT INTO orders VALUES (8, 'new', 5000000000)")
            wait_for(lambda: totals() == [("new", 8, 5000000028)], "the result of a wider type")
            wait_for(lambda: everything()[-1]["qty"] == 5000000000, "the value of a wider type")
            # No version can take over the name of a topic.
            failed = wait_for(lambda: failure(streamed), "an error about the topic's state")
            assert f"topic {streamed} cannot be continued" in failed
            for view in queries:
                (pipeline,) = project.pipelines(spark, view)
                wait_for(lambda p=pipeline, v=view: verify(p, v).is_equal, f"{view} verified")

            postgres.run("ALTER TABLE orders DROP qty")
            postgres.run("INSERT INTO orders VALUES (9, 'new')")
            wait_for(lambda: len(everything()) == 9, "all rows without qty")
            what = "an error about the column that was dropped"
            failed = wait_for(lambda: failure("totals"), what)
            assert "totals.sql:2:7: there is no column qty" in failed
            assert totals() == [("new", 8, 5000000028)]  # what it was

            (tmp_path / "totals.sql").write_text(
                f"SELECT status, count(*) AS n, 0 AS qty FROM {name}.public.orders GROUP BY status"
            )
            wait_for(lambda: totals() == [("new", 9, 0)], "the result of the edited query")
