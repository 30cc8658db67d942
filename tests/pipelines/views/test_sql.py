"""Queries over tables that change, against DuckDB over the tables as they are, at every output."""

import math
import random
from datetime import UTC, datetime, timedelta
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
    "a step that is used twice": (
        """WITH t AS (SELECT country, amount FROM o JOIN c ON o.customer = c.id)
           SELECT 'sum' AS kind, country, sum(amount) AS amount FROM t GROUP BY country
           UNION ALL SELECT 'highest', country, max(amount) FROM t GROUP BY country
           UNION ALL SELECT 'rest', country, (SELECT sum(amount) FROM o) - sum(amount)
           FROM t GROUP BY country""",
        ("kind", "country"),
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
         "a scalar subquery beside aggregates", "a step that is used twice",
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


def test_a_step_that_is_used_several_times_is_computed_once(spark, tmp_path):
    query, key = QUERIES["a step that is used twice"]
    with ViewDriver(spark, tmp_path, query, TABLES, key) as view:
        kinds = sorted(one.name.rpartition("-")[2] for one in view.write.operators)
    # One join of o with c, and that of the rest with the total.
    assert kinds.count("join") == 2
    assert kinds.count("table") == 2


def test_a_table_is_stored_once_with_all_columns_that_the_query_reads(spark, tmp_path):
    query = "SELECT a.id, a.qty, b.note FROM o a JOIN o b ON a.customer = b.id"
    with ViewDriver(spark, tmp_path, query, TABLES, ("id",)) as view, Oracle(TABLES) as oracle:
        first = [{"id": 1, "customer": 2, "qty": 5, "note": "a"}, {"id": 2, "note": "b"}]
        for rows in (first, [{"id": 2, "note": "c"}], [{"id": 2, "_op": "d"}]):
            view.batch({"o": rows})
            oracle.apply({"o": rows})
            assert not (found := difference(view.rows, oracle.rows(query))), found
        (table,) = [one for one in view.write.operators if one.name.endswith("-table")]
        assert set(table.operator.columns.names) == {"id", "customer", "qty", "note"}


# Where Spark and DuckDB have other words: the query, its key, and the query for DuckDB.
OTHER_WORDS = {
    "texts": (
        """SELECT customer, string_agg(note, ', ') WITHIN GROUP (ORDER BY note) AS up,
                  listagg(DISTINCT note, '') WITHIN GROUP (ORDER BY note DESC) AS down
           FROM o GROUP BY customer""",
        (),
        """SELECT customer, string_agg(note, ', ' ORDER BY note) AS up,
                  string_agg(DISTINCT note, '' ORDER BY note DESC) AS down
           FROM o GROUP BY customer""",
    ),
    "explode": (
        """SELECT customer, word, count(*) AS n FROM o
           LATERAL VIEW explode(split(note, ',')) w AS word GROUP BY customer, word""",
        (),
        """SELECT customer, word, count(*) AS n
           FROM (SELECT customer, unnest(string_split(note, ',')) AS word FROM o)
           GROUP BY customer, word""",
    ),
    "explode of nothing": (
        """SELECT id, place, word FROM o
           LATERAL VIEW OUTER posexplode(split(nullif(note, 'a'), ',')) w AS place, word""",
        ("id", "place"),
        """SELECT id, place - 1 AS place, word FROM o LEFT JOIN LATERAL (
               SELECT unnest(string_split(nullif(note, 'a'), ',')) AS word,
                      generate_subscripts(string_split(nullif(note, 'a'), ','), 1) AS place
           ) ON true""",
    ),
    "json": (
        """SELECT get_json_object(j, '$.c') AS c, sum(CAST(get_json_object(j, '$.q') AS int)) AS q,
                  max(from_json(j, 'q int').q) AS most
           FROM (SELECT to_json(named_struct('c', customer, 'q', qty)) AS j FROM o)
           GROUP BY get_json_object(j, '$.c')""",
        (),
        """SELECT CAST(customer AS varchar) AS c, sum(qty) AS q, max(qty) AS most FROM o
           GROUP BY customer""",
    ),
    "the best of each, by a lateral subquery": (
        """SELECT c.id, c.country, best.id AS o, best.amount FROM c, LATERAL (
               SELECT id, amount FROM o WHERE o.customer = c.id
               ORDER BY amount DESC NULLS LAST, id LIMIT 2) AS best""",
        ("id", "o"),
        "",
    ),
}


@pytest.mark.parametrize("about", OTHER_WORDS)
def test_what_duckdb_has_other_words_for(spark, tmp_path, about):
    query, key, of_duckdb = OTHER_WORDS[about]
    chance = random.Random(about)
    with ViewDriver(spark, tmp_path, query, TABLES, key) as view, Oracle(TABLES) as oracle:
        for number in range(_BATCHES):
            changes = _changes(chance)
            view.batch(changes, restart=number % 3 == 0)
            oracle.apply(changes)
            assert not (found := difference(view.rows, oracle.rows(of_duckdb or query))), found


def test_a_moving_sum_over_time(spark, tmp_path):
    tables = {"o": Table("id bigint, moment timestamp, day date, qty int", ("id",))}
    query = """SELECT id, sum(qty) OVER (ORDER BY moment RANGE BETWEEN INTERVAL '1' HOUR PRECEDING
                                         AND CURRENT ROW) AS hour,
                      sum(qty) OVER (ORDER BY day DESC RANGE BETWEEN 2 PRECEDING
                                     AND 1 FOLLOWING) AS days FROM o"""
    of_duckdb = query.replace("2 P", "INTERVAL '2' DAY P").replace("1 F", "INTERVAL '1' DAY F")
    chance = random.Random(1)
    start = datetime(2024, 2, 28, 22, tzinfo=UTC)
    with ViewDriver(spark, tmp_path, query, tables) as view, Oracle(tables) as oracle:
        for _ in range(4):
            rows = []
            for number in chance.sample(range(12), 5):
                at = start + timedelta(minutes=chance.choice([0, 59, 60, 61, 200, 1500, 4400]))
                times = {"moment": at, "day": at.date()} if chance.random() < 0.8 else {}
                rows.append({"id": number, "qty": chance.randrange(5), **times})
            view.batch({"o": rows})
            oracle.apply({"o": rows})
            assert not (found := difference(view.rows, oracle.rows(of_duckdb))), found


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
        ("SELECT array(qty) AS k, count(*) AS n FROM o GROUP BY 1", "k cannot be part of the key"),
        ("SELECT try_sum(qty) AS m FROM o", r"try_sum.* cannot be maintained incrementally"),
        (
            "SELECT string_agg(note, ',') WITHIN GROUP (ORDER BY id) AS m FROM o",
            "listagg.* cannot be maintained incrementally",
        ),
        ("SELECT id, qty FROM o EXCEPT ALL SELECT id, id FROM c", "Spark cannot plan"),
        (
            "SELECT id FROM o ORDER BY id + (SELECT max(id) FROM c) LIMIT 1",
            "LIMIT cannot be maintained",
        ),
        ("SELECT id, (SELECT id FROM c WHERE c.id < o.id) AS x FROM o", "may have several rows"),
        ("SELECT id, (SELECT id FROM c WHERE vip = (o.id = 1)) AS x FROM o", "several rows"),
        ("SELECT (SELECT id FROM c) AS x, id FROM o", "may have several rows"),
        (
            """SELECT id, sum(qty) OVER (ORDER BY date_add(date '2024-01-01', qty)
               RANGE BETWEEN INTERVAL '1' MONTH PRECEDING AND CURRENT ROW) AS s FROM o""",
            "RANGE of months",
        ),
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


def test_the_null_groups_of_two_sides_are_not_one_row(spark, tmp_path):
    query = """SELECT a.note, b.country, n, m
               FROM (SELECT note, count(*) AS n FROM o GROUP BY note) a
               FULL JOIN (SELECT country, count(*) AS m FROM c GROUP BY country) b
                 ON a.note = b.country"""
    with ViewDriver(spark, tmp_path, query, TABLES) as view:
        view.batch({"o": [{"id": 1}, {"id": 2, "note": "a"}], "c": [{"id": 1, "country": "a"}]})
        assert view.key == ("note", "country")
        assert len(view.rows) == 2
        with pytest.raises(PipelineError, match="two rows have note = None, country = None"):
            view.batch({"c": [{"id": 2}]})


def test_not_in_costs_no_product(spark, tmp_path):
    query = "SELECT * FROM o WHERE customer NOT IN (SELECT id FROM c)"
    with ViewDriver(spark, tmp_path, query, TABLES) as view:
        joins = [one.operator for one in view.write.operators if one.name.endswith("-join")]
        found = sorted((join.how, len(join.left.key)) for join in joins)
        assert found == [("anti", 0), ("anti", 0), ("anti", 1)]
        rows = [{"id": number, "customer": number} for number in range(3000)]
        view.batch({"o": [*rows, {"id": -1}]})
        assert len(view.rows) == 3001
        view.batch({"c": [{"id": number} for number in range(2999)]})
        assert [row[:2] for row in view.rows] == [(2999, 2999)]
        view.batch({"c": [{"id": number, "_op": "d"} for number in range(2999)]})
        assert len(view.rows) == 3001


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
