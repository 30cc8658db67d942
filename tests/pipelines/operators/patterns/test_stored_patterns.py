"""hw.match_stored without Spark: a version of a pattern finds what hw.match finds in its rows."""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelines.operators.patterns.test_match_operator import (
    CONDITIONS,
    MEASURES,
    SKIPS,
    expected_rows,
    patterns,
)
from support.pipelines.event_log import at, cuts, logs, taken_and_late, watermark
from support.pipelines.event_log import given as rows_of
from support.pipelines.pattern_driver import INPUT, Matcher
from support.pipelines.pattern_driver import events as prices
from support.pipelines.pattern_reference import Reference
from support.pipelines.stored_pattern_driver import (
    END,
    HERE,
    StoredMatcher,
    dropped,
    stored,
)
from support.pipelines.stored_pattern_driver import brief as brief_of
from tiers import examples

from headwater.errors import StateLost
from headwater.pipelines.operators.patterns.language.pattern_text import parse_pattern
from headwater.pipelines.operators.patterns.language.pattern_tree import first_variables


@st.composite
def definitions(draw):
    """The arguments of hw.match, and the reference of the same pattern."""
    pattern = draw(patterns().filter(lambda text: "B" in text and "A" in text))
    defined = {}
    for variable in "ABC":
        if variable in pattern and draw(st.integers(0, 4)):
            defined[variable] = draw(st.sampled_from(CONDITIONS))
    within = draw(st.sampled_from([3, 12, 40]))
    tree = parse_pattern(pattern)
    skip = draw(st.sampled_from(SKIPS))
    if "FIRST" in skip and set(first_variables(tree)) <= {"B"}:
        skip = SKIPS[0]
    gives_timed_out = draw(st.booleans())
    arguments = {
        "pattern": pattern,
        "define": {variable: text for variable, (text, _) in defined.items()},
        "measures": MEASURES,
        "within": f"{within} seconds",
        "after_match": skip,
        "timed_out": gives_timed_out,
    }
    reference = Reference(
        tree,
        {variable: meaning for variable, (_, meaning) in defined.items()},
        within,
        skip.lower().removeprefix("skip ").removesuffix(" b"),
        frozenset("B"),
        gives_timed_out,
    )
    return arguments, reference


@st.composite
def priced_logs(draw):
    log = draw(logs(keys=("a", "b"), most=10, back=6, forth=8))
    found = draw(st.lists(st.integers(0, 4), min_size=20, max_size=20))
    for rows in log:
        for row in rows:
            row["price"] = found[row["id"] % 20]
    return log


@settings(max_examples=examples(200), deadline=None)
@given(priced_logs(), definitions(), st.sampled_from([0, 5]))
def test_a_stored_pattern_finds_what_match_finds(log, definition, delay):
    arguments = dict(definition[0])
    found = StoredMatcher(None, delay).batch(
        rows_of(log), [stored("p", 0, begins="start", **arguments)]
    )
    if arguments.pop("timed_out"):
        arguments["timed_out"] = "over"
    matcher = Matcher(None, arguments.pop("pattern"), delay, **arguments)
    assert found == brief_of_match(matcher.batch(rows_of(log)))


def brief_of_match(rows):
    left_out = ("name", "event_time", "over", "_op", "_position")
    return brief_of(
        {
            "pattern_id": "p",
            "name": row["name"],
            "event_time": row["event_time"],
            "timed_out": row.get("over", False),
            "measures": json.dumps({name: row[name] for name in row if name not in left_out}),
        }
        for row in rows
    )


# ── patterns that change while rows flow past them ──────────────────────────────────────────────


@st.composite
def changes_of_patterns(draw):
    """(second, id, definition or None, when it begins), in the order of the topic."""
    found = []
    for second in sorted(draw(st.lists(st.integers(0, 60), min_size=1, max_size=5))):
        definition = draw(st.one_of(definitions(), st.none())) if found else draw(definitions())
        begins = draw(st.sampled_from(["now", "now", "start", second - 9, second + 9]))
        found.append((second, draw(st.sampled_from("pq")), definition, begins))
    return found


def as_records(changes):
    found = []
    for second, id_, definition, begins in changes:
        if definition is None:
            found.append(dropped(id_, second))
            continue
        text = begins if isinstance(begins, str) else at(begins).isoformat()
        found.append(stored(id_, second, begins=text, **definition[0]))
    return found


def spans(changes, early):
    """(id, definition, from, before) of each version, by the rule of the documentation."""
    of_id, found = {}, []
    for number, (second, id_, definition, begins) in enumerate(changes):
        start = second if begins == "now" else float("-inf") if begins == "start" else begins
        if definition is None or (start < second and number >= early):
            of_id.setdefault(id_, []).append((second, None))
        else:
            of_id.setdefault(id_, []).append((start, definition))
    for id_, versions in of_id.items():
        for number, (start, definition) in enumerate(versions):
            end = min([later for later, _ in versions[number + 1 :]], default=float("inf"))
            if definition is not None:
                found.append((id_, definition, start, end))
    return found


def expected(log, delay, versions):
    taken, _ = taken_and_late(log, delay, lambda time: time + 1)
    now = watermark(log, delay)
    place = {
        row["id"]: (partition, offset)
        for partition, rows in enumerate(log)
        for offset, row in enumerate(rows)
    }
    found = []
    for id_, (_, reference), start, end in versions:
        until = min(now, end)
        for key in ("a", "b"):
            rows = [row for row in taken if row["name"] == key and start <= row["time"] < until]
            rows.sort(key=lambda row: (row["time"], place[row["id"]]))
            results = reference.results(rows, until)
            rows = expected_rows(key, rows, results, "ONE ROW PER MATCH", True)
            found += [{"pattern": id_, **row} for row in rows]
    return sorted(found, key=lambda row: repr(sorted(row.items(), key=str)))


@settings(max_examples=examples(300), deadline=None)
@given(st.data(), priced_logs(), changes_of_patterns(), st.sampled_from([0, 5]))
def test_any_cut_gives_what_each_version_finds_in_its_rows(
    tmp_path_factory, data, log, changes, delay
):
    records = as_records(changes)
    streamed = StoredMatcher(tmp_path_factory.mktemp("state"), delay)
    results, early, read = [], None, 0
    shares = [share for share in data.draw(cuts(log)) if any(share)]
    seen = -1
    for number, share in enumerate(shares):
        is_last = number == len(shares) - 1
        seen = max([seen, *(row["time"] for rows in share for row in rows)])
        upto = len(records) if is_last else data.draw(st.integers(read, len(records)))
        # Their topic ends there if all that is left of it is stored later than these rows.
        is_end = is_last or all(second > seen for second, *_ in changes[upto:])
        if is_end and not is_last:
            is_end = data.draw(st.booleans())
        result = streamed.batch(rows_of(share), records[read:upto], END if is_end else HERE)
        read = upto
        if is_end and early is None:
            early = read
        results += result
        assert not data.draw(st.booleans()) or streamed.again() == result
    results.sort(key=lambda row: repr(sorted(row.items(), key=str)))
    assert results == expected(log, delay, spans(changes, early))
    at_once = StoredMatcher(None, delay).batch(rows_of(log), records)
    assert at_once == expected(log, delay, spans(changes, len(changes)))


# ── single promises ─────────────────────────────────────────────────────────────────────────────

RISE = {
    "pattern": "A B",
    "define": {"A": "price = 1", "B": "price > A.price"},
    "measures": {"ids": "concat(CAST(A.id AS string), '-', CAST(B.id AS string))"},
    "within": "10 seconds",
}


def ids(rows):
    return [(row["pattern"], row["ids"]) for row in rows]


def test_a_dropped_pattern_ends_without_rows_and_without_state(tmp_path):
    matcher = StoredMatcher(tmp_path)
    rise = {**RISE, "timed_out": True}
    rows = prices([1, 2, 1], start=5)[("t", 0)][:3]
    late = {"name": "other", "time": at(8), "id": -1, "price": 0}
    found = matcher.batch({("t", 0): [*rows, late]}, [stored("p", 0, **rise)])
    assert ids(found) == [("p", "0-1")]
    assert (matcher.driver.counter("keys"), matcher.driver.counter("rows")) == (1, 1)
    far = {"name": "other", "time": at(100), "id": -2, "price": 0}
    found = matcher.batch({("t", 0): [far]}, [dropped("p", 9)])
    assert found == []  # its deadline, at 17, would be later
    assert (matcher.driver.counter("keys"), matcher.driver.counter("rows")) == (0, 0)
    assert matcher.shared("patterns") == 0
    for state in matcher.driver.states.values():
        assert [name for name in _tables(state) if name.startswith("p0-")] == []


def _tables(state):
    return set(getattr(state, "locations", ())) | set(getattr(state, "changed", ()))


def test_a_table_of_patterns_that_is_emptied_has_none(tmp_path):
    matcher = StoredMatcher(tmp_path)
    emptied = {"id": None, "_op": "t", "_at": at(7)}
    changes = [stored("p", 0, **RISE), stored("q", 0, **RISE), emptied, stored("q", 8, **RISE)]
    found = matcher.batch(prices([1, 2, 1, 2, 1, 2], start=5), changes)
    assert sorted(ids(found)) == [("p", "0-1"), ("q", "0-1"), ("q", "4-5")]
    assert matcher.shared("patterns") == 1


def test_a_refused_pattern_ends_nothing_and_is_counted(tmp_path):
    matcher = StoredMatcher(tmp_path)
    bad = [
        stored("text", 0, "A (B"),
        stored("grows", 0, "A B+"),
        stored("column", 0, "A", define={"A": "cost > 1"}),
        stored("types", 0, "A", define={"A": "name > price"}),
        stored("between", 0, "A B", define={"B": "A.price > name"}),
        stored("number", 0, "A", define={"A": "price + 1"}),
        stored("measure", 0, "A", measures={"x": "sum(A.name)"}),
        stored("function", 0, "A", define={"A": "sha2(name, 256) = 'x'"}),
        stored("json", 0, "A") | {"define": "{"},
        stored("none", 0, None),
    ]
    found = matcher.batch(prices([1, 2], start=5), [*bad, stored("p", 0, **RISE)])
    assert ids(found) == [("p", "0-1")]
    assert matcher.shared("patterns") == 11
    assert matcher.shared("refused_patterns") == 10
    assert matcher.batch({}, [stored("text", 20_000, "A B", within="1 second")]) == []
    assert matcher.shared("refused_patterns") == 9


def test_a_pattern_from_before_it_was_stored_needs_a_rebuild(tmp_path):
    matcher = StoredMatcher(tmp_path)
    early = stored("early", 50, begins="start", **RISE)
    found = matcher.batch(prices([1, 2], start=5), [early])
    assert ids(found) == [("early", "0-1")]
    matcher.batch({}, [stored("late", 20_000, begins="start", **RISE)])
    assert (matcher.shared("patterns"), matcher.shared("refused_patterns")) == (2, 1)
    rebuilt = StoredMatcher(None)
    changes = [early, stored("late", 20_000, begins="start", **RISE)]
    found = rebuilt.batch(prices([1, 2], start=5), changes)
    assert ids(found) == [("early", "0-1"), ("late", "0-1")]


def test_rows_wait_until_the_patterns_are_read_past_them(tmp_path):
    matcher = StoredMatcher(tmp_path)
    rows = prices([1, 2], start=5)
    assert matcher.batch(rows, [stored("p", 0, **RISE)], HERE) == []  # there are more patterns
    found = matcher.batch({}, [stored("q", 4, **RISE)], HERE)
    assert found == []
    assert ids(matcher.batch({}, [], END)) == [("p", "0-1"), ("q", "0-1")]


def test_values_that_do_not_fit_end_no_pipeline(tmp_path):
    matcher = StoredMatcher(tmp_path)
    cast = {**RISE, "define": {"A": "price = 1", "B": "CAST(name AS bigint) < A.price"}}
    assert matcher.batch(prices([1, 2], start=5), [stored("p", 0, **cast)]) == []
    assert matcher.driver.counter("undecided") > 0


def test_too_many_partial_matches_are_given_up(tmp_path):
    matcher = StoredMatcher(tmp_path)
    pattern = "A ((B | C | D | E) (B | C | D | E))+ F"
    define = {"F": "price > sum(B.price)"} | {
        name: f"price >= 0 OR {name}.price > 0" for name in "BCDE"
    }
    made = stored("p", 0, pattern, define=define, within="1 hour")
    matcher.batch(prices([0] * 12, start=5), [made])
    assert matcher.driver.counter("given_up") > 0


def test_a_match_comes_from_its_rows_and_the_version_of_its_pattern():
    matcher = StoredMatcher(None)
    changes = [stored("p", 0, **RISE), stored("p", 7, **RISE), stored("q", 0, **RISE)]
    matcher.batch(prices([1, 2, 1, 2, 1, 2], start=5), changes)
    for row in matcher.driver.again():
        rows, records = matcher.driver.lineage([row])
        first, last = map(int, brief_of([row])[0]["ids"].split("-"))
        assert [one["id"] for one in rows] == [first, last]
        offset = 2 if row["pattern_id"] == "q" else 0 if first == 0 else 1
        assert [one["_position"]["offset"] for one in records] == [offset]


def continued(directory, before, **settings):
    """An operator that has the state of another one."""
    found = StoredMatcher(directory, **settings)
    found.driver._numbers, found.driver._last = before.driver._numbers, before.driver._last
    return found


def test_rows_of_another_key_are_other_state(tmp_path):
    matcher = StoredMatcher(tmp_path)
    matcher.batch(prices([1, 2], start=5), [stored("p", 0, **RISE)])
    other = continued(tmp_path, matcher)
    object.__setattr__(other.driver._operator, "key", ("id",))
    with pytest.raises(StateLost, match="another one: it was patterns by id"):
        other.batch(prices([1, 2], start=5))


def test_columns_that_rows_get_later_can_be_read(tmp_path):
    matcher = StoredMatcher(tmp_path)
    matcher.batch(prices([1], start=5) | {("t", 1): []}, [stored("p", 0, **RISE)])
    later = continued(tmp_path, matcher, input_={**INPUT, "city": pa.string()})
    oslo = {**RISE, "define": {"A": "price = 1", "B": "city = 'Oslo'"}}
    rows = [{**row, "city": "Oslo"} for row in prices([1, 2], start=20_000)[("t", 0)][:2]]
    end = {"name": "other", "time": at(30_000), "id": -3, "price": 0}
    found = later.batch({("t", 0): [*rows, end]}, [stored("o", 15_000, **oslo)])
    assert ids(found) == [("o", "0-1"), ("p", "0-1")]
