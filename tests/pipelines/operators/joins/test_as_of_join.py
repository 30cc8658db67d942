"""Events joined with a table as it was, against a plain merge of the two logs."""

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import ADDED, Driver, Source
from tiers import examples

from headwater.pipelines.operators.joins.as_of_join import AsOfJoin
from headwater.pipelines.operators.joins.enrich import ValidFrom
from headwater.pipelines.operators.joins.tables import keyed_table
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE

DAY_US = 86_400_000_000
EVENTS = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("created", ADDED[1][1])])
TABLE = pa.schema([("name", pa.string()), ("city", pa.string()), ("since", ADDED[1][1])])
EVERYWHERE = ("t", READ_TO_END, READ_TO_HERE)


@pytest.fixture(scope="module", autouse=True)
def _small_deltas():
    """So that a few rows make a base, and versions go."""
    with mock.patch.object(keyed_table, "_LEAST_ROWS", 3):
        yield


def memory_directory() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def operator(*, is_inner=False, as_of=None, valid_from=None, is_stream=True, keep_us=0):
    names = ("id", "customer", "_op")
    schema = pa.schema([*EVENTS, *ADDED])
    output = pa.schema([*(schema.field(name) for name in names), pa.field("city", pa.string())])
    return AsOfJoin(
        output=output,
        events=names,
        event_key=("customer",),
        table_key=("name",),
        table=(TABLE.field("name"), TABLE.field("city")),
        columns=("city",),
        is_inner=is_inner,
        time=as_of or EventTime("_at", 0),
        is_log_time=as_of is None,
        valid_from=valid_from,
        keep_us=keep_us,
        is_stream=is_stream,
    )


def driver(directory: Path | None, **how) -> Driver:
    made = operator(**how, is_stream=directory is not None)
    since = ValidFrom("since", 0) if made.valid_from else EventTime("_at", 0)
    return Driver(
        made,
        [
            Source(EVENTS, ("customer",), ("id", "customer", "_op"), made.time),
            Source(
                TABLE,
                ("name",),
                ("name", "city", "since", "_op", "_at"),
                since,
                lambda row: row["_op"] in EVERYWHERE,
            ),
        ],
        directory,
        buckets=2,
    )


def event(number: int, customer: str | None, second: float, **more) -> dict:
    return {"id": number, "customer": customer, "_at": at(second), **more}


def change(name: str | None, city: str | None, second: float, op: str = "u", **more) -> dict:
    return {"name": name, "city": city, "_at": at(second), "_op": op, **more}


END = {"_op": READ_TO_END, "_at": None}
HERE = {"_op": READ_TO_HERE, "_at": None}
E0, E1, T0, T1 = ("events", 0), ("events", 1), ("table", 0), ("table", 1)


def cities(rows: list[dict]) -> dict[int, str | None]:
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["city"] for row in rows}


# A plain merge


def with_log_time(rows: list[dict]) -> list[tuple[datetime, int, dict]]:
    latest, found = None, []
    for offset, row in enumerate(rows):
        latest = row["_at"] if latest is None else max(latest, row["_at"])
        found.append((latest, offset, row))
    return found


def merged(events: dict, table: dict) -> dict[int, str | None]:
    """One change after another, one event after another, by their time in the log."""
    steps = []
    for partition, rows in table.items():
        steps += [(time, 0, offset, partition, row) for time, offset, row in with_log_time(rows)]
    for partition, rows in events.items():
        steps += [(time, 1, offset, partition, row) for time, offset, row in with_log_time(rows)]
    current: dict[str, tuple] = {}
    found = {}
    for time, is_event, _, partition, row in sorted(steps, key=lambda step: step[:4]):
        if is_event:
            found[row["id"]] = current.get(row["customer"], (None, None))[1]
        elif row["_op"] == "t":
            current = {
                name: version
                for name, version in current.items()
                if version[0] != partition and version[2] >= time
            }
        elif row["_op"] == "d":
            current.pop(row["name"], None)
        else:
            current[row["name"]] = partition, row["city"], time
    return found


NAMES = ["a", "b", "c", "d", "e"]
times = st.integers(0, 40)


@st.composite
def logs(draw):
    """Two partitions each; a name's changes are in one of them."""
    table: dict = {T0: [], T1: []}
    for number in range(draw(st.integers(0, 16))):
        name = draw(st.sampled_from(NAMES))
        op = draw(st.sampled_from(["u", "u", "u", "c", "d", "t"]))
        partition = T0 if name < "c" else T1
        row = change(name, f"{name}{number}", draw(times), op)
        if op == "t":
            row |= {"name": None, "city": None}
        table[partition].append(row)
    events: dict = {E0: [], E1: []}
    for number in range(draw(st.integers(0, 16))):
        partition = draw(st.sampled_from([E0, E1]))
        events[partition].append(event(number, draw(st.sampled_from([*NAMES, None])), draw(times)))
    if draw(st.booleans()):  # mostly in order, as logs are
        for rows in (*table.values(), *events.values()):
            rows.sort(key=lambda row: row["_at"])
    return events, table


def size_of(data, number: int, left: int) -> int:
    """The source gives each partition with unread records a share, so the first batch has all."""
    return left if number == 5 else data.draw(st.sampled_from([1 if number == 0 else 0, 2, 5, 16]))


def truthful(table: dict, read: dict, events: dict, events_read: dict) -> dict:
    """Whether each partition of the table may be called read to its end: what is left of it is
    later than any event that was read."""
    latest = [
        time
        for partition, rows in events.items()
        for time, offset, _ in with_log_time(rows)
        if offset < events_read[partition]
    ]
    may = {}
    for partition, rows in table.items():
        left = [time for time, offset, _ in with_log_time(rows) if offset >= read[partition]]
        may[partition] = not left or not latest or min(left) > max(latest)
    return may


@settings(max_examples=examples(50), deadline=None)
@given(logs(), st.data())
def test_whatever_is_read_first_events_find_what_was_then(both, data):
    events, table = both
    expected = merged(events, table)
    bounded = driver(None).batch(events, table)
    assert cities(bounded) == expected
    with memory_directory() as directory:
        streamed = driver(Path(directory))
        events_read, table_read = dict.fromkeys(events, 0), dict.fromkeys(table, 0)
        found: list[dict] = []
        for number in count():
            parts = []
            for rows, read in ((events, events_read), (table, table_read)):
                part = {}
                for partition, of_partition in rows.items():
                    left = len(of_partition) - read[partition]
                    size = size_of(data, number, left)
                    part[partition] = of_partition[read[partition] : read[partition] + size]
                    read[partition] += len(part[partition])
                parts.append(part)
            may = truthful(table, table_read, events, events_read)
            is_done = all(
                read[partition] == len(rows[partition])
                for rows, read in ((events, events_read), (table, table_read))
                for partition in rows
            )
            for partition in table:
                is_end = is_done or (may[partition] and data.draw(st.booleans()))
                parts[1][partition] = [*parts[1][partition], dict(END if is_end else HERE)]
            if data.draw(st.booleans()) and not is_done and not any(parts[0].values()):
                parts[0] = {}
            result = streamed.batch(*parts)
            if data.draw(st.booleans()):
                assert streamed.again() == result
            found += result
            if is_done:
                break
        assert cities(found) == expected
        assert streamed.counter("waiting") == 0
        assert streamed.counter("unmatched") == sum(city is None for city in expected.values())
        for partition, rows in events.items():  # in the order of the log
            ids = [row["id"] for row in rows]
            per_bucket: dict = {}
            for row in found:
                if row["id"] in ids:
                    per_bucket.setdefault(row["customer"], []).append(row["id"])
            for of_customer in per_bucket.values():
                assert of_customer == sorted(of_customer, key=ids.index), partition


def test_an_event_waits_while_the_table_has_unread_changes_older_than_it(tmp_path):
    join = driver(tmp_path)
    assert join.batch({E0: [event(1, "a", 10)]}, {T0: [change("a", "Rome", 1), HERE]}) == []
    assert join.counter("waiting") == 1
    assert join.batch({}, {T0: [change("a", "Oslo", 9), HERE]}) == []
    found = join.batch({}, {T0: [change("a", "Lima", 11), HERE]})
    assert cities(found) == {1: "Oslo"}
    assert join.counter("waiting") == 0


def test_of_changes_at_the_very_time_of_the_event_all_come_first(tmp_path):
    join = driver(tmp_path)
    assert join.batch({E0: [event(1, "a", 10)]}, {T0: [change("a", "Rome", 10), HERE]}) == []
    assert cities(join.batch({}, {T0: [change("a", "Oslo", 10), END]})) == {1: "Oslo"}


def test_one_partition_of_the_table_lags(tmp_path):
    join = driver(tmp_path)
    first = {T0: [change("a", "Rome", 50), END], T1: [change("c", "Oslo", 1), HERE]}
    assert join.batch({E0: [event(1, "a", 20), event(2, "c", 30)]}, first) == []
    found = join.batch({}, {T0: [END], T1: [change("c", "Lima", 29), END]})
    assert cities(found) == {1: None, 2: "Lima"}


def test_no_news_of_the_table_means_it_is_where_it_was(tmp_path):
    join = driver(tmp_path)
    join.batch({}, {T0: [change("a", "Rome", 1), END]})
    assert cities(join.batch({E0: [event(1, "a", 10)]}, {})) == {1: "Rome"}


def test_an_event_is_not_given_a_later_row(tmp_path):
    """The events are far behind: the table has been read to its end, a year ahead."""
    join = driver(tmp_path)
    rows = [change("a", "Rome", 1), change("a", "Oslo", 100), change("a", None, 200, "d"), END]
    join.batch({}, {T0: rows})
    found = join.batch({E0: [event(1, "a", 0), event(2, "a", 50), event(3, "a", 150)]}, {})
    assert cities(found) == {1: None, 2: "Rome", 3: "Oslo"}
    assert cities(join.batch({E0: [event(4, "a", 250)]}, {})) == {4: None}


def test_a_truncate_is_of_all_partitions_also_of_one_that_lags(tmp_path):
    join = driver(tmp_path)
    truncate = change(None, None, 50, "t")
    rows = {T0: [change("a", "Rome", 1), truncate, END], T1: [change("c", "Oslo", 1), HERE]}
    join.batch({E0: [event(1, "c", 100)]}, rows)
    late = {T1: [change("c", "Lima", 20), change("d", "Bonn", 60), HERE]}
    assert join.batch({E1: [event(2, "c", 100), event(3, "d", 101)]}, late) == []
    found = join.batch({E0: [event(4, "a", 110)]}, {T1: [END]})
    assert cities(found) == {1: None, 2: None, 3: "Bonn", 4: None}


def test_a_row_that_changes_its_key(tmp_path):
    join = driver(tmp_path)
    rows = [change("a", "Rome", 1), change("a", None, 10, "d"), change("b", "Rome", 10), END]
    join.batch({}, {T0: rows})
    found = join.batch({E0: [event(1, "a", 5), event(2, "a", 10), event(3, "b", 10)]}, {})
    assert cities(found) == {1: "Rome", 2: None, 3: "Rome"}


def test_inner_leaves_out_what_has_no_row_and_lets_stores_forget(tmp_path):
    join = driver(tmp_path, is_inner=True)
    join.batch({}, {T0: [change("a", "Rome", 1), END]})
    events = [
        event(1, "a", 5),
        event(2, "x", 5),
        event(3, "x", 5, _op="u"),
        event(4, None, 5, _op="d"),
    ]
    found = [(row["id"], row["_op"], row["city"]) for row in join.batch({E0: events}, {})]
    assert sorted(found) == [(1, "c", "Rome"), (3, "d", None), (4, "d", None)]
    assert join.counter("unmatched") == 3


# As of event time


def by_time(**how) -> dict:
    return {"as_of": EventTime("created", 2_000_000), "keep_us": 60_000_000, **how}


def dated(number: int, customer: str, second: float, created: float | None) -> dict:
    return event(number, customer, second, created=None if created is None else at(created))


def test_an_event_gets_the_version_of_its_own_time(tmp_path):
    join = driver(tmp_path, **by_time())
    join.batch({}, {T0: [change("a", "Rome", 1), change("a", "Oslo", 10), END]})
    events = [dated(1, "a", 100, 12), dated(2, "a", 101, 5), dated(3, "a", 102, 0)]
    assert cities(join.batch({E0: events}, {})) == {1: "Oslo", 2: "Rome", 3: None}


def test_an_event_too_old_for_the_retained_versions_finds_nothing(tmp_path):
    join = driver(tmp_path, **by_time())
    join.batch({}, {T0: [change("a", "Rome", 1), END]})
    events = [dated(1, "a", 1, 100), dated(2, "a", 2, 38), dated(3, "a", 3, 37.9)]
    events.append(dated(4, "a", 4, None))
    assert cities(join.batch({E0: events}, {})) == {1: "Rome", 2: "Rome", 3: None, 4: None}
    assert join.counter("too_old") == 1
    assert join.counter("without_time") == 1
    assert cities(
        driver(None, **by_time()).batch({E0: events}, {T0: [change("a", "Rome", 1)]})
    ) == {
        1: "Rome",
        2: "Rome",
        3: None,
        4: None,
    }


def test_versions_are_valid_from_what_a_column_says(tmp_path):
    join = driver(tmp_path, **by_time(valid_from="since"))
    rows = [
        change("a", "Rome", 100, since=None),
        change("a", "Oslo", 101, since=at(20)),
        change("a", "Lima", 102, since=at(500)),
        END,
    ]
    join.batch({}, {T0: rows})
    events = [dated(1, "a", 1, 1), dated(2, "a", 2, 20), dated(3, "a", 3, 50)]
    assert cities(join.batch({E0: events}, {})) == {1: "Rome", 2: "Oslo", 3: "Oslo"}


def test_a_row_published_ahead_does_not_mean_that_others_have_come(tmp_path):
    """Catching up: the price of next year stands before one that is valid from the day it came."""
    join = driver(tmp_path, **by_time(valid_from="since"))
    rows = [change("a", "Rome", 1, since=at(1)), change("b", "Oslo", 2, since=at(9999)), HERE]
    assert join.batch({E0: [dated(1, "a", 10, 10)]}, {T0: rows}) == []
    assert join.batch({}, {T0: [change("a", "Lima", 5, since=at(5)), HERE]}) == []
    found = join.batch({}, {T0: [change("a", "Bonn", 11, since=at(11)), HERE]})
    assert cities(found) == {1: "Lima"}
    assert cities(join.batch({E0: [dated(2, "b", 9999, 9999)]}, {T0: [END]})) == {2: "Oslo"}


def as_of(events: dict, table: dict, keep_s: float, delay_s: float) -> dict[int, str | None]:
    found = {}
    versions = [
        (time, offset, partition, row)
        for partition, rows in table.items()
        for time, offset, row in with_log_time(rows)
    ]
    for rows in events.values():
        latest = None
        for row in rows:
            created = row["created"]
            latest = created if latest is None else max(latest, created)
            valid = sorted(
                (time, offset, row_["_op"], row_["city"])
                for time, offset, partition, row_ in versions
                if time <= created
                and row_["name"] == row["customer"]
                and not any(
                    other["_op"] == "t"
                    and other_time <= created
                    and (
                        other_offset > offset if other_partition == partition else other_time > time
                    )
                    for other_time, other_offset, other_partition, other in versions
                )
            )
            is_there = bool(valid) and valid[-1][2] != "d"
            if created < latest - timedelta(seconds=keep_s + delay_s):
                is_there = False
            found[row["id"]] = valid[-1][3] if is_there else None
    return found


@settings(max_examples=examples(50), deadline=None)
@given(logs(), st.lists(times, min_size=25, max_size=25), st.data())
def test_as_of_event_time_a_replay_gives_the_same(both, created, data):
    events, table = both
    for rows in events.values():
        for row in rows:
            row["created"] = at(created[row["id"]])
    how = {"as_of": EventTime("created", 2_000_000), "keep_us": 10_000_000}
    expected = as_of(events, table, 10, 2)
    assert cities(driver(None, **how).batch(events, table)) == expected
    with memory_directory() as directory:
        streamed = driver(Path(directory), **how)
        found = []
        events_read, table_read = dict.fromkeys(events, 0), dict.fromkeys(table, 0)
        for number in count():
            parts = []
            for rows, read in ((events, events_read), (table, table_read)):
                part = {}
                for partition, of_partition in rows.items():
                    left = len(of_partition) - read[partition]
                    size = size_of(data, number, left)
                    part[partition] = of_partition[read[partition] : read[partition] + size]
                    read[partition] += len(part[partition])
                parts.append(part)
            is_done = all(
                read[partition] == len(rows[partition])
                for rows, read in ((events, events_read), (table, table_read))
                for partition in rows
            )
            for partition in table:
                is_end = table_read[partition] == len(table[partition])
                parts[1][partition] = [*parts[1][partition], dict(END if is_end else HERE)]
            result = streamed.batch(*parts)
            if data.draw(st.booleans()):
                assert streamed.again() == result
            found += result
            if is_done:
                break
        assert cities(found) == expected
