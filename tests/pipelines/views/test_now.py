"""Conditions on now(): rows come and go with the time of the batch, also without records."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from support.pipelines.duckdb_oracle import Oracle, difference
from support.pipelines.view_driver import Table, ViewDriver
from tiers import seeds

from headwater.errors import PipelineError

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TABLES = {
    "o": Table("id bigint, customer bigint, ordered_at timestamp", ("id",)),
    "c": Table("id bigint, since timestamp", ("id",)),
}
QUERIES = {
    "the last minute": (
        "SELECT id, ordered_at FROM o WHERE ordered_at > {now} - interval '1' minute AND id <> 3"
    ),
    "from a moment to another": (
        """SELECT customer, count(*) AS n, min(ordered_at) AS low FROM o
           WHERE ordered_at BETWEEN {now} - interval '40' second AND {now} + interval '10' second
           GROUP BY customer"""
    ),
    "in a join": (
        """SELECT o.id, c.since FROM o LEFT JOIN c ON o.customer = c.id AND c.since <= {now}
           WHERE {now} < o.ordered_at + interval '30' second"""
    ),
    "of an aggregate": (
        """SELECT customer, max(ordered_at) AS last FROM o GROUP BY customer
           HAVING max(ordered_at) >= {now} - interval '20' second"""
    ),
}
QUICK = ("from a moment to another", "in a join")


@pytest.mark.parametrize(
    "about",
    [
        pytest.param(about, marks=() if about in QUICK else pytest.mark.long, id=about)
        for about in QUERIES
    ],
)
def test_rows_come_and_go_with_the_time_of_the_batch(spark, tmp_path, about):
    query = QUERIES[about]
    for seed in seeds(6):
        chance = random.Random(seed)
        with (
            ViewDriver(
                spark, tmp_path / str(seed), query.format(now="now()"), TABLES, _key(about)
            ) as view,
            Oracle(TABLES) as oracle,
        ):
            now = START
            for number in range(12):
                now += timedelta(seconds=chance.choice([0, 1, 5, 10, 30]))
                changes = {"o": [], "c": []} if number % 3 == 2 else _changes(chance, now)
                now_ms = int(now.timestamp() * 1000)
                view.batch(changes, restart=chance.random() < 0.3, now_ms=now_ms)
                oracle.apply(changes)
                moment = f"timestamptz '{now.isoformat()}'"
                found = difference(view.rows, oracle.rows(query.format(now=moment)))
                assert not found, f"seed {seed}, batch {number}: {found}"


def _key(about):
    return ("id",) if about == "in a join" else ()


def _changes(chance, now):
    def time():
        return chance.choice([None, now + timedelta(seconds=chance.randint(-8, 8) * 5)])

    changes = {
        "o": [
            {"id": chance.randrange(8), "customer": chance.randrange(3), "ordered_at": time()}
            for _ in range(chance.randrange(4))
        ],
        "c": [
            {"id": chance.randrange(3), "since": time()} for _ in range(chance.randrange(2))
        ],
    }  # fmt: skip
    changes["o"] += [{"id": chance.randrange(8), "_op": "d"} for _ in range(chance.randrange(2))]
    return changes


def test_only_rows_that_are_still_to_come_or_to_go_are_stored(spark, tmp_path):
    query = "SELECT id FROM o WHERE ordered_at > now() - interval 1 hour"
    now_ms = int(START.timestamp() * 1000)
    with ViewDriver(spark, tmp_path, query, TABLES) as view:
        view.batch({"o": [{"id": n, "ordered_at": START} for n in range(5)]}, now_ms=now_ms)
        assert view.plan.follows_clock  # so that it gets batches without records
        assert view.state_rows("moving") == 5
        assert sorted(view.rows) == [(n,) for n in range(5)]
        assert len(view.batch({}, now_ms=now_ms + 3_600_000)) == 5
        assert view.rows == []
        assert view.state_rows("moving") == 0


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, now() AS t FROM o",
        "SELECT id FROM o WHERE ordered_at > now() - interval 1 month",
        "SELECT id FROM o WHERE ordered_at > now() OR id = 1",
        "SELECT id FROM o WHERE CAST(ordered_at AS date) = current_date()",
        "SELECT id FROM o WHERE NOT (ordered_at > now())",
        "SELECT id FROM o WHERE id IN (SELECT id FROM c WHERE since < now())",
    ],
)
def test_other_uses_of_a_clock_are_refused(spark, tmp_path, query):
    with pytest.raises(PipelineError, match=r"although no record arrives|in a subquery"):
        ViewDriver(spark, tmp_path, query, TABLES)
