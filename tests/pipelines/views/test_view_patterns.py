"""MATCH_RECOGNIZE in views: the clause, its mistakes with their place, and a view over a topic."""

import json

import pytest
from support.pipelines.project import Project
from tiers import long

from headwater.cli import main
from headwater.errors import QueryRefused
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.operators.patterns.language.match_clause import parse_clause
from headwater.pipelines.reading import LiveReader
from headwater.pipelines.settings import ViewSettings
from headwater.pipelines.verification.stores import verify
from headwater.pipelines.views.composition import composed
from headwater.pipelines.views.explain import explained
from headwater.pipelines.views.view_file import write_view


def test_all_sections_of_the_clause():
    text = """
        PARTITION BY region, `user id` ORDER BY at ASC
        MEASURES FINAL LAST(B.x) AS q, coalesce(A.y, 0) AS z
        ALL ROWS PER MATCH OMIT EMPTY MATCHES
        AFTER MATCH SKIP TO LAST B
        PATTERN (A{2,3}? {- (B | C) -} ()) -- and so on
        WITHIN INTERVAL '2' HOURS
        TIMED OUT AS is_over
        SUBSET U = (A, B), V = (C)
        DEFINE A AS x IN (1, 2), B AS PREV(x, 2) < 2
    """
    assert parse_clause(text) == {
        "key": ["region", "user id"],
        "time": "at",
        "measures": {"q": "FINAL LAST(B.x)", "z": "coalesce(A.y, 0)"},
        "rows_per_match": "ALL ROWS PER MATCH OMIT EMPTY MATCHES",
        "after_match": "SKIP TO LAST B",
        "pattern": "A{2,3}? {- (B | C) -} ()",
        "within": "2 hours",
        "timed_out": "is_over",
        "subset": {"U": ["A", "B"], "V": ["C"]},
        "define": {"A": "x IN (1, 2)", "B": "PREV(x, 2) < 2"},
    }


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("ORDER BY at PATTERN (A)", "PARTITION BY is missing", 0),
        ("PARTITION BY u PATTERN (A)", "ORDER BY is missing", 0),
        ("PARTITION BY u ORDER BY at", "PATTERN is missing", 0),
        ("u ORDER BY at PATTERN (A)", "'u' has no meaning here", 0),
        ("PARTITION BY u ORDER BY at, b PATTERN (A)", "in the order of one column", 24),
        ("PARTITION BY u ORDER BY at DESC PATTERN (A)", "ascending", 24),
        ("PARTITION BY u + 1 ORDER BY at PATTERN (A)", "a column alone is expected", 13),
        ("PARTITION BY u ORDER BY at PATTERN (A) MEASURES A.x AS x", "in the wrong place", 39),
        ("PARTITION BY u ORDER BY at MEASURES A.x PATTERN (A)", "AS is missing", 36),
        ("PARTITION BY u ORDER BY at PATTERN (A) DEFINE A x > 1", "AS is missing", 46),
        ("PARTITION BY u ORDER BY at PATTERN (A) WITHIN INTERVAL x", "has no interval", 46),
        ("PARTITION BY u ORDER BY at PATTERN (A) TIMED OUT", "has no column", 48),
        ("PARTITION BY u ORDER BY at PATTERN (A) WITHNI INTERVAL '1' DAY", "'WITHNI' has no", 39),
        ("PARTITION BY u ORDER BY at PATTERN (A) SUBSET U A", "a subset is", 46),
    ],
)
def test_mistakes_in_the_clause_have_their_place(text, what, at):
    with pytest.raises(QueryRefused, match=what) as refused:
        parse_clause(text, 100)
    assert refused.value.offset == 100 + at


UNPAID = """
SELECT date_trunc('hour', ordered_at) AS hour, count(*) AS orders, sum(total) AS total
FROM view_orders MATCH_RECOGNIZE (
  PARTITION BY order_id ORDER BY at
  MEASURES ordered.at AS ordered_at, ordered.total AS total, last(other.what) AS other
  PATTERN (ordered other*? paid)
  WITHIN INTERVAL '1' HOUR
  TIMED OUT AS is_unpaid
  DEFINE ordered AS what = 'ordered', paid AS what = 'paid'
) AS m
WHERE m.is_unpaid
GROUP BY 1
"""
SCHEMA = "order_id string, what string, total bigint, at timestamp"


@pytest.fixture
def project(tmp_path, broker_address):
    return Project(tmp_path, broker_address)


def add_view(project, text):
    (project.directory / "unpaid.sql").write_text(text)
    schemas = f'schemas = {{ view_orders = "{SCHEMA}" }}'
    project.section(f'[view.unpaid]\nfile = "unpaid.sql"\ninto = "cache"\n{schemas}')


def test_a_view_of_matches_is_accepted(project, spark, capsys, monkeypatch):
    monkeypatch.setattr("headwater.cli.pipelines.check.spark_of", lambda *_: spark)
    monkeypatch.chdir(project.directory)
    add_view(project, UNPAID)
    assert main.run(["view", "check", "unpaid", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["writes"][0]["columns"] == {
        "hour": "timestamp",
        "orders": "bigint",
        "total": "bigint",
    }


@long  # test_match_in_spark.py has a pipeline with restarts
def test_a_view_of_what_did_not_happen(project, spark):
    project.topic("view_orders")
    add_view(project, UNPAID)
    events = [
        ("A", "ordered", 5, "10:00"), ("B", "ordered", 7, "10:10"), ("C", "ordered", 9, "10:20"),
        ("B", "packed", 0, "10:30"), ("B", "paid", 0, "11:00"), ("A", "paid", 0, "11:30"),
        ("D", "ordered", 1, "12:30"),
    ]  # fmt: skip
    rows = [
        {"order_id": order, "what": what, "total": total, "at": f"2026-01-01T{at}:00Z"}
        for order, what, total, at in events
    ]
    project.produce("view_orders", *rows, key="order_id")
    with project.running(spark, "unpaid"):
        project.wait_until_at_end(spark, "view_orders", "unpaid")
    assert project.rows("SELECT hour, orders, total FROM unpaid") == [
        ("2026-01-01 10:00:00.000000Z", 2, 14)
    ]
    (pipeline,) = project.pipelines(spark, "unpaid")
    assert verify(pipeline, "unpaid").is_equal
    traced = why(pipeline, "unpaid", {"hour": "2026-01-01T10:00:00Z"})
    assert {cause.row["order_id"] for cause in traced.causes} == {"A", "C"}
    reader = LiveReader(spark, pipeline.environment.log, pipeline.settings)
    steps = explained(pipeline, pipeline.settings, project.directory, reader)
    assert "view_orders" in json.dumps(steps.as_json())


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        (UNPAID.replace("WITHIN INTERVAL '1' HOUR", "").replace("TIMED OUT AS is_unpaid", ""),
         "3:6", "can grow for ever"),
        (UNPAID.replace("PARTITION BY order_id", "PARTITION BY oder_id"), "3:6",
         "there is no column oder_id"),
        (UNPAID.replace("INTERVAL '1' HOUR", "INTERVAL soon"), "7:10", "has no interval"),
        (UNPAID.replace("(ordered other*? paid)", "(ordered other**)"), "3:6",
         "two quantifiers follow each other"),
        (UNPAID.replace("FROM view_orders MATCH", "FROM (SELECT 1) MATCH"), "3:17",
         "behind the name of a table"),
    ],
)  # fmt: skip
def test_mistakes_are_shown_by_view_check(
    project, spark, capsys, monkeypatch, text, place, message
):
    monkeypatch.setattr("headwater.cli.pipelines.check.spark_of", lambda *_: spark)
    monkeypatch.chdir(project.directory)
    add_view(project, text)
    assert main.run(["view", "check", "unpaid", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["line"] == f"unpaid.sql:{place}"
    assert message in found["error"]


def test_rows_that_change_are_no_events(spark, tmp_path):
    class Captured:
        """A table whose rows are updated and deleted."""

        reader = None

        def changes(self, topic, schema):
            position = "struct<topic: string, partition: int, offset: bigint>"
            ours = f"_op string, _at timestamp, _position {position}"
            return spark.createDataFrame([], f"{SCHEMA}, {ours}")

    (tmp_path / "unpaid.sql").write_text(UNPAID)
    settings = ViewSettings(name="unpaid", file="unpaid.sql", into="cache")
    with pytest.raises(QueryRefused, match=r"unpaid.sql:3:6: .* whose rows change") as refused:
        write_view(settings, composed(settings, tmp_path), Captured())
    assert "hw.match" in refused.value.hint
