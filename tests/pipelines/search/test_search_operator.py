"""The search operator against every query decided for every document, one after another."""

import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from unittest import mock

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipelines.operator_driver import ADDED, Driver, Source
from tiers import examples

from headwater.pipelines.operators.state import state_files
from headwater.pipelines.operators.time.event_time import EventTime
from headwater.pipelines.search import frequencies, query_index
from headwater.pipelines.search.search_operator import SearchOperator
from headwater.pipelines.source.progress import READ_TO_END, READ_TO_HERE

DOCUMENTS = pa.schema(
    [
        ("id", pa.int64()),
        ("title", pa.string()),
        ("body", pa.list_(pa.string())),
        ("n", pa.int64()),
        ("kind", pa.string()),
        ("meta", pa.struct([("tag", pa.string()), ("lat", pa.float64()), ("lon", pa.float64())])),
    ]
)
QUERIES = pa.schema(
    [
        ("id", pa.string()),
        ("query", pa.string()),
        ("owner", pa.string()),
        ("language", pa.string()),
        ("limit", pa.int64()),
    ]
)
COLUMNS = (*DOCUMENTS.names, "_op", "_at", "_position")
EVERYWHERE = ("t", READ_TO_END, READ_TO_HERE)
HOUR = 3600


def at(second: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second)


def operator(*, is_stream: bool, fragments: int = 0) -> SearchOperator:
    documents = pa.schema([*DOCUMENTS, *ADDED])
    added = [
        pa.field("query_id", pa.string()),
        pa.field("owner", pa.string()),
        pa.field("target", pa.string()),
    ]
    if fragments:
        added.append(pa.field("highlights", pa.list_(pa.string())))
    return SearchOperator(
        output=pa.schema([*(documents.field(name) for name in COLUMNS), *added]),
        documents=COLUMNS,
        texts=("title", "body"),
        key="id",
        queries=tuple(QUERIES),
        language="",
        marks=("[", "]"),
        fragments=fragments,
        has_score=False,
        time=EventTime("_at", 0),
        is_stream=is_stream,
    )


def driver(directory: Path | None, **how) -> Driver:
    made = operator(is_stream=directory is not None, **how)
    return Driver(
        made,
        [
            Source(DOCUMENTS, (), COLUMNS, made.time, lambda row: True),
            Source(
                QUERIES,
                ("id",),
                (*QUERIES.names, "_op", "_at"),
                EventTime("_at", 0),
                lambda row: row["_op"] in EVERYWHERE,
            ),
        ],
        directory,
        buckets=2,
    )


END = {"_op": READ_TO_END, "_at": None}
HERE = {"_op": READ_TO_HERE, "_at": None}
D0, D1, Q0, Q1 = ("documents", 0), ("documents", 1), ("queries", 0), ("queries", 1)


def document(number: int, second: float, title: str = "", **more) -> dict:
    return {"id": number, "title": title, "_at": at(second), **more}


def query(id_: str, text: str | None, second: float, op: str = "u", **more) -> dict:
    return {"id": id_, "query": text, "_at": at(second), "_op": op, **more}


def pairs(rows: list[dict]) -> list[tuple[int, str]]:
    return sorted((row["id"], row["query_id"]) for row in rows)


# Random queries, each with what it means, written a second time


WORDS = ["ant", "bee", "cat", "catalog", "cats", "dog", "Éclair"]
Predicate = Callable[[dict], bool]


def segments(doc: dict, field: str | None) -> list[list[str]]:
    texts = []
    if field in (None, "title") and doc.get("title") is not None:
        texts.append(doc["title"])
    if field in (None, "body"):
        texts += [text for text in doc.get("body") or () if text is not None]
    return [text.lower().split() for text in texts]


def has_phrase(doc: dict, field: str | None, words: list[str]) -> bool:
    wanted = [word.lower() for word in words]
    return any(
        found[start : start + len(wanted)] == wanted
        for found in segments(doc, field)
        for start in range(len(found))
    )


@st.composite
def leaves(draw) -> tuple[str, Predicate]:
    field = draw(st.sampled_from([None, None, "title", "body"]))
    prefix = f"{field}:" if field else ""
    what = draw(
        st.sampled_from(
            ["word", "word", "word", "phrase", "prefix", "value", "tag", "range", "near"]
        )
    )
    if what == "word":
        word = draw(st.sampled_from(WORDS))
        return prefix + word, lambda doc: has_phrase(doc, field, [word])
    if what == "phrase":
        words = draw(st.lists(st.sampled_from(WORDS), min_size=2, max_size=3))
        return f'{prefix}"{" ".join(words)}"', lambda doc: has_phrase(doc, field, words)
    if what == "prefix":
        start = draw(st.sampled_from(["c", "ca", "cat", "catal", "d", "é"]))
        return f"{prefix}{start}*", lambda doc: any(
            word.startswith(start) for found in segments(doc, field) for word in found
        )
    if what == "value":
        number = draw(st.integers(0, 4))
        text = draw(st.sampled_from([f"n:{number}", f"n:{number}.0"]))
        return text, lambda doc: doc.get("n") == number
    if what == "tag":
        tag = draw(st.sampled_from(["x", "y", "3"]))
        name = draw(st.sampled_from(["meta.tag", "kind"]))

        def has_tag(doc: dict) -> bool:
            found = (doc.get("meta") or {}).get("tag") if name == "meta.tag" else doc.get("kind")
            return found == tag

        return f"{name}:{tag}", has_tag
    if what == "near":
        km = draw(st.sampled_from([1, 200]))

        def is_near(doc: dict) -> bool:
            meta = doc.get("meta") or {}
            if meta.get("lat") is None or meta.get("lon") is None:
                return False
            # At the equator a degree is 111.2 km, whichever way one goes.
            return (meta["lat"] ** 2 + meta["lon"] ** 2) ** 0.5 * 111.2 <= km

        return f"near(meta, 0, 0, {km}km)", is_near
    low, high = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    kind = draw(st.sampled_from(["[]", "{}", ">", "<="]))
    if kind == ">":
        return f"n:>{low}", lambda doc: doc.get("n") is not None and doc["n"] > low
    if kind == "<=":
        return f"n:<={low}", lambda doc: doc.get("n") is not None and doc["n"] <= low
    if kind == "[]":
        return (
            f"n:[{low} TO {high}]",
            lambda doc: doc.get("n") is not None and low <= doc["n"] <= high,
        )
    return f"n:{{{low} TO {high}}}", lambda doc: doc.get("n") is not None and low < doc["n"] < high


def combined(children):
    def both(parts, word):
        texts, tests = zip(*parts, strict=True)
        joined = f" {word} ".join(f"({text})" for text in texts)
        if word == "OR":
            return joined, lambda doc: any(test(doc) for test in tests)
        return joined, lambda doc: all(test(doc) for test in tests)

    def negated(part):
        return f"NOT ({part[0]})", lambda doc: not part[1](doc)

    several = st.lists(children, min_size=2, max_size=3)
    return st.one_of(
        st.builds(both, several, st.sampled_from(["AND", "OR", ""])), children.map(negated)
    )


trees = st.recursive(leaves(), combined, max_leaves=5)


@st.composite
def documents(draw, number: int) -> dict:
    words = st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)
    place = st.sampled_from([None, {"tag": "x"}, {"tag": "3", "lat": 0.5, "lon": 0.5},
                             {"tag": None, "lat": 30.0, "lon": 30.0}])  # fmt: skip
    return document(
        number,
        draw(times),
        draw(st.one_of(st.none(), words)),
        body=draw(st.one_of(st.none(), st.lists(st.one_of(st.none(), words), max_size=2))),
        n=draw(st.one_of(st.none(), st.integers(0, 4))),
        kind=draw(st.sampled_from([None, "x", "y"])),
        meta=draw(place),
    )


times = st.integers(0, 40)


@st.composite
def logs(draw):
    """Two partitions each; the changes of a query are in one of them."""
    queries: dict = {Q0: [], Q1: []}
    tests: dict[str, Predicate] = {}
    for _ in range(draw(st.integers(0, 14))):
        name = draw(st.sampled_from("abcdefgh"))
        op = draw(st.sampled_from(["u", "u", "u", "u", "u", "d", "t"]))
        partition = Q0 if name < "e" else Q1
        row = query(name, None, draw(times), op)
        if op == "t":
            row["id"] = None
        elif op == "u":
            text, test = draw(trees)
            is_refused = test({})
            tests[text] = (lambda doc: False) if is_refused else test
            row["query"] = text
        queries[partition].append(row)
    found: dict = {D0: [], D1: []}
    for number in range(draw(st.integers(0, 12))):
        found[draw(st.sampled_from([D0, D1]))].append(draw(documents(number)))
    if draw(st.booleans()):  # mostly in order, as logs are
        for rows in (*queries.values(), *found.values()):
            rows.sort(key=lambda row: row["_at"])
    return found, queries, tests


def with_log_time(rows: list[dict]) -> list[tuple[datetime, int, dict]]:
    latest, found = None, []
    for offset, row in enumerate(rows):
        latest = row["_at"] if latest is None else max(latest, row["_at"])
        found.append((latest, offset, row))
    return found


def expected_pairs(found: dict, queries: dict, tests: dict) -> list[tuple[int, str]]:
    """One change after another, one document after another, by their time in the log."""
    steps = []
    for partition, rows in queries.items():
        steps += [(time, 0, offset, partition, row) for time, offset, row in with_log_time(rows)]
    for partition, rows in found.items():
        steps += [(time, 1, offset, partition, row) for time, offset, row in with_log_time(rows)]
    current: dict[str, tuple] = {}
    result = []
    for time, is_document, _, partition, row in sorted(steps, key=lambda step: step[:4]):
        if is_document:
            result += [
                (row["id"], name) for name, (_, text, _) in current.items() if tests[text](row)
            ]
        elif row["_op"] == "t":
            current = {
                name: version
                for name, version in current.items()
                if version[0] != partition and version[2] >= time
            }
        elif row["_op"] == "d":
            current.pop(row["id"], None)
        else:
            current[row["id"]] = partition, row["query"], time
    return sorted(result)


def truthful(table: dict, read: dict, events: dict, events_read: dict) -> dict:
    """Whether each partition of the queries may be called read to its end: what is left of it is
    later than any document that was read."""
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


def streamed(data, made: Driver, found: dict, queries: dict) -> list[dict]:
    """The logs in random batches."""
    found_read, queries_read = dict.fromkeys(found, 0), dict.fromkeys(queries, 0)
    result: list[dict] = []
    is_done = False
    for number in count():
        if is_done:
            break
        parts = []
        for rows, read in ((found, found_read), (queries, queries_read)):
            part = {}
            for partition, of_partition in rows.items():
                left = len(of_partition) - read[partition]
                size = data.draw(st.sampled_from([1 if number == 0 else 0, 2, 5, 16]))
                size = left if number == 5 else size
                part[partition] = of_partition[read[partition] : read[partition] + size]
                read[partition] += len(part[partition])
            parts.append(part)
        may = truthful(queries, queries_read, found, found_read)
        is_done = all(
            read[partition] == len(rows[partition])
            for rows, read in ((found, found_read), (queries, queries_read))
            for partition in rows
        )
        for partition in queries:
            is_end = is_done or (may[partition] and data.draw(st.booleans()))
            parts[1][partition] = [*parts[1][partition], dict(END if is_end else HERE)]
        if data.draw(st.booleans()) and not is_done and not any(parts[0].values()):
            parts[0] = {}
        rows = made.batch(*parts)
        if data.draw(st.booleans()):
            assert made.again() == rows
        result += rows
    return result


@settings(max_examples=examples(100), deadline=None)
@given(logs(), st.data())
def test_any_cut_finds_what_every_query_finds_in_every_document(both, data):
    found, queries, tests = both
    expected = expected_pairs(found, queries, tests)
    assert pairs(driver(None).batch(found, queries)) == expected
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        first = data.draw(st.sampled_from([1, 1000]))
        with frequencies_from(first):
            made = driver(Path(directory))
            assert pairs(streamed(data, made, found, queries)) == expected
            assert made.counter("waiting") == 0


def frequencies_from(first: int):
    """So that samples change what queries are listed under after the first documents."""
    return mock.patch.object(frequencies, "_FIRST", first)


# Single cases


def test_a_document_waits_while_queries_that_are_older_than_it_are_unread(tmp_path):
    search = driver(tmp_path)
    assert search.batch({D0: [document(1, 10, "cat")]}, {Q0: [HERE]}) == []
    assert search.counter("waiting") == 2  # in each of two buckets
    assert search.batch({}, {Q0: [query("a", "cat", 9), HERE]}) == []
    assert pairs(search.batch({}, {Q0: [query("b", "cat", 11), END]})) == [(1, "a")]


def test_a_document_of_a_slow_partition_meets_the_queries_of_its_time(tmp_path):
    search = driver(tmp_path)
    changes = [query("a", "cat", 1), query("b", "cat", 1), query("a", "dog", 20)]
    changes += [query("b", None, 20, "d"), END]
    first = search.batch({D0: [document(1, 5, "ant")], D1: [document(2, 30, "cat")]}, {Q0: changes})
    assert first == []
    assert pairs(search.batch({D0: [document(3, 10, "cat")]}, {})) == [(3, "a"), (3, "b")]
    assert pairs(search.batch({D0: [document(4, 40, "cat dog")]}, {})) == [(4, "a")]


def test_deleted_documents_match_nothing(tmp_path):
    search = driver(tmp_path)
    search.batch({}, {Q0: [query("a", "cat", 1), END]})
    rows = [document(1, 5, "cat", _op="d"), document(2, 5, "cat", _op="u")]
    (found,) = search.batch({D0: rows}, {})
    assert (found["id"], found["_op"]) == (2, "c")


def test_refused_and_unindexed_queries_are_counted_and_end_nothing(tmp_path):
    search = driver(tmp_path)
    bad = ["", None, "cat AND", "NOT cat", "*", "other:1", "(" * 200, "x" * 20_000, 'n:"']
    rows = [query(f"bad{number}", text, 1) for number, text in enumerate(bad)]
    rows += [query("lang", "cat", 1, language="klingon")]
    rows += [query("good", "cat", 1), query("all", "n:>1", 1), END]
    found = search.batch({D0: [document(1, 5, "cat", n=2)]}, {Q0: rows})
    assert pairs(found) == [(1, "all"), (1, "good")]
    assert search.counter("queries") == 12
    assert search.counter("refused_queries") == 10
    assert search.counter("unindexed_queries") == 1


def test_an_update_repairs_a_refused_query(tmp_path):
    search = driver(tmp_path)
    search.batch({}, {Q0: [query("a", "cat AND", 1), END]})
    assert search.counter("refused_queries") == 1
    found = search.batch({D0: [document(1, 5, "cat")]}, {Q0: [query("a", "cat", 2), END]})
    assert pairs(found) == [(1, "a")]
    assert search.counter("refused_queries") == 0


def test_only_candidates_are_decided(tmp_path):
    search = driver(tmp_path)
    rows = [query(f"q{number}", f"common AND rare{number}", 1) for number in range(200)]
    search.batch({}, {Q0: [*rows, END]})
    search.batch({D0: [document(number, 2, "common") for number in range(64)]}, {})
    before = search.counter("candidates")
    found = search.batch({D0: [document(100, 3, "common rare7"), document(101, 3, "common")]}, {})
    assert pairs(found) == [(100, "q7")]
    assert search.counter("candidates") - before == 1


def test_alternatives_that_cannot_be_listed_are_decided_for_every_document(tmp_path):
    search = driver(tmp_path)
    search.batch({}, {Q0: [query("a", "cat OR n:>3", 1), query("b", "cat n:>3", 1), END]})
    rows = [document(1, 2, "cat"), document(2, 2, "dog", n=4), document(3, 2, "cat", n=4)]
    found = search.batch({D0: rows}, {})
    assert pairs(found) == [(1, "a"), (2, "a"), (3, "a"), (3, "b")]
    assert search.counter("unindexed_queries") == 1


def test_highlights_are_of_what_was_found(tmp_path):
    search = driver(tmp_path, fragments=2)
    rows = [query("a", '"black cat" OR dog* OR (ant AND NOT bee)', 1), END]
    search.batch({}, {Q0: rows})
    long = "word " * 40
    body = [f"{long}the black cat {long}", "cat black Dogs", "dog"]
    (found,) = search.batch({D0: [document(1, 2, "An ant", body=body)]}, {})
    assert found["highlights"][0] == "An [ant]"
    assert "the [black] [cat] word" in found["highlights"][1]
    assert found["highlights"][1].startswith("…word")
    assert len(found["highlights"]) == 2


def test_a_match_comes_from_its_document_and_the_version_of_the_query():
    search = driver(None)
    changes = [
        query("a", "cat", 1),
        query("a", "dog", 10),
        query("e", "dog", 10),
        query("e", "x", 30),
    ]
    rows = {D0: [document(1, 5, "cat")], D1: [document(2, 20, "dog"), document(3, 40, "dog")]}
    found = search.batch(rows, {Q0: changes})
    assert pairs(found) == [(1, "a"), (2, "a"), (2, "e"), (3, "a")]
    for row in found:
        documents_of, queries_of = search.lineage([row])
        assert [one["id"] for one in documents_of] == [row["id"]]
        offset = {(1, "a"): 0, (2, "a"): 1, (2, "e"): 2, (3, "a"): 1}[row["id"], row["query_id"]]
        assert [one["_position"]["offset"] for one in queries_of] == [offset]


# Limits


def limited(data_limit: int, second: float = 0, id_: str = "a") -> dict:
    return query(id_, "cat", second, limit=data_limit)


def test_of_one_partition_the_first_matches_of_an_hour_leave_at_once(tmp_path):
    search = driver(tmp_path)
    search.batch({}, {Q0: [limited(2), query("b", "cat", 0), END]})
    found = search.batch({D0: [document(n, n, "cat") for n in (1, 2, 3)]}, {})
    assert pairs(found) == [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "b")]
    found = search.batch({D0: [document(4, HOUR - 1, "cat"), document(5, HOUR, "cat")]}, {})
    assert pairs(found) == [(4, "b"), (5, "a"), (5, "b")]
    assert search.counter("above_limit") == 2


def test_a_limit_counts_in_the_order_of_time_whatever_is_read_first(tmp_path):
    search = driver(tmp_path)
    search.batch({}, {Q0: [limited(1), END]})
    assert search.batch({D0: [document(1, 0, "ant")], D1: [document(2, 50, "cat")]}, {}) == []
    assert search.counter("limited_waiting") == 1
    assert pairs(search.batch({D0: [document(3, 40, "cat")]}, {})) == [(3, "a")]
    assert search.batch({D0: [document(4, 60, "ant")]}, {}) == []
    assert search.counter("limited_waiting") == 0
    assert search.counter("above_limit") == 1


def test_of_documents_at_the_same_time_those_of_the_first_partition_count_first(tmp_path):
    search = driver(tmp_path)
    search.batch({}, {Q0: [limited(1), END]})
    found = search.batch(
        {D0: [document(1, 0, "cat"), document(2, 9, "ant")], D1: [document(3, 0, "cat")]}, {}
    )
    assert pairs(found) == [(1, "a")]
    assert search.counter("above_limit") == 1


def test_documents_that_wait_for_queries_count_before_later_ones(tmp_path):
    search = driver(tmp_path)
    found = search.batch(
        {D0: [document(0, 0, "cat")], D1: [document(7, 0, "cat")]}, {Q0: [limited(2), END]}
    )
    assert pairs(found) == [(0, "a")]
    later = {D0: [document(1, 0, "cat"), document(2, HOUR / 2, "cat")]}
    assert search.batch(later, {Q0: [HERE]}) == []  # there are queries that may be older
    assert pairs(search.batch({}, {Q0: [END]})) == [(1, "a")]


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([D0, D1]), st.integers(0, 7)), max_size=14), st.data())
def test_limits_do_not_depend_on_the_cut(which, data):
    found: dict = {D0: [], D1: []}
    for number, (partition, half_hour) in enumerate(which):
        found[partition].append(document(number, half_hour * HOUR / 2, "cat"))
    queries = {Q0: [limited(2, id_="a"), limited(1, id_="e")]}
    bounded = pairs(driver(None).batch(found, {Q0: [*queries[Q0]]}))
    hours: dict = {}
    order = sorted(
        (time, partition, offset, row["id"])
        for partition, rows in found.items()
        for time, offset, row in with_log_time(rows)
    )
    for time, _, _, number in order:
        hours.setdefault(time.hour, []).append(number)
    expected = [(n, "a") for of_hour in hours.values() for n in of_hour[:2]]
    expected += [(n, "e") for of_hour in hours.values() for n in of_hour[:1]]
    assert bounded == sorted(expected)
    place = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=place) as directory:
        made = driver(Path(directory))
        rows = streamed(data, made, found, queries)
        last = {
            partition: [document(99, 99 * HOUR, "ant")] for partition, of in found.items() if of
        }
        rows += made.batch(last, {})
        assert pairs(rows) == sorted(expected)


# The index in memory


def test_the_index_stays_in_memory_and_is_never_that_of_other_queries(tmp_path):
    parsed = []

    def parse(text, *args, **more):
        parsed.append(text)
        return real(text, *args, **more)

    real = query_index.parse_query
    search = driver(tmp_path)
    search._as_tasks = True  # every batch has its state from disk, as in Spark's tasks
    with mock.patch.object(query_index, "parse_query", parse):
        search.batch({}, {Q0: [query("a", "cat", 1), query("b", "dog", 1), END]})
        for number in range(3):
            found = search.batch({D0: [document(number, 5, "cat")]}, {})
            assert pairs(found) == [(number, "a")]
        assert sorted(parsed) == ["cat", "dog"]
        search.batch({}, {Q0: [query("b", "ant", 6), END]})
        search.again()  # its changes are there once
        assert sorted(parsed) == ["ant", "cat", "dog"]
        found = search.batch({D0: [document(9, 7, "ant cat dog")]}, {})
        assert pairs(found) == [(9, "a"), (9, "b")]


def test_an_index_that_other_processes_have_overtaken_is_derived_again(tmp_path):
    search = driver(tmp_path)
    search._as_tasks = True
    search.batch({}, {Q0: [query("a", "cat", 1), query("b", "dog", 1), END]})
    with mock.patch.dict(state_files._caches, clear=True):  # as in another process
        search.batch({}, {Q0: [query("a", "ant", 2), query("b", None, 2, "d"), END]})
    found = search.batch({D0: [document(1, 3, "ant"), document(2, 3, "cat dog")]}, {})
    assert pairs(found) == [(1, "a")]
