"""`headwater pipeline diff`: what an edited function would change in its stores."""

import json

import pytest
from support.pipelines.project import Project
from tiers import long

from headwater.cli import main
from headwater.pipelines.running.once import run_once
from headwater.pipelines.running.runner import Runner

ROWS = 'rows = flow.changes("edited", "id bigint, name string, total int, at timestamp")\n'
BEFORE = """
flow.write(rows.drop("at"), to="cache", table="t", key="id")
windows = hw.tumbling(rows, "at", "1 minute", by="name").agg(n=hw.agg.count())
flow.write(windows.drop("_mark"), to="cache", table="w", key=["name", "window_start"])
flow.write(rows.select("id", "_position").where("id < 3"), to="cache", table="a")
"""


class Edited:
    """A pipeline that has run, and whose file is changed then."""

    def __init__(self, project, capsys):
        self.project = project
        self._capsys = capsys
        self.edit(BEFORE)

    def edit(self, body):
        self.project.pipeline("edited", ROWS + body)

    def diff(self, *options, code=3):
        """What changes by write, and which are no longer written."""
        found = json.loads(self.shown(*options, "--json", code=code))
        return {one["write"]: one for one in found["writes"]}, found["no_longer_written"]

    def shown(self, *options, code=3):
        argv = ["pipeline", "diff", "edited", *options, "--config", str(self.project.file)]
        assert main.run(argv) == code
        return self._capsys.readouterr().out

    def err(self):
        return self._capsys.readouterr().err


@pytest.fixture(scope="module")
def project(spark, tmp_path_factory, broker_address):
    """It runs once: no difference that is shown changes a store."""
    project = Project(tmp_path_factory.mktemp("edited"), broker_address)
    project.topic("edited")
    project.pipeline("edited", ROWS + BEFORE)
    project.produce(
        "edited",
        *(
            {"id": n, "name": "ab"[n % 2], "total": n, "at": f"2026-03-01T12:{n:02}:00Z"}
            for n in range(1, 7)
        ),
        {"id": 6, "_deleted": True},
    )
    run_once(Runner(project.pipelines(spark, "edited")))
    return project


@pytest.fixture
def edited(spark, project, monkeypatch, capsys):
    monkeypatch.setattr("headwater.cli.pipelines.diff.spark_of", lambda *_: spark)
    return Edited(project, capsys)


def test_an_unchanged_function_changes_nothing(edited):
    found, removed = edited.diff(code=0)
    assert [one["is_same"] for one in found.values()] == [True, True, True]
    assert removed == []
    assert edited.shown("--write", "t", code=0) == "cache/t: no change of 5 rows\n"


def test_rows_that_would_be_added_changed_and_removed(edited, tmp_path):
    edited.edit(
        BEFORE.replace(
            'rows.drop("at")',
            'rows.drop("at").where("id != 2").withColumn("total", F.expr("if(id = 3, 33, total)"))',
        )
        .replace('"1 minute"', '"2 minutes"')
        .replace("id < 3", "id < 4")
    )
    stored = edited.project.rows("SELECT * FROM t ORDER BY id")
    found, _ = edited.diff()
    of_table = found["cache/t"]
    assert (of_table["added"], of_table["changed"], of_table["removed"]) == (0, 1, 1)
    changed, removed = sorted(of_table["examples"], key=lambda one: one["derived"] is None)
    assert (changed["stored"]["total"], changed["derived"]["total"]) == (3, 33)
    assert (removed["key"], removed["derived"]) == ({"id": 2}, None)
    assert not found["cache/w"]["is_same"]
    of_added = found["cache/a"]
    assert (of_added["added"], of_added["changed"], of_added["removed"]) == (1, 0, 0)
    assert of_added["examples"][0]["derived"] == {"id": 3, "count": 1}
    assert edited.project.rows("SELECT * FROM t ORDER BY id") == stored

    assert edited.shown("--write", "cache/t").splitlines() == [
        "cache/t: 1 changed, 1 removed of 5 rows",
        "  - id=2, name=a, total=2",
        "  ~ id=3: total 3 → 33",
    ]
    copy = tmp_path / "copy.py"
    copy.write_text((edited.project.directory / "edited.py").read_text())
    edited.edit(BEFORE)
    found, removed = edited.diff("--file", str(copy), "--write", "cache/t")
    assert found["cache/t"]["changed"] == 1
    assert removed == []


@long
def test_columns_keys_and_writes_that_change(edited):
    edited.edit("""
flow.write(
    rows.drop("at", "name").withColumn("total", F.col("total").cast("bigint"))
    .withColumn("twice", F.col("total") * 2), to="cache", table="t", key="id")
windows = hw.tumbling(rows, "at", "1 minute").agg(n=hw.agg.count())
flow.write(windows.drop("_mark"), to="cache", table="w", key="window_start")
flow.write(rows.select("id", "_op", "_position"), to="cache", table="new", key="id")
""")
    found, removed = edited.diff()
    of_table = found["cache/t"]
    assert of_table["columns_added"] == {"twice": "bigint"}
    assert of_table["columns_removed"] == ["name"]
    assert of_table["columns_changed"] == {"total": {"was": "int", "is": "bigint"}}
    assert (of_table["added"], of_table["changed"], of_table["removed"]) == (0, 0, 0)
    assert not of_table["is_same"]
    assert found["cache/w"]["state"] == "key changed"
    assert found["cache/w"]["key_was"] == ["name", "window_start"]
    new = found["cache/new"]
    assert (new["state"], new["derived"]) == ("new", 5)
    assert new["examples"][0]["derived"].keys() == {"id"}
    assert removed == ["cache/a"]
    shown = edited.shown()
    for line in (
        "  column twice bigint is added",
        "  column name is no longer derived",
        "  column total is bigint instead of int",
        "cache/a: no longer written; its store stays as it is",
    ):
        assert line in shown.splitlines()


@long
def test_only_the_rows_of_the_last_records(edited):
    edited.edit(BEFORE.replace('rows.drop("at")', 'rows.drop("at").withColumn("total", F.lit(0))'))
    found, _ = edited.diff("--last", "1h", "--write", "cache/t")
    assert (found["cache/t"]["changed"], found["cache/t"]["rows"]) == (5, 5)
    found, _ = edited.diff("--last", "1ms", "--write", "cache/t", code=0)
    assert found["cache/t"]["rows"] == 0
    edited.edit(BEFORE.replace('rows.drop("at")', 'rows.drop("at").where("id not in (2, 4)")'))
    found, _ = edited.diff("--last", "1h", "--write", "cache/t", code=0)
    assert (found["cache/t"]["rows"], found["cache/t"]["left_out"]) == (3, 2)
    argv = ["pipeline", "diff", "edited", "--last", "1h", "--write", "cache/t"]
    assert main.run([*argv, "--config", str(edited.project.file)]) == 0
    assert "the last records of 2 more rows are left out" in edited.err()
    argv = ["pipeline", "diff", "edited", "--last", "1h", "--write", "w"]
    assert main.run([*argv, "--config", str(edited.project.file)]) == 1


def test_a_pipeline_that_has_never_run_is_new(spark, tmp_path, broker_address, monkeypatch, capsys):
    monkeypatch.setattr("headwater.cli.pipelines.diff.spark_of", lambda *_: spark)
    project = Project(tmp_path, broker_address)
    topic = project.topic("never-ran")
    project.produce(topic, {"id": 1}, {"id": 2})
    project.pipeline("never", f'flow.write(flow.changes("{topic}", "id int"), "cache", "n", "id")')
    assert main.run(["pipeline", "diff", "never", "--config", str(project.file)]) == 3
    shown = capsys.readouterr().out
    assert "cache/n: new, with 2 rows" in shown
    assert "  + id=1" in shown
    assert project.rows("SELECT * FROM n") == []
