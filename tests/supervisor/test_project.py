"""`headwater init`, and the project it writes: run as it is, with Spark, and killed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.supervisor.up_harness import Project, environment, running, wait_until
from tiers import IS_FULL, long

HEADWATER = [sys.executable, "-m", "headwater.cli.main"]


def headwater(*args, cwd, code=0, **settings):
    result = subprocess.run(
        [*HEADWATER, *args],
        capture_output=True,
        cwd=cwd,
        env=environment(**settings),
        text=True,
        timeout=600,
        check=False,
    )
    assert code in (None, result.returncode), (result.stdout[-3000:], result.stderr[-3000:])
    return result


def rows(database, query):
    """[] as long as the table is not there."""
    with closing(sqlite3.connect(database, timeout=60)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    refused = headwater("init", ".", cwd=tmp_path, code=2)
    assert "not empty" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    headwater("init", "mine.txt", cwd=tmp_path, code=2)


def test_it_says_what_it_wrote_and_what_comes_next(tmp_path):
    said = headwater("init", "a/new", cwd=tmp_path).stdout
    assert "headwater up" in said
    files = json.loads(headwater("init", "other", "--json", cwd=tmp_path).stdout)["files"]
    there = [path for path in (tmp_path / "other").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "other")) for path in there) == sorted(files)
    assert {".gitignore", "README.md", "headwater.toml", "pipelines/orders.py"} < set(files)
    assert "tests/test_orders.py" in files
    assert headwater("doctor", "--json", cwd=tmp_path / "other", code=None)


def test_a_project_of_sql_has_queries_and_no_python(tmp_path):
    files = json.loads(headwater("init", "shop", "--sql", "--json", cwd=tmp_path).stdout)["files"]
    there = [path for path in (tmp_path / "shop").rglob("*") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "shop")) for path in there) == sorted(files)
    assert {".gitignore", "README.md", "headwater.toml", "views/revenue.sql"} < set(files)
    assert not [file for file in files if file.endswith(".py")]
    listed = headwater("view", "list", "--json", cwd=tmp_path / "shop").stdout
    assert {view["view"]: view["reads"] for view in json.loads(listed)} == {
        "revenue": ["shop.main.orders", "shop.main.customers"],
        "best_countries": ["revenue"],
    }


class InitProject(Project):
    """What `init` wrote, on ports of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = "127.0.0.1:0"


def java_below(project):
    """The JVMs and Spark's Python workers."""
    found = []
    for pid in project.processes():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"java" in command or b"pyspark.daemon" in command:
            found.append(pid)
    return found


@pytest.mark.timeout(1200)
def test_the_project_runs_as_it_is_and_nothing_of_spark_outlives_it(tmp_path):
    headwater("init", "shop", cwd=tmp_path)
    project = InitProject(tmp_path / "shop")
    settings = {"HEADWATER_BROKER__LISTEN": "127.0.0.1:0", "HEADWATER_CONSOLE__LISTEN": "off"}
    with running(project, **settings) as up:
        up.wait_ready()
        reports, derived = project.directory / "reports.db", "SELECT id, total_cents FROM orders"
        first = [(1, 4900), (2, 35600), (3, 24900)]
        wait_until(lambda: sorted(rows(reports, derived)) == first, "the rows that were there")
        with closing(sqlite3.connect(project.database, timeout=60)) as connection, connection:
            connection.execute(
                "INSERT INTO orders (product, quantity, price_cents) VALUES ('shelf', 2, 5900)"
            )
            connection.execute("DELETE FROM orders WHERE id = 1")
        then = [(2, 35600), (3, 24900), (4, 11800)]
        wait_until(lambda: sorted(rows(reports, derived)) == then, "the change")

        def status():
            result = headwater("status", "--json", cwd=project.directory, code=None, **settings)
            return json.loads(result.stdout)

        wait_until(lambda: status()["ready"], "status that says so")
        state = status()
        assert [child["state"] for child in state["up"]["children"]] == ["ready"] * 3
        assert state["captures"][0]["state"] == "following"
        assert state["pipelines"][0]["writes"][0]["lag"] == 0
        shown = headwater("status", cwd=project.directory, **settings).stdout
        assert "reports/orders" in shown
        bootstrap = state["bootstrap"]
        if IS_FULL:  # Spark takes its time to start again; the demo is verified in both tiers
            verify = ("verify", "orders", "-b", bootstrap)
            assert "equal" in headwater(*verify, cwd=project.directory, **settings).stdout
            os.kill(up.pid_of("pipelines"), signal.SIGKILL)
            up.wait_for(event="child", name="pipelines", state="paused")
            up.wait_for(event="child", name="pipelines", state="ready")
        assert java_below(project)
        up.send(signal.SIGKILL)
        up.end()
        wait_until(project.is_clean, "the end of everything")
        assert not java_below(project)


@long  # tests/pipelines/views/test_sql_project.py runs its views in both tiers
@pytest.mark.timeout(1200)
def test_a_project_of_sql_runs_as_it_is(tmp_path):
    headwater("init", "shop", "--sql", cwd=tmp_path)
    project = InitProject(tmp_path / "shop")
    settings = {"HEADWATER_BROKER__LISTEN": "127.0.0.1:0", "HEADWATER_CONSOLE__LISTEN": "off"}
    with running(project, **settings) as up:
        up.wait_ready()
        reports, best = project.directory / "reports.db", "SELECT * FROM best_countries"
        first = [("AT", 24900), ("FR", 35600)]
        wait_until(lambda: sorted(rows(reports, best)) == first, "the first result")
        with closing(sqlite3.connect(project.database, timeout=60)) as connection, connection:
            connection.execute("UPDATE orders SET quantity = 10 WHERE id = 1")
        then = [("DE", 60800), ("FR", 35600)]
        wait_until(lambda: sorted(rows(reports, best)) == then, "the change")
        read = headwater("view", "read", "revenue", "--json", cwd=project.directory, **settings)
        found = {row["country"]: row for row in map(json.loads, read.stdout.splitlines())}
        assert found["DE"] == {"country": "DE", "orders": 2, "total_cents": 60800}
        assert up.stop() == 0


@long  # starts Spark four times
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store", ["kept", "lost"])
def test_pipelines_go_on_from_a_backup(tmp_path, store):
    """The data directory is lost. The source has continued, and the store, if it is there, too."""
    headwater("init", "shop", cwd=tmp_path)
    project = InitProject(tmp_path / "shop")
    settings = {"HEADWATER_BROKER__LISTEN": "127.0.0.1:0", "HEADWATER_CONSOLE__LISTEN": "off"}
    reports, derived = project.directory / "reports.db", "SELECT id, total_cents FROM orders"

    def insert(quantity):
        with closing(sqlite3.connect(project.database, timeout=60)) as connection, connection:
            connection.execute(
                "INSERT INTO orders (product, quantity, price_cents) VALUES ('shelf', ?, 100)",
                (quantity,),
            )

    def expected():
        return sorted(rows(project.database, "SELECT id, price_cents * quantity FROM orders"))

    with running(project, **settings) as up:
        up.wait_ready()
        insert(1)
        wait_until(lambda: sorted(rows(reports, derived)) == expected(), "the first rows")
        insert(2)
        headwater("backup", "../saved", cwd=project.directory, **settings)
        insert(3)
        wait_until(lambda: sorted(rows(reports, derived)) == expected(), "the later rows")
        assert up.stop() == 0
    project.data_dir.rename(tmp_path / "away")
    if store == "lost":
        for file in project.directory.glob("reports.db*"):
            file.unlink()
    headwater("restore", "../saved", cwd=project.directory, **settings)
    with running(project, **settings) as up:
        up.wait_ready()
        insert(4)
        wait_until(lambda: sorted(rows(reports, derived)) == expected(), "all rows", 600)
        state = json.loads(
            headwater("status", "--json", cwd=project.directory, code=None, **settings).stdout
        )
        verified = headwater(
            "verify", "orders", "-b", state["bootstrap"], cwd=project.directory, **settings
        )
        assert "equal" in verified.stdout
        assert up.stop() == 0
