"""TPC-H's 22 queries over tables that change, against DuckDB over the tables as they are."""

from random import Random

import pytest
from support.pipelines.duckdb_oracle import Oracle, difference
from support.pipelines.tpch import TABLES, Shop
from support.pipelines.tpch_queries import QUERIES
from support.pipelines.view_driver import ViewDriver
from tiers import count

# Those that differ most: an outer join under two aggregates, a common table that is used twice,
# EXISTS and NOT EXISTS with inequalities.
QUICK = (13, 15, 21)


@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=() if number in QUICK else pytest.mark.long) for number in QUERIES],
)
@pytest.mark.timeout(300)
def test_tpch(spark, tmp_path, number):
    text, key = QUERIES[number]
    chance = Random(number)
    shop = Shop(seed=number)
    tables = {name: table for name, table in TABLES.items() if name in text}
    batches = [*_halves(chance, shop.first_changes())]
    batches += [shop.refresh() for _ in range(count(quick=3, full=8))]
    sizes = []
    with ViewDriver(spark, tmp_path, text, tables, key) as view, Oracle(tables) as oracle:
        for changes in batches:
            view.batch(changes, restart=chance.random() < 0.3)
            oracle.apply(changes)
            wanted = oracle.rows(text)
            assert not (found := difference(view.rows, wanted)), found
            sizes.append(sum(value is not None for row in wanted for value in row))
    assert any(sizes[1:]), "the query found nothing to compare"


def _halves(chance, changes):
    """Rows of any table can come before those that they refer to."""
    first = {name: [row for row in rows if chance.random() < 0.5] for name, rows in changes.items()}
    yield first
    yield {
        name: [row for row in rows if not any(row is one for one in first[name])]
        for name, rows in changes.items()
    }
