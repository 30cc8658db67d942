"""Nodes of incremental plans against the same step over the whole multisets, after every batch."""

import math
from collections import Counter, defaultdict
from datetime import timedelta
from decimal import Decimal
from itertools import cycle, groupby

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import START, Driver, Source
from tiers import examples

from headwater.errors import PipelineError, StateLost
from headwater.pipelines.position import POSITION
from headwater.pipelines.views.nodes import join as joins
from headwater.pipelines.views.nodes.aggregate import Aggregate, Call
from headwater.pipelines.views.nodes.deltas import WEIGHT, Multiset
from headwater.pipelines.views.nodes.moving_filter import Bound, MovingFilter
from headwater.pipelines.views.nodes.result import ResultChanges
from headwater.pipelines.views.nodes.top_rows import TopRows
from headwater.pipelines.views.nodes.upserts import Upserts
from headwater.pipelines.views.nodes.window_functions import Frame, SortKey, WindowCall
from headwater.pipelines.views.nodes.window_node import WindowFunctions

_KEYS = st.sampled_from([None, 1, 2, 3])
_FLOATS = st.sampled_from([None, 0.1, 0.2, -0.3, 1e300, -1e300, math.inf, -math.inf, math.nan])
_WHOLE = Frame(is_rows=True, lower=None, upper=None)


class Node:
    """An operator over deltas, with another number of buckets every now and then; `total` is what
    its results add up to.
    """

    def __init__(self, operator, schemas, keys, directory):
        sources = [
            Source(schema.append(pa.field(WEIGHT, pa.int64())), key, (*schema.names, WEIGHT))
            for schema, key in zip(schemas, keys, strict=True)
        ]
        self._driver = Driver(operator, sources, directory)
        self._buckets = cycle([3, 1, 1, 2, 5])
        self._names = [schema.names for schema in schemas]
        self.inputs = [Counter() for _ in schemas]
        self.total = Counter()

    def batch(self, *deltas, now=START):
        """Rows and weights of each input; a row is only removed as often as it is there."""
        given = []
        for names, total, delta in zip(self._names, self.inputs, deltas, strict=True):
            rows = []
            for row, wanted in delta:
                weight = max(wanted, -total[row])
                if weight:
                    total[row] += weight
                    rows.append({**dict(zip(names, row, strict=True)), WEIGHT: weight})
            given.append({("t", 0): rows} if rows else {})
        self._driver.rescale(next(self._buckets))
        for row in self._driver.batch(*given, now=now):
            weight = row.pop(WEIGHT)
            assert weight, "a row that does not change is not emitted"
            row.pop(POSITION)
            self.total[_comparable(row.values())] += weight
        self.total = +self.total | Counter({k: v for k, v in self.total.items() if v < 0})


class Span(dict):
    """A session: {"start": …, "end": …}."""

    def __hash__(self):
        return hash(tuple(self.values()))


def _comparable(values):
    def one(value):
        if isinstance(value, float) and math.isnan(value):
            return "NaN"
        if isinstance(value, dict):
            return Span(value)
        return tuple(value) if isinstance(value, list) else value

    return tuple(map(one, values))


def _deltas(rows):
    return st.lists(st.tuples(rows, st.integers(-2, 2).filter(bool)), max_size=8)


def _rounds(*rows):
    return st.lists(st.tuples(*(_deltas(row) for row in rows)), min_size=1, max_size=6)


_LEFT = pa.schema([("k", pa.int64()), ("a", pa.int64())])
_RIGHT = pa.schema([("j", pa.int64()), ("b", pa.int64())])
_PAIR = st.tuples(_KEYS, st.integers(0, 2))


@pytest.mark.parametrize(
    "how",
    [
        joins.INNER, joins.LEFT, joins.RIGHT, joins.FULL, joins.SEMI, joins.ANTI, joins.EXISTENCE,
    ],
)  # fmt: skip
@pytest.mark.parametrize("nullable", [False, True])
def test_joins(how, nullable, tmp_path_factory):
    @settings(max_examples=examples(100), deadline=None)
    @given(_rounds(_PAIR, _PAIR))
    def check(rounds):
        operator = joins.Join(
            joins.JoinSide(_LEFT, ("k",), (nullable,)),
            joins.JoinSide(_RIGHT, ("j",), (nullable,)),
            how,
        )
        directory = tmp_path_factory.mktemp("join") / "node"
        node = Node(operator, [_LEFT, _RIGHT], [("k",), ("j",)], directory)
        for deltas in rounds:
            node.batch(*deltas)
            assert node.total == _joined(*node.inputs, how, nullable)

    check()


def _joined(left, right, how, nullable):
    def match(one, other):
        return one[0] == other[0] and (nullable or one[0] is not None)

    left, right = +left, +right
    found = Counter()
    for one, times in left.items():
        partners = [other for other in right if match(one, other)]
        for other in partners if how in ("inner", "left", "right", "full") else ():
            found[(*one, *other)] += times * right[other]
        if not partners and how in ("left", "full"):
            found[(*one, None, None)] += times
        if (how == "semi" and partners) or (how == "anti" and not partners):
            found[one] += times
        if how == "existence":
            found[(*one, bool(partners))] += times
    if how in ("right", "full"):
        for other, times in right.items():
            if not any(match(one, other) for one in left):
                found[(None, None, *other)] += times
    return found


_GROUPED = pa.schema(
    [("g", pa.int64()), ("i", pa.int64()), ("d", pa.decimal128(10, 2)), ("f", pa.float64())]
)
_CALLS = (
    Call("count", None, pa.int64()),
    Call("count", "i", pa.int64()),
    Call("sum", "i", pa.int64()),
    Call("sum", "d", pa.decimal128(20, 2)),
    Call("sum", "f", pa.float64()),
    Call("avg", "i", pa.float64()),
    Call("min", "i", pa.int64()),
    Call("max", "d", pa.decimal128(10, 2)),
    Call("count", "i", pa.int64(), is_distinct=True),
    Call("sum", "i", pa.int64(), is_distinct=True),
    Call("collect_list", "i", pa.list_(pa.int64())),
)


@settings(max_examples=examples(320), deadline=None)
@given(
    _rounds(
        st.tuples(
            _KEYS,
            st.sampled_from([None, -5, 0, 7, 2**62]),
            st.sampled_from([None, Decimal("1.50"), Decimal("-99.99")]),
            _FLOATS,
        )
    )
)
def test_groups(tmp_path_factory, rounds):
    key = pa.schema([_GROUPED.field("g")])
    arguments = pa.schema([_GROUPED.field(name) for name in ("i", "d", "f")])
    operator = Aggregate(key, arguments, _CALLS)
    node = Node(operator, [_GROUPED], [("g",)], tmp_path_factory.mktemp("groups") / "node")
    for deltas in rounds:
        try:
            node.batch(*deltas)
        except PipelineError:
            assert _is_too_large(node.inputs[0])
            return
        assert node.total == _grouped(node.inputs[0])


def _by_group(rows):
    groups = defaultdict(list)
    for row, times in (+rows).items():
        groups[row[0]] += [row] * times
    return groups


def _is_too_large(rows):
    sums = [sum(row[1] or 0 for row in group) for group in _by_group(rows).values()]
    return any(abs(total) >= 2**63 - 8 * 2**32 or total >= 2**63 for total in sums)


def _grouped(rows):
    found = Counter()
    for key, group in _by_group(rows).items():
        i, d, f = ([row[at] for row in group if row[at] is not None] for at in (1, 2, 3))
        row = (
            key,
            len(group),
            len(i),
            sum(i) if i else None,
            sum(d) if d else None,
            _float_sum(f) if f else None,
            sum(i) / len(i) if i else None,
            min(i, default=None),
            max(d, default=None),
            len(set(i)),
            sum(set(i)) if i else None,
            tuple(sorted(i)),
        )
        found[_comparable(row)] = 1
    return found


def _float_sum(values):
    if any(math.isnan(v) for v in values) or {math.inf, -math.inf} <= set(values):
        return math.nan
    if any(math.isinf(v) for v in values):
        return next(v for v in values if math.isinf(v))
    return math.fsum(values) + 0.0


_WINDOWED = pa.schema([("p", pa.int64()), ("o", pa.int64()), ("v", pa.int64())])
_FRAME = Frame(is_rows=False, lower=None, upper=0)
_NEAR = Frame(is_rows=True, lower=-1, upper=1)
_WINDOW_CALLS = (
    WindowCall("row_number", None, pa.int32(), _WHOLE),
    WindowCall("rank", None, pa.int32(), _WHOLE),
    WindowCall("dense_rank", None, pa.int32(), _WHOLE),
    WindowCall("lag", "v", pa.int64(), _WHOLE, number=1),
    WindowCall("lead", "v", pa.int64(), _WHOLE, number=2),
    WindowCall("count", "v", pa.int64(), _FRAME),
    WindowCall("sum", "v", pa.int64(), _FRAME),
    WindowCall("max", "v", pa.int64(), _NEAR),
    WindowCall("min", "v", pa.int64(), _FRAME),
    WindowCall("first", "v", pa.int64(), _NEAR),
)


@settings(max_examples=examples(240), deadline=None)
@given(
    _rounds(
        st.tuples(st.sampled_from([None, 1]), st.integers(0, 3), st.sampled_from([None, 1, 2, 9]))
    )
)
def test_window_functions(tmp_path_factory, rounds):
    """Every row comes once, so that ORDER BY o, v has no ties but equal rows."""
    order = (SortKey("o", False, True), SortKey("v", True, False))
    operator = WindowFunctions(_WINDOWED, ("p",), order, _WINDOW_CALLS)
    node = Node(operator, [_WINDOWED], [("p",)], tmp_path_factory.mktemp("window") / "node")
    for deltas in rounds:
        node.batch(*deltas)
        assert node.total == _windowed(node.inputs[0])


def _windowed(rows):
    found = Counter()
    every = sorted(
        (+rows).elements(),
        key=lambda row: (repr(row[0]), row[1], row[2] is None, -(row[2] or 0)),
    )
    for _, partition in groupby(every, key=lambda row: row[0]):
        part = list(partition)
        ranks = [(row[1], row[2]) for row in part]
        for at, row in enumerate(part):
            first = ranks.index(ranks[at])
            last = len(ranks) - 1 - ranks[::-1].index(ranks[at])
            until = [one[2] for one in part[: last + 1] if one[2] is not None]
            near = part[max(at - 1, 0) : at + 2]
            present = [one[2] for one in near if one[2] is not None]
            found[
                (
                    *row,
                    at + 1,
                    first + 1,
                    len(dict.fromkeys(ranks[: at + 1])),
                    part[at - 1][2] if at else None,
                    part[at + 2][2] if at + 2 < len(part) else None,
                    len(until),
                    sum(until) if until else None,
                    max(present, default=None),
                    min(until, default=None),
                    near[0][2],
                )
            ] += 1
    return found


@pytest.mark.parametrize("function", ["row_number", "rank", "dense_rank"])
@settings(max_examples=examples(240), deadline=None)
@given(
    _rounds(
        st.tuples(st.sampled_from([None, 1]), st.integers(0, 3), st.sampled_from([None, 1, 2, 9]))
    ),
    st.integers(1, 4),
    st.booleans(),
)
def test_first_rows(tmp_path_factory, function, rounds, limit, is_partitioned):
    partition = ("p",) if is_partitioned else ()
    order = (SortKey("o", True, True), SortKey("v", False, False))
    operator = TopRows(_WINDOWED, partition, order, function, limit)
    node = Node(operator, [_WINDOWED], [partition], tmp_path_factory.mktemp("top") / "node")
    for deltas in rounds:
        node.batch(*deltas)
        found = Counter()
        for rows in _partitions(node.inputs[0], is_partitioned):
            orders = [(-row[1], row[2] is None, row[2] or 0) for row in rows]
            for at, (row, of_row) in enumerate(zip(rows, orders, strict=True)):
                numbers = {
                    "row_number": at + 1,
                    "rank": orders.index(of_row) + 1,
                    "dense_rank": len(set(orders[: at + 1])),
                }
                found[row] += numbers[function] <= limit
        # Of rows that only p tells apart, the order is that of their hashes.
        tell_apart = is_partitioned or function != "row_number"
        shown = [Counter(), Counter()]
        for counted, rows in zip(shown, (node.total, +found), strict=True):
            for row, times in rows.items():
                counted[row if tell_apart else row[1:]] += times
        assert shown[0] == shown[1]


def _partitions(rows, is_partitioned):
    every = sorted(
        (+rows).elements(),
        key=lambda row: (
            repr(row[0]) if is_partitioned else "", -row[1], row[2] is None, row[2] or 0
        ),
    )  # fmt: skip
    groups = groupby(every, key=lambda row: row[0] if is_partitioned else None)
    return [list(group) for _, group in groups]


def test_first_rows_read_their_partition_only_if_one_of_them_is_removed(tmp_path, monkeypatch):
    operator = TopRows(_WINDOWED, (), (SortKey("o", True, True),), "row_number", 2)
    node = Node(operator, [_WINDOWED], [()], tmp_path / "node")
    read = []
    of_keys = Multiset.of_keys

    def counted(stored, hashes):
        found = of_keys(stored, hashes)
        read.append(len(found[1]))
        return found

    monkeypatch.setattr(Multiset, "of_keys", counted)
    node.batch([((1, number, 0), 1) for number in range(5000)])
    read.clear()
    node.batch([((1, 17, 0), -1), ((1, 4000, 1), 1), ((1, 6000, 0), 1)])
    assert max(read) <= 2
    assert sorted(node.total) == [(1, 4999, 0), (1, 6000, 0)]
    node.batch([((1, 4999, 0), -1)])
    assert max(read) > 4000
    assert sorted(node.total) == [(1, 4998, 0), (1, 6000, 0)]


_TIME = pa.timestamp("us", "UTC")
_SPAN = pa.struct([("start", _TIME), ("end", _TIME)])
_SESSIONS = pa.schema([("p", pa.int64()), ("start", _TIME), ("s", _SPAN)])


@settings(max_examples=examples(240), deadline=None)
@given(
    _rounds(
        st.builds(
            lambda p, at, gap: (
                p,
                START + timedelta(seconds=at),
                Span(start=START + timedelta(seconds=at), end=START + timedelta(seconds=at + gap)),
            ),
            st.sampled_from([None, 1]),
            st.integers(0, 20),
            st.integers(1, 4),
        )
    )
)
def test_sessions_merge_and_split(tmp_path_factory, rounds):
    call = WindowCall("session", "s", _SPAN, _WHOLE)
    operator = WindowFunctions(_SESSIONS, ("p",), (SortKey("start", False, True),), (call,))
    node = Node(operator, [_SESSIONS], [("p",)], tmp_path_factory.mktemp("session") / "node")
    for deltas in rounds:
        node.batch(*deltas)
        assert node.total == _in_sessions(node.inputs[0])


def _in_sessions(rows):
    """By merging any two that overlap or touch, until there are none."""
    found = Counter()
    for row, weight in (+rows).items():
        start, end = row[2].values()
        is_larger = True
        while is_larger:
            near = [
                other[2]
                for other in +rows
                if other[0] == row[0] and other[2]["start"] <= end and start <= other[2]["end"]
            ]
            new = min(one["start"] for one in near), max(one["end"] for one in near)
            is_larger, (start, end) = new != (start, end), new
        found[*row, Span(start=start, end=end)] += weight
    return found


_TIMED = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
_NOBODY = (-1, None)  # in every batch, so that each is a batch of every bucket


@settings(max_examples=examples(240), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 15),
            _deltas(st.tuples(st.integers(0, 3), st.sampled_from([None, 0, 5, 10, 11, 30]))),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_conditions_on_now(tmp_path_factory, rounds):
    """From 5 s before its time until 10 s after it."""
    bounds = (Bound("at", 10_000_000, is_until=True), Bound("at", -5_000_000, is_until=False))
    operator = MovingFilter(_TIMED, bounds)
    directory = tmp_path_factory.mktemp("moving") / "node"
    node = Node(operator, [_TIMED], [("id", "at")], directory)
    now = START
    for passed_s, delta in rounds:
        now += timedelta(seconds=passed_s)
        rows = [
            ((number, None if at is None else START + timedelta(seconds=at)), weight)
            for (number, at), weight in delta
        ]
        node.batch([*rows, (_NOBODY, 1)], now=now)
        assert node.total == Counter(
            {
                (number, at): times
                for (number, at), times in node.inputs[0].items()
                if times
                and at is not None
                and at - timedelta(seconds=5) <= now < at + timedelta(seconds=10)
            }
        )


_TABLE = pa.schema([("id", pa.int64()), ("v", pa.int64())])


@settings(max_examples=examples(240), deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, 4), st.integers(0, 2), st.sampled_from("ccudt")), max_size=6
        ),
        min_size=1,
        max_size=6,
    )
)
def test_tables(tmp_path_factory, rounds):
    source = Source(_TABLE, ("id",), ("id", "v", "_op"), everywhere=lambda row: row["_op"] == "t")
    operator = Upserts("t", _TABLE, ("id",))
    driver = Driver(operator, [source], tmp_path_factory.mktemp("table") / "node")
    table, total = {}, Counter()
    for changes in rounds:
        rows = []
        for number, value, op in changes:
            rows.append({"id": number, "v": None if op == "d" else value, "_op": op})
            if op == "t":
                table.clear()
            elif op == "d":
                table.pop(number, None)
            else:
                table[number] = value
        for row in driver.batch({("t", 0): rows} if rows else {}):
            total[row["id"], row["v"]] += row[WEIGHT]
        assert +total == Counter(table.items())
        assert min(total.values(), default=0) >= 0


def _result(directory, *, is_unique):
    operator = ResultChanges(_TABLE, ("id",), is_unique)
    schema = _TABLE.append(pa.field(WEIGHT, pa.int64()))
    return Driver(operator, [Source(schema, ("id",), (*schema.names,))], directory)


@pytest.mark.parametrize("is_unique", [True, False])
def test_a_result_has_one_change_for_each_key(tmp_path, is_unique):
    driver = _result(tmp_path / "node", is_unique=is_unique)

    def batch(*rows):
        given = [{"id": number, "v": value, WEIGHT: weight} for number, value, weight in rows]
        found = driver.batch({("t", 0): given})
        return sorted((row["_op"], row["id"], row["v"]) for row in found)

    assert batch((1, 5, 1), (2, 6, 1)) == [("c", 1, 5), ("c", 2, 6)]
    assert batch((1, 5, -1), (1, 7, 1)) == [("u", 1, 7)]
    assert batch((1, 7, -1), (2, 6, -1), (2, 6, 1)) == [("d", 1, 7)]
    assert batch((1, 8, 1), (1, 9, 1), (1, 9, -1)) == [("c", 1, 8)]


def test_a_key_that_is_not_unique_is_an_error_that_names_it(tmp_path):
    driver = _result(tmp_path / "node", is_unique=False)
    driver.batch({("t", 0): [{"id": 1, "v": 5, WEIGHT: 1}]})
    with pytest.raises(PipelineError, match="two rows have id = 1"):
        driver.batch({("t", 0): [{"id": 1, "v": 6, WEIGHT: 1}]})


def test_a_row_that_is_removed_and_was_never_there_is_lost_state(tmp_path):
    operator = joins.Join(
        joins.JoinSide(_LEFT, ("k",), (False,)), joins.JoinSide(_RIGHT, ("j",), (False,)), "inner"
    )
    schemas = [schema.append(pa.field(WEIGHT, pa.int64())) for schema in (_LEFT, _RIGHT)]
    sources = [
        Source(schema, (key,), tuple(schema.names))
        for schema, key in zip(schemas, "kj", strict=True)
    ]
    driver = Driver(operator, sources, tmp_path / "node")
    with pytest.raises(StateLost, match="that is not there"):
        driver.batch({("t", 0): [{"k": 1, "a": 1, WEIGHT: -1}]}, {})
