"""Every type of PostgreSQL: its value as Debezium has it, the same in stream and snapshot."""

# ruff: noqa: E501 - a table reads better wide

import base64
import json
import random
import struct

import orjson
import pytest
from support.capture.postgres_capture import capturing

from headwater.capture.contract import Row, Table, TableFailed
from headwater.capture.postgres.values import json_of_hstore
from headwater.errors import CaptureError

POINT_WKB = base64.b64encode(struct.pack("<BIdd", 1, 1, 1.5, -2.0)).decode()
DAY_US = 86_400_000_000

# type, literal, value, Connect's type, its name
TYPES = [
    ("smallint", "-32768", -32768, "int16", None),
    ("integer", "2147483647", 2147483647, "int32", None),
    ("bigint", "-9223372036854775808", -(2**63), "int64", None),
    ("oid", "4294967295", 4294967295, "int64", None),
    ("real", "0.1", 0.1, "float", None),
    ("real", "-Infinity", "-Infinity", "float", None),
    ("double precision", "1e308", 1e308, "double", None),
    ("double precision", "0.30000000000000004", 0.30000000000000004, "double", None),
    ("double precision", "NaN", "NaN", "double", None),
    ("double precision", "Infinity", "Infinity", "double", None),
    ("numeric", "123456789012345678901234567890.0100", "123456789012345678901234567890.0100", "string", None),
    ("numeric(10,2)", "-1.5", "-1.50", "string", None),
    ("numeric", "NaN", "NaN", "string", None),
    ("numeric", "-Infinity", "-Infinity", "string", None),
    ("money", "-1234567.89", "-1234567.89", "string", None),
    ("boolean", "true", True, "boolean", None),
    ("boolean", "false", False, "boolean", None),
    ("text", "tab\tnewline\nback\\slash \x0b\x08\x0c\r 'quote' \"double\" ü 漢 🙂", "tab\tnewline\nback\\slash \x0b\x08\x0c\r 'quote' \"double\" ü 漢 🙂", "string", None),
    ("text", "\x0b", "\x0b", "string", None),
    ("text", "\\N", "\\N", "string", None),
    ("text", "", "", "string", None),
    ("varchar(20)", "NULL", "NULL", "string", None),
    ("char(5)", "ab", "ab   ", "string", None),
    ('"char"', "x", "x", "string", None),
    ("name", "n", "n", "string", None),
    ("bytea", "\\x00ff5c0a", base64.b64encode(b"\x00\xff\\\n").decode(), "bytes", None),
    ("bytea", "", "", "bytes", None),
    ("date", "2024-02-29", 19782, "int32", "io.debezium.time.Date"),
    ("date", "0001-01-01 BC", -719528, "int32", "io.debezium.time.Date"),
    ("date", "12024-02-29", 3672207, "int32", "io.debezium.time.Date"),
    ("date", "infinity", 2**31 - 1, "int32", "io.debezium.time.Date"),
    ("date", "-infinity", -(2**31), "int32", "io.debezium.time.Date"),
    ("time", "13:51:30.5", 49890500000, "int64", "io.debezium.time.MicroTime"),
    ("time", "24:00:00", DAY_US, "int64", "io.debezium.time.MicroTime"),
    ("time(3)", "00:00:01.234", 1234, "int32", "io.debezium.time.Time"),
    ("timetz", "13:51:30.123+02", "11:51:30.123Z", "string", "io.debezium.time.ZonedTime"),
    ("timetz", "01:00:00+05:30", "19:30:00Z", "string", "io.debezium.time.ZonedTime"),
    ("timestamp", "2016-11-04 13:51:30.123456", 1478267490123456, "int64", "io.debezium.time.MicroTimestamp"),
    ("timestamp", "1936-10-25 22:10:12.608", -1047174587392000, "int64", "io.debezium.time.MicroTimestamp"),
    ("timestamp", "4713-12-31 23:59:59.999999 BC", -210831897600000001, "int64", "io.debezium.time.MicroTimestamp"),
    ("timestamp", "294247-01-01 23:59:59.999999", 9223371331199999999, "int64", "io.debezium.time.MicroTimestamp"),
    ("timestamp", "infinity", 9223372036825200000, "int64", "io.debezium.time.MicroTimestamp"),
    ("timestamp", "-infinity", -9223372036832400000, "int64", "io.debezium.time.MicroTimestamp"),
    ("timestamp(3)", "2016-11-04 13:51:30.123", 1478267490123, "int64", "io.debezium.time.Timestamp"),
    ("timestamptz", "2016-11-04 13:51:30.12+02", "2016-11-04T11:51:30.120000Z", "string", "io.debezium.time.ZonedTimestamp"),
    ("timestamptz", "21016-11-04 13:51:30+07", "+21016-11-04T06:51:30.000000Z", "string", "io.debezium.time.ZonedTimestamp"),
    ("timestamptz", "4714-12-31 23:59:59.999999Z BC", "-4713-12-31T23:59:59.999999Z", "string", "io.debezium.time.ZonedTimestamp"),
    ("timestamptz", "infinity", "infinity", "string", "io.debezium.time.ZonedTimestamp"),
    ("interval", "P1Y2M3DT4H5M6.78S", 37091106780000, "int64", "io.debezium.time.MicroDuration"),
    ("interval", "-1 day -00:00:00.5", -DAY_US - 500_000, "int64", "io.debezium.time.MicroDuration"),
    ("interval", "0", 0, "int64", "io.debezium.time.MicroDuration"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "string", "io.debezium.data.Uuid"),
    ("json", '{"b": 1,  "a":"\\\\"}', '{"b": 1,  "a":"\\\\"}', "string", "io.debezium.data.Json"),
    ("jsonb", '{"b": 1,  "a":2}', '{"a": 2, "b": 1}', "string", "io.debezium.data.Json"),
    ("jsonpath", "$.a", '$."a"', "string", None),
    ("bit(1)", "1", True, "boolean", None),
    ("bit(10)", "1000000001", base64.b64encode(b"\x01\x02").decode(), "bytes", "io.debezium.data.Bits"),
    ("varbit", "101", base64.b64encode(b"\x05").decode(), "bytes", "io.debezium.data.Bits"),
    ("inet", "192.168.0.1/24", "192.168.0.1/24", "string", None),
    ("inet", "10.0.0.1", "10.0.0.1", "string", None),
    ("cidr", "10.0.0.0/8", "10.0.0.0/8", "string", None),
    ("macaddr", "08:00:2b:01:02:03", "08:00:2b:01:02:03", "string", None),
    ("macaddr8", "08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03:04:05", "string", None),
    ("point", "(1.5,-2)", {"x": 1.5, "y": -2.0, "wkb": POINT_WKB, "srid": None}, "struct", "io.debezium.data.geometry.Point"),
    ("line", "{1,2,3}", "{1,2,3}", "string", None),
    ("lseg", "[(1,2),(3,4)]", "[(1,2),(3,4)]", "string", None),
    ("box", "(3,4),(1,2)", "(3,4),(1,2)", "string", None),
    ("path", "((1,2),(3,4))", "((1,2),(3,4))", "string", None),
    ("polygon", "((1,2),(3,4))", "((1,2),(3,4))", "string", None),
    ("circle", "<(1,2),3>", "<(1,2),3>", "string", None),
    ("tsvector", "a:1 b:2", "'a':1 'b':2", "string", "io.debezium.data.Tsvector"),
    ("tsquery", "a & b", "'a' & 'b'", "string", None),
    ("int4range", "[1,5]", "[1,6)", "string", None),
    ("numrange", "(,2.5]", "(,2.5]", "string", None),
    ("tstzrange", "[2024-01-01 00:00+00,infinity)", '["2024-01-01 00:00:00+00",infinity)', "string", None),
    ("int4multirange", "{[1,3),[5,7)}", "{[1,3),[5,7)}", "string", None),
    ("pg_lsn", "16/B374D848", "16/B374D848", "string", None),
    ("xid8", "77", "77", "string", None),
    ("regclass", "pg_class", "pg_class", "string", None),
    ("mood", "so, so", "so, so", "string", "io.debezium.data.Enum"),
    ("price", "7.5", "7.50", "string", None),
    ("pair", '(1,"a b")', '(1,"a b")', "string", None),
    ("vector(3)", "[1,2.5,-3]", [1.0, 2.5, -3.0], "array", "io.debezium.data.DoubleVector"),
    ("integer[]", "{1,NULL,-3}", [1, None, -3], "array", None),
    ("integer[]", "{}", [], "array", None),
    ("integer[]", "{{1,2},{3,NULL}}", [[1, 2], [3, None]], "array", None),
    ("integer[]", "[0:1]={5,6}", [5, 6], "array", None),
    ("text[]", '{"a,b",NULL,"NULL","q\\"x","back\\\\s","","{}",plain}', ["a,b", None, "NULL", 'q"x', "back\\s", "", "{}", "plain"], "array", None),
    ("text[]", '{{"a"},{"b c"}}', [["a"], ["b c"]], "array", None),
    ("numeric(6,2)[]", "{1,2.5}", ["1.00", "2.50"], "array", None),
    ("boolean[]", "{t,f,NULL}", [True, False, None], "array", None),
    ("double precision[]", "{NaN,1.5}", ["NaN", 1.5], "array", None),
    ("date[]", "{2024-02-29,infinity}", [19782, 2**31 - 1], "array", None),
    ("timestamp[]", '{"1970-01-01 00:00:01"}', [1_000_000], "array", None),
    ("timestamptz[]", '{"1970-01-01 00:00:01+00"}', ["1970-01-01T00:00:01.000000Z"], "array", None),
    ("interval[]", "{P1D}", [DAY_US], "array", None),
    ("bytea[]", '{"\\\\x00ff"}', [base64.b64encode(b"\x00\xff").decode()], "array", None),
    ("uuid[]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], "array", None),
    ("jsonb[]", '{"{\\"a\\": 1}"}', ['{"a": 1}'], "array", None),
    ("box[]", "{(3,4),(1,2);(1,1),(0,0)}", ["(3,4),(1,2)", "(1,1),(0,0)"], "array", None),
    ("int4range[]", '{"[1,6)",empty}', ["[1,6)", "empty"], "array", None),
    ("mood[]", '{"so, so",bad}', ["so, so", "bad"], "array", None),
    ("price[]", "{1}", ["1.00"], "array", None),
    ("pair[]", '{"(1,\\"a b\\")"}', ['(1,"a b")'], "array", None),
    ("int2vector", "1 2 3", "1 2 3", "string", None),
]  # fmt: skip

OWN_TYPES = """
CREATE TYPE mood AS ENUM ('bad', 'so, so');
CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE >= 0);
CREATE TYPE pair AS (number int, word text);
CREATE EXTENSION vector
"""


def both(postgres, types, **settings) -> tuple[Row, Table]:
    """The row as stream and snapshot have it, which must be the same."""
    for statement in OWN_TYPES.split(";"):
        postgres.run(statement)
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _) in enumerate(types))
    postgres.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
    with capturing(postgres, **settings) as capture:
        literals = ", ".join(f"%s::{kind}" for kind, _ in types)
        postgres.run(f"INSERT INTO t VALUES (1, {literals})", *(text for _, text in types))
        postgres.run("INSERT INTO t (id) VALUES (2)")
        change, empty = capture.changes(2)
        rows = capture.rows("t")
        assert rows == [change.after, empty.after]
        assert change.table == capture.table("t")
        assert list(map(type, rows[0].values())) == list(map(type, change.after.values()))
        assert set(empty.after.values()) == {2, None}
        orjson.dumps(rows)
        return change.after, change.table


def test_every_type_is_the_same_in_stream_and_snapshot(postgres):
    row, table = both(postgres, [(kind, text) for kind, text, *_ in TYPES])
    for i, (kind, text, value, connect, name) in enumerate(TYPES):
        assert row[f"c{i}"] == value, f"{kind} {text}"
        column = table.columns[i + 1]
        assert (column.connect["type"], column.connect.get("name")) == (connect, name), kind
        assert column.optional
    assert not table.columns[0].optional
    assert json.loads(json.dumps(row)) == row


def test_types_are_named_as_the_database_names_them(postgres):
    _, table = both(postgres, [("varchar(20)", "x"), ("numeric(10,2)", "1"), ("mood[]", "{}")])
    assert [column.type for column in table.columns] == [
        "integer", "character varying(20)", "numeric(10,2)", "public.mood[]",
    ]  # fmt: skip


def test_times_as_iso(postgres):
    types = [
        ("date", "2024-02-29"), ("date", "0044-03-15 BC"), ("time", "13:51:30.5"),
        ("timestamp", "2024-02-29 01:02:03.4"), ("timestamp", "infinity"),
        ("interval", "P1Y2M3DT4H5M6.78S"), ("timestamptz", "2024-02-29 01:02:03+00"),
    ]  # fmt: skip
    row, table = both(postgres, types, times="iso")
    assert list(row.values())[1:] == [
        "2024-02-29", "-0043-03-15", "13:51:30.5Z", "2024-02-29T01:02:03.4Z", "infinity",
        "P1Y2M3DT4H5M6.78S", "2024-02-29T01:02:03.000000Z",
    ]  # fmt: skip
    assert {column.connect["type"] for column in table.columns[1:]} == {"string"}


def test_decimals_as_doubles(postgres):
    types = [
        ("numeric(10,2)", "1.5"),
        ("numeric", "NaN"),
        ("money", "1234.5"),
        ("numeric[]", "{1}"),
    ]
    row, _ = both(postgres, types, decimals="double")
    assert list(row.values())[1:] == [1.5, "NaN", 1234.5, [1.0]]


@pytest.mark.parametrize("text", ["0", "-1.28", "1.27", "1.28", "-327.68", "99999999.99", "-0.01"])
def test_precise_decimals_are_those_of_connect(postgres, text):
    types = [
        ("numeric(10,2)", text),
        ("numeric", text),
        ("money", text),
        ("numeric(5,-2)", "-1234"),
    ]
    row, table = both(postgres, types, decimals="precise")
    fixed, variable, money, rounded = list(row.values())[1:]
    cents = round(float(text) * 100)
    for value in (fixed, money):
        raw = base64.b64decode(value)
        assert int.from_bytes(raw, "big", signed=True) == cents
        assert raw == cents.to_bytes(len(raw), "big", signed=True)
        assert len(raw) == 1 or not -(2 ** (8 * len(raw) - 9)) <= cents < 2 ** (8 * len(raw) - 9)
    unscaled = int.from_bytes(base64.b64decode(variable["value"]), "big", signed=True)
    assert unscaled / 10 ** variable["scale"] == float(text)
    assert int.from_bytes(base64.b64decode(rounded), "big", signed=True) == -12
    assert table.columns[1].connect["parameters"] == {
        "scale": "2",
        "connect.decimal.precision": "10",
    }
    assert table.columns[4].connect["parameters"]["scale"] == "-2"


def test_a_value_that_has_no_representation_fails_its_table_only(postgres):
    postgres.run("CREATE TABLE bad (id int PRIMARY KEY, n numeric)")
    postgres.run("CREATE TABLE good (id int PRIMARY KEY)")
    with capturing(postgres, decimals="precise") as capture:
        postgres.transaction("INSERT INTO bad VALUES (1, 'NaN')", "INSERT INTO good VALUES (1)")
        (transaction,) = capture.transactions(1)
        failed, change = transaction.events
        assert isinstance(failed, TableFailed)
        assert failed.table_id == "public.bad"
        assert "set decimals to string" in str(failed.error)
        assert (change.table.id, change.ordinal) == ("public.good", 1)
        with pytest.raises(CaptureError, match="cannot be read"):
            capture.rows("bad")


def test_hstore():
    """The wheel's PostgreSQL does not have the extension: its text is as the manual shows it."""
    text = r'"a"=>"1", "b c"=>NULL, "q\"x"=>"back\\s", "n"=>"NULL"'
    assert json.loads(json_of_hstore(text)) == {
        "a": "1",
        "b c": None,
        'q"x': "back\\s",
        "n": "NULL",
    }


def test_any_text_survives_both_ways(postgres):
    """Texts of the characters that COPY, arrays and JSON escape, alone and in all kinds of dress."""
    luck = random.Random(11)
    alphabet = "\\\"'{},\t\n\r\x0b\x08\x0c\x01 NULLnbft()[]=>ä漢🙂"
    texts = ["".join(luck.choices(alphabet, k=luck.randrange(8))) for _ in range(400)]
    postgres.run("CREATE TYPE pair AS (a text, b text)")
    postgres.run("CREATE TABLE t (id int PRIMARY KEY, a text, b text[], c jsonb, d bytea, e pair)")
    with capturing(postgres) as capture:
        for number, text in enumerate(texts):
            nested = [[text, None], [texts[number - 1], ""]]
            postgres.run(
                "INSERT INTO t VALUES (%s, %s, %s, %s, %s, (%s, NULL)::pair)",
                number, text, nested, json.dumps({"x": text}), text.encode(), text,
            )  # fmt: skip
        streamed = [change.after for change in capture.changes(len(texts))]
        assert capture.rows("t", limit_rows=50) == streamed
    for number, (row, text) in enumerate(zip(streamed, texts, strict=True)):
        assert row["a"] == text
        assert row["b"] == [[text, None], [texts[number - 1], ""]]
        assert json.loads(row["c"]) == {"x": text}
        assert base64.b64decode(row["d"]) == text.encode()
