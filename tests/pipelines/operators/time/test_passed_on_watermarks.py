"""Watermarks that an operator passes on: the next one closes in time although no result comes, and
any cut of the log into batches gives the same."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import zip_longest

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812
from support.pipelines.chained import Chain
from support.pipelines.event_log import SCHEMA, SECOND, at, cuts, driven, logs, seconds
from support.pipelines.event_log import given as rows_of
from support.pipelines.operator_driver import ADDED, Driver, Source
from support.pipelines.project import Project
from tiers import examples

import headwater as hw
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.joins.interval_join import (
    IntervalJoin,
    JoinSide,
    result_schema,
)
from headwater.pipelines.operators.processing.keyed_process import KeyedProcess
from headwater.pipelines.operators.selection.deduplication import Deduplication
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.time.result_time import PassedOnTime, ResultTime
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.operators.windows.sessions import Sessions
from headwater.pipelines.operators.windows.sliding import Sliding
from headwater.pipelines.verification.stores import verify

DROP = Lateness("drop", 0)
STAMP = pa.timestamp("us", "UTC")
ROWS = pa.schema([*SCHEMA, *ADDED])
START = datetime(2026, 1, 1, tzinfo=UTC)


def echo(row, context):
    return None if row is None else {"id": row["id"]}


def first_of(kind, delay, directory):
    """The driver, and the column that the operator bounds."""
    time = EventTime("time", delay * SECOND)
    aggregates = NamedAggregates((("n", agg.count()),), pa.schema([*SCHEMA, *ADDED[:1]]))
    if kind in ("tumbling", "hopping"):
        panes = 1 if kind == "tumbling" else 2
        operator = FixedWindows(aggregates, ("name",), time, 10 * SECOND, panes, DROP)
        return driven(operator.with_topic("operator/first"), directory), "window_start"
    if kind == "session":
        operator = Sessions(("name",), 5 * SECOND, time, DROP, False, aggregates)
        return driven(operator.with_topic("operator/first"), directory), "window_end"
    if kind == "sliding":
        operator = Sliding(("name",), ("id",), 20 * SECOND, time, DROP, False, aggregates)
        return driven(operator, directory), "event_time"
    columns = ("name", "id", "time", "_op")
    schema = pa.schema([ROWS.field(name) for name in columns])
    if kind == "process":
        results = pa.schema([("id", pa.int64())])
        operator = KeyedProcess(("name",), echo, "echo", time, DROP, schema, results)
        operator, bounded = operator.with_topic("operator/first"), "event_time"
    else:
        output = pa.schema([*schema, ROWS.field("_position")])
        operator, bounded = Deduplication(("name",), 7 * SECOND, time, DROP, output), "time"
    source = Source(SCHEMA, ("name",), columns, time)
    return Driver(operator, [source], directory, buckets=2), bounded


def second_of(time, directory):
    """Counts the rows of 30 seconds."""
    results = pa.schema([("name", pa.string()), (time.column, STAMP)])
    named = NamedAggregates((("rows", agg.count()),), pa.schema([*results, *ADDED[:1]]))
    operator = FixedWindows(named, ("name",), time, 30 * SECOND, 1, DROP)
    source = Source(results, ("name",), ("name", "_op"), time)
    return Driver(operator.with_topic("operator/second"), [source], directory, buckets=2)


def floor_of(kind, watermark):
    """The least time that a later result can have, by the watermark in seconds."""
    if kind in ("tumbling", "hopping"):
        return watermark // 10 * 10 - (0 if kind == "tumbling" else 10)
    return watermark - 5 + 1e-6 if kind == "session" else watermark


def counted(rows, column, floor):
    """What the second operator has to give."""
    found = Counter((row["name"], seconds(row[column]) // 30 * 30) for row in rows)
    return {window: count for window, count in found.items() if window[1] + 30 <= floor}


KINDS = ["tumbling", "hopping", "session", "sliding", "process", "deduplicate"]


@settings(max_examples=examples(90), deadline=None)
@given(st.data(), st.sampled_from(KINDS), st.sampled_from([0, 10, 60]), logs())
def test_a_window_closes_by_the_watermark_of_the_operator_before(
    tmp_path_factory, data, kind, delay, log
):
    """Also where a filter leaves most results out."""
    tmp_path = tmp_path_factory.mktemp("chain")
    names = data.draw(st.sets(st.sampled_from(["a", "b", "c"])))

    def chosen(rows):
        return [row for row in rows if row["name"] in names]

    whole, bounded = first_of(kind, delay, None)
    results = whole.batch(rows_of(log))
    floors = whole._operator.floors_us
    time = PassedOnTime(bounded, 0, bound_by_watermark_us=floors[bounded])
    streamed = Chain(
        [first_of(kind, delay, tmp_path / "first")[0]],
        second_of(time, tmp_path / "second"),
        chosen,
    )
    found = [row for share in data.draw(cuts(log)) for row in streamed.batch(rows_of(share))]
    watermark = min(max(row["time"] for row in rows) for rows in log) - delay
    expected = counted(chosen(results), bounded, floor_of(kind, watermark))
    assert {(row["name"], seconds(row["window_start"])): row["rows"] for row in found} == expected
    assert len(found) == len(expected)
    assert streamed.second.counter("late") == 0


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from(["left", "right"]), st.sampled_from([0, 10]), logs(), logs())
def test_a_window_after_a_join_needs_no_delay(
    tmp_path_factory, data, timed, delay, left_log, right_log
):
    """Pairs come out of order by up to `within`, and by as much as one input is behind."""
    tmp_path = tmp_path_factory.mktemp("join")
    before, after = data.draw(st.sampled_from([(5, 20), (0, 40), (15, 0)]))
    sides = [
        JoinSide(
            side,
            time=EventTime("time", delay * SECOND),
            key=("name",),
            hash_column="hash",
            columns=(("name", "name"), ("time", f"{side}_time"), ("id", f"{side}_id")),
            is_outer=True,
            back_us=back * SECOND,
            ahead_us=ahead * SECOND,
        )
        for side, back, ahead in (("left", before, after), ("right", after, before))
    ]
    schema = pa.schema([*SCHEMA, ("hash", pa.int64()), *ADDED])
    join = IntervalJoin(
        sides[0], sides[1], DROP, result_schema((sides[0], sides[1]), [schema, schema])
    )
    assert join.floors_us == {"left_time": -after * SECOND, "right_time": -before * SECOND}
    column = f"{timed}_time"
    time = PassedOnTime(column, 0, bound_by_watermark_us=join.floors_us[column])

    def of_log(share):
        return {
            partition: [{**row, "hash": ord(row["name"] or "z")} for row in rows]
            for partition, rows in rows_of(share).items()
        }

    def joined(directory):
        sources = [
            Source(
                pa.schema([*SCHEMA, ("hash", pa.int64())]),
                ("name",),
                ("name", "hash", "time", "id", "_op", "_at"),
                side.time,
            )
            for side in sides
        ]
        return Driver(join, sources, directory, buckets=2)

    pairs = [
        row
        for row in joined(None).batch(of_log(left_log), of_log(right_log))
        if row[column] is not None
    ]
    chain = Chain([joined(tmp_path / "first")], second_of(time, tmp_path / "second"))
    shares = zip_longest(data.draw(cuts(left_log)), data.draw(cuts(right_log)), fillvalue=[[], []])
    found = [row for left, right in shares for row in chain.batch(of_log(left), of_log(right))]
    watermark = min(
        max(row["time"] for row in rows) for log in (left_log, right_log) for rows in log
    )
    floor = watermark - delay - (after if timed == "left" else before)
    assert {(row["name"], seconds(row["window_start"])): row["rows"] for row in found} == counted(
        pairs, column, floor
    )
    assert chain.second.counter("late") == 0


def test_the_watermark_of_an_operator_raises_one_with_a_delay(tmp_path):
    second = second_of(ResultTime("time", 60 * SECOND, bound_by_watermark_us=0), tmp_path)
    rows = {("topic", 0): [{"name": "a", "time": at(10)}]}
    assert second.batch(rows, watermarks=[("operator/first", 20 * SECOND)]) == []
    (found,) = second.batch({}, watermarks=[("operator/first", 30 * SECOND)])
    assert (found["window_start"], found["rows"]) == (at(0), 1)


PIPELINE = """
    text = "id bigint, at timestamp"
    time = hw.event_time("at", delay="0 s", future=None)
    orders = hw.deduplicate(flow.changes("passed-orders", text), "id", "1 minute", time=time)
    paid = flow.changes("passed-paid", text).withColumnRenamed("at", "paid_at")
    pairs = hw.join(
        orders,
        paid,
        "id",
        "30 seconds",
        left_time="at",
        right_time=hw.event_time("paid_at", delay="0 s", future=None),
    )
    prices = flow.table("passed-prices", "id bigint, price bigint", key="id")
    priced = hw.enrich(pairs.where("id % 2 = 0"), prices, on="id")
    minutes = hw.tumbling(priced, "at", "1 minute").agg(n=hw.agg.count(), paid=hw.agg.sum("price"))
    few = minutes.select("window_start", "n", "paid", "_op", "_position")
    hours = hw.tumbling(few, "window_start", "1 hour").agg(
        n=hw.agg.sum("n"), paid=hw.agg.sum("paid")
    )
    flow.write(hours, to="cache", table="hours", key="window_start")
"""


def test_watermarks_pass_through_a_chain_of_operators(spark, tmp_path, broker_address):
    """Deduplication, join, enrichment, windows of windows, with a filter in between: the last ones
    close by records that have no results."""
    project = Project(tmp_path, broker_address)
    for topic in ("passed-orders", "passed-paid", "passed-prices"):
        project.topic(topic, 1)
    project.pipeline("passed_on", PIPELINE)
    project.produce("passed-prices", *({"id": number, "price": 10 * number} for number in range(8)))
    times = [START + timedelta(minutes=10 * number) for number in range(6)]
    later = [START + timedelta(minutes=minutes) for minutes in (70, 125)]
    with project.running(spark, "passed_on"):
        for part in (times, later):
            rows = [
                {"id": number if part is times else 1001, "at": moment.isoformat()}
                for number, moment in enumerate(part)
            ]
            for topic in ("passed-orders", "passed-paid"):
                project.produce(topic, *rows)
            for topic in ("passed-orders", "passed-paid"):
                project.wait_until_at_end(spark, topic, "passed_on")
    # The last pair is odd and at 125 minutes: no minute has a result after 00:40.
    assert project.rows("SELECT n, paid FROM hours") == [(3, 60)]
    (pipeline,) = project.pipelines(spark, "passed_on")
    assert verify(pipeline, "hours").is_equal


def test_functions_that_may_not_take_nulls_do_not_get_watermark_rows(spark):
    """Then the next operator advances by the results, as for any time of its own."""
    schema = (
        "shop string, at timestamp, paid bigint, _op string, _at timestamp,"
        " _position struct<topic: string, partition: int, offset: bigint>"
    )
    rows = [("a", START + timedelta(seconds=10 * n), n, "c", START, ("t", 0, n)) for n in range(40)]
    events = spark.createDataFrame(rows, schema)
    minutes = hw.tumbling(events, "at", "1 minute").agg(n=hw.agg.count())
    more = F.udf(lambda n: n + 1, "bigint")
    early = minutes.where("window_start < timestamp'2026-01-01T00:03:00Z'")
    found = hw.tumbling(early.withColumn("n", more("n")), "window_start", "4 minutes")
    assert found.agg(n=hw.agg.sum("n")).collect() == []
    (row,) = hw.tumbling(early, "window_start", "4 minutes").agg(n=hw.agg.sum("n")).collect()
    assert row.n == 18
    assert minutes.where("n is null").collect() == []
