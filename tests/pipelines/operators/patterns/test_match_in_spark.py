"""hw.match in pipelines: conditions and measures that Spark computes, restarts, verify and why."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import functions as F  # noqa: N812
from support.pipelines.project import Project
from tiers import long, some

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.verification.stores import verify

PIPELINE = """
    events = flow.changes("shop", "user string, what string, price decimal(8,2), at timestamp")
    time = hw.event_time("at", delay="1 minute", future=None)
    dips = hw.match(
        events,
        "user",
        "START DOWN+ UP+",
        time=time,
        define={"DOWN": "price < PREV(price)", "UP": "price > PREV(price)"},
        measures={
            "number": "MATCH_NUMBER()",
            "begun": "START.at",
            "fall": "START.price - LAST(DOWN.price)",
            "label": "concat_ws('-', upper(user), cast(count(*) AS string))",
            "mean": "avg(price)",
        },
        within="1 hour",
    )
    flow.write(dips, to="cache", table="dips", key=["user", "number"])
    unpaid = hw.match(
        events,
        "user",
        hw.pattern()
        .begin("ordered", where="what = 'order'")
        .then("paid", where="what = 'pay'", within="30 minutes"),
        time=time,
        measures={"ordered_at": "ordered.at", "paid_at": "paid.at"},
        timed_out="is_unpaid",
    )
    flow.write(unpaid, to="cache", table="orders", key=["user", "ordered_at"])
"""
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(minute):
    return START + timedelta(minutes=minute)


def test_matches_go_on_over_restarts(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("shop", 2)
    project.pipeline("patterns", PIPELINE)
    quotes = [9, 8, 6, 7, 9, 9, 8, 9, 5]  # dips: 9 8 6 7 9 and 9 8 9
    events = [
        {"user": "cat", "what": "quote", "price": price, "at": at(5 * n).isoformat()}
        for n, price in enumerate(quotes)
    ]
    events += [
        {"user": user, "what": what, "price": 1, "at": at(minute).isoformat()}
        for user, what, minute in [
            ("ann", "order", 2), ("ann", "pay", 32), ("bob", "order", 3), ("bob", "pay", 34),
            ("bob", "order", 35), ("bob", "pay", 41),
        ]
    ]  # fmt: skip
    events.sort(key=lambda event: event["at"])
    others = [
        {"user": f"other {n}", "what": "none", "price": 0, "at": at(minute).isoformat()}
        for minute in (0, 20, 60)
        for n in range(8)
    ]
    for begin, end in ((0, 22), (22, 200)):
        share = [
            event
            for event in sorted(events + others, key=lambda event: event["at"])
            if at(begin).isoformat() <= event["at"] < at(end).isoformat()
        ]
        project.produce("shop", *share, key="user")
        with project.running(spark, "patterns"):
            project.wait_until_at_end(spark, "shop", "patterns")
    found = project.rows("SELECT user, number, begun, fall, label, mean FROM dips ORDER BY number")
    assert [(user, n, _time(begun), *map(str, more)) for user, n, begun, *more in found] == [
        ("cat", 1, at(0), "3.00", "CAT-5", "7.800000"),
        ("cat", 2, at(25), "1.00", "CAT-3", "8.666667"),
    ]
    found = project.rows("SELECT user, ordered_at, paid_at, is_unpaid, event_time FROM orders")
    assert {
        (user, _time(ordered)): (paid and _time(paid), bool(unpaid), _time(decided))
        for user, ordered, paid, unpaid, decided in found
    } == {
        ("ann", at(2)): (at(32), False, at(32)),
        ("bob", at(3)): (None, True, at(33)),
        ("bob", at(35)): (at(41), False, at(41)),
    }
    (pipeline,) = project.pipelines(spark, "patterns")
    for write in some("orders", "dips"):
        assert verify(pipeline, write).is_equal, write
    key = {"user": "bob", "ordered_at": at(35).isoformat()}
    traced = why(pipeline, "orders", key)
    assert [cause.row["what"] for cause in traced.causes] == ["pay", "order"]
    assert traced.is_certain
    assert not traced.untraced


def _time(text):
    return datetime.fromisoformat(text)


ALL = (
    "user string, what string, price bigint, at timestamp, tags array<string>, info struct<x: int>,"
    " _op string, _at timestamp, _position struct<topic: string, partition: int, offset: bigint>"
)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"key": ()}, "key is empty"),
        ({"key": "who"}, "no column who"),
        ({"key": "tags"}, "cannot be grouped by tags"),
        ({"time": "user"}, "no timestamp"),
        ({"late": "corrected"}, "late='corrected'"),
        ({"allowed_lateness": "1 hour"}, 'is for late="correct"'),
        ({"late": "correct", "measures": {"match_id": "A.price"}}, "a column match_id of their"),
        ({"late": "correct", "timed_out": "_mark", "within": "1 hour"}, "a column _mark of their"),
        ({"pattern": ""}, "the pattern is empty"),
        ({"pattern": "()", "define": {}}, "has no variable"),
        ({"pattern": "A (B"}, r"'\)' is missing: line 1, column 5"),
        ({"pattern": "A B+"}, "can grow for ever"),
        ({"pattern": "A (B | C*?)"}, "can grow for ever"),
        ({"pattern": "^ A B"}, r"\^ needs a state for each key for ever"),
        ({"pattern": "A B $"}, "a stream has none"),
        ({"define": {"Z": "true"}}, "define names Z, which is no variable"),
        ({"define": {"A": "true", "a": "true"}}, "define has A twice"),
        ({"define": {"A": "Z.price > 1"}}, "Z is neither a variable of the pattern nor a column"),
        ({"define": {"A": "price >"}}, "is no expression of Spark's SQL: line 1"),
        ({"define": {"A": "no_column > 1"}}, "the condition of A is not accepted by Spark"),
        ({"define": {"A": "price + 1"}}, "is neither true nor false"),
        ({"define": {"A": "PREV(price) + 1"}}, "is neither true nor false"),
        ({"define": {"B": "PREV(price)"}}, "is neither true nor false: price is bigint"),
        ({"define": {"A": 5}}, "the condition of A is 5"),
        ({"define": {"A": ""}}, "the condition of A is empty"),
        ({"define": {"B": "lower(PREV(what)) = 'x'"}}, r"cannot use LOWER.* between rows: line 1"),
        ({"define": {"B": "FINAL LAST(A.price) > 1"}}, "FINAL is for measures"),
        ({"define": {"B": "MATCH_NUMBER() > 1"}}, "MATCH_NUMBER is for measures"),
        ({"define": {"B": "price::int > PREV(price)"}}, "uses ::"),
        ({"measures": {"x": "Z.price"}}, "Z is neither a variable"),
        ({"measures": {"x": "A.nothing"}}, "the measure x is not accepted by Spark"),
        ({"measures": {"x": "no_function(A.price)"}}, "the measure x is not accepted by Spark"),
        ({"measures": {"x": "sum(A.what)"}}, "sum takes numbers"),
        ({"measures": {"x": "max(A.tags)"}}, "max takes values that can be compared"),
        ({"measures": {"x": "stddev(A.price)"}}, "aggregates are|what a pattern does not have"),
        ({"measures": {"x": "count(DISTINCT A.price)"}}, "has no DISTINCT"),
        ({"measures": {"x": "FIRST(A.price, B.price)"}}, "and a number of rows"),
        ({"measures": {"x": "FIRST(A.price + B.price)"}}, "columns of several variables"),
        ({"measures": {"x": "FIRST(PREV(A.price))"}}, "PREV cannot be inside of FIRST"),
        ({"measures": {"x": "A.price AS p"}}, "is no expression"),
        ({"measures": {"x": "CLASSIFIER(Z)"}}, "CLASSIFIER takes a variable"),
        ({"measures": {"user": "A.price"}}, "a column user of their own"),
        ({"measures": {"event_time": "A.at"}}, "a column event_time of their own"),
        (
            {"measures": {"what": "A.price"}, "rows_per_match": "ALL ROWS PER MATCH"},
            "a column what of their own",
        ),
        ({"subset": {"U": ["A", "Z"]}}, "subset U names Z"),
        ({"subset": {"a": ["B"]}}, "is a variable of the pattern, too"),
        ({"subset": {"U": []}}, "subset U is empty"),
        ({"pattern": "info B", "measures": {"x": "info.x"}}, "info is ambiguous"),
        ({"timed_out": "over"}, "timed_out='over' without within"),
        ({"within": "soon"}, "is no duration"),
        ({"after_match": "SKIP A"}, "after_match='SKIP A'"),
        ({"after_match": "SKIP TO LAST Z"}, "after_match names Z"),
        ({"after_match": "SKIP TO FIRST A"}, "again and again"),
        ({"rows_per_match": "ONE ROW PER MATCH SHOW EMPTY MATCHES"}, "rows_per_match="),
        (
            {
                "pattern": "A {- B -}",
                "rows_per_match": "ALL ROWS PER MATCH WITH UNMATCHED ROWS",
            },
            "neither matched nor unmatched",
        ),
        ({"pattern": hw.pattern()}, "it has no steps"),
        ({"pattern": hw.pattern().begin("a"), "define": {"a": "true"}}, "its own conditions"),
        ({"pattern": hw.pattern().begin("a").then("b"), "define": None}, "can grow for ever"),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, given, what):
    frame = spark.createDataFrame([], ALL)
    right = {"key": "user", "pattern": "A B", "time": "at", "measures": {"n": "count(*)"}}
    with pytest.raises(PipelineError, match=what):
        hw.match(frame, **(right | given))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda p: p.then("a"), "then is no first step"),
        (lambda p: p.begin("a b"), "is no name of a variable"),
        (lambda p: p.begin("a").begin("b"), "begin is the first step"),
        (lambda p: p.begin("a").then("A"), "is the name of another step"),
        (lambda p: p.begin("before_b").then("b"), "is the name of another step"),
        (lambda p: p.begin("b").then("Before_B"), "is the name of another step"),
        (lambda p: p.begin("a", times="many"), "times='many'"),
        (lambda p: p.begin("a", times=(3, 2)), "times="),
        (lambda p: p.begin("a").not_followed_by("b", "true").tree(), "without within"),
        (lambda p: p.begin("a").not_followed_by("b", "x").next("c").tree(), "is before next"),
        (lambda p: p.begin("a").not_followed_by("b", "x").not_followed_by("c", "x"), "twice"),
    ],
)
def test_mistakes_in_a_built_pattern(make, what):
    with pytest.raises(PipelineError, match=what):
        make(hw.pattern())


def test_types_of_measures_are_those_of_spark(spark):
    frame = spark.createDataFrame([], ALL + ", cost decimal(8,2), ratio float")
    found = hw.match(
        frame,
        "user",
        hw.pattern().begin("a", where=F.col("price") > 1).next("b", where="b.price > a.price"),
        time="at",
        measures={
            "tags": "a.tags",
            "x": "b.info.x",
            "total": "sum(cost)",
            "mean": "avg(a.cost)",
            "whole": "avg(price)",
            "least": "min(at)",
            "ratio": "sum(ratio)",
            "text": "concat(a.what, '-', CLASSIFIER())",
            "is_high": "max(price) > 10",
            "n": "MATCH_NUMBER()",
        },
    )
    assert found.schema.simpleString() == (
        "struct<user:string,event_time:timestamp,tags:array<string>,x:int,total:decimal(18,2),"
        "mean:decimal(12,6),whole:double,least:timestamp,ratio:double,text:string,is_high:boolean,"
        "n:bigint,_position:struct<topic:string,partition:int,offset:bigint>,_op:string>"
    )
    rows = hw.match(
        frame, "user", "A B", time="at", rows_per_match="ALL ROWS PER MATCH", timed_out="over",
        within="1 hour",
    )  # fmt: skip
    assert rows.columns == [
        "user", "what", "price", "at", "tags", "info", "cost", "ratio", "event_time", "over",
        "_position", "_op",
    ]  # fmt: skip


# ── the documentation ───────────────────────────────────────────────────────────────────────────

PAGE = (Path(__file__).parents[4] / "docs/patterns.md").read_text()


class BoundedFlow:
    """Topics with the records that the page shows, read once."""

    def __init__(self, spark, records):
        self._spark = spark
        self._records = records
        self.written = []

    def changes(self, topic, schema):
        rows = [
            json.dumps({**record, "_at": record["at"], "_op": "c", "_position": position})
            for number, record in enumerate(self._records)
            for position in [{"topic": topic, "partition": 0, "offset": number}]
        ]
        added = ALL[ALL.index("_op") :]
        frame = self._spark.createDataFrame([(row,) for row in rows], "value string")
        return frame.select(F.from_json("value", f"{schema}, {added}").alias("row")).select("row.*")

    def write(self, frame, **_):
        self.written += frame.drop("_position", "_op").collect()


def test_the_first_example_of_the_page_gives_what_it_shows(spark):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    shown = re.search(r"<<\.\n(.*?)\n\.\n.*?'\n(.*?)```", PAGE, re.DOTALL)
    flow = BoundedFlow(spark, [json.loads(line) for line in shown[1].splitlines()])
    names = {}
    exec(blocks[0], names)
    names["payments"](flow)
    lines = ["|".join(map(_as_sqlite, row)) for row in sorted(flow.written)]
    assert lines == shown[2].splitlines()


def _as_sqlite(value):
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%fZ")
    return "" if value is None else str(int(value)) if isinstance(value, bool) else str(value)


def test_the_other_examples_of_the_page_are_accepted(spark):
    frame = spark.createDataFrame([], ALL + ", symbol string, device string")
    names = {"hw": hw, "quotes": frame, "heartbeats": frame}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6  # test_stored_patterns_in_spark.py runs the last one
    for block in blocks[1:5]:
        exec(block, names)
    assert names["dips"].columns[:5] == ["symbol", "event_time", "begun", "ended", "fall"]
    assert names["silent"].columns[:3] == ["device", "event_time", "last_seen"]


@long
def test_operators_follow_each_other(spark):
    """Windows, matches of their results, and windows of the matches."""
    records = [
        {"user": user, "price": price, "at": at(minute).isoformat()}
        for minute, price in enumerate([1, 1, 2, 3, 1, 1, 2, 1, 1, 1])
        for user in ["ann"] * price + ["bob"]
    ]
    records.append({"user": "cat", "price": 0, "at": at(500).isoformat()})
    flow = BoundedFlow(spark, records)
    events = flow.changes("clicks", "user string, price bigint, at timestamp")
    counts = hw.tumbling(
        events, hw.event_time("at", delay="0 seconds", future=None), "1 minute", by="user"
    )
    rises = hw.match(
        counts.agg(n=hw.agg.count()),
        "user",
        "A B+",
        time="window_end",
        define={"B": "n > PREV(n)"},
        measures={"first": "FIRST(n)", "last": "LAST(n)"},
        within="1 hour",
    )
    flow.write(rises)
    assert sorted((row["user"], row["first"], row["last"]) for row in flow.written) == [
        ("ann", 1, 2),
        ("ann", 1, 3),
    ]
    flow.written.clear()
    flow.write(hw.tumbling(rises, "event_time", "1 hour").agg(matches=hw.agg.count()))
    assert [row["matches"] for row in flow.written] == [2]


def test_values_of_other_rows_are_compared_as_spark_compares_them(spark):
    """Times and intervals, decimals and doubles, texts, nulls."""
    rows = [
        # minute, decimal, double, text
        (0, "10.00", 1.5, "x"),
        (4, "8.99", 1.5, "X"),
        (9, "8.00", None, "x"),
        (20, "7.00", 2.0, "x"),
        (24, "6.30", 2.0, "x"),
        (25, "5.66", float("nan"), "é"),
        (26, "1.00", float("nan"), "é"),
    ]
    records = [
        {"user": "u", "d": d, "f": None if f is None else str(f), "t": t, "at": at(m).isoformat()}
        for m, d, f, t in rows
    ]
    end = {"user": "other", "d": "0", "f": "0", "t": "", "at": at(500).isoformat()}
    flow = BoundedFlow(spark, [*records, end])
    events = flow.changes("values", "user string, d string, f string, t string, at timestamp")
    events = events.withColumns(
        {"d": F.col("d").cast("decimal(8,2)"), "f": F.col("f").cast("double")}
    )

    def found(condition):
        flow.written.clear()
        matches = hw.match(
            events,
            "user",
            "A B",
            time=hw.event_time("at", delay="0 seconds", future=None),
            define={"B": condition},
            measures={"minute": "minute(B.at)"},
            after_match="SKIP TO NEXT ROW",
        )
        flow.write(matches)
        return sorted(row["minute"] for row in flow.written if row["user"] == "u")

    conditions = {
        "at - PREV(at) <= INTERVAL '5' MINUTES": [4, 9, 24, 25, 26],
        "at > PREV(at) + INTERVAL 5 MINUTES": [20],
        "d < 0.9 * PREV(d)": [4, 9, 20, 25, 26],
        "f = PREV(f)": [4, 24, 26],
        "f <=> PREV(f) OR f > PREV(f)": [4, 24, 25, 26],
        "lower(t) = PREV(lower(t))": [4, 9, 20, 24, 26],
        "d / PREV(d) >= 0.9 AND NOT (f <> PREV(f))": [24],
    }
    chosen = some(*conditions.items())
    assert [found(condition) for condition, _ in chosen] == [minutes for _, minutes in chosen]
