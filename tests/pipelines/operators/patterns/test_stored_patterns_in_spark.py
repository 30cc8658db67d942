"""hw.match_stored in pipelines: patterns that are added, changed and dropped while one runs."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from support.pipelines.project import Project, wait_for

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.verification.stores import verify

PAGE = (Path(__file__).parents[4] / "docs/patterns.md").read_text()
START_MS = 1_750_000_000_000
EVENTS = "order_id string, what string, price decimal(8,2), at timestamp"
UNPAID = {
    "id": "unpaid",
    "pattern": "ordered other*? paid",
    "define": {"ordered": "what = 'ordered'", "paid": "what = 'paid'"},
    "measures": {"rows": "count(*)", "price": "ordered.price", "at": "date(LAST(at))"},
    "within": "1 hour",
    "timed_out": True,
    "owner": "ann",
}


def test_the_example_of_the_page_finds_matches_in_memory(spark):
    rows = [
        ("A", "ordered", 0), ("B", "ordered", 5), ("B", "packed", 20), ("B", "paid", 50),
        ("C", "paid", 55), ("D", "ordered", 90),
    ]  # fmt: skip
    events = [
        {"order_id": order, "what": what, "price": "1.50", "at": f"2026-03-01T{_time(minute)}Z"}
        for order, what, minute in rows
    ]
    paid = {"id": "paid", "pattern": "P", "define": {"P": "what like 'p%d'"}}
    patterns = [
        {**UNPAID, "_at": "2026-03-01T11:00:00Z"},
        {**paid, "_at": "2026-03-01T12:52:00Z"},
        {**paid, "id": "dropped", "_at": "2026-03-01T11:00:00Z"},
        {"id": "dropped", "_op": "d", "_at": "2026-03-01T12:50:00Z"},
    ]
    given = hw.testing.topic(patterns, schema=hw.PATTERNS, key="id")
    names = {}
    exec(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[5], names)
    found = hw.testing.run(names["alerts"], {"shop": (events, EVENTS), "patterns": given})
    assert [
        (
            row["pattern_id"],
            row["owner"],
            row["order_id"],
            f"{row['event_time']:%H:%M}",
            json.loads(row["measures"]),
            row["timed_out"],
        )
        for row in found["alerts"]
    ] == [
        ("paid", None, "C", "12:55", {}, False),
        ("unpaid", "ann", "A", "13:00", {"rows": 1, "price": "1.50", "at": "2026-03-01"}, True),
        ("unpaid", "ann", "B", "12:50", {"rows": 3, "price": "1.50", "at": "2026-03-01"}, False),
    ]


def _time(minute):
    return f"{12 + minute // 60}:{minute % 60:02}:00"


def test_patterns_change_while_a_pipeline_runs(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    shop, stored = project.topic(f"{tmp_path.name}-shop"), project.topic(f"{tmp_path.name}-p")
    project.pipeline(
        "alerts",
        f"""
        events = flow.changes("{shop}", "order_id string, what string, at timestamp")
        patterns = flow.table("{stored}", hw.PATTERNS, key="id")
        time = hw.event_time("at", delay="0 seconds", future=None)
        found = hw.match_stored(events, patterns, "order_id", time=time)
        key = ["pattern_id", "order_id", "event_time"]
        flow.write(found, to="cache", table="alerts", key=key)
        """,
    )
    paid = {"id": "paid", "pattern": "P", "define": {"P": "what = 'paid'"}}
    twice = {"id": "twice", "pattern": "P P", "define": paid["define"], "within": "10 seconds"}
    # (second in the log and of the event, topic, row)
    store(project, stored, (0, paid), (0, {"id": "broken", "pattern": "A ("}))
    store(project, shop, (5, event(5, "a", "paid")), (6, event(6, "b", "ordered")))
    with project.running(spark, "alerts"):
        wait_for(lambda: found_in(project) == [("paid", "a")], "the first match")
        store(project, stored, (10, {"id": "paid"}), (11, twice))
        # 12 is of an attempt of `twice`, 20 completes it; `paid` does not hold any more.
        rows = [(second, event(second, "a", "paid")) for second in (9, 12, 20)]
        store(project, shop, *rows, (40, event(40, "z", "none")))
        wait_for(lambda: ("twice", "a") in found_in(project), "the match of another pattern")
        project.wait_until_at_end(spark, shop, "alerts")
    assert sorted(found_in(project)) == [("paid", "a"), ("paid", "a"), ("twice", "a")]
    (pipeline,) = project.pipelines(spark, "alerts")
    assert verify(pipeline, "cache/alerts").is_equal
    (at,) = project.rows("SELECT event_time FROM alerts WHERE pattern_id = 'twice'")[0]
    traced = why(pipeline, "alerts", {"pattern_id": "twice", "order_id": "a", "event_time": at})
    causes = [(cause.row.get("what"), cause.row.get("pattern")) for cause in traced.causes]
    assert sorted(causes, key=str) == [("paid", None), ("paid", None), (None, "P P")]


def event(second, order, what):
    return {"order_id": order, "what": what, "at": START_MS + second * 1000}


def store(project, topic, *rows):
    """(second, row): by their time in the log, not by when the test runs."""
    producer = Producer({"bootstrap.servers": project.bootstrap, "linger.ms": 0})
    for second, row in rows:
        producer.produce(
            topic,
            key=json.dumps({"id": row["id"]}).encode() if "id" in row else None,
            value=None if len(row) == 1 else json.dumps(row).encode(),
            timestamp=START_MS + second * 1000,
        )
    producer.flush()


def found_in(project):
    return project.rows("SELECT pattern_id, order_id FROM alerts ORDER BY event_time")


def test_wrong_uses_are_errors_when_the_pipeline_is_built(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    events, stored = project.topic(f"{tmp_path.name}-e"), project.topic(f"{tmp_path.name}-s")
    head = f"""
        events = flow.changes("{events}", "user string, tags array<string>, at timestamp")
        stored = flow.table("{stored}", hw.PATTERNS, key="id")
        plain = flow.table("{stored}", "id string, text string", key="id")
        numbers = flow.table("{stored}", "id string, pattern bigint", key="id")
    """
    cases = {
        'hw.match_stored(events, stored, "who", time="at")': "no column who",
        'hw.match_stored(events, stored, "tags", time="at")': "cannot be grouped by tags",
        'hw.match_stored(events, stored, "user", time="user")': "no timestamp",
        'hw.match_stored(events, stored, "user", time="at", late="correct")': "is for windows",
        'hw.match_stored(events, plain, "user", time="at")': "has no column pattern",
        'hw.match_stored(events, numbers, "user", time="at")': "is int64, and no string",
        'hw.match_stored(events, stored.distinct(), "user", time="at")': "cannot be found",
        'hw.match_stored(events.withColumnRenamed("user", "owner"), stored, "owner", time="at")': (
            "would be called owner"
        ),
    }
    for number, (call, message) in enumerate(cases.items()):
        project.pipeline(f"wrong{number}", head + f"    found = {call}\n")
        with pytest.raises(PipelineError) as error:
            project.pipelines(spark, f"wrong{number}")[0].flow()
        assert message in str(error.value), call
