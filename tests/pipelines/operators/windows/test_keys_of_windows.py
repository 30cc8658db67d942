"""What all windows promise alike: of keys, of state that was written with other types, of time that
jumps."""

import math
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count

import pyarrow as pa
import pytest
from support.pipelines.operator_driver import Driver, Source

from headwater.errors import PipelineError, StateLost
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.time.durations import microseconds
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness, lateness_of
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.operators.windows.sessions import Sessions
from headwater.pipelines.operators.windows.sliding import Sliding

S = 1_000_000
DOUBLE, BIGINT = pa.float64(), pa.int64()
TIME = EventTime("at", 0)
NAMED = (("rows", agg.count()), ("distinct", agg.distinct("x")))
KEPT = Lateness("correct", 3600 * S)


def driver_of(kind, directory, key=DOUBLE, value=BIGINT, by=("key",), named=NAMED):
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), *((name, key) for name in by)])
    schema = schema.append(pa.field("x", value))
    aggregates = NamedAggregates(named, schema)
    made = {
        "tumbling": FixedWindows(aggregates, by, TIME, 100 * S, 1, KEPT),
        "hopping": FixedWindows(aggregates, by, TIME, 50 * S, 2, KEPT),
        "session": Sessions(by, 100 * S, TIME, KEPT, False, aggregates),
        "sliding": Sliding(by, (), 100 * S, TIME, KEPT, False, aggregates),
    }[kind]
    source = Source(schema, by, (*schema.names, "_op"), TIME)
    return Driver(made, [source], directory, buckets=1)


def at(seconds):
    return datetime.fromtimestamp(seconds, UTC)


KINDS = pytest.mark.parametrize("kind", ["tumbling", "hopping", "session", "sliding"])


@KINDS
def test_what_is_equal_in_sql_is_one_key(kind, tmp_path):
    """As Spark has it: 0.0 and -0.0, all NaNs, and null."""
    (other_nan,) = struct.unpack("<d", struct.pack("<q", 0x7FF8000000000001))
    driver = driver_of(kind, tmp_path)
    keys = [(0.0, -0.0), (math.nan, other_nan), (None, None)]
    for one in (0, 1):  # in a batch, and from batch to batch
        driver.batch({("t", 0): [{"at": at(60), "key": key[one], "x": 1} for key in keys]})
        driver.batch({("t", 0): [{"at": at(60), "key": key[1 - one], "x": 1} for key in keys]})
    found = driver.batch({("t", 0): [{"at": at(1000), "key": 5.0, "x": 1}]})
    at_most = {(str(row["key"]), row["rows"]) for row in found if row["rows"] > 1}
    assert at_most == {("0.0", 4), ("nan", 4), ("None", 4)}


@KINDS
@pytest.mark.parametrize(
    "changed", [{"key": pa.string()}, {"value": pa.string()}], ids=["key", "value"]
)
def test_state_of_columns_of_other_types_is_no_state(kind, changed, tmp_path):
    driver_of(kind, tmp_path).batch({("t", 0): [{"at": at(60), "key": 1.0, "x": 1}]})
    driver = driver_of(kind, tmp_path, **changed)
    driver._numbers = count(1)
    with pytest.raises(StateLost, match="is that of others"):
        driver.batch({("t", 0): [{"at": at(70)}]})


@KINDS
def test_time_that_jumps_by_a_century_costs_nothing(kind, tmp_path):
    driver = driver_of(kind, tmp_path)
    century = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())
    rows = [{"at": at(second), "key": 1.0, "x": 1} for second in (-(10**9), 60, century)]
    found = [driver.batch({("t", 0): [row]}) for row in rows] + [
        driver.batch({("t", 0): [{"at": at(century + 1000), "key": 2.0, "x": 1}]})
    ]
    windows = 2 if kind == "hopping" else 1
    assert [len(row) for row in found] == [0, windows, windows, windows]


@KINDS
def test_many_columns_as_key(kind, tmp_path):
    by = tuple(f"k{n}" for n in range(12))  # names that state has, too
    driver = driver_of(kind, tmp_path, pa.decimal128(10, 2), by=by)
    keys = [dict.fromkeys(by, Decimal("1.50")), dict.fromkeys(by), {by[3]: Decimal("1.50")}]
    keys = [dict.fromkeys(by) | key for key in keys]
    driver.batch({("t", 0): [{"at": at(60), "x": 1, **key} for key in keys]})
    driver.batch({("t", 0): [{"at": at(60), "x": 2, **key} for key in keys]})
    found = driver.batch({("t", 0): [{"at": at(1000), "x": 1}]})
    assert max(row["rows"] for row in found) == 2
    assert [{name: row[name] for name in by} for row in found if row["rows"] == 2][:3] in (
        keys,
        [key for key in keys for _ in range(2)][:3],
    )


def test_values_of_other_keys_are_not_too_many_for_a_sliding_window(tmp_path):
    """Blocks of rows are merged before the rows that a result needs are determined."""
    driver = driver_of("sliding", tmp_path, named=(("top", agg.top("x", 1, distinct=2)),))
    rows = [{"at": at(second), "key": 0.0, "x": 7} for second in range(8)]
    rows += [{"at": at(10 + n), "key": float(n), "x": n} for n in range(1, 9)]
    found = driver.batch({("t", 0): [*rows, {"at": at(1000), "key": 0.0}]})
    assert len(found) == 16
    assert found[7]["top"] == [{"value": 7, "count": 8}]


def test_durations_that_no_time_has_room_for():
    assert microseconds("9000 weeks", "size") == 9000 * 7 * 86_400 * S
    with pytest.raises(PipelineError, match="too long"):
        microseconds("999999999 weeks", "size")


def test_no_lateness_is_not_the_default_one():
    assert lateness_of("correct", timedelta(0)) == Lateness("correct", 0)
    assert lateness_of("correct", None) == Lateness("correct", 86_400 * S)
