"""An operator for tests of event time: for each row, whether it is late for its hour; and the
watermark."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headwater.pipelines.operators.runtime.contract import TIME
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import DROP, Lateness, admit
from support.pipelines.operator_driver import START, Driver, Source

HOUR_US = 3_600_000_000
STAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("name", pa.string()), ("at", STAMP)])
JUDGED = pa.schema([("name", pa.string()), ("time", STAMP), ("is_taken", pa.bool_())])
P0, P1, P2 = ("events", 0), ("events", 1), ("events", 2)


@dataclass(frozen=True)
class Judging:
    time: EventTime

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
        state.document |= {"time": watermarks.to_json(), "now": watermarks.now_us}
        state.document["is_idle"] = watermarks.is_idle
        columns = [given.rows["name"], times.cast(STAMP), pa.array(taken)]
        return pa.Table.from_arrays(columns, schema=JUDGED)


class Judge:
    """What it says; a row that is not taken is late, or has no time that can be used."""

    def __init__(self, time, directory, schema=SCHEMA):
        source = Source(schema, ("name",), ("name", "_op"), time)
        self.driver = Driver(Judging(time), [source], directory, buckets=2)

    def batch(self, rows, now=START):
        """Names of the rows that are not taken."""
        return {row["name"] for row in self.rows(rows, now) if not row["is_taken"]}

    def rows(self, rows, now=START):
        return self.driver.batch(rows, now=now)

    @property
    def now(self):
        (found,) = {state.document["now"] for state in self.driver.states.values()}
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=found)

    @property
    def is_idle(self):
        (found,) = {state.document["is_idle"] for state in self.driver.states.values()}
        return found


def hours(number):
    return START + timedelta(hours=number)


def minutes(number):
    return START + timedelta(minutes=number)
