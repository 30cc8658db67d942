"""Inputs of joins whose columns are others than when their rows came: the state has the old ones.

Each test runs some batches, and goes on with another operator over the same state, as a pipeline
does that was begun again.
"""

from datetime import timedelta
from itertools import count

import pyarrow as pa
import pytest
from support.pipelines.operator_driver import ADDED, START, Driver, Source
from support.pipelines.tables_driver import Table, Tables

from headwater.errors import StateLost
from headwater.pipelines.operators.joins.as_of_join import AsOfJoin
from headwater.pipelines.operators.joins.interval_join import IntervalJoin, JoinSide, result_schema
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import lateness_of
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE

MINUTE_US = 60_000_000
WHEN = ADDED[1][1]
LONG, TEXT = pa.int64(), pa.string()


def at(seconds):
    return START + timedelta(seconds=seconds)


def after(before, now):
    """`now` goes on where `before` was."""
    now._numbers = count(next(before._numbers))
    now._offsets = before._offsets
    return now


# Two streams


def stream_join(directory, left=(), how="inner", key=LONG, within_us=MINUTE_US):
    """`left`: its columns besides the key and its time."""
    schemas = [
        pa.schema([("key", key), *left, ("l_at", WHEN)]),
        pa.schema([("key", key), ("r", pa.int64()), ("r_at", WHEN)]),
    ]
    sides, sources = [], []
    for name, schema in zip(("left", "right"), schemas, strict=True):
        time = EventTime(f"{name[0]}_at", 0)
        side = JoinSide(
            name,
            time=time,
            key=("key",),
            hash_column="key",
            columns=tuple((name, name) for name in schema.names),
            is_outer=how in (name, "full"),
            back_us=within_us,
            ahead_us=within_us,
        )
        sides.append(side)
        sources.append(Source(schema, ("key",), (*schema.names, "_op", "_at"), time))
    output = result_schema(tuple(sides), [pa.schema([*schema, *ADDED]) for schema in schemas])
    return Driver(IntervalJoin(*sides, lateness_of("drop", None), output), sources, directory)


def left_row(second, **columns):
    return {("left", 0): [{"key": 1, "l_at": at(second), **columns}]}


def right_row(number, second):
    return {("right", 0): [{"key": 1, "r": number, "r_at": at(second)}]}


def test_a_stream_that_gets_a_column_is_joined_on(tmp_path):
    before = stream_join(tmp_path, [("l", pa.int64())], "left")
    before.batch(left_row(1, l=1), {})
    now = after(before, stream_join(tmp_path, [("note", pa.string()), ("l", pa.int64())], "left"))
    for n in range(2, 8):  # so that runs with and without it become one
        now.batch(left_row(n, l=n, note="new"), {})
    found = now.batch({}, right_row(5, 5))
    assert sorted((row["l"], row["note"]) for row in found) == [
        (1, None),
        *((n, "new") for n in range(2, 8)),
    ]


def test_a_column_of_a_stream_that_is_removed_or_wider(tmp_path):
    before = stream_join(tmp_path, [("note", pa.string()), ("l", pa.int32())], "left")
    before.batch(left_row(1, l=1, note="x"), {})
    now = after(before, stream_join(tmp_path, [("l", pa.int64())], "left"))
    assert [row["l"] for row in now.batch(left_row(2, l=2**40), right_row(5, 2))] == [2**40, 1]


def test_a_value_that_does_not_fit_the_new_type_is_an_error(tmp_path):
    before = stream_join(tmp_path, [("l", pa.string())])
    before.batch(left_row(1, l="one"), {})
    now = after(before, stream_join(tmp_path, [("l", pa.int64())]))
    with pytest.raises(StateLost, match="the column l has another type"):
        now.batch({}, right_row(5, 2))


def test_a_key_of_another_type_is_in_another_bucket(tmp_path):
    before = stream_join(tmp_path, [("l", pa.int64())], key=pa.int32())
    before.batch(left_row(1, l=1), {})
    now = after(before, stream_join(tmp_path, [("l", pa.int64())], key=pa.int64()))
    with pytest.raises(StateLost, match="the column key has another type"):
        now.batch({}, right_row(5, 2))


@pytest.mark.parametrize("how", [{"how": "left"}, {"within_us": 2 * MINUTE_US}])
def test_a_join_with_other_settings_cannot_use_the_state(tmp_path, how):
    before = stream_join(tmp_path, [("l", pa.int64())])
    before.batch(left_row(1, l=1), {})
    now = after(before, stream_join(tmp_path, [("l", pa.int64())], **how))
    with pytest.raises(StateLost, match="the state of a join is that of another one"):
        now.batch({}, right_row(5, 2))


# Two tables

PEOPLE = Table(pa.schema([("p", pa.int64()), ("city", pa.string())]), ("p",), "people")
CITIES = Table(pa.schema([("c", pa.string()), ("country", pa.string())]), ("c",), "cities")


def tables(directory, people=PEOPLE, cities=CITIES, on=(("city", "c"),), how="left"):
    return Tables(people, cities, on=list(on), how=how, directory=directory)


def going_on(before, now):
    drivers = [(before.join, now.join), *zip(before._changes, now._changes, strict=True)]
    if before._last is not None:
        drivers.append((before._last, now._last))
    for old, new in drivers:
        after(old, new)
    now.rows = before.rows
    return now


def test_a_table_that_gets_a_column_is_joined_on(tmp_path):
    before = tables(tmp_path)
    before.batch([{"p": 1, "city": "Rome"}, {"p": 2, "city": "Oslo"}], [{"c": "Rome"}])
    wider = pa.schema([("p", pa.int64()), ("age", pa.int32()), ("city", pa.string())])
    now = going_on(before, tables(tmp_path, Table(wider, ("p",), "people")))
    now.batch([{"p": 3, "city": "Oslo", "age": 5}], [{"c": "Oslo", "country": "NO"}])
    now.batch([{"p": 1, "_op": "d"}, {"p": 2, "city": "Rome", "age": 7}])
    assert sorted(
        (row["p"], row["c"], row["age"], row["country"]) for row in now.rows.values()
    ) == [
        (2, "Rome", 7, None),
        (3, "Oslo", 5, "NO"),
    ]


def test_a_column_of_a_table_that_is_wider_and_one_that_is_removed(tmp_path):
    old = pa.schema([("p", pa.int64()), ("city", pa.string()), ("x", pa.int32()), ("y", pa.int8())])
    before = tables(tmp_path, Table(old, ("p",), "people"))
    before.batch([{"p": 1, "city": "Rome", "x": 1, "y": 1}], [])
    new = pa.schema([("p", pa.int64()), ("city", pa.string()), ("x", pa.string())])
    now = going_on(before, tables(tmp_path, Table(new, ("p",), "people")))
    for row in now.rows.values():
        del row["y"]
    now.batch([], [{"c": "Rome", "country": "IT"}])
    assert [(row["x"], row["country"]) for row in now.rows.values()] == [("1", "IT")]


@pytest.mark.parametrize(
    "fields",
    [[("p", pa.int32()), ("city", pa.string())], [("p", pa.int64()), ("city", pa.binary())]],
)
def test_keys_of_tables_of_another_type_are_in_other_buckets(tmp_path, fields):
    before = tables(tmp_path)
    before.batch([{"p": 1, "city": "Rome"}], [])
    now = going_on(before, tables(tmp_path, Table(pa.schema(fields), ("p",), "people")))
    with pytest.raises(StateLost, match="has another type since its rows were joined"):
        now.batch([{"p": 1, "city": "Rome"}], [])


def test_tables_joined_by_another_column_cannot_use_the_state(tmp_path):
    before = tables(tmp_path)
    before.batch([{"p": 1, "city": "Rome"}], [])
    now = going_on(before, tables(tmp_path, on=(("city", "country"),)))
    with pytest.raises(StateLost, match="the state of a table join is that of another one"):
        now.batch([], [{"c": "x", "country": "Rome"}])


# Events and a table


def enrichment(directory, *, events=(), table=(), key=TEXT, chosen=()):
    """Columns besides the keys."""
    of_events = pa.schema([("id", pa.int64()), ("customer", key), *events])
    of_table = pa.schema([("name", key), *table])
    time = EventTime("_at", 0)
    operator = AsOfJoin(
        output=pa.schema([*of_events, *of_table.remove(0)]),
        events=tuple(of_events.names),
        event_key=("customer",),
        table_key=("name",),
        table=tuple(of_table),
        columns=tuple(of_table.names[1:]),
        is_inner=False,
        time=time,
        is_log_time=True,
        valid_from=None,
        keep_us=0,
        is_stream=True,
        chosen=chosen,
    )
    sources = [
        Source(of_events, ("customer",), tuple(of_events.names), time),
        Source(
            of_table,
            ("name",),
            (*of_table.names, "_op", "_at"),
            time,
            lambda row: row["_op"] in (READ_TO_END, READ_TO_HERE),
        ),
    ]
    return Driver(operator, sources, directory)


END = {"_op": READ_TO_END, "_at": None}
HERE = {"_op": READ_TO_HERE, "_at": None}
CITY = ("city", pa.string())


def test_events_that_wait_and_a_table_get_a_column(tmp_path):
    before = enrichment(tmp_path, table=[CITY])
    row = {"name": "a", "city": "Rome", "_at": at(1)}
    event = {"id": 1, "customer": "a", "_at": at(10)}
    assert before.batch({("events", 0): [event]}, {("table", 0): [row, HERE]}) == []
    wider = enrichment(tmp_path, events=[("n", pa.int8())], table=[("age", pa.int32()), CITY])
    now = after(before, wider)
    rows = [{"name": "b", "city": "Oslo", "age": 7, "_at": at(11)}, END]
    event = {"id": 2, "customer": "b", "n": 3, "_at": at(12)}
    found = now.batch({("events", 0): [event]}, {("table", 0): rows})
    assert sorted((row["id"], row["n"], row["city"], row["age"]) for row in found) == [
        (1, None, "Rome", None),
        (2, 3, "Oslo", 7),
    ]


def test_the_key_of_an_enrichment_of_another_type(tmp_path):
    before = enrichment(tmp_path, table=[CITY], key=pa.int32())
    row = {"name": 1, "city": "Rome", "_at": at(1)}
    before.batch({}, {("table", 0): [row, END]})
    now = after(before, enrichment(tmp_path, table=[CITY], key=pa.int64()))
    with pytest.raises(StateLost, match="the column name has another type"):
        now.batch({("events", 0): [{"id": 1, "customer": 1, "_at": at(10)}]}, {})


def test_columns_that_are_wanted_only_later_are_not_in_the_state(tmp_path):
    before = enrichment(tmp_path, table=[CITY], chosen=("city",))
    before.batch({}, {("table", 0): [{"name": "a", "city": "Rome", "_at": at(1)}, END]})
    more = enrichment(tmp_path, table=[CITY, ("age", pa.int32())], chosen=("city", "age"))
    with pytest.raises(StateLost, match="the state of an enrichment is that of another one"):
        after(before, more).batch({("events", 0): [{"id": 1, "customer": "a", "_at": at(9)}]}, {})
