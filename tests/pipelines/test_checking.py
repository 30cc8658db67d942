"""`headwater pipeline check`: pipelines are built, and no record is read."""

import json

import pytest
from support.pipelines.project import Project

from headwater.cli import main

SOUND = """
    clicks = flow.changes("clicks", "user string, at timestamp")
    windows = hw.tumbling(clicks, "at", "1 minute", by="user").agg(n=hw.agg.count())
    flow.write(windows.drop("_mark"), to="cache", table="counts", key=["user", "window_start"])
    flow.write(clicks, to="topic", table="copy")
    flow.write(flow.changes(pattern="a-.*", schema="id int"), to="cache", table="a", key="id")
"""


@pytest.fixture
def check(spark, tmp_path, broker_address, monkeypatch, capsys):
    """Runs the command in this process, on the Spark of the test run."""
    project = Project(tmp_path, broker_address)

    def run(*names, code=0, **bodies):
        monkeypatch.setattr("headwater.cli.pipelines.check.spark_of", lambda *_: spark)
        for name, body in bodies.items():
            project.pipeline(name, body)
        argv = ["pipeline", "check", *names, "--config", str(project.file)]
        assert main.run(argv) == code
        shown = capsys.readouterr().out
        main.run([*argv, "--json"])
        return shown, json.loads(capsys.readouterr().out)

    run.project = project
    return run


def test_what_each_write_would_have_is_shown(check):
    shown, (found,) = check(sound=SOUND)
    assert found["is_sound"]
    counts, copy, by_pattern = found["writes"]
    assert counts["write"] == "cache/counts"
    assert counts["kind"] == "sqlite"
    assert counts["key"] == ["user", "window_start"]
    assert counts["columns"] == {
        "user": "string",
        "window_start": "timestamp",
        "window_end": "timestamp",
        "n": "bigint",
    }
    assert counts["topics"] == ["clicks"]
    (operator,) = counts["operators"]
    assert operator["name"].startswith("tumbling-")
    assert operator["by"] == ["user"]
    assert (copy["kind"], copy["mode"], copy["key"]) == ("topic", "append", [])
    assert (by_pattern["topics"], by_pattern["patterns"]) == ([], ["a-.*"])
    for line in (
        "sound  ok  sound.py",
        "  cache/counts  sqlite, key user, window_start",
        "    n             bigint",
        "    from clicks",
        "  topic/copy  topic, no key: rows are added",
        "    from topics by a-.*",
    ):
        assert line in shown.splitlines()


@pytest.mark.parametrize(
    ("body", "error", "line"),
    [
        ('flow.write(flow.changes("a", "id int").select("no"), "cache", "t")',
         "AnalysisException", "broken.py:7"),
        ('flow.write(flow.changes("a", "id int").select("id"), "cache", "t", "id")',
         "lost its column _op", "broken.py:7"),
        ('flow.write(flow.changes("no.such.table"), "cache", "t", "id")',
         "the columns of no.such.table are unknown", "broken.py:7"),
        ('flow.write(flow.changes("a", "id int"), "cash", "t", "id")',
         "a sink that does not exist: cash", "broken.py:7"),
        ('flow.write(flow.changes("a", "id int"), "cache", "t", "id", options={"x": 1})',
         "unknown option x", None),
        ('flow.write(flow.changes("a", "id int").orderBy("id"), "cache", "t")',
         "cannot run cache/t as a stream", None),
        ('flow.write(flow.table("a", "id int", key="id"), "cache", "t", "id")',
         "is no stream", None),
        ("pass", "writes nothing", None),
        ("1 +", "invalid syntax", "broken.py:7"),
    ],
)  # fmt: skip
def test_an_error_is_shown_with_its_line(check, body, error, line):
    shown, (found,) = check(broken=f"\n{body}", code=1)
    assert not found["is_sound"]
    assert found["writes"] == []
    assert error in found["error"]
    assert found["line"] == line
    assert "broken  error  broken.py" in shown
    assert error in shown
    assert (line or "") in shown


def test_a_broken_pipeline_does_not_hide_the_others(check):
    _, found = check(broken="nonsense", sound=SOUND, code=1)
    assert [pipeline["is_sound"] for pipeline in found] == [False, True]
    _, found = check("sound")
    assert [pipeline["pipeline"] for pipeline in found] == ["sound"]


def test_without_a_broker_schemas_of_the_function_are_enough(check):
    check.project.bootstrap = "127.0.0.1:1"
    check.project._sections[0] = '[broker]\nbootstrap = "127.0.0.1:1"'
    captured = 'flow.write(flow.changes("shop.main.orders"), "cache", "t", "id")'
    _, found = check(sound=SOUND, captured=captured, code=1)
    assert [pipeline["is_sound"] for pipeline in found] == [True, False]
    assert "columns of shop.main.orders are read from the broker" in found[1]["error"]
    assert "headwater broker" in found[1]["hint"]
    assert found[1]["line"] == "captured.py:6"


def test_a_file_that_does_not_load_needs_no_spark(check, monkeypatch):
    check.project.pipeline("broken", "1 +")
    monkeypatch.delattr("headwater.pipelines.session.spark")
    _, (found,) = check(code=1)
    assert "invalid syntax" in found["error"]
