"""hw.match without Spark: the same matches as by definition, whatever the batches."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.event_log import (
    cuts,
    late_ids,
    logs,
    seconds,
    taken_and_late,
    watermark,
)
from support.pipelines.event_log import given as rows_of
from support.pipelines.pattern_driver import Matcher
from support.pipelines.pattern_reference import Reference
from tiers import examples

from headwater.pipelines.operators.patterns.language.pattern_text import parse_pattern
from headwater.pipelines.operators.patterns.language.pattern_tree import first_variables

# ── by definition ───────────────────────────────────────────────────────────────────────────────


def _last(rows, start, way, variable):
    return next((rows[start + n] for n in reversed(range(len(way))) if way[n] == variable), None)


def _compare_with_a(rows, start, way):
    found = _last(rows, start, way, "A")
    return None if found is None else rows[start + len(way) - 1]["price"] >= found["price"]


def _rises(rows, start, way):
    number = start + len(way) - 1
    return rows[number]["price"] > rows[number - 1]["price"] if number else None


def _sum_is_small(rows, start, way):
    found = [rows[start + n]["price"] for n in range(len(way)) if way[n] == "B"]
    return sum(found) < 5 if found else None


def _above_first(rows, start, way):
    return rows[start + len(way) - 1]["price"] <= rows[start]["price"]


# Texts, and what they mean.
CONDITIONS = [
    ("price > 1", lambda rows, start, way: rows[start + len(way) - 1]["price"] > 1),
    ("price < 3", lambda rows, start, way: rows[start + len(way) - 1]["price"] < 3),
    ("price = 2", lambda rows, start, way: rows[start + len(way) - 1]["price"] == 2),
    ("price > PREV(price)", _rises),
    ("price >= A.price", _compare_with_a),
    ("sum(B.price) < 5", _sum_is_small),
    ("price <= FIRST(price)", _above_first),
]


@st.composite
def patterns(draw, depth=3):
    """Texts of patterns."""
    kind = draw(st.sampled_from(["variable"] if depth == 0 else KINDS))
    if kind == "variable":
        part = draw(st.sampled_from("ABC"))
    elif kind == "sequence":
        part = " ".join(draw(st.lists(patterns(depth - 1), min_size=2, max_size=3)))
        return f"({part})"
    elif kind == "alternation":
        part = f"({draw(patterns(depth - 1))} | {draw(patterns(depth - 1))})"
    elif kind == "permute":
        part = f"PERMUTE({draw(patterns(0))}, {draw(patterns(0))})"
    elif kind == "excluded":
        return "{- " + draw(patterns(depth - 1)) + " -}"
    elif kind == "empty":
        part = f"({draw(patterns(depth - 1))} | ())"
    else:
        part = f"({draw(patterns(depth - 1))})"
    return part + draw(st.sampled_from(QUANTIFIERS))


KINDS = ["variable", "variable", "sequence", "sequence", "alternation", "group", "permute",
         "excluded", "empty"]  # fmt: skip
QUANTIFIERS = ["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{,2}", "{2,}?"]
SKIPS = ["SKIP PAST LAST ROW", "SKIP TO NEXT ROW", "SKIP TO FIRST B", "SKIP TO LAST B"]
ROWS = ["ONE ROW PER MATCH", "ALL ROWS PER MATCH", "ALL ROWS PER MATCH OMIT EMPTY MATCHES",
        "ALL ROWS PER MATCH WITH UNMATCHED ROWS"]  # fmt: skip
MEASURES = {
    "first": "FIRST(id)",
    "last": "LAST(id)",
    "rows": "count(*)",
    "number": "MATCH_NUMBER()",
    "variable": "CLASSIFIER()",
    "of_b": "sum(B.price)",
    "all": "FINAL LAST(id)",
    "inner": "PREV(LAST(A.id, 1), 1)",
}


def expected_rows(key, rows, found, mode, gives_timed_out):
    """What the operator gives for these results of the reference."""
    expected = []
    for kind, start, way, number, time in found:
        shown = [len(way) - 1] if mode.startswith("ONE") else [
            n for n, (_, is_excluded) in enumerate(way) if not is_excluded
        ]  # fmt: skip
        if not way and not (mode.endswith("OMIT EMPTY MATCHES") and kind == "matched"):
            shown = [-1]
        for current in shown:
            seen = [] if kind == "unmatched" else way[: current + 1]
            rows_of_b = [rows[start + n]["price"] for n, (v, _) in enumerate(seen) if v == "B"]
            of_a = [start + n for n, (v, _) in enumerate(seen) if v == "A"]
            inner = of_a[-2] - 1 if len(of_a) > 1 else -1
            row = {
                "name": key,
                "event_time": time,
                "first": rows[start]["id"] if seen else None,
                "last": rows[start + current]["id"] if seen else None,
                "rows": None if kind == "unmatched" else len(seen),
                "number": None if kind == "unmatched" else number,
                "variable": seen[-1][0] if seen else None,
                "of_b": sum(rows_of_b) if rows_of_b else None,
                "all": rows[start + len(way) - 1]["id"] if seen else None,
                "inner": rows[inner]["id"] if inner >= 0 else None,
            }
            if gives_timed_out:
                row["over"] = kind == "timed out"
            if not mode.startswith("ONE"):
                row["id"] = rows[start + max(current, 0)]["id"]
            expected.append(row)
    return expected


def brief(results):
    left_out = ("_op", "_position", "time", "price")
    found = [
        {
            name: seconds(value) if name == "event_time" else value
            for name, value in row.items()
            if name not in left_out
        }
        for row in results
    ]
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=str)))


LOGS = logs(keys=("a", "b"), most=10, back=6, forth=8)
PATTERNS = patterns().filter(lambda text: "B" in text and "A" in text)


@st.composite
def cases(draw, log=LOGS, pattern=PATTERNS):
    """A log with prices, and the arguments of hw.match over it."""
    log = draw(log)
    prices = draw(st.lists(st.integers(0, 4), min_size=20, max_size=20))
    for rows in log:
        for row in rows:
            row["price"] = prices[row["id"] % 20]
    pattern = draw(pattern)
    defined = {}
    for variable in "ABC":
        if variable in pattern and draw(st.integers(0, 4)):
            defined[variable] = draw(st.sampled_from(CONDITIONS))
    mode = draw(st.sampled_from(ROWS))
    if "{-" in pattern and mode.endswith("UNMATCHED ROWS"):
        mode = ROWS[1]
    within = draw(st.sampled_from([None, 3, 12, 40]))
    arguments = {
        "define": {variable: text for variable, (text, _) in defined.items()},
        "measures": MEASURES,
        "within": None if within is None else f"{within} seconds",
        "timed_out": None if within is None else draw(st.sampled_from([None, "over"])),
        "after_match": draw(st.sampled_from(SKIPS)),
        "rows_per_match": mode,
    }
    tree = parse_pattern(pattern)
    if "FIRST" in arguments["after_match"] and set(_firsts(tree)) <= {"B"}:
        arguments["after_match"] = SKIPS[0]
    skip = arguments["after_match"].lower().removeprefix("skip ").removesuffix(" b")
    reference = Reference(
        tree,
        {variable: meaning for variable, (_, meaning) in defined.items()},
        within,
        skip,
        frozenset("B"),
        arguments["timed_out"] is not None,
        mode.endswith("UNMATCHED ROWS"),
    )
    return log, pattern, arguments, reference


def _firsts(tree):
    return first_variables(tree)


@settings(max_examples=examples(400), deadline=None)
@given(st.data(), cases(), st.sampled_from([0, 5]))
def test_any_cut_gives_the_matches_by_definition(tmp_path_factory, data, case, delay):
    log, pattern, arguments, reference = case
    taken, late = taken_and_late(log, delay, lambda time: time + 1)
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
    streamed = Matcher(tmp_path_factory.mktemp("state"), pattern, delay, "side", **arguments)
    results, aside = [], []
    for share in data.draw(cuts(log)):
        if any(share):
            result = streamed.batch(rows_of(share))
            results += result
            aside += late_ids(streamed.driver)
            assert not data.draw(st.booleans()) or streamed.again() == result
    assert brief(results) == brief_expected(expected)
    assert sorted(aside) == sorted(row["id"] for row in late)
    assert brief(Matcher(None, pattern, delay, **arguments).batch(rows_of(log))) == brief(results)


def brief_expected(rows):
    return sorted(rows, key=lambda row: repr(sorted(row.items(), key=str)))
