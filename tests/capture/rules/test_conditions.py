"""Conditions decide as SQL does: SQLite is the oracle."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from headwater.capture.contract import UNAVAILABLE, Column, Table
from headwater.capture.rules.conditions import Condition
from headwater.errors import ConfigError, TableRefused

ORACLE_TABLE = Table(
    "main",
    "t",
    (
        Column("a", "bigint", {"type": "int64"}),
        Column("b", "integer", {"type": "int32"}),
        Column("f", "double", {"type": "double"}),
        Column("s", "text", {"type": "string"}),
        Column("r", "text", {"type": "string"}),
    ),
    ("a",),
)
_texts = st.text("aAbB%_'x ", max_size=4)
_rows = st.fixed_dictionaries(
    {
        "a": st.none() | st.integers(-4, 4),
        "b": st.none() | st.integers(-4, 4),
        "f": st.none() | st.sampled_from([-2.5, -1.0, 0.0, 0.5, 1.0, 3.0]),
        "s": st.none() | _texts,
        "r": st.none() | _texts,
    }
)


def _quoted(value):
    return "'" + value.replace("'", "''") + "'"


_number = st.recursive(
    st.sampled_from(["a", "b", "f"]) | st.integers(-4, 4).map(str) | st.just("0.5"),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda x: f"- ({x})"),
        st.tuples(inner, inner).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
    ),
    max_leaves=4,
)
_text = st.recursive(
    st.sampled_from(["s", "r"]) | _texts.map(_quoted),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["lower", "upper"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"coalesce({t[0]}, {t[1]})"),
    ),
    max_leaves=3,
)
_compare = st.sampled_from(["=", "<>", "!=", "<", "<=", ">", ">="])


def _simple(operand):
    return st.one_of(
        st.tuples(operand, _compare, operand).map(" ".join),
        st.tuples(operand, operand, operand).map(lambda t: f"{t[0]} between {t[1]} and {t[2]}"),
        st.tuples(operand, operand, operand).map(lambda t: f"{t[0]} not in ({t[1]}, {t[2]})"),
        st.tuples(operand, st.lists(operand | st.just("null"), min_size=1, max_size=3)).map(
            lambda t: f"{t[0]} in ({', '.join(t[1])})"
        ),
        operand.map(lambda x: f"{x} is null"),
        operand.map(lambda x: f"{x} is not null"),
    )


_condition = st.recursive(
    st.one_of(
        _simple(_number),
        _simple(_text),
        st.tuples(_text, st.sampled_from(["like", "not like"]), _texts.map(_quoted)).map(" ".join),
        _text.map(lambda x: f"length({x}) > 1"),
        st.just("a = null"),
    ),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        inner.map(lambda x: f"not ({x})"),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def oracle():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("pragma case_sensitive_like = on")
        yield connection


@settings(max_examples=examples(300), deadline=None)
@given(sql=_condition, row=_rows)
def test_conditions_decide_as_sqlite_does(oracle, sql, row):
    # Typed columns, or SQLite would not know integers from floats.
    ((expected,),) = oracle.execute(
        f"select {sql} from (select cast(? as integer) as a, cast(? as integer) as b,"
        " cast(? as real) as f, cast(? as text) as s, cast(? as text) as r)",
        [row[name] for name in "abfsr"],
    )
    decided = Condition(sql, "main.t", "sqlite").bind(ORACLE_TABLE)(row)
    assert decided is (None if expected is None else bool(expected))


ORDERS = Table(
    "public",
    "orders",
    (
        Column("id", "integer", {"type": "int32"}),
        Column("Total", "numeric(10,2)", {"type": "string"}),
        Column(
            "exact",
            "numeric(10,2)",
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "version": 1,
                "parameters": {"scale": "2"},
            },
        ),
        Column("day", "date", {"type": "int32", "name": "io.debezium.time.Date", "version": 1}),
        Column(
            "at",
            "timestamp",
            {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "version": 1},
        ),
        Column(
            "zoned",
            "timestamptz",
            {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1},
        ),
        Column("hour", "time", {"type": "int64", "name": "io.debezium.time.MicroTime"}),
        Column("iso_day", "date", {"type": "string", "name": "io.debezium.time.IsoDate"}),
        Column("iso_at", "timestamp", {"type": "string", "name": "io.debezium.time.IsoTimestamp"}),
        Column("iso_hour", "time", {"type": "string", "name": "io.debezium.time.IsoTime"}),
        Column("paid", "boolean", {"type": "boolean"}),
        Column("note", "text", {"type": "string"}),
        Column("tags", "text[]", {"type": "array", "items": {"type": "string"}}),
        Column("rate", "double precision", {"type": "double"}),
    ),
    ("id",),
)
ORDER = {
    "id": 7,
    "Total": "100.50",
    "exact": "J0I=",  # 10050, two of them behind the point
    "day": 19_676,  # 2023-11-15
    "at": 1_700_000_000_000_000,  # 2023-11-14T22:13:20
    "zoned": "2023-11-14T22:13:20.5Z",
    "hour": 43_200_000_000,
    "iso_day": "2023-11-15",
    "iso_at": "2023-11-14T22:13:20.5Z",
    "iso_hour": "12:00:00Z",
    "paid": True,
    "note": "large",
    "tags": ["x"],
    "rate": 0.1,
}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("total > 100", True),
        ('"Total" < 100.51 and total > 100.49', True),
        ("exact = 100.5", True),
        ("total = exact", True),
        ("total > rate", True),
        ("rate = 0.1", True),
        ("total / 3 > 33.4", True),
        ("day = '2023-11-15'", True),
        ("day between '2023-11-14' and '2023-11-16'", True),
        ("at >= '2023-11-14 22:13:20'", True),
        ("at > '2023-11-14T22:13:20'", False),
        ("zoned > '2023-11-14T23:13:20+01:00'", True),
        ("zoned > '2023-11-14T22:13:21Z'", False),
        ("hour = '12:00'", True),
        ("iso_day = '2023-11-15' and iso_day = day", True),
        ("iso_at > '2023-11-14 22:13:20' and iso_at < '2023-11-15'", True),
        ("iso_hour = '12:00' and iso_hour = hour", True),
        ("paid", True),
        ("not paid", False),
        ("paid = true and paid is true", True),
        ("tags is not null", True),
        ("note like 'l_rg%'", True),
        (r"note like '\_%'", False),
        ("note like '!l%' escape '!'", True),
        ("note not like '!l%' escape '!'", False),
        ("note not like 'l%'", False),
        ("paid is not true", False),
        ("note = null", None),
        ("id / 2 = 3", True),
        ("id / 0 = 3", None),
    ],
)
def test_values_of_all_kinds(sql, expected):
    assert Condition(sql, "public.orders", "postgresql").bind(ORDERS)(ORDER) is expected


def test_not_a_number_is_above_all_numbers():
    above = Condition("total > 1000000", "public.orders", "postgresql").bind(ORDERS)
    assert above(ORDER | {"Total": "NaN"}) is True
    assert above(ORDER | {"Total": None}) is None


@pytest.mark.parametrize("column", ["zoned", "iso_at", "iso_day"])
def test_times_beyond_the_calendar_are_before_or_after_all_others(column):
    later = Condition(f"{column} > '9999-12-31'", "public.orders", "postgresql").bind(ORDERS)
    earlier = Condition(f"{column} < '0001-01-01'", "public.orders", "postgresql").bind(ORDERS)
    for value, is_later in (
        ("infinity", True),
        ("+12024-01-01", True),
        ("-infinity", False),
        ("-0043-03-15", False),
    ):
        row = ORDER | {column: value}
        assert (later(row), earlier(row)) == (is_later, not is_later)


def test_a_row_of_which_nothing_can_be_decided_is_an_error_of_its_table():
    with pytest.raises(TableRefused, match=r"cannot be decided for a row of public.orders"):
        Condition("id > 5", "public.orders", "sqlite").bind(ORDERS)(ORDER | {"id": "many"})
    with pytest.raises(TableRefused, match="cannot be decided"):
        Condition("total > 5", "public.orders", "sqlite").bind(ORDERS)(ORDER | {"Total": "many"})


def test_mysql_divides_integers_into_decimals():
    half = Condition("id / 2 = 3.5", "public.orders", "mysql").bind(ORDERS)
    assert half(ORDER) is True


@pytest.mark.parametrize(
    "sql",
    [
        "id in (select 1)",
        "id = any(array[1])",
        "now() > at",
        "orders.id = 1",
        "id between symmetric 3 and 1",
        "note ilike 'x'",
        "note || 'x' = 'y'",
        "case when paid then true end",
        "note similar to 'x'",
        "exists (select 1)",
        "id = 1; drop table orders",
        "id = ",
        "select 1",
        "((((",
        "",
    ],
)
def test_what_conditions_do_not_have_is_refused_when_they_are_read(sql):
    with pytest.raises(ConfigError):
        Condition(sql, "public.orders", "postgresql")


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("country = 'DE'", "does not have: country"),
        ('"total" > 1', "does not have: total"),
        ("note > 5", "text with integer"),
        ("day = 'soon'", "date with text"),
        ("zoned > 'infinity'", "instant with text"),
        ("zoned > at", "instant with timestamp"),
        ("tags = 'x'", "opaque with text"),
        ("id + note = 1", "takes numbers"),
        ("lower(id) = 'x'", "takes a text"),
        ("id", "neither true nor false"),
        ("id and paid", "neither true nor false"),
        ("paid = 1", "boolean with integer"),
        ("note like note", "between quotes"),
        ("coalesce(id, note) = 1", "mixes"),
        ("day = hour", "date with time"),
    ],
)
def test_what_does_not_fit_a_table_is_refused(sql, why):
    with pytest.raises(TableRefused, match=why):
        Condition(sql, "public.orders", "postgresql").bind(ORDERS)


def test_a_value_that_the_log_left_out_decides_nothing():
    large = Condition("note = 'x'", "public.orders", "postgresql").bind(ORDERS)
    with pytest.raises(TableRefused, match="needs note, which an update left out"):
        large(ORDER | {"note": UNAVAILABLE})
    is_met = Condition("note is not null", "public.orders", "postgresql").bind(ORDERS)
    assert is_met(ORDER | {"note": UNAVAILABLE}) is True


def test_blanks_at_the_end_of_a_padded_text_do_not_count():
    table = Table("public", "t", (Column("c", "character(5)"), Column("t", "text")), ())
    row = {"c": "DE   ", "t": "DE "}
    assert Condition("c = 'DE' and length(c) = 2", "t", "postgresql").bind(table)(row) is True
    assert Condition("t = 'DE'", "t", "postgresql").bind(table)(row) is False


def test_an_error_does_not_show_the_value():
    """It may be of a column that a rule hides."""
    table = Table("main", "t", (Column("f", "double", {"type": "double"}),), ())
    with pytest.raises(TableRefused) as refused:
        Condition("f > 1", "t", "sqlite").bind(table)({"f": 'it\'s "secret"'})
    assert "secret" not in str(refused.value)
    assert "could not convert string to float" in refused.value.detail
