"""Values that an expression has no result for: an error that names the cause, and nothing lost."""

import re
from decimal import Decimal

import pytest
from support.pipelines.duckdb_oracle import Oracle, difference
from support.pipelines.view_driver import Table, ViewDriver

from headwater.pipelines.spark_errors import explained

TABLES = {"o": Table("id bigint, big bigint, n int, note string, d decimal(10,2)", ("id",))}
GOOD = [
    {"id": 1, "big": 2**62, "n": 5, "note": "7", "d": Decimal("1.50")},
    {"id": 2, "big": 3, "n": 2, "note": "8", "d": Decimal("2.50")},
]


@pytest.mark.parametrize(
    ("query", "bad", "message"),
    [
        ("SELECT id, 10 / n AS x FROM o", {"n": 0}, r"DIVIDE_BY_ZERO.*try_divide"),
        ("SELECT id, n % (n - 3) AS x FROM o", {"n": 3}, "REMAINDER_BY_ZERO|DIVIDE_BY_ZERO"),
        ("SELECT id, n + 2147483000 AS x FROM o", {"n": 1000}, "ARITHMETIC_OVERFLOW"),
        ("SELECT id, CAST(note AS int) AS x FROM o", {"note": "x"}, "CAST_INVALID_INPUT.*'x'"),
        (
            "SELECT id, CAST(d AS decimal(3,2)) AS x FROM o",
            {"d": Decimal("100.00")},
            "NUMERIC_VALUE_OUT_OF_RANGE",
        ),
        (
            "SELECT count(*) AS n, sum(big) AS s FROM o",
            {"big": 2**62},
            r"sum\(.*big\) of a view has no result of its type.*too large for a bigint",
        ),
        (
            "SELECT note <> '' AS k, sum(CAST(big AS decimal(38,19))) AS s FROM o GROUP BY 1",
            {"big": 2**63 - 1},
            r"sum\(.*of a view has no result of its type",
        ),
        (
            "SELECT id, sum(big) OVER (ORDER BY id) AS s FROM o",
            {"big": 2**62},
            "too large for a bigint",
        ),
        (
            "SELECT o.id, p.n FROM o JOIN o p ON o.id = p.id AND 1 / (o.n + p.n) < 9",
            {"n": 0},
            "DIVIDE_BY_ZERO",
        ),
    ],
)
def test_a_value_without_a_result_is_an_error_that_names_it(spark, tmp_path, query, bad, message):
    key = ("k",) if " AS k" in query else ()
    with ViewDriver(spark, tmp_path, query, TABLES, key) as view, Oracle(TABLES) as oracle:
        view.batch({"o": GOOD})
        oracle.apply({"o": GOOD})
        before = list(view.rows)
        with pytest.raises(Exception) as failed:
            view.batch({"o": [{**GOOD[0], "id": 3, **bad}]})
        reported = str(explained("revenue", failed.value))
        assert re.search(message, reported), reported
        assert view.rows == before
        # The batch was not committed: the next run goes on from the state before it.
        more = [{**GOOD[1], "id": 4, "big": -5}]
        view.batch({"o": more}, restart=True)
        oracle.apply({"o": more})
        assert not (found := difference(view.rows, oracle.rows(query))), found
