"""session_window() in GROUP BY: rows that come, change and go merge and split sessions."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from support.pipelines.duckdb_oracle import Oracle, difference
from support.pipelines.view_driver import Table, ViewDriver
from tiers import seeds

from headwater.errors import PipelineError

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TABLES = {"clicks": Table("id bigint, who string, seen timestamp, ms int", ("id",))}
_NUMBERED = """WITH begun AS (
    SELECT *, CASE WHEN seen > interval '10' second + lag(seen) OVER by_who THEN 1 ELSE 0 END
              AS is_new
    FROM clicks WHERE seen IS NOT NULL{where}
    WINDOW by_who AS (PARTITION BY who ORDER BY seen, id)),
numbered AS (
    SELECT *, sum(is_new) OVER (PARTITION BY who ORDER BY seen, id) AS session FROM begun),
sessions AS (
    SELECT who, min(seen) AS start, max(seen) + interval '10' second AS end, count(*) AS n,
           sum(ms) AS ms, count(DISTINCT ms) AS kinds
    FROM numbered GROUP BY who, session)
"""
SESSION = "session_window(seen, '10 seconds')"
# The query, and the same for DuckDB over `sessions`, which has none itself.
QUERIES = {
    "of a group": (
        f"""SELECT who, session_window.start AS start, session_window.end AS end, count(*) AS n,
                   sum(ms) AS ms, count(DISTINCT ms) AS kinds
            FROM clicks GROUP BY who, {SESSION}""",
        'SELECT who, start, "end", n, ms, kinds FROM sessions',
        "",
    ),
    "a condition on its start": (  # which must not choose among rows
        f"""SELECT who, session_window.start AS start, count(*) AS n FROM clicks
            WHERE ms <> 2 GROUP BY {SESSION}, who
            HAVING session_window.start > timestamp'2026-03-01 12:00:20Z' AND who <> 'c'""",
        """SELECT who, start, n FROM sessions
           WHERE start > timestamptz '2026-03-01 12:00:20Z' AND who <> 'c'""",
        " AND ms <> 2",
    ),
    "in a subquery": (
        f"""WITH s AS (SELECT who, {SESSION} AS session, count(*) AS n, max(ms) AS most
                       FROM clicks GROUP BY who, {SESSION})
            SELECT n, count(*) AS sessions, max(s.session.end) AS last FROM s GROUP BY n""",
        'SELECT n, count(*) AS sessions, max("end") AS last FROM sessions GROUP BY n',
        "",
    ),
    "in grouping sets": (
        f"""SELECT who, session_window.start AS start, grouping_id() AS gid, count(*) AS n,
                   sum(ms) AS ms, count(DISTINCT ms) AS kinds
            FROM clicks GROUP BY ROLLUP (who, {SESSION})""",
        """SELECT who, start, 0 AS gid, n, ms, kinds FROM sessions
           UNION ALL SELECT who, NULL, 1, count(*), sum(ms), count(DISTINCT ms)
                     FROM numbered GROUP BY who
           UNION ALL SELECT NULL, NULL, 3, count(*), sum(ms), count(DISTINCT ms)
                     FROM numbered HAVING count(*) > 0""",
        "",
    ),
}  # fmt: skip
KEYS = {"in grouping sets": ("gid", "who", "start")}
QUICK = ("of a group", "in grouping sets")


@pytest.mark.parametrize(
    "about",
    [
        pytest.param(about, marks=() if about in QUICK else pytest.mark.long, id=about)
        for about in QUERIES
    ],
)
def test_the_sessions_are_those_of_the_rows_at_every_output(spark, tmp_path, about):
    query, of_duckdb, where = QUERIES[about]
    for seed in seeds(6):
        chance = random.Random(seed)
        with (
            ViewDriver(spark, tmp_path / str(seed), query, TABLES, KEYS.get(about, ())) as view,
            Oracle(TABLES) as oracle,
        ):
            for number in range(20):
                changes = {"clicks": _changes(chance)}
                view.batch(changes, restart=chance.random() < 0.3)
                oracle.apply(changes)
                wanted = oracle.rows(_NUMBERED.format(where=where) + of_duckdb)
                found = difference(view.rows, wanted)
                assert not found, f"seed {seed}, batch {number}: {found}"


def _changes(chance):
    """Times on a grid of 5 s: sessions overlap, touch, and are a grid's step apart."""
    changes = [
        {
            "id": chance.randrange(14),
            "who": chance.choice([None, "a", "b", "c"]),
            "seen": chance.choice([None] + [START + timedelta(seconds=5 * n) for n in range(20)]),
            "ms": chance.choice([None, 1, 2, 3]),
        }
        for _ in range(chance.randrange(5))
    ]
    changes += [{"id": chance.randrange(14), "_op": "d"} for _ in range(chance.randrange(3))]
    chance.shuffle(changes)
    return changes


def test_a_row_in_between_merges_two_sessions_and_its_deletion_splits_them(spark, tmp_path):
    def row(number, second):
        return {"id": number, "who": "a", "seen": START + timedelta(seconds=second), "ms": 1}

    def sessions():
        return sorted(((start - START).seconds, (end - START).seconds, n)
                      for _, start, end, n, *_ in view.rows)  # fmt: skip

    with ViewDriver(spark, tmp_path, QUERIES["of a group"][0], TABLES) as view:
        assert view.key == ("who", "start")
        view.batch({"clicks": [row(1, 0), row(2, 15)]})
        assert sessions() == [(0, 10, 1), (15, 25, 1)]
        view.batch({"clicks": [row(3, 8)]})
        assert sessions() == [(0, 25, 3)]
        view.batch({"clicks": [{"id": 3, "_op": "d"}]})
        assert sessions() == [(0, 10, 1), (15, 25, 1)]
        view.batch({"clicks": [row(2, 10)]})  # ends and begins at the same moment
        assert sessions() == [(0, 20, 2)]


def test_a_gap_of_each_row_and_what_touches_are_as_in_spark(spark, tmp_path):
    query = """SELECT session_window.start AS start, session_window.end AS end, count(*) AS n
               FROM clicks GROUP BY session_window(seen, CASE WHEN ms = 1 THEN '30 seconds'
                                                            WHEN ms = 2 THEN '0 seconds'
                                                            ELSE '5 seconds' END)"""
    rows = [
        {"id": n, "who": "a", "seen": START + timedelta(seconds=second), "ms": ms}
        for n, (second, ms) in enumerate([(0, 1), (10, 3), (30, 3), (35, 3), (41, 3), (50, 2)])
    ]
    spark.createDataFrame(rows, TABLES["clicks"].schema).createOrReplaceTempView("clicks")
    wanted = [
        tuple(one.replace(tzinfo=UTC) if isinstance(one, datetime) else one for one in row)
        for row in spark.sql(query).collect()
    ]
    with ViewDriver(spark, tmp_path, query, TABLES) as view:
        view.batch({"clicks": rows})
        assert sorted(view.rows) == sorted(wanted)


def test_sessions_in_a_condition_are_refused(spark, tmp_path):
    counts = f"SELECT count(*) FROM clicks GROUP BY who, {SESSION}"
    query = f"SELECT id FROM clicks WHERE id IN ({counts})"
    with pytest.raises(PipelineError, match=r"session_window\(\) in .* maintained incrementally"):
        ViewDriver(spark, tmp_path, query, TABLES, ("who",))
