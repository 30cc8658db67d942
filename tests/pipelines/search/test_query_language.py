"""The query language: what queries mean, and the place of what is wrong in them."""

from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.errors import SearchRefused
from headwater.pipelines.search.documents import MOST_CHARACTERS, Document, path_of
from headwater.pipelines.search.query_parser import parse_query

TEXTS = ("title", "post.body")


def matches(query: str, columns: dict, language: str = "") -> bool:
    document = Document(columns, [path_of(name) for name in TEXTS])
    return parse_query(query, TEXTS, language=language).test()(document)


ARTICLE = {
    "title": "The Quick Foxes of 2026",
    "post": {"body": "ran over a lazy dog's café, 東京都", "city": "New York"},
    "n": 5,
    "price": Decimal("12.50"),
    "share": 0.1,
    "is_new": True,
    "tags": ["red", "blue"],
    "at": datetime(2026, 3, 1, 12, tzinfo=UTC),
    "day": date(2026, 3, 1),
    "written": "2026-03-01T12:00:00Z",
    "raw": '{"customer": {"ids": [{"no": 7}, {"no": 8}]}}',
    "labels": [("env", "prod"), ("tier", "gold")],  # a map, as Arrow gives it
    "place": {"lat": 52.52, "lon": 13.405},
    "spot": "52.52, 13.405",
    "nothing": None,
}


@pytest.mark.parametrize(
    "query",
    [
        "quick",
        "QUICK foxes",
        "quick AND missing OR lazy",
        "quick AND (missing OR lazy)",
        "quick -missing",
        "quick NOT NOT lazy",
        '"lazy dog"',
        '"quick foxes of"',
        "foxes-of",
        "fox*",
        "title:fox* post.body:laz*",
        "title:(missing OR foxes)",
        "post.body:café",
        "cafe\u0301",
        "京都",
        'post.city:"New York"',
        "post.city:New*",
        "n:5",
        "n:5.0",
        "n:[1 TO 5]",
        "n:{4 TO 5]",
        "n:>=5 AND n:<5.5",
        "n:[* TO 5]",
        "n:*",
        "price:12.5",
        "price:[12.5 TO 12.50]",
        "share:0.1",
        "is_new:true",
        "tags:blue",
        "at:>2026-03-01",
        "at:2026-03-01T12:00:00Z",
        "at:[2026-03-01T12:00:00+00:00 TO 2026-03-01T13:00:00+00:00}",
        "day:2026-03-01",
        "written:<2026-03-02",
        "raw.customer.ids.no:8",
        "labels.tier:gold",
        "near(place, 52.5, 13.4, 5km)",
        "near(spot, 52.5, 13.4, 2.5mi)",
    ],
)
def test_these_match(query):
    assert matches(query, ARTICLE)


@pytest.mark.parametrize(
    "query",
    [
        "fox",
        '"dog lazy"',
        '"2026 ran"',
        "title:lazy",
        "post.city:york",
        "post.city:new",
        "京大",
        "n:{1 TO 5}",
        "n:>five",
        "title:[1 TO 5]",
        "n:05x",
        "nothing:*",
        "nothing:x",
        "missing.path.city:x",
        "title.city:x",
        "raw.customer.ids.no:9",
        "near(place, 52.5, 13.4, 100m)",
        "near(title, 52.5, 13.4, 10000km)",
        "near(nothing, 0, 0, 1km)",
        "written:<2026-03-01",
        "quick -lazy",
    ],
)
def test_these_do_not_match(query):
    assert not matches(query, ARTICLE)


@pytest.mark.parametrize(
    ("language", "query", "text"),
    [
        ("english", "storm", "two storms"),
        ("en", '"running storms"', "the run storm"),
        ("german", "Haus", "die Häuser"),
        ("fr", "cheval", "des chevaux"),
        ("es", "niños", "el niño"),
    ],
)
def test_words_are_found_in_other_forms_of_their_language(language, query, text):
    assert matches(query, {"title": text}, language)
    assert not matches(query, {"title": text})


@pytest.mark.parametrize(
    ("query", "place", "message"),
    [
        ("", "", "empty"),
        (" \n ", "", "empty"),
        ("fox AND", "line 1, column 8", "ends where a word is expected"),
        ("fox AND\nOR dog", "line 2, column 1", "OR is between two words"),
        ("(fox dog", "line 1, column 1", "bracket is not closed"),
        ("fox) dog", "line 1, column 4", "should end here"),
        ('fox "dog', "line 1, column 5", "quotation mark is not closed"),
        ("fox !!", "line 1, column 5", "no word"),
        ("fox 12:30", "line 1, column 5", "12 is no name of a field"),
        ("[1 TO 2]", "line 1, column 1", "a range needs a field"),
        ("n:[1 2]", "line 1, column 6", "TO is expected"),
        ("n:[1 TO", "line 1, column 8", "a bound is expected"),
        ("n:[1 TO 2", "line 1, column 3", "bracket is not closed"),
        ("n:", "line 1, column 1", "n: has no value"),
        ("f*x", "line 1, column 2", "at the end of a word"),
        ("foo-ba*", "line 1, column 1", "beginning of one word"),
        ("near(place, 1, 2)", "line 1, column 1", "near has a field"),
        ("near(place, 99, 2, 1km)", "line 1, column 1", "is no place"),
        ("near(place, 9, 2, 1)", "line 1, column 1", "1 is no distance"),
        ("a near(place, 9, 2, 1km", "line 1, column 3", "bracket is not closed"),
        ("fox dgo:5", "line 1, column 5", "no field dgo"),
        ("*", "line 1, column 1", "match every document"),
        ("NOT fox", "", "match every document"),
        ("fox OR -dog", "", "match every document"),
        ("NOT (fox AND dog)", "", "match every document"),
        ("(" * 60 + "a" + ")" * 60, "line 1, column 51", "nested"),
        ("a " * 1200, "line 1, column 2001", "1,000 conditions"),
        ("a" * 10_001, "", "10,000 characters"),
    ],
)
def test_what_is_wrong_and_where(query, place, message):
    with pytest.raises(SearchRefused) as refused:
        parse_query(query, TEXTS, columns=["title", "post", "n", "place", "dog"])
    assert refused.value.what.startswith(place)
    assert message in refused.value.what


def test_a_field_or_language_that_is_nearly_right_is_suggested():
    with pytest.raises(SearchRefused) as refused:
        parse_query("titel:fox", TEXTS, columns=["title"])
    assert refused.value.hint == "did you mean title?"
    with pytest.raises(SearchRefused) as refused:
        parse_query("fox", TEXTS, language="germann")
    assert refused.value.hint == "did you mean german?"


def test_of_a_huge_document_only_the_beginning_is_searched():
    text = "ant " * (MOST_CHARACTERS // 4) + "bee"
    document = Document({"title": text}, [("title",)])
    assert parse_query("ant", ("title",)).test()(document)
    assert not parse_query("bee", ("title",)).test()(document)
    assert document.is_cut


def test_deep_and_odd_values_are_no_errors():
    deep: object = "x"
    for _ in range(900):
        deep = [deep]
    text = "[" * 1000 + "]" * 1000
    for value in (
        deep,
        {"a": deep},
        text,
        b"x",
        float("nan"),
        object(),
        {"a": {"b": None}},
        [None, {}],
        "{",
        "[1",
    ):
        columns = {"title": value, "n": value, "raw": value}
        for query in ("x", "n:x", "n:1", "n:>1", "raw.a.b:x", "near(n, 1, 2, 3km)", "raw.a:*"):
            assert matches(query, columns) in (True, False)


PIECES = [
    *'()[]{}*-",:<>\\ \n\x00é東İ\ud800', "a", "fox", "title:", "n:", "post.city:", "AND", "OR",
    "NOT", "TO", "near(", "52.5", "10km", "place", "1e999999", "nan", "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
]  # fmt: skip


@settings(max_examples=examples(2000), deadline=None)
@given(
    st.lists(st.sampled_from(PIECES), max_size=12),
    st.sampled_from(["", " "]),
    st.sampled_from(["", "en"]),
)
def test_any_text_is_a_query_or_refused(pieces, between, language):
    query = between.join(pieces)
    with suppress(SearchRefused):
        assert matches(query, ARTICLE, language) in (True, False)
        assert not matches(query, {}, language)
