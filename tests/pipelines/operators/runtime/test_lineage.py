"""What a result comes from: removing a record that lineage names changes the result, removing any
other one does not. Over all operators, and chains of two.

Values are such that no record says the same as another one: sums are of different powers of two,
no delete follows another. The full tier tries more.
"""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import ADDED, Driver, Source
from tiers import count

from headwater.pipelines.operators.aggregates import api as agg
from headwater.pipelines.operators.aggregates.contract import Count
from headwater.pipelines.operators.aggregates.named_aggregates import NamedAggregates
from headwater.pipelines.operators.joins.as_of_join import AsOfJoin
from headwater.pipelines.operators.joins.interval_join import IntervalJoin, JoinSide, result_schema
from headwater.pipelines.operators.joins.tables.join_tables import joined_tables, planned
from headwater.pipelines.operators.joins.tables.table_changes import TableChanges
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import Lateness
from headwater.pipelines.operators.windows.fixed_windows import FixedWindows
from headwater.pipelines.operators.windows.sessions import Sessions
from headwater.pipelines.operators.windows.sliding import Sliding
from headwater.pipelines.position import POSITION, POSITION_TYPE

EXAMPLES = count(quick=3, full=400)
S = 1_000_000
TIME = pa.timestamp("us", "UTC")
PLACED = pa.field(POSITION, POSITION_TYPE)


def at(second):
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


# Events {"id", "who", "x", "at"} of two partitions; changes {"id", "city", "y"} of one table. What
# `who` names is an `id` of the table, as in a shop: the events' own `id` is another thing.
EVENT = [("id", pa.int64()), ("who", pa.int64()), ("x", pa.int64()), ("at", TIME)]
ROW = [("id", pa.int64()), ("city", pa.string()), ("y", pa.int64())]
WHO, SECOND = st.integers(0, 2), st.integers(0, 30)


@st.composite
def events(draw, topic="events", size=9):
    found = []
    for offset in range(draw(st.integers(1, size))):
        late = draw(st.sampled_from([0, 0, 0, 12]))  # behind the watermark
        row = {"id": 100 + offset, "who": draw(WHO), "x": 2**offset, "_at": at(3 * offset)}
        partition = draw(st.integers(0, 1))
        happened = at(3 * offset - late)
        found.append({**row, "at": happened, "place": (topic, partition, offset)})
    return found


@st.composite
def changes(draw, topic="table", size=7, with_truncate=True):
    found, there, is_truncated = [], set(), False
    for offset in range(draw(st.integers(1, size))):
        id_, second = draw(WHO), 4 * offset
        op = draw(st.sampled_from(["c", "u", "d", "t"]))
        if op == "t" and there and with_truncate and not is_truncated:
            is_truncated, there = True, set()
            row = {"id": None, "city": None, "y": None, "_op": "t"}
        elif op == "d" and id_ in there:
            there.discard(id_)
            row = {"id": id_, "city": None, "y": None, "_op": "d"}
        else:
            there.add(id_)
            city = draw(st.sampled_from(["Bonn", "Rom"]))
            row = {"id": id_, "city": city, "y": 10 ** (2 * offset), "_op": "u"}
        found.append({**row, "_at": at(second), "place": (topic, 0, offset)})
    return found


def by_place(records):
    found = defaultdict(list)
    for record in records:
        topic, partition, offset = record["place"]
        row = {name: value for name, value in record.items() if name != "place"}
        found[topic, partition].append({**row, "_position": offset})
    return found


def placed(rows):
    """What an operator gave, as the input of another one."""
    found = defaultdict(list)
    for row in sorted(rows, key=lambda record: tuple(record["_position"].values())):
        place = row["_position"]
        found[place["topic"], place["partition"]].append({**row, "_position": place["offset"]})
    return found


def places(rows):
    return {tuple(row["_position"].values()) for row in rows}


class Step:
    """One operator. Sides are (records of a log) or another Step."""

    def __init__(self, operator, sources):
        self.operator, self.sources = operator, sources

    def of(self, *sides):
        self.sides = sides
        return self

    def run(self, logs):
        """`logs` by name."""
        given = [
            placed(side.run(logs)) if isinstance(side, Step) else by_place(logs[side])
            for side in self.sides
        ]
        self.driver = Driver(self.operator, self.sources, None)
        self.rows = self.driver.batch(*given) if any(given) else []
        return self.rows

    def trace(self, rows):
        """Places of records, by the rows of the last run."""
        found = set()
        for side, of_side in zip(self.sides, self.driver.lineage(rows), strict=True):
            found |= (
                side.trace(side.equal_to(of_side)) if isinstance(side, Step) else places(of_side)
            )
        return found

    def equal_to(self, rows):
        """Of the last run; the next operator may not have all columns."""
        names = [name for name in (rows[0] if rows else ()) if name != "_op"]
        wanted = [{name: row[name] for name in names} for row in rows]
        return [row for row in self.rows if {name: row[name] for name in names} in wanted]


def enrich(*, inner=False, columns=EVENT, key="who", names=("city", "y"), more=()):
    """`names` are the table's in the result."""
    schema = pa.schema([*columns, *more, *ADDED])
    added = [pa.field(name, kind) for name, (_, kind) in zip(names, ROW[1:], strict=True)]
    operator = AsOfJoin(
        output=pa.schema([*schema, *added]),
        events=tuple(schema.names),
        event_key=(key,),
        table_key=("id",),
        table=tuple(pa.field(*field) for field in ROW),
        columns=("city", "y"),
        is_inner=inner,
        time=EventTime("_at", 0),
        is_log_time=True,
        valid_from=None,
        keep_us=0,
        is_stream=False,
    )
    sources = [
        Source(pa.schema([*columns, *more]), (key,), operator.events, operator.time),
        Source(
            pa.schema(ROW),
            ("id",),
            ("id", "city", "y", "_op", "_at"),
            EventTime("_at", 0),
            everywhere=lambda row: row["_op"] == "t",
        ),
    ]
    return Step(operator, sources)


def window_step(make, by, columns, delay_s=5):
    schema = pa.schema([*columns, *ADDED[:1]])
    sums = {"n": Count(), **{f"sum_{name}": agg.sum(name) for name in ("x", "y")}}
    named = {n: a for n, a in sums.items() if n == "n" or n[4:] in schema.names}
    operator = make(
        NamedAggregates(tuple(named.items()), schema), (by,), EventTime("at", delay_s * S)
    )
    names = (*(name for name, _ in columns), "_op")
    return Step(operator, [Source(pa.schema(columns), (by,), names, operator.time)])


def tumbling(aggregates, by, time):
    sums = [name for name, _ in aggregates.aggregates if name != "n"]
    previous = tuple((f"before_{name}", name, 1) for name in sums)
    return FixedWindows(
        aggregates, by, time, 10 * S, 1, Lateness("drop", 0), is_early=True, previous=previous
    )


def hopping(aggregates, by, time):
    return FixedWindows(aggregates, by, time, 5 * S, 2, Lateness("drop", 0), is_early=True)


def corrected(aggregates, by, time):
    return FixedWindows(aggregates, by, time, 10 * S, 1, Lateness("correct", 4 * S), is_early=True)


def session(aggregates, by, time):
    return Sessions(by, 5 * S, time, Lateness("drop", 0), True, aggregates)


def sliding(aggregates, by, time):
    return Sliding(by, ("id",), 9 * S, time, Lateness("drop", 0), True, aggregates)


WINDOWS = [tumbling, hopping, corrected, session, sliding]
OTHER = [("oid", pa.int64()), ("who", pa.int64()), ("z", pa.int64()), ("other_at", TIME)]


def join(how="inner"):
    sides, sources = [], []
    for name, fields, time in (("left", EVENT, "at"), ("right", OTHER, "other_at")):
        stamping = EventTime(time, 5 * S)
        sides.append(
            JoinSide(
                name,
                time=stamping,
                key=("who",),
                hash_column="who",
                columns=tuple((column, column) for column, _ in fields),
                is_outer=how in (name, "full"),
                back_us=4 * S,
                ahead_us=4 * S,
            )
        )
        given = (*(column for column, _ in fields), "_op", "_at")
        sources.append(Source(pa.schema(fields), ("who",), given, stamping))
    output = result_schema(tuple(sides), [source.rows_schema for source in sources])
    return Step(IntervalJoin(*sides, Lateness("drop", 0), output), sources)


def others(records):
    return [
        {
            "oid": record["id"],
            "who": record["who"],
            "z": record["x"],
            "other_at": record["at"],
            "_at": record["_at"],
            "place": ("others", *record["place"][1:]),
        }
        for record in records
    ]


def join_tables(left, right, keys, on, how="inner"):
    """`left` and `right` are columns."""
    pairs = [on]
    tables = joined_tables([pa.schema(left), pa.schema(right)], keys, pairs, how)
    operator, last = planned(tables, pairs, how)
    sources, moves = [], []
    for table in tables:
        names = (*table.columns.names, "_op")
        everywhere = {"everywhere": lambda row: row["_op"] == "t"}
        moves.append(
            Step(
                TableChanges(table.name, table.columns, table.key, table.on),
                [Source(table.columns, table.key, names, **everywhere)],
            )
        )
        sources.append(Source(table.columns, table.on, names))
    joined = Step(operator, sources).of(*moves)
    if last is None:
        return joined, moves
    columns = [field for field in operator.output if field.name not in ("_op", "_position")]
    names = (*(field.name for field in columns), "_op")
    return Step(last, [Source(pa.schema(columns), last.key, names)]).of(joined), moves


ORDERS = [("order_id", pa.int64()), ("customer", pa.int64()), ("w", pa.int64())]


def orders(records):
    """Changes as those of another table: several versions of an order, of one customer or others"""
    return [
        {
            "order_id": record["who"],
            "customer": record["x"].bit_length() % 3,
            "w": record["x"],
            "_op": "u",
            "_at": record["_at"],
            "place": ("orders", 0, record["place"][2]),
        }
        for record in records
    ]


def key_of(row):
    """What identifies results of any operator."""
    if "window_end" in row:
        by = [row[name] for name in ("who", "city", "oid") if name in row]
        return *by, row["window_start"], row["window_end"]
    if "order_id" in row:
        return row["order_id"], row.get("id")
    return row["id"], row.get("oid")


def results(rows):
    """By key; where they stand in the log does not count."""
    found = {}
    for row in rows:
        if row["_op"] == "d":
            continue
        assert key_of(row) not in found
        found[key_of(row)] = {n: v for n, v in row.items() if n not in ("_position", "_at")}
    return found


def without(log, record, is_event):
    """An event that is deleted still moves the watermark."""
    if not is_event:
        return [other for other in log if other is not record]
    return [{**other, "_op": "u"} if other is record else other for other in log]


def check(step, logs, timed, *, may_gain=False):
    """`timed`: the logs whose records are events, which move time on. `may_gain`: without a record
    that is not listed, a result may be of more records than before.
    """
    rows = step.run(logs)
    before = results(rows)
    traced = {key: trace(step, rows, key) for key in before}
    for name, log in logs.items():
        for record in log:
            rows = step.run({**logs, name: without(log, record, name in timed)})
            after = results(rows)
            for key, row in before.items():
                is_changed = after.get(key) != row
                is_listed = record["place"] in traced[key]
                if may_gain and is_changed and not is_listed:
                    assert trace(step, rows, key) > traced[key], (key, row, after, record)
                else:
                    assert is_changed == is_listed, (key, row, after.get(key), record)


def trace(step, rows, key):
    return step.trace([row for row in rows if key_of(row) == key])


@given(events(), changes(), st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_an_event_and_the_version_of_the_row_that_it_was_enriched_by(of_events, of_table, inner):
    step = enrich(inner=inner).of("events", "table")
    check(step, {"events": of_events, "table": of_table}, ())


def test_a_deleted_event_comes_from_its_delete_alone():
    row = {"id": 1, "city": "Rom", "y": 1, "_op": "u", "_at": at(0), "place": ("table", 0, 0)}
    event = {"id": 7, "who": 1, "x": 1, "at": at(1), "_at": at(1), "place": ("events", 0, 0)}
    gone = {**event, "_op": "d", "_at": at(2), "place": ("events", 0, 1)}
    step = enrich().of("events", "table")
    placed_event, deleted = step.run({"events": [event, gone], "table": [row]})
    assert step.trace([placed_event]) == {("events", 0, 0), ("table", 0, 0)}
    assert step.trace([deleted]) == {("events", 0, 1)}


@pytest.mark.parametrize("make", WINDOWS)
def test_rows_of_a_window_but_those_that_were_late(make):
    @given(events(size=12))
    @settings(max_examples=EXAMPLES, deadline=None)
    def run(of_events):
        check(window_step(make, "who", EVENT).of("events"), {"events": of_events}, ("events",))

    run()


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_both_rows_of_a_pair(how):
    @given(events(), events())
    @settings(max_examples=EXAMPLES, deadline=None)
    def run(left, right):
        logs = {"events": left, "others": others(right)}
        rows = join(how).of("events", "others").run(logs)
        pairs = {key_of(row) for row in rows if row["id"] is not None and row["oid"] is not None}
        alone = [row for row in rows if key_of(row) not in pairs]
        assert len({key_of(row) for row in alone}) == len(alone)
        check(join(how).of("events", "others"), logs, ("events", "others"))

    run()


@pytest.mark.parametrize("how", ["inner", "left"])
def test_the_changes_by_which_two_joined_rows_are_as_they_are(how):
    @given(events(), changes(with_truncate=False))
    @settings(max_examples=EXAMPLES, deadline=None)
    def run(of_orders, of_table):
        on = ("customer", "id")
        step, moves = join_tables(ORDERS, ROW, [("order_id",), ("id",)], on, how)
        moves[0].of("orders")
        moves[1].of("table")
        logs = {"orders": orders(of_orders), "table": of_table}
        if how == "left":  # that a partner is missing comes from no record that is there
            logs["table"] = [row for row in of_table if row["_op"] != "d"]
        check(step, logs, ())

    run()


@pytest.mark.parametrize("make", WINDOWS)
def test_windows_of_enriched_events(make):
    @given(events(size=7), changes(size=5))
    @settings(max_examples=EXAMPLES, deadline=None)
    def run(of_events, of_table):
        step = window_step(make, "who", [*EVENT, *ROW[1:]]).of(enrich().of("events", "table"))
        check(step, {"events": of_events, "table": of_table}, ("events",))

    run()


@pytest.mark.parametrize("make", [tumbling, hopping, corrected])
def test_windows_by_a_column_of_the_table(make):
    """Without the row that it was enriched by, an event may be in another window's result."""

    @given(events(size=7), changes(size=5))
    @settings(max_examples=EXAMPLES, deadline=None)
    def run(of_events, of_table):
        step = window_step(make, "city", [*EVENT, *ROW[1:]]).of(enrich().of("events", "table"))
        check(step, {"events": of_events, "table": of_table}, ("events",), may_gain=True)

    run()


@given(events(), changes(size=5), changes("second", size=5))
@settings(max_examples=EXAMPLES, deadline=None)
def test_events_that_are_enriched_twice(of_events, of_table, of_second):
    second = enrich(names=("town", "v"), more=[("city", pa.string()), ("y", pa.int64())])
    step = second.of(enrich().of("events", "table"), "second")
    check(step, {"events": of_events, "table": of_table, "second": of_second}, ())


@pytest.mark.parametrize("make", [tumbling, session])
def test_windows_of_pairs(make):
    """Several pairs have the same position in the log."""

    @given(events(size=6), events(size=6))
    @settings(max_examples=EXAMPLES, deadline=None)
    def run(left, right):
        columns = [*EVENT, ("oid", pa.int64()), ("z", pa.int64()), ("other_at", TIME)]
        step = window_step(make, "oid", columns, delay_s=1000).of(join().of("events", "others"))
        logs = {"events": left, "others": others(right)}
        check(step, logs, ("events", "others"))

    run()


@given(events(), changes(with_truncate=False), events())
@settings(max_examples=EXAMPLES, deadline=None)
def test_pairs_of_enriched_events(of_events, of_table, right):
    """The events of a join were enriched before."""
    columns = [*EVENT, *ROW[1:]]
    step = join()
    left = step.operator.left
    wider = tuple((name, name) for name, _ in columns)
    left = JoinSide(
        "left",
        left.time,
        left.key,
        left.hash_column,
        wider,
        left.is_outer,
        left.back_us,
        left.ahead_us,
    )
    names = (*(name for name, _ in columns), "_op", "_at")
    sources = [Source(pa.schema(columns), ("who",), names, left.time), step.sources[1]]
    output = result_schema((left, step.operator.right), [source.rows_schema for source in sources])
    operator = IntervalJoin(left, step.operator.right, step.operator.lateness, output)
    step = Step(operator, sources).of(enrich().of("events", "table"), "others")
    logs = {"events": of_events, "table": of_table, "others": others(right)}
    check(step, logs, ("events", "others"))
