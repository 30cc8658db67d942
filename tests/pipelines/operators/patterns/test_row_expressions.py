"""Expressions of a single row in stored patterns: what Python computes, and Spark does, too."""

import re
from datetime import UTC, date, datetime
from decimal import Decimal

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples, long

from headwater.errors import PipelineError
from headwater.pipelines.operators.patterns.row_functions import ROW_FUNCTIONS
from headwater.pipelines.operators.patterns.stored.definitions import (
    PatternDefinition,
    compiled,
)
from headwater.pipelines.operators.patterns.stored.row_expressions import row_expression

ROW = {
    "a": "Xy", "none": None, "n": 5, "d": Decimal("1.50"), "f": 0.1, "nan": float("nan"),
    "s": {"City": "Oslo"}, "t": datetime(2026, 11, 15, 13, 5, 9, tzinfo=UTC),
    "day": date(2026, 11, 15), "yes": True,
}  # fmt: skip
SCHEMA = (
    "a string, none string, n bigint, d decimal(8,2), f double, nan double, s struct<City: string>,"
    " t timestamp, day date, yes boolean"
)
VALUES = {
    "lower(a) || upper(a)": "xyXY",
    "concat(a, n, d, yes)": "Xy51.50true",
    "concat(a, none)": None,
    "trim('  a ')": "a",
    "length(a)": 2,
    "substring('Headwater', 5)": "water",
    "substring('Headwater', -5, 2)": "wa",
    "substring('Headwater', 0, 4)": "Head",
    "startswith(a, 'X') AND endswith(a, 'y') AND contains(a, 'Xy')": True,
    "a LIKE 'X_' AND NOT a LIKE 'x%' AND 'a%b' LIKE 'a\\\\%b'": True,
    "round(2.5) + round(-2.5)": 0,
    "round(f, 1)": 0.1,
    "round(n, -1)": 10,
    "floor(-1.5)": -2,
    "ceil(d)": 2,
    "s.city = 'Oslo'": True,
    "year(t) * 10000 + month(t) * 100 + day(day)": 20_261_115,
    "hour(t) * 10000 + minute(t) * 100 + second(t)": 130_509,
    "dayofweek(t)": 1,
    "CAST('12' AS bigint) + CAST(2.9 AS int)": 14,
    "CAST(n AS double) / 2": 2.5,
    "CAST(d AS string)": "1.50",
    "CAST(yes AS string)": "true",
    "CAST(t AS date) = day": True,
    "CAST('2026-11-15T13:05:09Z' AS timestamp) = t": True,
    "t > TIMESTAMP '2026-11-15 00:00:00' + INTERVAL 1 HOUR": True,
    "coalesce(none, nullif(n, 5), 7)": 7,
    "nvl(none, a)": "Xy",
    "if(n > 4, 'more', 'less')": "more",
    "CASE n WHEN 4 THEN 'four' WHEN 5 THEN 'five' END": "five",
    "none = 'x' OR n BETWEEN 1 AND 5": True,
    "none = 'x' AND n IN (1, 2)": False,
    "NOT (none = 'x')": None,
    "none IS NULL AND a IS NOT NULL AND n IS DISTINCT FROM 4": True,
    "none <=> NULL": True,
    "f = 0.1 AND f >= 0.1": True,
    "nan > 1e300 AND nan = nan": True,
    "-n % 3": -2,
    "abs(-n) - d": Decimal("3.50"),
}


@pytest.mark.parametrize(("text", "value"), VALUES.items())
def test_values_are_those_of_sql(text, value):
    assert row_expression("it", text, list(ROW)).value(ROW) == value


@long
def test_values_are_those_of_spark(spark):
    frame = spark.createDataFrame([tuple(ROW.values())], SCHEMA)
    (found,) = frame.selectExpr(*VALUES).collect()
    assert dict(zip(VALUES, found, strict=True)) == VALUES


def test_a_value_that_cannot_be_computed_is_null():
    texts = ["CAST(a AS bigint)", "a > 5", "lower(n) = 'x'", "CAST(a AS timestamp) < t"]
    found = [row_expression("it", text, list(ROW)).values({k: [v] for k, v in ROW.items()}, (0,))
             for text in texts]  # fmt: skip
    assert found == [([None], 1)] * len(texts)


@settings(max_examples=examples(1_000), deadline=None)
@given(st.text("ab.\n", max_size=8), st.text("ab._%", max_size=6))
def test_like_is_like_a_regular_expression(text, pattern):
    same = "".join({"%": ".*", "_": "."}.get(one, re.escape(one)) for one in pattern)
    is_like = re.fullmatch(same, text, re.DOTALL) is not None
    assert ROW_FUNCTIONS["like"](text, pattern) is is_like


def test_like_is_linear_whatever_the_pattern():
    assert not ROW_FUNCTIONS["like"]("a" * 100_000, "%a" * 50 + "%b")


COLUMNS = pa.schema(
    [
        ("user", pa.string()), ("price", pa.float64()), ("at", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string())])), ("tags", pa.list_(pa.string())),
    ]
)  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"define": {"A": "cost > 1"}}, "there is no column cost: columns are user, price"),
        ({"define": {"A": "user > price"}}, "the condition of A compares or computes values of"),
        ({"define": {"A": "at > '2026-01-01'"}}, "of different types"),
        ({"define": {"A": "true OR user > price"}}, "of different types"),
        ({"define": {"B": "A.at > price"}}, "the condition of B compares or computes"),
        ({"define": {"B": "PREV(user)"}}, "the condition of B is neither true nor false"),
        ({"define": {"A": "user"}}, "the condition of A is neither true nor false"),
        ({"define": {"A": "lower(price) = 'x'"}}, "1.0 is no text"),
        ({"define": {"A": "price.city = 'x'"}}, "has no member city"),
        ({"measures": {"x": "A.user + B.price"}}, "the measure x compares or computes"),
        ({"measures": {"x": "sum(A.user)"}}, "sum takes numbers"),
        ({"define": {"A": "place.city = 'Oslo'", "B": "B.price > A.price"}}, None),
        ({"measures": {"x": "round(avg(price), 2)", "y": "LAST(B.tags)"}}, None),
    ],
)
def test_types_of_columns_are_checked(fields, message):
    definition = PatternDefinition.of_row({"id": "p", "pattern": "A B", **fields})
    if message is None:
        assert compiled(definition, COLUMNS).definition == definition
        return
    with pytest.raises(PipelineError) as refused:
        compiled(definition, COLUMNS)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "row",
    [
        {"define": "{"}, {"define": "[]"}, {"define": {"A": 1}}, {"subset": {"U": "A"}},
        {"timed_out": "yes"}, {"within": 5}, {"from": "soon"}, {"pattern": ["A"]},
        {"define": {"A": "x" * 100_001}},
    ],
)  # fmt: skip
def test_what_is_no_definition_is_refused(row):
    with pytest.raises(PipelineError):
        compiled(PatternDefinition.of_row({"id": "p", "pattern": "A", **row}))


def test_a_definition_is_read_as_it_was_written():
    written = PatternDefinition(
        "p", "A B", {"A": "x > 1"}, {"m": "A.x"}, {"U": ["A", "B"]}, "1 hour",
        "SKIP TO NEXT ROW", True, "start", "ann", "mail", "2026-01-01",
    )  # fmt: skip
    assert PatternDefinition.of_row(orjson.loads(written.to_json())) == written
