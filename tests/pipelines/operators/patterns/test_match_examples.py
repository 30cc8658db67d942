"""Well-known patterns, with the results that the standard's semantics give: V-shapes, quantifiers,
skip modes, empty and unmatched rows, exclusion, running and final measures; and deadlines.
"""

import pytest
from support.pipelines.event_log import at, seconds
from support.pipelines.pattern_driver import Matcher, events

from headwater.errors import PipelineError, StateLost

DOWN_UP = {"DOWN": "price < PREV(price)", "UP": "price > PREV(price)"}
TICKER = [12, 17, 19, 21, 25, 12, 15, 20, 24, 25, 19, 15, 25, 25, 14, 12, 14, 24, 23, 22]


def matched(pattern, prices, *columns, step=1, **arguments):
    """The measures of each match, in order."""
    found = Matcher(None, pattern, **arguments).batch(events(prices, step=step))
    return [tuple(row[name] for name in columns) for row in found if row["name"] == "a"]


def test_a_v_shape():
    """The example of all textbooks: a fall, and the rise after it."""
    found = matched(
        "STRT DOWN+ UP+",
        TICKER,
        "number",
        "begun",
        "bottom",
        "end",
        define=DOWN_UP,
        measures={
            "number": "MATCH_NUMBER()",
            "begun": "STRT.id",
            "bottom": "FINAL LAST(DOWN.id)",
            "end": "FINAL LAST(UP.id)",
        },
    )
    # 25→12→25 (4 to 9), and the next begins behind it: 19→15→25 (10 to 12), 25→12→24 (13 to 17)
    assert found == [(1, 4, 5, 9), (2, 10, 11, 12), (3, 13, 15, 17)]


def test_a_v_shape_that_begins_where_the_last_one_ended():
    found = matched(
        "STRT DOWN+ UP+",
        TICKER,
        "begun",
        "end",
        define=DOWN_UP,
        measures={"begun": "STRT.id", "end": "LAST(UP.id)"},
        after_match="AFTER MATCH SKIP TO LAST UP",
    )
    assert found == [(4, 9), (9, 12), (13, 17)]


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [
        ("A+", [(0, 2), (4, 5)]),
        ("A+?", [(0, 0), (1, 1), (2, 2), (4, 4), (5, 5)]),
        ("A{2}", [(0, 1), (4, 5)]),
        ("A{2,}", [(0, 2), (4, 5)]),
        ("A{1,2}", [(0, 1), (2, 2), (4, 5)]),
        ("A{1,2}?", [(0, 0), (1, 1), (2, 2), (4, 4), (5, 5)]),
        ("A B", [(2, 3), (5, 6)]),
        ("A? B", [(2, 3), (5, 6)]),
        ("A?? B", [(2, 3), (5, 6)]),
        ("B A{,2}", [(3, 5), (6, 6)]),
        ("B (A*?)*", [(3, 5), (6, 6)]),  # a repetition of none is no repetition
        ("B ((A?)* | C)*", [(3, 5)]),
        ("(A | A A) B", [(1, 3), (4, 6)]),
        ("(A A | A)", [(0, 1), (2, 2), (4, 5)]),
        ("(A | A A)", [(0, 0), (1, 1), (2, 2), (4, 4), (5, 5)]),
        ("PERMUTE(A, B)", [(2, 3), (5, 6)]),
        ("(A B)+ C", [(5, 7)]),
    ],
)
def test_quantifiers_and_alternation(pattern, rows):
    """Rows a a a b a a b c: which rows each match has."""
    found = matched(
        pattern,
        [1, 1, 1, 2, 1, 1, 2, 3],
        "first",
        "last",
        define={
            variable: f"price = {price}"
            for variable, price in (("A", 1), ("B", 2), ("C", 3))
            if variable in pattern
        },
        measures={"first": "FIRST(id)", "last": "LAST(id)"},
    )
    assert found == rows


@pytest.mark.parametrize(
    ("skip", "rows"),
    [
        ("SKIP PAST LAST ROW", [(0, 2), (3, 5)]),
        ("SKIP TO NEXT ROW", [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6)]),
        ("SKIP TO FIRST B", [(0, 2), (1, 3), (2, 4), (3, 5), (4, 6)]),
        ("SKIP TO LAST B", [(0, 2), (2, 4), (4, 6)]),
        ("SKIP TO B", [(0, 2), (2, 4), (4, 6)]),
        ("SKIP TO LAST U", [(0, 2), (2, 4), (4, 6)]),
    ],
)
def test_where_the_search_goes_on(skip, rows):
    found = matched(
        "A B B",
        [1, 1, 1, 1, 1, 1, 1],
        "first",
        "last",
        subset={"U": ["A", "B"]},
        measures={"first": "FIRST(id)", "last": "LAST(id)"},
        after_match=skip,
    )
    assert found == rows


def test_empty_matches_and_unmatched_rows():
    prices = [1, 2, 1, 3]
    define = {"A": "price = 1"}
    measures = {"number": "MATCH_NUMBER()", "variable": "CLASSIFIER()", "n": "count(A.id)"}
    columns = ("id", "number", "variable", "n")

    def found(pattern, mode):
        return matched(
            pattern, prices, *columns, define=define, measures=measures, rows_per_match=mode
        )

    shown = [(0, 1, "A", 1), (1, 2, None, 0), (2, 3, "A", 1), (3, 4, None, 0)]
    assert found("A*", "ALL ROWS PER MATCH SHOW EMPTY MATCHES") == shown
    assert found("A*", "ALL ROWS PER MATCH") == shown
    assert found("A*", "ALL ROWS PER MATCH OMIT EMPTY MATCHES") == [shown[0], shown[2]]
    assert found("A", "ALL ROWS PER MATCH WITH UNMATCHED ROWS") == [
        (0, 1, "A", 1),
        (1, None, None, None),
        (2, 2, "A", 1),
        (3, None, None, None),
    ]
    one = matched(
        "A*", prices, "number", "n", define=define, measures=measures,
    )  # fmt: skip
    assert one == [(1, 1), (2, 0), (3, 1), (4, 0)]


def test_running_and_final_measures_and_exclusion():
    found = matched(
        "A {- B -} C+",
        [5, 6, 7, 8, 0],
        "id",
        "variable",
        "running",
        "final",
        "of_c",
        define={"C": "price > PREV(price)"},
        measures={
            "variable": "CLASSIFIER()",
            "running": "sum(price)",
            "final": "FINAL sum(price)",
            "of_c": "RUNNING LAST(C.price)",
        },
        rows_per_match="ALL ROWS PER MATCH",
    )
    assert found == [
        (0, "A", 5, 26, None),
        (2, "C", 18, 26, 7),
        (3, "C", 26, 26, 8),
    ]


def test_navigation_inside_of_a_match():
    found = matched(
        "A B B B",
        [10, 20, 30, 40, 50],
        *("first_b", "second_b", "last_but_one", "before", "after", "prev_of_first", "none"),
        measures={
            "first_b": "FIRST(B.price)",
            "second_b": "FIRST(B.price, 1)",
            "last_but_one": "LAST(B.price, 1)",
            "before": "PREV(B.price, 2)",
            "after": "NEXT(B.price)",
            "prev_of_first": "PREV(FIRST(A.price))",
            "none": "LAST(B.price, 3)",
        },
    )
    assert found == [(20, 30, 30, 20, 50, None, None)]


def test_conditions_over_other_rows():
    arguments = {"measures": {"first": "FIRST(id)", "last": "LAST(id)"}}

    def rows(pattern, prices, **define):
        return matched(pattern, prices, "first", "last", define=define, **arguments)

    # The sum so far, the row itself included.
    assert rows("A B+", [1, 2, 3, 9, 1], B="sum(B.price) <= 5") == [(0, 2)]
    # The last row of another variable.
    assert rows("A X* B", [5, 9, 9, 5, 1], X="price <> A.price", B="price = A.price") == [(0, 3)]
    # The row that follows.
    assert rows("A B", [1, 2, 3, 2], A="NEXT(price) > price", B="NEXT(price) < price") == [(1, 2)]
    # A variable that has no row yet is null, and null is not true.
    assert rows("A B", [1, 2], A="B.price < 5", B="price > 0") == []
    assert rows("A B", [1, 2], A="B.price IS NULL", B="price > 0") == [(0, 1)]
    assert rows("A B", [1, 2], A="NOT (B.price > 5)", B="price > 0") == []
    assert rows(
        "A B+ C", [3, 1, 2, 9], B="price < 5 AND CLASSIFIER() = 'B'", C="price > 3 * A.price - 1"
    ) == [(0, 3)]
    case = "CASE WHEN PREV(price) IS NULL THEN true ELSE price % PREV(price) = 0 END"
    assert rows("A{3}", [2, 4, 8, 9], A=case) == [(0, 2)]
    assert rows("A{2}", [2, 4, 8], A="price BETWEEN PREV(price) AND 5 OR PREV(price) IN (9)") == []
    # To Python 1 and true are equal: each condition is its own.
    assert rows("A B", [1, 1], B="PREV(price) = 1") == [(0, 1)]
    assert rows("A B", [1, 1], B="(PREV(price) > 0) = true") == [(0, 1)]
    assert rows("A B", [2, 4], B="coalesce(PREV(price, 5), -abs(-A.price)) = -2") == [(0, 1)]


def test_a_key_begins_only_once(tmp_path):
    assert matched("^ A", [1, 2], "first", measures={"first": "FIRST(id)"}) == [(0,)]
    matcher = Matcher(tmp_path, "^ A", measures={"first": "FIRST(id)"})
    found = matcher.batch(events([1]))
    rows = [{"name": "a", "time": at(10_000), "id": 5, "price": 1}]
    found += matcher.batch({("t", 0): [*rows, {**rows[0], "name": "other", "time": at(20_000)}]})
    assert [row["first"] for row in found if row["name"] == "a"] == [0]


def test_a_deadline_waits_for_rows_before_it_that_look_ahead(tmp_path):
    define = {"A": "price = 1", "B": "NEXT(price) > price"}
    arguments = {"define": define, "within": "3 seconds", "timed_out": "over"}
    rows = [("a", 0, 1), ("a", 2, 2), ("b", 10, 0), ("a", 20, 3), ("b", 30, 0)]
    rows = [
        {"name": name, "time": at(time), "id": time, "price": price} for name, time, price in rows
    ]
    matcher = Matcher(tmp_path, "A B", **arguments)
    found = [one for row in rows for one in matcher.batch({("t", 0): [row]})]
    assert [(row["over"], seconds(row["event_time"])) for row in found] == [(False, 20)]
    assert Matcher(None, "A B", **arguments).batch({("t", 0): rows}) == found


# ── deadlines ───────────────────────────────────────────────────────────────────────────────────

PAID = {
    "define": {"A": "price = 1", "B": "price = 2"},
    "measures": {"first": "A.id", "last": "B.id"},
    "within": "10 seconds",
    "timed_out": "over",
}


def test_what_did_not_complete_is_a_row_when_its_time_is_over():
    found = Matcher(None, "A X*? B", **PAID).batch(events([1, 3, 3, 2, 1, 3, 3], step=4))
    assert [
        (row["first"], row["last"], row["over"], seconds(row["event_time"])) for row in found
    ] == [
        (0, None, True, 10),  # the row 3 came at 12
        (4, None, True, 26),
    ]


def test_a_row_at_the_deadline_is_in_time():
    found = Matcher(None, "A X*? B", **PAID).batch(events([1, 3, 2], step=5))
    assert [(row["first"], row["last"], row["over"]) for row in found] == [(0, 2, False)]


def test_a_deadline_comes_without_rows_of_its_key(tmp_path):
    matcher = Matcher(tmp_path, "A X*? B", buckets=3, **PAID)

    def batch(time, name, price):
        rows = [{"name": name, "time": at(time), "id": time, "price": price}]
        return [row["first"] for row in matcher.batch({("t", 0): rows})]

    assert batch(0, "a", 1) == []
    assert batch(5, "b", 1) == []
    assert matcher.driver.counter("keys") == 1  # of a; the watermark has not passed b
    assert batch(10, "c", 0) == []
    assert batch(11, "c", 0) == [0]
    assert batch(30, "c", 0) == [5]
    assert matcher.driver.counter("timed_out") == 2
    assert matcher.driver.counter("keys") == 0
    assert matcher.driver.counter("rows") == 0


def test_a_greedy_match_is_given_when_no_row_can_make_it_longer():
    arguments = {
        "define": {"A": "price = 1"},
        "measures": {"last": "LAST(id)"},
        "within": "10 seconds",
    }
    found = Matcher(None, "A+", **arguments).batch(events([1, 1, 1]))
    assert [(row["last"], seconds(row["event_time"])) for row in found] == [(2, 10)]
    found = Matcher(None, "A+", **arguments).batch(events([1, 1, 0]))
    assert [(row["last"], seconds(row["event_time"])) for row in found] == [(1, 2)]


def test_steps_have_deadlines_of_their_own():
    import headwater as hw

    pattern = (
        hw.pattern()
        .begin("a", where="price = 1")
        .then("b", where="price = 2", within="10 seconds")
        .then("c", where="price = 3", within="20 seconds")
    )
    measures = {"first": "a.id", "middle": "b.id", "last": "c.id", "rows": "count(*)"}

    def found(prices):
        matcher = Matcher(None, pattern, measures=measures, timed_out="over")
        rows = matcher.batch(events(prices, step=4))
        return [
            (row["middle"], row["last"], row["over"], seconds(row["event_time"])) for row in rows
        ]

    assert found([1, 0, 2, 0, 3]) == [(2, 4, False, 16)]
    assert found([1, 0, 0, 2, 3]) == [(None, None, True, 10)]
    assert found([1, 2, 0, 0, 0, 0, 0, 3]) == [(1, None, True, 24)]


def test_what_does_not_follow():
    import headwater as hw

    start = hw.pattern().begin("a", where="price = 1")
    absent = start.not_followed_by("b", where="price = 2", within="10 seconds")
    found = Matcher(None, absent, measures={"first": "a.id"}).batch(
        events([1, 0, 2, 1, 0, 0, 2], step=4)
    )
    assert [(row["first"], seconds(row["event_time"])) for row in found] == [(3, 22)]
    between = start.not_followed_by("b", where="price = 2").then("c", where="price = 3")
    arguments = {
        "measures": {"first": "a.id", "last": "c.id", "variable": "CLASSIFIER()"},
        "rows_per_match": "ALL ROWS PER MATCH",
        "within": "1 hour",
    }
    found = Matcher(None, between, **arguments).batch(events([1, 2, 3, 1, 0, 3]))
    assert [(row["id"], row["variable"], row["last"]) for row in found] == [
        (3, "a", None),
        (5, "c", 5),
    ]
    strict = start.next("b", where="price = 2", times="+").next("c", where="price = 3")
    assert [row["rows"] for row in Matcher(
        None, strict, measures={"rows": "count(*)"}
    ).batch(events([1, 0, 2, 3, 1, 2, 2, 3]))] == [4]  # fmt: skip


# ── state ───────────────────────────────────────────────────────────────────────────────────────


def test_a_key_that_no_match_can_begin_in_takes_no_space(tmp_path):
    matcher = Matcher(tmp_path, "A B", buckets=1, define={"A": "price = 1", "B": "price = 2"})
    matcher.batch(events([0, 0, 2, 3]))
    assert (matcher.driver.counter("keys"), matcher.driver.counter("rows")) == (0, 0)
    rows = [{"name": "a", "time": at(t), "id": t, "price": 1} for t in (20_000, 30_000)]
    matcher.batch({("t", 0): rows})
    assert (matcher.driver.counter("keys"), matcher.driver.counter("rows")) == (1, 1)


def test_other_settings_do_not_take_over_the_state(tmp_path):
    Matcher(tmp_path, "A B", buckets=1).batch(events([1, 2]))
    other = Matcher(tmp_path, "A B B", buckets=1)
    other.driver._numbers = iter([1, 2])
    with pytest.raises(StateLost, match=r"the state of hw.match is that of another one"):
        other.batch(events([1, 2]))


def test_a_pattern_with_too_many_ways_is_an_error(monkeypatch):
    monkeypatch.setattr("headwater.pipelines.operators.patterns.matching.attempt.MOST_THREADS", 100)
    with pytest.raises(PipelineError, match="more than 100 partial matches"):
        Matcher(None, "(A | B)* C", define={
            "A": "price >= FIRST(price)", "C": "price > 5",
        }).batch(events([1] * 20))  # fmt: skip
    # Conditions on the row alone: ways that have the same future are one.
    assert Matcher(None, "(A | B)* C", define={"A": "price > 0", "C": "price > 5"}).batch(
        events([1] * 200)
    ) == []  # fmt: skip


def test_values_that_do_not_fit_are_an_error_of_ours():
    with pytest.raises(PipelineError, match="the condition of B cannot be decided"):
        matched("A B", [1, 2], "x", define={"B": "PREV(price) < 'x'"})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, [[1, 2, 3]]),
        ({"timed_out": "over"}, [[1, 2, 3], [4, 5]]),
        ({"rows_per_match": "ALL ROWS PER MATCH"}, [[1, 2, 3]] * 3),
        (
            {"rows_per_match": "ALL ROWS PER MATCH WITH UNMATCHED ROWS"},
            [[0], [1, 2, 3], [1, 2, 3], [1, 2, 3], [4], [5]],
        ),
    ],
)
def test_a_result_comes_from_the_rows_of_its_match(arguments, expected):
    define = {"A": "price = 1", "B": "price = 2"}
    matcher = Matcher(None, "A X*? B", define=define, within="1 hour", **arguments)
    matcher.batch(events([0, 1, 3, 2, 1, 0]))
    results = [row for row in matcher.driver.again() if row["name"] == "a"]
    found = [matcher.driver.lineage([row])[0] for row in results]
    assert [[row["id"] for row in rows] for rows in found] == expected


# ── one row in a batch ──────────────────────────────────────────────────────────────────────────

ONE_BY_ONE = [
    ("A X*? B", {"define": {"A": "price = 1", "B": "price = 2"}, "within": "6 seconds",
                 "timed_out": "over"}),
    ("A+ B", {"define": {"A": "price > PREV(price)", "B": "price < PREV(price)"}}),
    ("A B", {"define": {"A": "price < PREV(price, 3)"}}),
    ("A B", {"define": {"A": "NEXT(price) > price", "B": "NEXT(price, 2) < price"},
             "within": "3 seconds", "timed_out": "over"}),
    ("A+ B", {"define": {"A": "price < 3", "B": "price > 2 AND sum(A.price) > 3"},
              "within": "9 seconds"}),
    ("A*", {"define": {"A": "price > 1"}, "within": "3 seconds"}),
    ("^ A B", {"define": {"B": "price > 0"}, "after_match": "SKIP TO NEXT ROW"}),
    ("A (B | C)+", {"define": {"B": "price >= A.price", "C": "price = 0"}, "within": "4 seconds",
                    "after_match": "SKIP TO NEXT ROW"}),
    ("A B+", {"define": {"B": "price >= PREV(price)"}, "within": "5 seconds",
              "rows_per_match": "ALL ROWS PER MATCH WITH UNMATCHED ROWS"}),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "arguments"), ONE_BY_ONE)
def test_one_row_in_a_batch_gives_the_same(tmp_path, pattern, arguments):
    measures = {"n": "MATCH_NUMBER()", "first": "FIRST(id)", "last": "LAST(id)", "rows": "count(*)"}
    if "NEXT" in str(arguments):
        measures["after"] = "NEXT(LAST(id))"
    arguments = {**arguments, "measures": measures}
    prices = [1, 0, 3, 2, 2, 1, 1, 4, 0, 1, 2, 3, 3, 2, 1, 0, 2, 2, 1, 3]
    (rows,) = events(prices).values()
    at_once = Matcher(None, pattern, **arguments).batch({("t", 0): rows})
    matcher = Matcher(tmp_path, pattern, buckets=1, **arguments)
    one_by_one = [found for row in rows for found in matcher.batch({("t", 0): [row]})]
    assert one_by_one == at_once
    assert len(at_once) > 1 or pattern.startswith("^")


def test_a_match_goes_on_with_rows_that_could_begin_none(tmp_path):
    steps = {"A": "price = 1", "B": "price = 2", "C": "price = 3"}
    matcher = Matcher(tmp_path, "A B C", define=steps, measures={"rows": "count(*)"})
    found = []
    for number, price in enumerate([1, 2, 3]):
        rows = [{"name": "a", "time": at(number), "id": number, "price": price}]
        found += matcher.batch({("t", 0): rows})
    found += matcher.batch(events([], start=5))
    assert [row["rows"] for row in found] == [3]
