"""Conditions decide on captured rows as PostgreSQL itself decides: it is the oracle."""

import pytest
from support.capture.postgres_capture import capturing

from headwater.capture.rules.conditions import Condition

TABLE = """CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE t (id int PRIMARY KEY, n numeric, m numeric(10,2), f double precision, r real,
  b boolean, d date, ts timestamp, tz timestamptz, ti time, c char(5), v varchar(5), s text,
  u uuid, e mood, j jsonb, big bigint, small smallint, a text[])"""
ROWS = """INSERT INTO t VALUES
  (1, 1.5, 1.50, 1.5, 0.5, true, '2024-02-29', '2024-02-29 12:00', '2024-02-29 12:00+02', '12:00',
   'DE', 'DE', 'DE', '00000000-0000-0000-0000-00000000000a', 'glad', '{}',
   9007199254740993, 1, '{}'),
  (2, 'NaN', 10, 'NaN', 'NaN', false, 'infinity', 'infinity', '-infinity', '00:00', 'de', 'de ',
   'de ', NULL, 'sad', 'null', -9223372036854775808, -1, '{a}'),
  (3, 9.999999999999999999, 9.99, 'Infinity', '-Infinity', NULL, '-infinity',
   '1969-12-31 23:59:59.999999', '1970-01-01 00:00:00.000001+00', '23:59:59.999999', '', '',
   '', NULL, NULL, NULL, 0, 0, NULL),
  (4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
   NULL, NULL, NULL),
  (5, -10, -10.01, -0.0, 10, true, '0044-03-15 BC', '0001-01-01', '9999-12-31 23:59:59Z', '24:00',
   E'a\\nb', 'a_b', 'a%b', 'ffffffff-ffff-ffff-ffff-ffffffffffff', 'sad', '[1]', 10, 7, '{}')"""


@pytest.fixture(scope="module")
def decided(postgres_server):
    """Both answers to a condition: the ids of the rows that meet it."""
    with postgres_server.database() as database:
        database.run(TABLE)
        database.run(ROWS)
        found = {}
        for settings in ({}, {"times": "iso"}):
            with capturing(database, **settings) as capture:
                found[str(settings)] = capture.table("t"), capture.rows("t")

        def both(condition):
            theirs = [row[0] for row in database.run(f"SELECT id FROM t WHERE {condition}")]
            ours = {}
            for settings, (table, rows) in found.items():
                decide = Condition(condition, "t", "postgresql").bind(table)
                ours[settings] = [row["id"] for row in rows if decide(row) is True]
            return ours, dict.fromkeys(ours, sorted(theirs))

        yield both


@pytest.mark.parametrize(
    "condition",
    [
        "n > 9.5", "n < 10", "n = 1.50", "n >= 9.999999999999999999", "m = 10", "m * 2 = 19.98",
        "m between -10.01 and 9.99", "m not in (10, 1.5)", "n + m > 3", "-m < 0",
        "f > 1", "f = 0", "f < 0 or f >= 1.5", "r > 0.25", "f is null or not (f = f)",
        "b", "not b", "b is true", "b is not true", "b = false", "b is null and n is not null",
        "d = '2024-02-29'", "d > '1970-01-01'", "d < '2024-03-01'", "d is null",
        "ts < '1970-01-01'", "ts >= '2024-02-29 12:00:00'", "ts = '1969-12-31 23:59:59.999999'",
        "tz > '1970-01-01T00:00:00Z'", "tz = '2024-02-29 10:00:00+00'",
        "ti = '12:00'", "ti > '12:00:00'", "ti <= '23:59:59.999999'", "ti = '24:00'",
        "c = 'DE'", "c in ('DE', '')", "c <> 'de'", "length(c) = 2", "lower(c) = 'de'",
        "v = 'de'", "v = 'de '", "v like 'a\\_b'", "v like 'a_b'", "s like 'a!%b' escape '!'",
        "s like '%e%'", "upper(s) = 'DE'", "s = ''", "coalesce(s, 'x') = 'x'", "c like 'a_b%'",
        "u = '00000000-0000-0000-0000-00000000000a'", "e = 'sad'", "e <> 'sad'", "j is null",
        "a is null", "big = 9007199254740993", "big < 9007199254740993.5", "big / 3 = 3",
        "small / 2 = 0", "small in (1, null)", "small not in (1, null)", "big > small",
        "n > f", "big > 0.5 and small < 5", "n = 1.5 and s = 'DE' or id = 4",
    ],
)  # fmt: skip
def test_postgres_decides_the_same(decided, condition):
    ours, theirs = decided(condition)
    assert ours == theirs
