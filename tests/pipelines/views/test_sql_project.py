"""The project that `headwater init --sql` writes: its views follow its database."""

import sqlite3
import uuid
from contextlib import closing

import pytest
from support.capture.capture_harness import running
from support.pipelines.project import Project, wait_for

from headwater import config
from headwater.cli import main
from headwater.inspect.pipelines import load_pipelines


class InitProject(Project):
    """What `init` wrote, on the broker of the tests."""

    def __init__(self, directory, bootstrap):
        super().__init__(directory, bootstrap)
        self.directory = directory / "shop"
        self.store = self.directory / "reports.db"

    def pipelines(self, spark, *names):
        environ = {"HEADWATER_BROKER__BOOTSTRAP": self.bootstrap}
        loaded = config.load(path=str(self.file), environ=environ)
        return load_pipelines(loaded, lambda: spark, list(names))


@pytest.mark.timeout(600)
def test_the_views_of_a_new_project_follow_its_database(
    tmp_path, spark, broker_address, monkeypatch
):
    assert main.run(["init", str(tmp_path / "shop"), "--sql"]) == 0
    project = InitProject(tmp_path, broker_address)
    monkeypatch.chdir(project.directory)
    name = f"shop{uuid.uuid4().hex[:8]}"  # other tests have a shop on this broker, too
    revenue = project.directory / "views" / "revenue.sql"
    revenue.write_text(revenue.read_text().replace("shop.main.", f"{name}.main."))
    database = project.directory / "shop.db"

    def stored():
        return sorted(project.rows("SELECT * FROM best_countries")), sorted(
            project.rows("SELECT country, orders, total_cents FROM revenue")
        )

    with running(broker_address, f"sqlite:///{database}", name, tables=("main.*",)) as capture:
        capture.wait_for_copies("main.orders", "main.customers")
        with project.running(spark, "revenue", "best_countries"):
            by_country = [("AT", 1, 24900), ("DE", 2, 16700), ("FR", 1, 35600)]
            first = ([("AT", 24900), ("FR", 35600)], by_country)
            wait_for(lambda: stored() == first, "the rows that were there")
            with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
                connection.execute("UPDATE orders SET quantity = 10 WHERE id = 1")
                connection.execute("DELETE FROM orders WHERE id = 3")
            then = ([("DE", 60800), ("FR", 35600)], [("DE", 2, 60800), ("FR", 1, 35600)])
            wait_for(lambda: stored() == then, "the change")
