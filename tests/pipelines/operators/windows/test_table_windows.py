"""Windows over a table that changes, against the table as it is after each batch."""

import math
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.chained import as_input
from support.pipelines.operator_driver import Driver, Source
from support.pipelines.project import Project
from tiers import examples, long, some

import headwater as hw
from headwater.errors import PipelineError, StateLost
from headwater.pipelines.lineage.tracing import why
from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.joins.tables.table_changes import TableChanges
from headwater.pipelines.operators.windows.table_windows import (
    WINDOW,
    TableWindows,
    ZonedTableWindows,
)
from headwater.pipelines.operators.windows.zoned_windows import DAY_US, Calendar
from headwater.pipelines.verification.stores import verify

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("shop", pa.string()),
        ("total", pa.float64()),
        ("__time", pa.int64()),
        (WINDOW, pa.int64()),
    ]
)
NAMED = (
    ("rows", agg.count()),
    ("sum", agg.sum("total")),
    ("most", agg.max("total")),
    ("last", agg.last("total")),
)


class Windows:
    """The operators of hw.tumbling(key=…) one behind the other. `rows` are those of a store that
    applies the changes."""

    def __init__(self, directory, size=10):
        self.size = size
        operator = TableWindows(NamedAggregates(NAMED, SCHEMA), ("shop",), ("id",), size * SECOND)
        columns = (*SCHEMA.names, "_op")
        sources = [
            Source(SCHEMA, ("id",), columns, everywhere=lambda row: row["_op"] == "t"),
            Source(SCHEMA, operator.group, columns),
        ]
        operators = [TableChanges("windowed", SCHEMA, ("id",), operator.group), operator]
        self.drivers = [
            Driver(each, [source], directory and directory / str(number), buckets=2)
            for number, (each, source) in enumerate(zip(operators, sources, strict=True))
        ]
        self.rows = {}

    def batch(self, rows):
        moves = self.drivers[0].batch({("t", 0): rows})
        random.Random(0).shuffle(moves)
        found = self.drivers[1].batch(as_input(moves)) if moves else []
        for change in found:
            row = {name: value for name, value in change.items() if name[0] != "_"}
            group = row["shop"], row["window_start"]
            if change["_op"] == "c":
                assert group not in self.rows
                self.rows[group] = row
            elif change["_op"] == "u":
                assert self.rows[group] != row, "it is as it was"
                self.rows[group] = row
            else:
                assert self.rows.pop(group) == row, "it was another one"
        return found

    def expected(self, table):
        groups = {}
        for row in table.values():
            groups.setdefault((row["shop"], row[WINDOW]), []).append(row)
        found = {}
        for (shop, window_us), rows in groups.items():
            totals = [row["total"] for row in rows if row["total"] is not None]
            start = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=window_us)
            last = max(
                ((row["__time"], row["total"]) for row in rows if row["total"] is not None),
                default=(0, None),
            )
            found[shop, start] = {
                "shop": shop,
                "window_start": start,
                "window_end": start + timedelta(seconds=self.size),
                "rows": len(rows),
                "sum": math.fsum(totals) if totals else None,
                "most": max(totals, default=None),
                "last": last[1],
            }
        return found


def row_of(id_, shop, total, second, size=10):
    return {
        "id": id_,
        "shop": shop,
        "total": total,
        "__time": second * SECOND,
        WINDOW: second // size * size * SECOND,
    }


CHANGE = st.tuples(
    st.integers(0, 12),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0.1, 0.3, 1e16, -1e16, None]),
    st.integers(-30, 30),
    st.sampled_from("cuuurdt"),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.lists(CHANGE, min_size=1, max_size=8), min_size=1, max_size=8))
def test_results_are_of_the_table_after_each_batch(tmp_path_factory, batches):
    windows = Windows(tmp_path_factory.mktemp("windows"))
    table, log = {}, []
    for batch in batches:
        rows = []
        for id_, shop, total, second, op in batch:
            row = row_of(id_, shop, total, second)
            if op == "t":
                table.clear()
                row = dict.fromkeys(row)
            elif op == "d":
                table.pop(id_, None)
                row = dict.fromkeys(row) | {"id": id_}
            else:
                table[id_] = row
            rows.append({**row, "_op": op})
        log += rows
        windows.batch(rows)
        assert windows.rows == windows.expected(table)
    whole = Windows(None)
    for found in whole.batch(log)[:2]:
        (causes,) = whole.drivers[1].lineage([found])
        assert len(causes) == found["rows"]
    assert whole.rows == windows.rows


ZONE = "America/St_Johns"  # where clocks were put back at 00:01, to 23:01 of the day before
COPIED = pa.schema([*SCHEMA, ("__copy", pa.int32())])


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 5), st.integers(0, 24 * 6), st.sampled_from("cuud")),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([1, 2, 3]),
)
def test_rows_of_a_table_in_hopping_days_of_a_time_zone(tmp_path_factory, batches, panes):
    directory = tmp_path_factory.mktemp("zoned")
    operator = ZonedTableWindows(
        NamedAggregates((("rows", agg.count()),), COPIED),
        (),
        ("id",),
        panes * DAY_US,
        DAY_US,
        ZONE,
    )
    columns = (*COPIED.names, "_op")
    changes = Driver(
        TableChanges("windowed", COPIED, ("id", "__copy"), operator.group),
        [Source(COPIED, ("id", "__copy"), columns)],
        directory / "changes",
    )
    windows = Driver(operator, [Source(COPIED, operator.group, columns)], directory / "windows")
    first = datetime(2010, 11, 5, 12, tzinfo=UTC)
    calendar = Calendar(ZONE, 1)
    table, stored, offset = {}, {}, 0
    for batch in batches:
        rows = []
        for id_, hour, op in batch:
            at_us = int((first + timedelta(hours=hour)).timestamp()) * SECOND
            table.pop(id_, None)
            if op != "d":
                table[id_] = at_us
            (pane,) = calendar.pane_at(np.array([at_us])).tolist()
            rows += [
                {"id": id_, "__copy": copy, "_position": offset, "_op": op}
                | ({} if op == "d" else {"__time": at_us, WINDOW: pane - copy})
                for copy in range(panes)
            ]
            offset += 1
        moves = changes.batch({("t", 0): rows})
        for change in windows.batch(as_input(moves)) if moves else []:
            bounds = change["window_start"], change["window_end"]
            if change["_op"] == "d":
                del stored[bounds]
            else:
                stored[bounds] = change["rows"]
    midnights = [
        datetime(2010, 11, day, tzinfo=ZoneInfo(ZONE)).astimezone(UTC) for day in range(1, 20)
    ]
    expected = {}
    for start, end in zip(midnights, midnights[panes:], strict=False):
        inside = sum(
            start.timestamp() * SECOND <= at_us < end.timestamp() * SECOND
            for at_us in table.values()
        )
        if inside:
            expected[start, end] = inside
    assert stored == expected


def test_another_size_is_another_state(tmp_path):
    Windows(tmp_path).batch([row_of(1, "a", 1.0, 5)])
    other = Windows(tmp_path, size=5)
    for driver in other.drivers:
        next(driver._numbers)
    with pytest.raises(StateLost):
        other.batch([row_of(1, "a", 2.0, 5, size=5)])


PIPELINE = """
    orders = flow.changes("changing", "id bigint, shop string, at timestamp, total bigint")
    hours = hw.tumbling(orders, "at", "1 hour", by="shop", key="id").agg(
        orders=hw.agg.count(), total=hw.agg.sum("total"), most=hw.agg.max("total")
    )
    flow.write(hours, to="cache", table="hours", key=["shop", "window_start"])
    time = hw.event_time("_at", delay="0 s")
    early = hw.tumbling(orders, time, "1 second", by="shop", early=True, late="correct").agg(
        records=hw.agg.count()
    )
    days = hw.tumbling(early, "window_start", "1 day", by="shop", key=["shop", "window_start"]).agg(
        records=hw.agg.sum("records")
    )
    flow.write(days, to="cache", table="days", key=["shop", "window_start"])
"""
JOINED = """
    orders = flow.changes("changing", "id bigint, shop string, at timestamp, total bigint")
    shops = flow.changes("countries", "shop string, country string")
    joined = hw.join_tables(orders, shops, "shop", left_key="id", right_key="shop")
    countries = hw.tumbling(joined, "at", "1 hour", by="country", key=["id", "shop"]).agg(
        orders=hw.agg.count(), total=hw.agg.sum("total")
    )
    flow.write(countries, to="cache", table="countries", key=["country", "window_start"])
"""


@long
def test_windows_follow_the_table_over_restarts(spark, tmp_path, broker_address):
    project = Project(tmp_path, broker_address)
    project.topic("changing", 2)
    project.topic("countries", 1)
    project.pipeline("changing", PIPELINE)
    project.pipeline("joined", JOINED)
    rng, table, records = random.Random(3), {}, {}
    countries = {"a": "de", "b": "fr"}
    project.produce(
        "countries", *({"shop": s, "country": c} for s, c in countries.items()), key="shop"
    )
    for part in range(2):
        rows = []
        for _ in range(60):
            row = {"id": rng.randrange(30), "shop": rng.choice("ab"), "total": rng.randrange(99)}
            at = START + timedelta(minutes=rng.randrange(600))
            if rng.random() < 0.2:
                table.pop(row["id"], None)
                row = {"id": row["id"], "_deleted": True}
            else:
                table[row["id"]] = row | {"at": at}
                records[row["shop"]] = records.get(row["shop"], 0) + 1
                row["at"] = at.isoformat()
            rows.append(row)
        project.produce("changing", *rows)
        if part:
            countries["a"] = "it"
            project.produce("countries", {"shop": "a", "country": "it"}, key="shop")
        with project.running(spark, "changing", "joined"):
            project.wait_until_at_end(spark, "changing", "changing", "joined")
            project.wait_until_at_end(spark, "countries", "joined")
    hours, joined = {}, {}
    for row in table.values():
        start = row["at"].replace(minute=0)
        hours.setdefault((row["shop"], start), []).append(row["total"])
        joined.setdefault((countries[row["shop"]], start), []).append(row["total"])
    found = project.rows("SELECT shop, window_start, orders, total, most FROM hours")
    assert {(shop, datetime.fromisoformat(at)): tuple(more) for shop, at, *more in found} == {
        group: (len(totals), sum(totals), max(totals)) for group, totals in hours.items()
    }
    found = project.rows("SELECT country, window_start, orders, total FROM countries")
    assert {(name, datetime.fromisoformat(at)): tuple(more) for name, at, *more in found} == {
        group: (len(totals), sum(totals)) for group, totals in joined.items()
    }
    found = project.rows("SELECT shop, sum(records) FROM days GROUP BY shop")
    assert dict(found) == records
    pipeline, other = project.pipelines(spark, "changing", "joined")
    for of, write in some((other, "countries"), (pipeline, "hours"), (pipeline, "days")):
        assert verify(of, write).is_equal, write
    (shop, start), totals = max(hours.items(), key=lambda item: len(item[1]))
    traced = why(pipeline, "hours", {"shop": shop, "window_start": start.isoformat()})
    assert sorted(cause.row["total"] for cause in traced.causes) == sorted(totals)


ROWS = (
    "id bigint, shop string, at timestamp, _op string, _at timestamp,"
    " _position struct<topic: string, partition: int, offset: bigint>"
)


@pytest.mark.parametrize(
    ("given", "named", "what"),
    [
        ({"early": True}, {}, "are not for tables"),
        ({"tz": "Europe/Berlin"}, {}, "are of days or weeks"),
        ({"key": "no"}, {}, "no column no"),
        ({"time": "shop"}, {}, "no timestamp"),
        ({}, {"before": hw.agg.previous("n")}, "those of a table change"),
    ],
)
def test_mistakes_are_errors_when_the_pipeline_is_built(spark, given, named, what):
    frame = spark.createDataFrame([], ROWS)
    right = {"time": "at", "size": "1 hour", "by": "shop", "key": "id"}
    with pytest.raises(PipelineError, match=what):
        hw.tumbling(frame, **(right | given)).agg(n=hw.agg.count(), **named)


def test_tables_have_the_windows_of_events(spark):
    """Hopping, and in a time zone, over days on which clocks were changed."""
    moments = [datetime(2010, 11, 5, tzinfo=UTC) + timedelta(hours=n) for n in range(96)]
    rows = [
        (n, "ab"[n % 2], at, "c", at, ("t", 0, n))
        for n, at in enumerate([*moments, datetime(2011, 1, 1, tzinfo=UTC)])
    ]
    moved = [(0, "a", moments[50], "u", moments[50], ("t", 0, 200))]
    events = spark.createDataFrame([*rows[1:], (0, *moved[0][1:3], "c", *moved[0][4:])], ROWS)
    table = spark.createDataFrame(rows + moved, ROWS)
    for hopping in ({"size": "2 days", "hop": "1 day", "tz": ZONE}, {"size": "6 h", "hop": "2 h"}):
        time = hw.event_time("at", delay="365 days")
        expected = hw.hopping(events, time, **hopping, by="shop", late="correct", early=True)
        found = hw.hopping(table, "at", **hopping, by="shop", key="id")
        names = "shop", "window_start", "window_end", "n"
        assert sorted(map(tuple, found.agg(n=hw.agg.count()).select(*names).collect())) == sorted(
            map(tuple, expected.agg(n=hw.agg.count()).select(*names).collect())
        )


def test_rows_without_a_time_are_in_no_window(spark):
    at = START + timedelta(minutes=5)
    rows = [
        (1, "a", at, "c", at, ("t", 0, 0)),
        (2, "a", at, "c", at, ("t", 0, 1)),
        (2, "a", None, "u", at, ("t", 0, 2)),
        (3, "b", None, "c", at, ("t", 0, 3)),
    ]
    found = hw.tumbling(spark.createDataFrame(rows, ROWS), "at", "1 hour", by="shop", key="id").agg(
        n=hw.agg.count()
    )
    assert [(row.shop, row.n, row["_op"]) for row in found.collect()] == [("a", 1, "c")]
