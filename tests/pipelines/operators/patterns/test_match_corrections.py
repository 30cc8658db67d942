"""hw.match with late="correct": what is left is the matches of all rows in their order."""

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pipelines.operators.patterns.test_match_operator import (
    brief,
    brief_expected,
    cases,
    expected_rows,
)
from support.pipelines.event_log import (
    Net,
    at,
    cuts,
    late_ids,
    taken_and_late,
    watermark,
)
from support.pipelines.event_log import given as rows_of
from support.pipelines.pattern_driver import Matcher
from tiers import examples

from headwater.errors import StateLost


@st.composite
def late_logs(draw):
    """Rows in any order of time, so that most of them are late."""
    log, number = [], 0
    row = st.tuples(st.sampled_from("aab"), st.integers(0, 60))
    for _ in range(draw(st.integers(1, 2))):
        rows = draw(st.lists(row, min_size=8, max_size=14))
        numbers = range(number, number + len(rows))
        log.append(
            [{"name": k, "time": t, "id": n} for n, (k, t) in zip(numbers, rows, strict=True)]
        )
        number += len(rows)
    return log


OFTEN = st.sampled_from(
    ["A B", "A B+", "A+ B*", "A C*? B", "A | B C", "PERMUTE(A, B)", "A{1,2} B?", "A B*? C",
     "(A B?)+", "A {- C*? -} B", "A+? B+", "C* (A | B)"]
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(
    st.data(),
    st.one_of(cases(late_logs(), OFTEN), cases(late_logs())),
    st.sampled_from([0, 0, 5]),
    st.sampled_from([0, 4, 15, 100, 100]),
)
def test_any_cut_leaves_the_matches_of_all_rows_in_their_order(
    tmp_path_factory, data, case, delay, allowed
):
    log, pattern, arguments, reference = case
    taken, late = taken_and_late(log, delay, lambda time: time + 1 + allowed)
    now = watermark(log, delay)
    place = {
        row["id"]: (partition, offset)
        for partition, rows in enumerate(log)
        for offset, row in enumerate(rows)
    }
    expected = []
    for key in ("a", "b"):
        rows = [row for row in taken if row["name"] == key and row["time"] < now]
        rows.sort(key=lambda row: (row["time"], place[row["id"]]))
        found = reference.results(rows, now)
        expected += expected_rows(
            key, rows, found, arguments["rows_per_match"], arguments["timed_out"] is not None
        )
    directory = tmp_path_factory.mktemp("state")
    streamed = Matcher(directory, pattern, delay, "correct", allowed=allowed, **arguments)
    columns = [*(["over"] if arguments["timed_out"] else []), "id"]
    if arguments["rows_per_match"].startswith("ONE"):
        columns.remove("id")
    by_identity, by_number = Net(["name", "match_id", *columns]), Net(["name", "number", *columns])
    aside = []
    for share in data.draw(cuts(log, most=8, fewest=3)):
        if any(share):
            result = streamed.batch(rows_of(share))
            by_identity.apply(without_position(result))
            by_number.apply(without_position(result))
            aside += late_ids(streamed.driver)
            if any(row["_op"] == "d" for row in result):
                event("retracted")
            assert not data.draw(st.booleans()) or streamed.again() == result
    for net in (by_identity, by_number):
        assert compared(net.rows.values()) == brief_expected(expected)
    assert sorted(aside) == sorted(row["id"] for row in late)
    for row in by_identity.rows.values():
        if row["first"] is not None:
            partition, offset = place[row["first"]]
            assert row["match_id"] == f"events/{partition}/{offset}"
    at_once = Matcher(None, pattern, delay, "correct", allowed=allowed, **arguments)
    results = at_once.batch(rows_of(log))
    assert {(row["_op"], row["_mark"]) for row in results} <= {("c", "final")}
    assert compared(results) == brief_expected(expected)


def without_position(results):
    """In the order in which a store applies them."""
    rows = sorted(results, key=lambda row: row["_position"]["offset"])
    return [{name: value for name, value in row.items() if name != "_position"} for row in rows]


def compared(rows):
    ours = ("match_id", "_mark")
    return brief([{k: v for k, v in row.items() if k not in ours} for row in rows])


# ── what happens to which match ─────────────────────────────────────────────────────────────────

DIP = {
    "define": {"B": "price < PREV(price)"},
    "measures": {"first": "FIRST(id)", "last": "LAST(id)", "number": "MATCH_NUMBER()"},
}
ORDERS = {
    "define": {"A": "price = 1", "B": "price = 2"},
    "measures": {"first": "FIRST(id)", "last": "LAST(id)"},
    "within": "10 seconds",
    "timed_out": "over",
}
PAID = "A X*? B"


class Stream:
    """One partition: (time, price) of key a; ids are given in turn."""

    def __init__(self, matcher):
        self.matcher = matcher
        self._ids = 0

    def batch(self, *rows, name="a"):
        """(op, mark, first, last) of the results."""
        given = []
        for time, price in rows:
            given.append({"name": name, "time": at(time), "id": self._ids, "price": price})
            self._ids += 1
        results = self.matcher.batch({("t", 0): given})
        return [(row["_op"], row["_mark"], row["first"], row["last"]) for row in results]

    def advance(self, time):
        """A row of another key, which begins no match."""
        return self.batch((time, 0), name="other")

    def counter(self, name):
        return self.matcher.driver.counter(name)


@pytest.fixture
def dips(tmp_path):
    return Stream(Matcher(tmp_path, "A B+", late="correct", allowed=100, **DIP))


@pytest.fixture
def orders(tmp_path):
    return Stream(Matcher(tmp_path, PAID, late="correct", allowed=100, **ORDERS))


def test_a_late_row_between_the_rows_of_a_match_takes_it_back(dips):
    assert dips.batch((10, 5), (20, 4), (30, 9), (31, 0)) == [("c", "final", 0, 1)]
    assert dips.batch((15, 3)) == [
        ("d", "correction", 0, 1),
        ("c", "correction", 0, 4),  # 5 and 3: then 4 is above
    ]
    assert dips.counter("retracted") == 1
    assert dips.counter("matches") == 1


def test_matches_that_a_late_row_does_not_change_are_not_emitted_again(dips):
    assert dips.batch((10, 5), (20, 4), (30, 9), (40, 8), (50, 9), (60, 9)) == [
        ("c", "final", 0, 1),
        ("c", "final", 2, 3),
    ]
    assert dips.batch((55, 9)) == []
    assert dips.batch((45, 7)) == [("d", "correction", 2, 3), ("c", "correction", 2, 7)]


def test_late_rows_shift_the_numbers_of_later_matches(dips):
    dips.batch((30, 5), (40, 4), (50, 9), (60, 8), (70, 9), (71, 9))
    results = dips.matcher.batch(
        {("t", 0): [{"name": "a", "time": at(n), "id": 100 + n, "price": 4 - n} for n in (1, 2)]}
    )
    assert [(row["_op"], row["number"], row["first"]) for row in results] == [
        ("d", 1, 0), ("d", 2, 2), ("c", 1, 101), ("c", 2, 0), ("c", 3, 2),
    ]  # fmt: skip


def test_an_order_that_was_unpaid_is_paid_after_all(orders):
    orders.batch((10, 1))
    assert orders.advance(30) == [("c", "final", 0, 0)]
    assert orders.batch((18, 2)) == [("d", "correction", 0, 0), ("c", "correction", 0, 2)]


def test_a_late_first_row_makes_a_match_of_rows_that_were_in_none(orders):
    orders.batch((10, 2), (20, 2), (30, 0))
    assert orders.batch((9, 1)) == [("c", "correction", 3, 0)]
    assert orders.batch((19, 1)) == [("c", "correction", 4, 1)]


def test_a_late_row_can_continue_an_attempt_that_still_waits(orders):
    orders.batch((100, 1), (104, 0))
    assert orders.batch((102, 2)) == [("c", "correction", 0, 2)]
    assert orders.batch((103, 1)) == []
    assert orders.batch((109, 2), (110, 0)) == [("c", "final", 3, 4)]


def test_what_is_later_than_allowed_is_put_aside(orders):
    orders.batch((200, 0))
    assert orders.batch((99, 1), (100, 1), (101, 2), (201, 0)) == [("c", "correction", 2, 3)]
    assert orders.counter("late") == 1
    assert late_ids(orders.matcher.driver) == [1]


def test_rows_are_stored_until_no_late_row_can_be_before_them(orders):
    for time in range(0, 1000, 10):
        orders.batch((time, 1), (time + 1, 2))
    assert orders.counter("matches") == 99
    assert 20 <= orders.counter("rows") <= 45  # of 200: those of the last 100 to 200 seconds
    orders.advance(2000)
    orders.advance(3000)
    assert (orders.counter("keys"), orders.counter("rows")) == (0, 0)
    assert orders.counter("matches") == 100


def test_without_late_rows_results_are_those_of_rows_that_are_dropped_when_late(tmp_path):
    rows = [(time, (time * 7) % 5) for time in range(0, 300, 3)]
    corrected = Stream(Matcher(tmp_path / "a", PAID, late="correct", allowed=20, **ORDERS))
    dropped = Matcher(tmp_path / "b", PAID, **ORDERS)
    found = []
    for first in range(0, len(rows), 7):
        found += corrected.batch(*rows[first : first + 7])
    at_once = dropped.batch(
        {("t", 0): [
            {"name": "a", "time": at(time), "id": number, "price": price}
            for number, (time, price) in enumerate(rows)
        ]}
    )  # fmt: skip
    assert found == [("c", "final", row["first"], row["last"]) for row in at_once]
    assert len(found) > 5


def test_state_serves_a_shorter_lateness_but_no_longer_one(tmp_path):
    def stream(allowed, late="correct"):
        matcher = Matcher(tmp_path / "state", PAID, late=late, allowed=allowed, **ORDERS)
        return Stream(matcher)

    first = stream(100)
    first.batch((10, 1), (12, 0))
    shorter = stream(50)
    shorter.matcher.driver._numbers = first.matcher.driver._numbers
    assert shorter.batch((13, 2), (14, 0)) == [("c", "final", 0, 0)]
    for other in (stream(100), stream(0, "drop")):
        other.matcher.driver._numbers = first.matcher.driver._numbers
        with pytest.raises(StateLost):
            other.batch((15, 2))
