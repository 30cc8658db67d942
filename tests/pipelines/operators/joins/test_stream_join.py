"""Stream–stream joins against two nested loops over the rows that are in time: whatever the cut
into batches, the interleaving of partitions, the order of arrival."""

import os
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import tiers
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import ADDED, START, Driver, Source

from headwater.pipelines.operators.joins.interval_join import IntervalJoin, JoinSide, result_schema
from headwater.pipelines.operators.runtime.naming import Built
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.operators.time.lateness import OF_SIDE, lateness_of
from headwater.pipelines.publishing.late_rows import LateRows

SECOND = 1_000_000
TIMESTAMP = pa.timestamp("us", "UTC")
HASH = "__hash"
SIDES = ("left", "right")


@pytest.fixture(autouse=True, scope="module")
def _without_waiting_for_the_disk():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(os, "fdatasync", lambda handle: None)
        yield


def at(seconds):
    return START + timedelta(seconds=seconds)


class Join:
    """Left rows {"key", "l", "left_at"}, right rows {"key", "r", "right_at"}; l and r
    identify rows. The key is one integer, or two strings whose hash is a bad one."""

    def __init__(
        self, before, after, how, directory, *, delay=0, idle=None, late="drop", strings=False
    ):
        key = ("name", "kind") if strings else ("key",)
        fields = [(name, pa.string() if strings else pa.int64()) for name in key]
        fields += [(HASH, pa.int64())] if strings else []
        sides, sources = [], []
        for name, number, time in (("left", "l", "left_at"), ("right", "r", "right_at")):
            columns = (*key, number, time)
            stamping = EventTime(time, delay * SECOND, None if idle is None else idle * SECOND)
            is_left = name == "left"
            side = JoinSide(
                name,
                time=stamping,
                key=key,
                hash_column=HASH if strings else "key",
                columns=tuple((column, column) for column in columns),
                is_outer=how in (name, "full"),
                back_us=(before if is_left else after) * SECOND,
                ahead_us=(after if is_left else before) * SECOND,
            )
            schema = pa.schema([*fields, (number, pa.int64()), (time, TIMESTAMP)])
            given = (*columns, "_op", "_at", *([HASH] if strings else []))
            sides.append(side)
            sources.append(Source(schema, key, given, stamping))
        output = result_schema(tuple(sides), [pa.schema([*s.schema, *ADDED]) for s in sources])
        operator = IntervalJoin(*sides, lateness_of(late, None), output)
        self.driver = Driver(operator, sources, directory)
        self.aside = []

    def batch(self, left=(), right=(), now=START):
        """By partition, or a list for partition 0; rows as (key, number, second)."""
        rows = []
        for topic, of_side in (("left", left), ("right", right)):
            parts = of_side if isinstance(of_side, dict) else {0: of_side}
            rows.append(
                {
                    (topic, part): [self._row(topic, row) for row in of_part]
                    for part, of_part in parts.items()
                    if of_part
                }
            )
        if not any(rows):
            return []
        found = self.driver.batch(*rows, now=now)
        self.aside += [
            row
            for state in self.driver.states.values()
            for table in [state.sides.get("late")]
            if table is not None
            for row in table.to_pylist()
        ]
        return found

    def rows_buffered(self):
        return sum(run["rows"] for run in self._runs())

    def runs(self):
        return len(self._runs())

    def _runs(self):
        documents = [state.document for state in self.driver.states.values()]
        return [
            run
            for document in documents
            for side in SIDES
            for run in document[f"{side}-kept"]["runs"]
        ]

    def _row(self, topic, row):
        key, number, second, *rest = row
        named = {topic[0]: number, f"{topic}_at": at(second), **(rest[0] if rest else {})}
        if isinstance(key, tuple):
            return {"name": key[0], "kind": key[1], HASH: 7, **named}
        return {"key": key, **named}


def numbers(rows):
    """Which left and right row each row of the result is of, in order."""
    return sorted(((row["l"], row["r"]) for row in rows), key=str)


def in_time(parts, delay):
    """The rows that are not late, by the rule as it is written: nothing but the own partition."""
    taken = []
    for rows in parts.values():
        latest = None
        for row in rows:
            latest = row[2] if latest is None else max(latest, row[2])
            if row[2] >= latest - delay:
                taken.append(row)
    return taken


def watermark(parts, delay):
    return min((max(row[2] for row in rows) - delay for rows in parts.values() if rows), default=-1)


def expected(left, right, before, after, how, left_end, right_end):
    """Nested loops. Ends: how far time has come."""

    def is_null(key):
        return key is None or (isinstance(key, tuple) and None in key)

    pairs = [
        (one[1], other[1])
        for one in left
        for other in right
        if one[0] == other[0] and not is_null(one[0])
        if one[2] - before <= other[2] <= one[2] + after
    ]
    alone = []
    if how in ("left", "full"):
        met = {one for one, _ in pairs}
        alone += [
            (row[1], None)
            for row in left
            if row[1] not in met and (is_null(row[0]) or row[2] + after < right_end)
        ]
    if how in ("right", "full"):
        met = {other for _, other in pairs}
        alone += [
            (None, row[1])
            for row in right
            if row[1] not in met and (is_null(row[0]) or row[2] + before < left_end)
        ]
    return sorted(pairs + alone, key=str)


HOWS = st.sampled_from(["inner", "left", "right", "full"])
INTEGERS = st.sampled_from([0, 1, 2, None])
SPANS = st.sampled_from([0, 1, 5, 12, 40, 60])
STRINGS = st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from(["x", "y"]))


@st.composite
def streams(draw, keys):
    """Rows of one side by partition, roughly in the order of time."""
    parts = {}
    number = 0
    for part in range(draw(st.integers(1, 3))):
        second = draw(st.integers(0, 20))
        parts[part] = []
        for key, step in draw(
            st.lists(st.tuples(keys, st.integers(-6, 9)), min_size=1, max_size=16)
        ):
            second = max(second + step, 0)
            parts[part].append((key, number, second))
            number += 1
    return parts


def cut(data, left, right, *, all_at_first):
    """Batches that take each partition's rows in order, and together all of them."""
    all_parts = [(side, part) for side, parts in enumerate((left, right)) for part in parts]
    remaining = {(side, part): list((left, right)[side][part]) for side, part in all_parts}
    is_first = all_at_first
    while any(remaining.values()):
        taken = ({}, {})
        left_over = [side_and_part for side_and_part in all_parts if remaining[side_and_part]]
        chosen = data.draw(st.sets(st.sampled_from(left_over), min_size=1))
        for side, part in all_parts if is_first else sorted(chosen):
            rows = remaining[side, part]
            count = data.draw(st.integers(1, 12))
            taken[side][part], remaining[side, part] = rows[:count], rows[count:]
        is_first = False
        yield taken


def examples(count):
    return settings(max_examples=tiers.examples(count), deadline=None)


@pytest.mark.parametrize("strings", [False, True])
@examples(40)
@given(data=st.data(), how=HOWS, before=SPANS, after=SPANS)
def test_any_cut_gives_what_nested_loops_give(strings, data, how, before, after):
    keys = STRINGS if strings else INTEGERS
    left, right = data.draw(streams(keys)), data.draw(streams(keys))
    delay = data.draw(st.integers(0, 8))
    wanted = expected(
        in_time(left, delay),
        in_time(right, delay),
        before,
        after,
        how,
        watermark(left, delay),
        watermark(right, delay),
    )
    with tempfile.TemporaryDirectory() as directory:
        join = Join(before, after, how, Path(directory), delay=delay, strings=strings)
        found = []
        for taken in cut(data, left, right, all_at_first=True):
            rows = join.batch(*taken)
            if rows and data.draw(st.booleans()):
                assert join.driver.again() == rows
            found += rows
    assert numbers(found) == wanted
    late = sum(map(len, (*left.values(), *right.values())))
    late -= len(in_time(left, delay)) + len(in_time(right, delay))
    assert join.driver.counter("late") == late
    whole = Join(before, after, how, None, delay=delay, strings=strings)
    assert numbers(whole.batch(left, right)) == wanted


@examples(40)
@given(data=st.data(), before=SPANS, after=SPANS)
def test_whatever_partitions_do_all_that_is_not_put_aside_is_joined(data, before, after):
    """Partitions that appear late, fall idle and wake: which rows are late then depends on the
    clock. But no row is lost uncounted, comes out alone and in a pair, or twice."""
    left, right = data.draw(streams(INTEGERS)), data.draw(streams(INTEGERS))
    with tempfile.TemporaryDirectory() as directory:
        join = Join(before, after, "full", Path(directory), delay=2, idle=5, late="side")
        found, now = [], 0
        for taken in cut(data, left, right, all_at_first=False):
            now += data.draw(st.integers(0, 9))
            found += join.batch(*taken, now=at(now))
    aside = {
        (row["__side"], row["l"] if row["__side"] == "left" else row["r"]) for row in join.aside
    }
    assert len(aside) == len(join.aside) == join.driver.counter("late")
    left_taken = [r for rows in left.values() for r in rows if ("left", r[1]) not in aside]
    right_taken = [r for rows in right.values() for r in rows if ("right", r[1]) not in aside]
    wanted = expected(left_taken, right_taken, before, after, "full", 10**9, 10**9)
    counts, all_wanted = Counter(numbers(found)), Counter(wanted)
    assert not counts - all_wanted
    assert all(None in pair for pair in all_wanted - counts)  # those that may still find some


# -- cases of the field


def test_a_click_before_its_search(tmp_path):
    join = Join(60, 3600, "inner", tmp_path)
    assert join.batch(right=[(1, 10, 95)]) == []
    rows = join.batch(left=[(1, 20, 100)])
    assert numbers(rows) == [(20, 10)]
    assert rows[0]["key"] == 1
    assert rows[0]["left_at"] == at(100)
    assert rows[0]["right_at"] == at(95)
    assert rows[0]["_op"] == "c"


def test_the_interval_has_both_ends(tmp_path):
    join = Join(10, 20, "inner", tmp_path, delay=100)
    join.batch(left=[(1, 0, 100)])
    right = [(1, number, second) for number, second in enumerate([89, 90, 100, 120, 121])]
    found = [numbers(join.batch(right=[row])) for row in right]
    assert found == [[], [(0, 1)], [(0, 2)], [(0, 3)], []]
    join.batch(right=[(2, 9, 100)])
    left = [(2, number, second) for number, second in enumerate([79, 80, 110, 111])]
    assert [numbers(join.batch(left=[row])) for row in left] == [[], [(1, 9)], [(2, 9)], []]


def test_all_pairs_of_duplicates(tmp_path):
    join = Join(5, 5, "full", tmp_path)
    join.batch(left=[(1, 0, 10), (1, 1, 10)])
    found = join.batch(right=[(1, 0, 10), (1, 1, 11), (1, 2, 11)])
    assert len(found) == 6
    assert numbers(join.batch(left=[(2, 9, 99)], right=[(3, 9, 99)])) == []


def test_unmatched_once_on_expiry(tmp_path):
    join = Join(0, 10, "left", tmp_path)
    assert join.batch(left=[(1, 0, 100), (2, 1, 100)], right=[(1, 0, 100)]) != []
    assert join.batch(left=[(9, 2, 500)]) == []  # its own input's time says nothing
    assert join.batch(right=[(8, 1, 110)]) == []  # one at 110 could still come
    rows = join.batch(right=[(8, 2, 111)])
    assert [(row["l"], row["r"], row["key"]) for row in rows] == [(1, None, 2)]
    assert rows[0]["_position"] == {"topic": "left", "partition": 0, "offset": 1}
    assert join.batch(right=[(8, 3, 200)]) == []


def test_rows_that_are_buffered_together_expire_one_by_one(tmp_path):
    join = Join(40, 40, "left", tmp_path)
    join.batch(left=[(1, n, 100 + n) for n in range(8)], right=[(9, 0, 100)])
    assert join.runs() == 1 + 1
    for n in range(3):
        assert numbers(join.batch(right=[(9, n, 141 + n)])) == [(n, None)]
    rest = [(3, None), (4, None), (5, None), (6, None), (7, 9)]  # the last one by its partner
    assert numbers(join.batch(right=[(1, 9, 147)])) == rest
    assert numbers(join.batch(right=[(9, 9, 200)])) == []


def test_unmatched_of_the_right_side_has_its_key(tmp_path):
    join = Join(0, 10, "full", tmp_path)
    join.batch(right=[(7, 0, 100)])
    rows = join.batch(left=[(1, 0, 101)])
    assert [(row["key"], row["l"], row["r"]) for row in rows] == [(7, None, 0)]


def test_null_keys_match_nothing_and_do_not_wait(tmp_path):
    join = Join(5, 5, "full", tmp_path)
    rows = join.batch(left=[(None, 0, 10)], right=[(None, 0, 10)])
    assert numbers(rows) == [(0, None), (None, 0)]
    inner = Join(5, 5, "inner", tmp_path / "inner")
    assert inner.batch(left=[(None, 0, 10)], right=[(None, 0, 10)]) == []


def test_nothing_expires_while_one_side_is_silent(tmp_path):
    join = Join(5, 5, "left", tmp_path)
    join.batch(right=[(9, 0, 0)])
    for second in range(0, 3600, 60):
        assert join.batch(left=[(1, second, second)]) == []
    rows = join.batch(right=[(1, 1, 3545)])
    assert len(rows) == 60
    assert [pair for pair in numbers(rows) if None not in pair] == [(3540, 1)]


def test_a_silent_side_that_is_idle_does_not_hold_the_other(tmp_path):
    join = Join(5, 5, "left", tmp_path, idle=60, late="side")
    join.batch(left=[(1, 0, 0)], right=[(9, 0, 0)])
    assert join.batch(left=[(1, 1, 50)], now=at(50)) == []
    rows = join.batch(left=[(1, 2, 120)], now=at(120))
    assert numbers(rows) == [(0, None), (1, None)]
    rows = join.batch(right=[(1, 1, 50), (1, 2, 120)], now=at(130))
    assert numbers(rows) == [(2, 2)]  # 50 comes too late for 1, which is out
    assert join.driver.counter("late") == 1


def test_one_partition_an_hour_ahead_loses_nothing(tmp_path):
    join = Join(30, 30, "full", tmp_path)
    ahead = [(n, 1000 + n, 3600 + n) for n in range(60)]
    slow = [(n, n, n) for n in range(60)]
    found = []
    for start in range(0, 60, 10):
        part = slice(start, start + 10)
        found += join.batch(left={0: slow[part], 1: ahead[part]}, right={1: slow[part]})
        found += join.batch(right={0: ahead[part]})
    assert join.driver.counter("late") == 0
    assert [pair for pair in numbers(found) if None in pair] == []
    assert len(found) == 120


def test_a_partner_from_a_partition_that_was_idle_is_late_once_the_row_is_out(tmp_path):
    join = Join(5, 5, "left", tmp_path, idle=10, late="side")
    join.batch(left=[(1, 0, 0)], right={0: [(9, 0, 0)], 1: [(9, 1, 0)]})
    join.batch(right={0: [(9, 2, 3)]}, now=at(10))
    assert numbers(join.batch(right={0: [(9, 3, 100)]}, now=at(30))) == [(0, None)]
    assert join.batch(right={1: [(1, 4, 2)]}, now=at(31)) == []
    assert join.driver.counter("late") == 1
    assert [(row["__side"], row["r"], row["__partition"]) for row in join.aside] == [
        ("right", 4, 1)
    ]


def test_late_rows_of_both_sides_are_put_aside_together(tmp_path):
    join = Join(5, 5, "full", tmp_path, late="side")
    join.batch(left=[(1, 0, 100), (1, 1, 50)], right=[(2, 0, 100), (2, 1, 60)])
    found = {(row["__side"], row.get("l"), row.get("r"), row["__cause"]) for row in join.aside}
    assert found == {("left", 1, None, "late"), ("right", None, 1, "late")}


def test_a_published_late_row_has_its_side(tmp_path):
    join = Join(5, 5, "inner", tmp_path, late="side")
    join.batch(left=[(1, 0, 100), (1, 1, 50)], right=[(1, 0, 100), (1, 2, 60)])
    publishing = LateRows(None, "clicks", (), tmp_path)
    operator = Built("join-1", 3, (("key",), ("key",)))
    found = [
        (topic, record.key, record.offset, dict(record.headers)["headwater.late.side"])
        for state in join.driver.states.values()
        for table in state.sides.values()
        for side in ("left", "right")
        for topic, _, record in publishing._records(
            operator, side, table.filter(pc.equal(table[OF_SIDE], side))
        )
    ]
    assert sorted(found) == [
        ("left", b'{"key":1}', 1, b"left"),
        ("right", b'{"key":1}', 1, b"right"),
    ]


def test_changes_of_rows_are_no_events(tmp_path):
    join = Join(5, 5, "inner", tmp_path)
    rows = join.batch(
        left=[(1, 0, 10, {"_op": "u"}), (1, 1, 10, {"_op": "d"}), (1, 2, 10, {"_op": "r"})],
        right=[(1, 0, 10)],
    )
    assert numbers(rows) == [(2, 0)]
    assert join.driver.counter("not_events") == 2


def test_the_later_row_gives_the_position(tmp_path):
    for number, batches in enumerate(
        [[((1, 0, 10), (1, 0, 12))], [((1, 0, 10), None), (None, (1, 0, 12))]]
    ):
        join = Join(5, 5, "inner", tmp_path / str(number))
        rows = []
        for left, right in batches:
            rows += join.batch(left=[left] if left else [], right=[right] if right else [])
        assert [row["_position"]["topic"] for row in rows] == ["right"]


def test_what_has_expired_is_removed(tmp_path):
    """Hours with an interval of two minutes: the state stays as large as some minutes are."""
    join = Join(60, 60, "full", tmp_path, delay=5)
    for start in range(0, 14_400, 600):
        rows = [(n % 5, n, n) for n in range(start, start + 600, 3)]
        join.batch(left=rows, right=[(key + 100, n, second) for key, n, second in rows])
        assert 0 < join.rows_buffered() < 2 * 60
        assert join.runs() < 3 * 2 * 10


def test_runs_that_become_one_keep_what_they_know(tmp_path):
    join = Join(0, 80, "left", tmp_path)
    join.batch(right=[(9, 99, 175)])
    for n in range(24):  # keys go down, so that rows change places when they are put together
        join.batch(left=[(100 - n, n, 100 + n // 3)])
        if n % 2:
            assert numbers(join.batch(right=[(100 - n, n, 175)])) == [(n, n)]
    assert any(run["level"] for run in join._runs())
    rows = join.batch(right=[(9, 100, 300)])
    assert sorted(row["l"] for row in rows if row["r"] is None) == list(range(0, 24, 2))
    assert len(rows) == 12


def test_many_small_batches_become_few_runs(tmp_path):
    join = Join(3600, 3600, "left", tmp_path)
    join.batch(right=[(9, 0, 0)])
    for n in range(100):
        join.batch(left=[(1, n, n)])
    assert join.rows_buffered() == 101
    assert {len(state.document["places"]) for state in join.driver.states.values()} == {2}
    assert join.runs() < 12
    assert len(join.batch(right=[(1, 1, 50)])) == 100
