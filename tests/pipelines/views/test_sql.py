"""Queries over tables that change, against DuckDB over the tables as they are, at every output."""

import math
import random
from decimal import Decimal

import pytest
from support.pipelines.duckdb_oracle import Oracle, difference
from support.pipelines.view_driver import Table, ViewDriver
from tiers import seeds

from headwater.errors import PipelineError

TABLES = {
    "o": Table(
        "id bigint, customer bigint, amount decimal(10,2), qty int, note string, f double", ("id",)
    ),
    "c": Table("id bigint, country string, vip boolean", ("id",)),
}
_BATCHES = 8

# By what they are about; the key, where the query implies none.
QUERIES = {
    "rows": ("SELECT id, note || '!' AS note, qty + 1 AS q FROM o WHERE qty > 0", ()),
    "groups of a join": (
        """SELECT c.country, count(*) AS n, sum(o.amount) AS s, count(DISTINCT o.customer) AS d,
                  sum(qty) FILTER (WHERE qty > 1) AS q, min(o.amount) AS low, max(o.note) AS high
           FROM o JOIN c ON o.customer = c.id WHERE o.qty + 1 > 0
           GROUP BY c.country HAVING count(*) > 1""",
        (),
    ),
    "floats": (
        "SELECT customer, sum(f) AS s, max(f) AS high, min(f) AS low FROM o GROUP BY customer",
        (),
    ),
    "in and exists": (
        """SELECT * FROM o WHERE customer IN (SELECT id FROM c WHERE vip)
           AND EXISTS (SELECT 1 FROM c WHERE c.id = o.qty AND c.id < o.id)""",
        (),
    ),
    "not in": ("SELECT * FROM o WHERE customer NOT IN (SELECT id FROM c)", ()),
    "not exists": (
        "SELECT id FROM o WHERE NOT EXISTS (SELECT 1 FROM c WHERE c.id = o.customer)",
        (),
    ),
    "scalar subqueries": (
        """SELECT id, (SELECT max(id) FROM c) AS m, (SELECT count(*) FROM c) AS z,
                  (SELECT count(*) FROM c WHERE c.id = o.customer) AS k,
                  (SELECT country FROM c WHERE c.id = o.customer) AS country
           FROM o WHERE amount >= (SELECT avg(amount) FROM o)""",
        (),
    ),
    "a scalar subquery beside aggregates": (
        """SELECT o.qty, sum(amount) AS s, (SELECT max(id) FROM c) AS m FROM o
           JOIN c ON o.customer = c.id AND o.id < c.id + (SELECT count(*) FROM c) GROUP BY o.qty""",
        (),
    ),
    "left join with a condition": (
        """SELECT a.id AS i, b.id AS j FROM o a
           LEFT JOIN o b ON a.customer = b.customer AND a.qty < b.qty""",
        ("i", "j"),
    ),
    "full join": (
        "SELECT a.id AS i, b.id AS j, a.qty, b.country FROM o a FULL JOIN c b ON a.customer = b.id",
        ("i", "j"),
    ),
    "full join with a condition": (
        """SELECT a.id AS i, b.id AS j, a.qty, b.country FROM o a
           FULL JOIN c b ON a.customer = b.id AND a.qty > 1""",
        ("i", "j"),
    ),
    "right join": ("SELECT a.id AS i, b.id AS j FROM o a RIGHT JOIN c b ON a.customer = b.id",
                   ("i", "j")),
    "no equality": ("SELECT o.id, c.id AS other FROM o, c WHERE o.qty < c.id", ()),
    "window functions": (
        """SELECT id, customer,
                  row_number() OVER (PARTITION BY customer ORDER BY amount DESC NULLS LAST, id) rn,
                  sum(qty) OVER (PARTITION BY customer ORDER BY id) AS s,
                  lag(qty) OVER (PARTITION BY customer ORDER BY id) AS before,
                  max(qty) OVER (PARTITION BY customer ORDER BY id
                                 ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS high
           FROM o""",
        (),
    ),
    "top of each group": (
        """SELECT id, customer FROM o
           QUALIFY row_number() OVER (PARTITION BY customer ORDER BY qty DESC NULLS LAST, id) <= 2
        """,
        (),
    ),
    "order and limit": (
        "SELECT id, amount FROM o ORDER BY amount DESC NULLS LAST, id LIMIT 3 OFFSET 1",
        (),
    ),
    "groups of groups": (
        """WITH t AS (SELECT customer, sum(amount) AS s FROM o GROUP BY customer)
           SELECT s, count(*) AS n FROM t GROUP BY s""",
        (),
    ),
    "grouping sets": (
        """SELECT customer, qty, grouping(customer) AS g, count(*) AS n FROM o
           GROUP BY GROUPING SETS ((customer), (qty))""",
        ("customer", "qty", "g"),
    ),
    "offset": ("SELECT id, qty FROM o ORDER BY id DESC LIMIT 2 OFFSET 2", ()),
    "a scalar subquery beside a limit": (
        "SELECT id, (SELECT max(id) FROM c) AS m FROM o ORDER BY qty DESC NULLS LAST, id LIMIT 3",
        (),
    ),
    "values": (
        """SELECT o.id, v.name FROM o LEFT JOIN (VALUES (1, 'one'), (2, 'two')) AS v(n, name)
           ON o.qty = v.n""",
        ("id",),
    ),
    "aggregates of no rows": (
        """SELECT a.n, a.s, b.low, b.n AS m FROM (SELECT count(*) AS n, sum(qty) AS s FROM o
           WHERE qty > 2) a, (SELECT min(id) AS low, count(DISTINCT id) AS n FROM c WHERE vip) b""",
        (),
    ),
    "by the extreme of another column": (
        """SELECT customer, max_by(id, id - 100 * qty) AS h, min_by(id, amount + id / 100) AS l
           FROM o GROUP BY customer""",
        (),
    ),
    "lead": (
        "SELECT id, lead(qty, 2, -1) OVER (PARTITION BY customer ORDER BY id) AS n FROM o",
        (),
    ),
    "no columns of a side": (
        """SELECT o.id FROM o CROSS JOIN (SELECT country FROM c WHERE id = 1) x
           WHERE EXISTS (SELECT 1 FROM c WHERE vip)""",
        ("id",),
    ),
    "a constant as the group": ("SELECT 'all' AS name, count(*) AS n FROM o GROUP BY 1", ()),
    "except": ("SELECT id FROM o EXCEPT SELECT id FROM c", ()),
    "intersect": ("SELECT id FROM o INTERSECT SELECT id FROM c", ()),
    "union": ("SELECT id, qty AS n FROM o UNION SELECT id, id FROM c", ()),
    "distinct": ("SELECT DISTINCT country, vip FROM c", ()),
}  # fmt: skip
QUICK = ("groups of a join", "scalar subqueries", "values", "aggregates of no rows",
         "a scalar subquery beside aggregates",
         "full join with a condition", "window functions", "not in", "union")  # fmt: skip


@pytest.mark.parametrize(
    "about",
    [
        pytest.param(about, marks=() if about in QUICK else pytest.mark.long, id=about)
        for about in QUERIES
    ],
)
def test_the_result_is_that_of_the_query_at_every_output(spark, tmp_path, about):
    query, key = QUERIES[about]
    for seed in seeds(6):
        chance = random.Random(seed)
        with (
            ViewDriver(spark, tmp_path / str(seed), query, TABLES, key) as view,
            Oracle(TABLES) as oracle,
        ):
            for number in range(_BATCHES):
                changes = _changes(chance)
                view.batch(changes, restart=chance.random() < 0.3)
                oracle.apply(changes)
                if not oracle.has_begun:
                    continue  # aggregates of nothing have no row before the first record
                found = difference(view.rows, oracle.rows(query))
                assert not found, f"seed {seed}, batch {number}: {found}"


def _changes(chance):
    made = {
        "o": lambda number: {
            "id": number,
            "customer": chance.choice([None, 1, 2, 3, 4]),
            "amount": chance.choice([None, *map(Decimal, ("1.50", "2.25", "-3.00", "10.01"))]),
            "qty": chance.choice([None, 0, 1, 2, 3]),
            "note": chance.choice([None, "a", "b,c", "ß"]),
            "f": chance.choice([None, 0.1, 0.2, 1e300, -1e300, math.nan, -0.0, 3.5]),
        },
        "c": lambda number: {
            "id": number,
            "country": chance.choice([None, "de", "fr", "at"]),
            "vip": chance.choice([None, True, False]),
        },
    }
    changes = {"o": [], "c": []}
    for table, most in (("o", 8), ("c", 5)):
        for _ in range(chance.randrange(5)):
            number = chance.randrange(most)
            if chance.random() < 0.3:
                changes[table].append({"id": number, "_op": "d"})
            else:
                changes[table].append(made[table](number))
    if chance.random() < 0.05:
        changes["o"].append({"_op": "t"})
    return changes


def test_an_event_topic_needs_no_key(spark, tmp_path):
    tables = {"clicks": Table("page string, ms int")}
    query = "SELECT page, count(*) AS n, max(ms) AS slowest FROM clicks GROUP BY page"
    with ViewDriver(spark, tmp_path, query, tables) as view:
        view.batch({"clicks": [{"page": "a", "ms": 5}, {"page": "a", "ms": 5}]})
        view.batch({"clicks": [{"page": "a", "ms": 7}, {"page": "b", "ms": 1}]})
        assert sorted(view.rows) == [("a", 3, 7), ("b", 1, 1)]
        assert sorted(row["_op"] for row in view.last) == ["c", "u"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT nothing FROM o", r"UNRESOLVED_COLUMN.*nothing"),
        ("SELECT id FROM elsewhere", r"TABLE_OR_VIEW_NOT_FOUND.*elsewhere"),
        ("SELEC id FROM o", r"PARSE_SYNTAX_ERROR"),
        ("SELECT id, rand() AS r FROM o", "another result whenever it is asked"),
        ("SELECT id FROM o WHERE id < unix_timestamp(now())", "although no record arrives"),
        ("SELECT qty, count(*) AS n FROM o GROUP BY qty, note", "implies no key"),
        ("SELECT id, id FROM o", "two columns of the result are called id"),
        ("SELECT histogram_numeric(qty, 2) AS m FROM o", "cannot be maintained incrementally"),
        ("SELECT id, qty FROM o EXCEPT ALL SELECT id, id FROM c", "Spark cannot plan"),
        (
            "SELECT id FROM o ORDER BY id + (SELECT max(id) FROM c) LIMIT 1",
            "LIMIT cannot be maintained",
        ),
        ("SELECT id, (SELECT id FROM c WHERE c.id < o.id) AS x FROM o", "may have several rows"),
        ("SELECT id, (SELECT id FROM c WHERE vip = (o.id = 1)) AS x FROM o", "several rows"),
        ("SELECT (SELECT id FROM c) AS x, id FROM o", "may have several rows"),
    ],
)
def test_what_cannot_be_maintained_incrementally_is_refused(spark, tmp_path, query, message):
    with pytest.raises(PipelineError, match=message):
        ViewDriver(spark, tmp_path, query, TABLES)


def test_a_key_that_is_not_unique_stops_the_view(spark, tmp_path):
    with ViewDriver(spark, tmp_path, "SELECT qty, note FROM o", TABLES, ("qty",)) as view:
        view.batch({"o": [{"id": 1, "qty": 5}]})
        with pytest.raises(PipelineError, match="two rows have qty = 5"):
            view.batch({"o": [{"id": 2, "qty": 5, "note": "x"}]})


def test_a_column_that_the_query_does_not_read_leaves_its_state_alone(spark, tmp_path):
    query = "SELECT id, qty FROM o"
    names = []
    for number, more in enumerate(("", ", added string")):
        tables = {"o": Table(f"id bigint, qty int{more}", ("id",))}
        with ViewDriver(spark, tmp_path / str(number), query, tables) as view:
            names.append([operator.name for operator in view.write.operators])
    assert names[0] == names[1]
    tables = {"o": Table("id bigint, qty bigint", ("id",))}
    with ViewDriver(spark, tmp_path / "other", query, tables) as view:
        assert not set(names[0]) & {operator.name for operator in view.write.operators}
