"""Operators whose state is in an object store give the rows that they give with a directory."""

from datetime import timedelta
from random import Random
from uuid import uuid4

import pyarrow as pa
import pytest
from support.pipelines.operator_driver import ADDED, START, Driver, Source

from bench.peers.s3proxy import BUCKET, s3_server
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.contract import Count
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.joins.interval_join import IntervalJoin, JoinSide, result_schema
from headwater.pipelines.operators.state.state_store import state_directory
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness, lateness_of
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.state_url import StateUrl

pytestmark = pytest.mark.java

SECOND = 1_000_000
BATCHES = 8


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def directory(s3, monkeypatch):
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return state_directory(StateUrl(BUCKET, uuid4().hex[:8], s3.endpoint).address)


def window(directory):
    schema = pa.schema(
        [("name", pa.string()), ("at", pa.timestamp("us", "UTC")), ("x", pa.int64())]
    )
    time = EventTime("at", 2 * SECOND)
    named = {"rows": Count(), "sum": agg.sum("x")}
    operator = FixedWindows(
        NamedAggregates(tuple(named.items()), pa.schema([*schema, *ADDED[:1]])),
        ("name",),
        time,
        10 * SECOND,
        1,
        Lateness("correct", 20 * SECOND),
        False,
    )
    source = Source(schema, ("name",), ("name", "at", "x", "_op"), time)
    return Driver(operator, [source], directory)


def join(directory):
    sides, sources = [], []
    for name in ("left", "right"):
        time = EventTime(f"{name}_at", 2 * SECOND)
        columns = ("name", name, f"{name}_at")
        schema = pa.schema(
            [
                ("name", pa.int64()),
                (name, pa.int64()),
                (f"{name}_at", pa.timestamp("us", "UTC")),
            ]
        )
        side = JoinSide(
            name,
            time=time,
            key=("name",),
            hash_column="name",
            columns=tuple((column, column) for column in columns),
            is_outer=True,
            back_us=5 * SECOND,
            ahead_us=5 * SECOND,
        )
        sides.append(side)
        sources.append(Source(schema, ("name",), (*columns, "_op", "_at"), time))
    output = result_schema(tuple(sides), [pa.schema([*s.schema, *ADDED]) for s in sources])
    return Driver(IntervalJoin(*sides, lateness_of("drop", None), output), sources, directory)


def batches_of_windows(random):
    for number in range(BATCHES):
        yield [
            {
                ("events", partition): [
                    {
                        "name": random.choice("abc"),
                        "at": START + timedelta(seconds=number * 7 + random.randint(-15, 10)),
                        "x": random.randint(0, 9),
                    }
                    for _ in range(random.randint(1, 30))
                ]
                for partition in range(2)
            }
        ]


def batches_of_joins(random):
    for number in range(BATCHES):
        yield [
            {
                (side, 0): [
                    {
                        "name": random.randint(0, 4),
                        side: random.randint(0, 999),
                        f"{side}_at": START + timedelta(seconds=number * 7 + random.randint(0, 9)),
                    }
                    for _ in range(random.randint(1, 30))
                ]
            }
            for side in ("left", "right")
        ]


@pytest.mark.parametrize(
    ("made", "batches"), [(window, batches_of_windows), (join, batches_of_joins)]
)
def test_the_same_rows(made, batches, directory, tmp_path):
    """Every batch is a restart, and every third one runs twice."""
    in_objects, in_files = made(directory), made(tmp_path / "operator")
    rows = 0
    for number, batch in enumerate(batches(Random(1))):
        found = in_objects.batch(*batch)
        assert found == in_files.batch(*batch)
        rows += len(found)
        if number % 3 == 2:
            assert in_objects.again() == in_files.again() == found
    assert rows > 50
    assert directory.directories() == ["operator"]
