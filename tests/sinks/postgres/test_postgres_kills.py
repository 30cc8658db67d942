"""Drivers that write to PostgreSQL are killed, and so is PostgreSQL; the tasks, too, that stage."""

import pytest
from support.sinks.sink_killing import KillContract
from test_postgres_sink_contract import SCHEMAS, Postgres, warehouse
from tiers import count

__all__ = ["warehouse"]


class TestPostgresKills(KillContract):
    drivers = ("psycopg2",)
    has_all_of_it = True
    chosen_kills = count(quick=10, full=30)

    @pytest.fixture
    def backend(self, warehouse):
        return Postgres(warehouse, f"s{next(SCHEMAS)}")


class StagedPostgres(Postgres):
    is_staged = True


class TestStagedPostgresKills(KillContract):
    drivers = ("psycopg2",)
    chosen_kills = count(quick=5, full=60)

    @pytest.fixture
    def backend(self, warehouse):
        return StagedPostgres(warehouse, f"s{next(SCHEMAS)}")
