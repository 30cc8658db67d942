"""Random logs for operators with event time, who took which rows, and what a result adds up to."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import strategies as st

from headwater.pipelines.operators.time.event_time import EventTime
from support.pipelines.operator_driver import Driver, Source

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPIC = "events"
SCHEMA = pa.schema([("name", pa.string()), ("time", pa.timestamp("us", "UTC")), ("id", pa.int64())])
SECOND = 1_000_000


def event_time(delay, idle):
    """Both in seconds."""
    return EventTime("time", delay * SECOND, None if idle is None else idle * SECOND)


def driven(operator, directory):
    source = Source(SCHEMA, operator.by, ("name", "id", "_op"), operator.time)
    return Driver(operator, [source], directory, buckets=2)


def at(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def seconds(time: datetime) -> int:
    return int((time - EPOCH).total_seconds())


@dataclass(frozen=True)
class Ids:
    """An aggregate that shows everything: the ids of the rows."""

    column: str = "id"
    accumulators = (pa.list_(pa.int64()),)
    result_type = pa.list_(pa.int64())

    @property
    def columns(self):
        return (self.column,)

    def bound(self, schema):
        return self

    def accumulate(self, rows, group, groups):
        found = [[] for _ in range(groups)]
        for value, where in zip(rows[self.column].to_pylist(), group.tolist(), strict=True):
            found[where].append(value)
        return [pa.array(found, self.result_type)]

    def merge(self, accumulators, group, groups):
        found = [[] for _ in range(groups)]
        for values, where in zip(accumulators[0].to_pylist(), group.tolist(), strict=True):
            found[where] += values
        return [pa.array(found, self.result_type)]

    def result(self, accumulators, start_us, end_us):
        return pa.array(
            [sorted(values) for values in accumulators[0].to_pylist()], self.result_type
        )


def rows_of(steps, start=0):
    """Rows of one partition; ids are given by the caller."""
    found, time = [], start
    for key, step in steps:
        time = max(0, time + step)
        found.append({"name": key, "time": time})
    return found


@st.composite
def logs(draw, partitions=2, most=25, keys=("a", "b", "c", None), back=40, forth=20):
    """Of each partition its rows: {"name", "time" (seconds), "id"}. Time goes forth and back."""
    step = st.tuples(st.sampled_from(keys), st.integers(-back, forth))
    log, number = [], 0
    for _ in range(partitions):
        rows = rows_of(draw(st.lists(step, min_size=1, max_size=most)), draw(st.integers(0, 30)))
        for row in rows:
            row["id"] = number
            number += 1
        log.append(rows)
    return log


@st.composite
def cuts(draw, log, most=6, least=1, fewest=1):
    """The log in batches: each a list with a share of every partition. The first has some of every
    partition, since a partition without rows so far holds up nothing; unless `least` is 0.
    """
    batches = draw(st.integers(fewest, most))
    ends = []
    for rows in log:
        inner = draw(
            st.lists(st.integers(least, len(rows)), min_size=batches - 1, max_size=batches - 1)
        )
        ends.append([0, *sorted(inner), len(rows)])
    return [
        [rows[ends[of][n] : ends[of][n + 1]] for of, rows in enumerate(log)] for n in range(batches)
    ]


def given(share):
    """What Driver.batch takes."""
    return {
        (TOPIC, partition): [{**row, "time": at(row["time"])} for row in rows]
        for partition, rows in enumerate(share)
        if rows
    }


def taken_and_late(log, delay, due):
    """Rows by the rule: late if what a row belongs to was due at its own partition's watermark."""
    taken, late = [], []
    for rows in log:
        seen = None
        for row in rows:
            seen = row["time"] if seen is None else max(seen, row["time"])
            (late if due(row["time"]) <= seen - delay else taken).append(row)
    return taken, late


def watermark(log, delay):
    return min(max(row["time"] for row in rows) for rows in log) - delay


class Net:
    """What a reader has who applies each row: strict, so that no row retracts what is not there."""

    def __init__(self, key):
        self._key = key
        self.rows = {}

    def apply(self, results):
        for row in results:
            key = tuple(row[name] for name in self._key)
            if row["_op"] == "c":
                assert key not in self.rows, row
                self.rows[key] = row
            elif row["_op"] == "u":
                assert key in self.rows, row
                self.rows[key] = row
            else:
                assert row["_op"] == "d"
                old = self.rows.pop(key)
                dropped = ("_op", "_mark")
                assert {k: v for k, v in old.items() if k not in dropped} == {
                    k: v for k, v in row.items() if k not in dropped
                }


def late_ids(driver):
    """Of the last batch, what was put aside."""
    found = []
    for state in driver.states.values():
        if "late" in state.sides:
            found += state.sides["late"]["id"].to_pylist()
    return found
