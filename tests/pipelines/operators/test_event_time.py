"""Event time: what users say of it, what rows are stamped with, how far time comes by them."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from operator_driver import START, Driver, Source
from pyspark.sql.types import StructType

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.operators.contract import TIME
from headwater.pipelines.operators.lateness import DROP, Lateness, admit
from headwater.pipelines.operators.times import EventTime, time_of

HOUR_US = 3_600_000_000
SCHEMA = pa.schema([("name", pa.string()), ("at", pa.timestamp("us", "UTC"))])
JUDGED = pa.schema(
    [("name", pa.string()), ("time", pa.int64()), ("is_late", pa.bool_()), ("now", pa.int64())]
)
P0, P1 = ("events", 0), ("events", 1)


@dataclass(frozen=True)
class Judging:
    """Each row, whether it is late for the hour that it is in, and how far time came."""

    time: EventTime
    columns: tuple[str, ...] = ("name", "_op")

    @property
    def output(self):
        return JUDGED

    def step(self, state, inputs):
        (given,) = inputs
        watermarks = self.time.watermarks(state.document.get("time"))
        own_us, closed_us = watermarks.of_rows(given), watermarks.now_us
        times = given.rows[TIME].combine_chunks()
        due_us = (times.fill_null(0).to_numpy() // HOUR_US + 1) * HOUR_US
        taken = admit(
            state, given, Lateness(DROP, 0), own_us=own_us, due_us=due_us, closed_us=closed_us
        )
        watermarks.advance(given.progress, given.now_us)
        state.document["time"] = watermarks.to_json()
        state.document["now"] = watermarks.now_us
        return pa.table(
            {
                "name": given.rows["name"],
                "time": times,
                "is_late": ~taken,
                "now": np.full(len(times), watermarks.now_us),
            }
        )


class Judge:
    def __init__(self, time, directory, schema=SCHEMA):
        operator = Judging(time)
        self.driver = Driver(
            operator, [Source(schema, ("name",), operator.columns, time)], directory
        )

    def batch(self, rows, now=START):
        """Names of the late rows."""
        return {row["name"] for row in self.driver.batch(rows, now=now) if row["is_late"]}

    @property
    def now(self):
        found = {state.document["now"] for state in self.driver.states.values()}
        assert len(found) == 1  # all buckets know the same
        return datetime.fromtimestamp(found.pop() / 1e6, UTC)


def at(hours, name="a", **more):
    return {"name": name, "at": START + timedelta(hours=hours), **more}


def minutes(number):
    return START + timedelta(minutes=number)


def test_one_partition_an_hour_ahead_makes_nothing_late(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None), tmp_path)
    late = judge.batch({P0: [at(10)], P1: [at(9)]})
    late |= judge.batch({P0: [at(10.5)], P1: [at(9.5), at(9.6, "b")]})
    assert not late
    assert judge.now == START + timedelta(hours=9.6)


def test_a_partition_that_stops_holds_time_back(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None), tmp_path)
    judge.batch({P0: [at(1)], P1: [at(1)]})
    for hour in range(2, 9):
        judge.batch({P0: [at(hour)]}, now=minutes(60 * hour))
    assert judge.now == START + timedelta(hours=1)


def test_a_partition_that_is_idle_is_not_waited_for(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None, idle="5 minutes"), tmp_path)
    judge.batch({P0: [at(1)], P1: [at(1)]})
    judge.batch({P0: [at(2)]}, now=minutes(60))  # the first without it: a pause is no idleness
    judge.batch({P0: [at(3)]}, now=minutes(65))
    assert judge.now == START + timedelta(hours=1)
    judge.batch({P0: [at(4)]}, now=minutes(65.1))
    assert judge.now == START + timedelta(hours=4)
    assert judge.batch({P1: [at(3.5, "old"), at(4.5, "new")]}, now=minutes(66)) == {"old"}
    judge.batch({P0: [at(6)]}, now=minutes(67))  # it is awake, and waited for
    assert judge.now == START + timedelta(hours=4.5)


def test_a_time_from_the_future_is_left_out_and_moves_nothing(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s"), tmp_path)
    rows = [
        at(0),
        at(0.9, "edge", _at=minutes(-6)),
        at(0.9, "ahead", _at=minutes(-6.1)),
        at(0.1, "b"),
    ]
    assert judge.batch({P0: rows}) == {"ahead"}
    assert judge.driver.counter("future") == 1
    assert judge.now == START + timedelta(hours=0.9)
    judge.batch({P0: [at(1e5, "ahead")]})
    assert judge.driver.counter("future") == 2
    assert judge.now == START + timedelta(hours=0.9)


SPARK_COLUMNS = (
    StructType()
    .add("at", "timestamp")
    .add("n", "timestamp_ntz")
    .add("ms", "long")
    .add("s", "string")
    .add("_at", "timestamp")
)


def test_columns_are_checked():
    time_of("at").check("tumbling", SPARK_COLUMNS)
    time_of("n").check("tumbling", SPARK_COLUMNS)
    with pytest.raises(PipelineError, match="tumbling: there is no column missing"):
        time_of("missing").check("tumbling", SPARK_COLUMNS)
    with pytest.raises(PipelineError, match="no timestamp: it is bigint") as raised:
        time_of("ms").check("tumbling", SPARK_COLUMNS)
    assert "timestamp_millis" in raised.value.hint
    with pytest.raises(PipelineError, match="no timestamp: it is string"):
        time_of("s").check("tumbling", SPARK_COLUMNS)
    with pytest.raises(PipelineError, match="there is no column _at") as raised:
        time_of("at").check("tumbling", StructType().add("at", "timestamp"))
    assert "future=None" in raised.value.hint
    hw.event_time("at", future=None).check("tumbling", StructType().add("at", "timestamp"))
    with pytest.raises(PipelineError, match="is no time"):
        time_of(5)
