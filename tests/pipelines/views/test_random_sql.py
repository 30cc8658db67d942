"""Random queries over random tables, against DuckDB at every output, for any cut into batches."""

from random import Random

import pytest
from support.pipelines.duckdb_oracle import Oracle, difference
from support.pipelines.random_queries import RandomQuery, RandomTables
from support.pipelines.view_driver import ViewDriver
from tiers import count

_BATCHES = 5


@pytest.mark.parametrize("seed", range(count(quick=5, full=2000)))
def test_a_random_query(spark, tmp_path, seed):
    chance = Random(seed)
    tables = RandomTables(chance)
    query, key = RandomQuery(chance, tables).text(chance.choice([1, 2, 2, 3]))
    with (
        ViewDriver(spark, tmp_path, query, tables.tables, chance.choice([key, ()])) as view,
        Oracle(tables.tables) as oracle,
    ):
        for number in range(_BATCHES):
            changes = tables.changes()
            view.batch(changes, restart=chance.random() < 0.3)
            oracle.apply(changes)
            if not oracle.has_begun:
                continue  # an aggregate of nothing has no row before the first record
            found = difference(view.rows, oracle.rows(query))
            assert not found, f"batch {number} of\n{query}\n{found}"
