"""Event time: settings, stamps of rows, and the watermarks that follow from them."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType
from support.pipelines.judging import HOUR_US, P0, P1, P2, SCHEMA, STAMP, Judge, hours, minutes
from support.pipelines.operator_driver import ADDED, START
from tiers import examples

import headwater as hw
from headwater.errors import PipelineError
from headwater.pipelines.operators.runtime.contract import SEEN
from headwater.pipelines.operators.runtime.packing import NOW, Packing, packed_schema
from headwater.pipelines.operators.runtime.unpacking import packets_in, unpacked
from headwater.pipelines.operators.time.event_time import time_of
from headwater.pipelines.position import POSITION, POSITION_TYPE


def at(number, name="a", **more):
    return {"name": name, "at": hours(number), **more}


# ---- watermarks by partition


def test_one_partition_an_hour_ahead_makes_nothing_late(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None), tmp_path)
    late = judge.batch({P0: [at(10)], P1: [at(9)]})
    late |= judge.batch({P0: [at(10.5)], P1: [at(9.5), at(9.6, "b")]})
    assert not late
    assert judge.now == hours(9.6)


def test_a_row_is_late_if_its_window_ended_before_its_partition_was_there(tmp_path):
    judge = Judge(hw.event_time("at", delay="30 minutes", future=None), tmp_path)
    assert judge.batch({P0: [at(1.4), at(0.9, "in time"), at(1.5), at(0.9, "late")]}) == {"late"}
    assert judge.batch({P0: [at(0.99, "later")], P1: [at(0.1, "other")]}) == {"later", "other"}


def test_a_partition_that_appears_later_is_waited_for_from_then_on(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None), tmp_path)
    judge.batch({P0: [at(5)]})
    assert judge.batch({P1: [at(4.5, "old")]}) == {"old"}
    assert judge.now == hours(5)  # time does not go back
    assert not judge.batch({P1: [at(5.5)]})
    judge.batch({P0: [at(8)]})
    assert judge.now == hours(5.5)


def test_rows_without_a_usable_time_hold_nothing_back(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", idle="5 minutes"), tmp_path)
    judge.batch({P0: [at(0.1)], P1: [{"name": "b", "at": None}]})
    assert judge.driver.counter("without_time") == 1
    assert judge.now == hours(0.1)
    judge.batch({P1: [at(0.2)]})
    for minute in (0, 6):
        judge.batch({P0: [at(0.9)], P1: [at(1e5)]}, now=minutes(minute))  # only a broken clock
    assert judge.now == hours(0.9)


# ---- idle partitions


def test_a_partition_that_stops_holds_time_back(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None), tmp_path)
    judge.batch({P0: [at(1)], P1: [at(1)]})
    for hour in range(2, 9):
        judge.batch({P0: [at(hour)]}, now=hours(hour))
    assert judge.now == hours(1)


def test_a_partition_that_is_idle_is_not_waited_for(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None, idle="5 minutes"), tmp_path)
    judge.batch({P0: [at(1)], P1: [at(1)]})
    judge.batch({P0: [at(2)]}, now=minutes(60))  # the first without it: a pause is no idleness
    judge.batch({P0: [at(3)]}, now=minutes(65))
    assert judge.now == hours(1)
    judge.batch({P0: [at(4)]}, now=minutes(65.1))
    assert judge.now == hours(4)
    assert judge.batch({P1: [at(3.5, "old"), at(4.5, "new")]}, now=minutes(66)) == {"old"}
    judge.batch({P0: [at(6)]}, now=minutes(67))  # it is awake, and waited for
    assert judge.now == hours(4.5)


def test_rows_in_between_begin_the_span_again(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None, idle="5 minutes"), tmp_path)
    judge.batch({P0: [at(1)], P1: [at(1)]})
    judge.batch({P0: [at(2)]}, now=minutes(4))
    judge.batch({P0: [at(2)], P1: [at(1)]}, now=minutes(8))
    judge.batch({P0: [at(3)]}, now=minutes(12))
    judge.batch({P0: [at(3)]}, now=minutes(16))
    assert judge.now == hours(1)


def test_with_all_partitions_idle_time_is_where_the_furthest_was():
    watermarks = hw.event_time("at", delay="1 hour", idle="5 minutes").watermarks()
    stamped = Judge(hw.event_time("at", delay="1 hour", future=None), None)
    progress = []
    stamped.driver._operator = _Taking(progress)
    stamped.batch({P0: [at(10)], P1: [at(8)]})
    watermarks.advance(progress[0], 0)
    for minute in (1, 6):
        watermarks.advance((), minute * 60_000_000)
        assert not watermarks.is_idle
    watermarks.advance((), 7 * 60_000_000)
    assert watermarks.is_idle
    assert watermarks.now_us == hours(9).timestamp() * 1e6


class _Taking:
    def __init__(self, progress):
        self.output = pa.schema([])
        self._progress = progress

    def step(self, state, inputs):
        self._progress.append(inputs[0].progress)
        return self.output.empty_table()


# ---- times from the future


def test_a_time_from_the_future_is_left_out_and_moves_nothing(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s"), tmp_path)
    edge, ahead = at(0.9, "edge", _at=minutes(-6)), at(0.9, "ahead", _at=minutes(-6.1))
    assert judge.batch({P0: [at(0), edge, ahead, at(0.1, "b")]}) == {"ahead"}
    assert judge.driver.counter("future") == 1
    judge.batch({P0: [at(1e5, "ahead")]})
    assert judge.driver.counter("future") == 2
    assert judge.now == hours(0.9)
    assert judge.driver.counter("late") == judge.driver.counter("without_time") == 0


def test_without_the_guard_one_clock_closes_all_windows(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s", future=None), tmp_path)
    assert judge.batch({P0: [at(0), at(1e5, "ahead"), at(0.1, "b")]}) == {"b"}


def test_a_row_without_its_log_time_is_admitted(tmp_path):
    judge = Judge(hw.event_time("at", delay="0 s"), tmp_path)
    assert not judge.batch({P0: [at(50, _at=None)]})


# ---- device clocks

DEVICE = pa.schema([*SCHEMA, ("sent", STAMP), ("received", STAMP)])


@pytest.mark.parametrize(
    ("created", "sent", "received", "expected"),
    [
        (5, 7, 3, 1),  # a clock that is 4 hours ahead
        (5, 5, 3, 3),
        (5, 7, 7, 5),  # a clock that is right
        (8, 7, 3, 3),  # it was set back in between
        (5, None, 3, 3),
        (None, 7, 3, None),
        (5, 7, None, None),
    ],
)
def test_the_error_of_a_devices_clock_cancels_out(created, sent, received, expected):
    time = hw.event_time("at", sent="sent", received="received", future=None)
    row = {"name": "a"} | {
        name: None if number is None else hours(number)
        for name, number in (("at", created), ("sent", sent), ("received", received))
    }
    (found,) = Judge(time, None, DEVICE).rows({P0: [row]})
    assert found["time"] == (None if expected is None else hours(expected))


# ---- processing time


def test_processing_time_is_that_of_the_batch(tmp_path):
    judge = Judge(hw.processing_time(), tmp_path)
    (found,) = judge.rows({P0: [at(99)]}, now=hours(1))
    assert found["time"] == hours(1)
    assert found["is_taken"]
    assert judge.now == hours(1)
    (found,) = judge.rows({P1: [{"name": "b", "at": None}]}, now=hours(7.5))
    assert (found["time"], found["is_taken"]) == (hours(7.5), True)
    assert judge.now == hours(7.5)  # the other partition is not waited for


# ---- any cut of the log

LOG = st.dictionaries(
    st.sampled_from([P0, P1, P2]),
    st.lists(st.tuples(st.integers(0, 400), st.booleans()), min_size=1, max_size=25),
    min_size=1,
)


def _log_of(found):
    """Rows with names of their own; those with a broken clock are a day ahead."""
    return {
        partition: [
            {
                "name": f"{partition[1]}-{number}",
                "at": minutes(minute + 1440 * is_broken),
                "_at": minutes(minute),
            }
            for number, (minute, is_broken) in enumerate(rows)
        ]
        for partition, rows in found.items()
    }


def _late_by_reference(log, delay_minutes):
    """A row is late if its hour ended when its partition had seen `delay` more than that."""
    late = set()
    for rows in log.values():
        latest = datetime(1, 1, 1, tzinfo=UTC)
        for row in rows:
            if row["at"] > row["_at"] + timedelta(hours=1):
                late.add(row["name"])
                continue
            latest = max(latest, row["at"])
            end = row["at"].replace(minute=0) + timedelta(hours=1)
            if end <= latest - timedelta(minutes=delay_minutes):
                late.add(row["name"])
    return late


def _time_by_reference(log, delay_minutes):
    latest = [
        max(
            (row["at"] for row in rows if row["at"] <= row["_at"] + timedelta(hours=1)),
            default=None,
        )
        for rows in log.values()
    ]
    return None if None in latest else min(latest) - timedelta(minutes=delay_minutes)


@settings(max_examples=examples(60), deadline=None)
@given(LOG, st.data())
def test_any_cut_judges_the_same_rows_late(tmp_path_factory, found, data):
    """All partitions have a time from the first batch on: one without does not count yet."""
    found = {partition: [(rows[0][0], False), *rows[1:]] for partition, rows in found.items()}
    log = _log_of(found)
    delay = data.draw(st.integers(0, 90))
    time = hw.event_time("at", delay=timedelta(minutes=delay))
    judge = Judge(time, tmp_path_factory.mktemp("state"))
    left = {partition: list(rows) for partition, rows in log.items()}
    late, is_first = set(), True
    while any(left.values()):
        batch = {}
        for partition, rows in left.items():
            size = data.draw(st.integers(1 if is_first else 0, 8))
            if rows[:size]:
                batch[partition] = rows[:size]
            left[partition] = rows[size:]
        is_first = False
        if batch:
            late |= judge.batch(batch)
            if data.draw(st.booleans()):
                judge.driver.again()
    expected = _late_by_reference(log, delay)
    assert late == expected
    assert Judge(time, None).batch(log) == expected
    come = _time_by_reference(log, delay)
    if come is not None:
        assert judge.now == come


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50)), min_size=1), st.integers(1, 10))
def test_a_task_remembers_what_it_has_seen_in_each_partition(rows, size):
    """Partitions may be mixed in a task, and its rows come in several Arrow batches."""
    found = _seen([(origin, number, time) for number, (origin, time) in enumerate(rows)], size)
    assert found == [
        max(time for origin, time in rows[: number + 1] if origin == rows[number][0])
        for number in range(len(rows))
    ]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(0, 50)), min_size=1),
    st.integers(1, 10),
)
def test_rows_of_one_offset_do_not_make_each_other_late(rows, size):
    """A shuffle leaves them in any order."""
    rows.sort(key=lambda row: row[1])
    assert _seen(rows, size) == [
        max([time, *(one[2] for one in rows if one[0] == origin and one[1] < offset)])
        for origin, offset, time in rows
    ]


def _seen(rows, size):
    """SEEN of (partition, offset, time), in Arrow batches of this size."""
    stamper = hw.event_time("at", future=None).start()
    origins = pa.array([origin for origin, _, _ in rows], pa.int32())
    positions = [{"topic": "t", "partition": one, "offset": offset} for one, offset, _ in rows]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([time for *_, time in rows], STAMP), pa.array(positions, POSITION_TYPE)],
        ["at", POSITION],
    )
    found = []
    for start in range(0, len(rows), size):
        stamped = stamper.stamp(batch.slice(start, size), origins.slice(start, size))
        found += stamped[SEEN].to_pylist()
    return found


def test_a_partition_that_several_tasks_read_is_one():
    """As bounded runs do: what a task before has seen counts for the rows behind."""
    time = hw.event_time("at", delay="0 s", future=None)
    packing = Packing(0, 1, time, ("name",))
    schema = pa.schema([*SCHEMA, *ADDED])

    def packets(task, offsets_and_hours):
        rows = [
            {
                "name": str(offset),
                "at": hours(number),
                "_position": {"topic": "events", "partition": 0, "offset": offset},
            }
            for offset, number in offsets_and_hours
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema)
        batch = batch.append_column(NOW, pa.array([START] * len(rows), STAMP))
        return [packet for one in packing.pack(iter([batch]), task) for packet in packets_in(one)]

    several = [*packets(0, [(4, 1), (5, 3)]), *packets(1, [(0, 2), (1, 5)]), *packets(2, [(7, 6)])]
    packed = packed_schema([SCHEMA.field("name")], stamped=True)
    (found,) = unpacked(iter(several), [packed])
    assert found.rows["name"].to_pylist() == ["0", "1", "4", "5", "7"]
    own_us = time.watermarks().of_rows(found)
    start = int(START.timestamp()) * 1_000_000
    assert ((own_us - start) // HOUR_US).tolist() == [2, 5, 5, 5, 6]


# ---- what users say

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
    hw.processing_time().check("tumbling", StructType())
    with pytest.raises(PipelineError, match="tumbling: there is no column missing"):
        time_of("missing").check("tumbling", SPARK_COLUMNS)
    with pytest.raises(PipelineError, match="no timestamp: it is bigint") as raised:
        time_of("ms").check("tumbling", SPARK_COLUMNS)
    assert "timestamp_millis" in raised.value.hint
    with pytest.raises(PipelineError, match="no timestamp: it is string"):
        hw.event_time("at", sent="s", received="n").check("tumbling", SPARK_COLUMNS)
    with pytest.raises(PipelineError, match="no timestamp: it is bigint"):
        hw.event_time("at", producer="s", watermark="ms").check("tumbling", SPARK_COLUMNS)
    with pytest.raises(PipelineError, match="no producer's name: it is timestamp"):
        hw.event_time("at", producer="at", watermark="at").check("tumbling", SPARK_COLUMNS)


def test_the_guard_needs_the_time_of_the_log():
    only_time = StructType().add("at", "timestamp")
    with pytest.raises(PipelineError, match="there is no column _at") as raised:
        time_of("at").check("tumbling", only_time)
    assert "future=None" in raised.value.hint
    hw.event_time("at", future=None).check("tumbling", only_time)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": "soon"},
        {"idle": "1 month"},
        {"future": "-1 hour"},
        {"sent": "a"},
        {"received": "a"},
        {"producer": "a"},
        {"watermark": "a"},
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(PipelineError):
        hw.event_time("at", **wrong)


def test_what_is_no_time_is_refused():
    with pytest.raises(PipelineError, match="is no time"):
        time_of(5)


def test_a_time_without_a_zone_is_utc(tmp_path):
    schema = pa.schema([("name", pa.string()), ("at", pa.timestamp("us"))])
    row = {"name": "a", "at": datetime(2026, 1, 1, 5)}  # noqa: DTZ001 (it is what is tested)
    (found,) = Judge(hw.event_time("at", future=None), tmp_path, schema).rows({P0: [row]})
    assert found["time"] == hours(5)
